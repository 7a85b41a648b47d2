"""Damage that knows the form of what it damages.

Bytes, JSON trees, named tensors, and the digests that vouch for them.
"""

import copy
import hashlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

DEEP = "[" * 100_000 + "]" * 100_000
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    10**6,
    10**12,
    2**63,
    10**400,
    -(10**30),
    0.0,
    -0.5,
    1e-320,
    1e308,
    -1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "x",
    "0",
    "../../etc/passwd",
    "/etc/passwd",
    "\ud800",
    "\0",
    "\u202e",
    "a/b/c",
    "a|b",
    "encoder/x",
    "encoder/-1",
    "encoder/99999999999999999999",
    "<script>",
    "{0.__class__}",
    "%s%n",
    "x" * 5000,
    [],
    {},
    [[]],
    [None],
    [1, 2, 3],
    {"": {}},
    {"name": "x"},
    [{"a": 1}],
    [[[[[[1]]]]]],
]
NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-310, 1e308, -1e308, 1e200, 0.5, 3e9]
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def damaged_bytes(content: bytes, rng: Random) -> bytes:
    """Bits flipped, cut, grown, repeated or overwritten with numbers that lie at the edges."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + rng.randrange(1, 64)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 64))
        elif kind == 4:
            data[at:at] = data[at : at + rng.randrange(1, 256)]
        elif kind == 5:
            edge = rng.choice(
                [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1]
            )
            size = rng.choice("BHIQ")
            data[at : at + struct.calcsize(size)] = struct.pack(
                "<" + size, edge & (256 ** struct.calcsize(size) - 1)
            )
        else:
            data[at : at + 8] = rng.choice(
                [
                    b"\0" * 8,
                    b"\xff" * 8,
                    b"\xed\xa0\x80",
                    b"99999999",
                    b"-1",
                    b"NaN",
                    b"{}",
                    b"\\ud800",
                ]
            )
    return bytes(data)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found, queue = [], [tree]
    while queue:
        node = queue.pop()
        items = (
            node.items()
            if isinstance(node, dict)
            else enumerate(node)
            if isinstance(node, list)
            else ()
        )
        for key, value in items:
            found.append((node, key))
            queue.append(value)
    return found


def damaged_tree(tree: Any, rng: Random) -> Any:
    """A JSON tree with values of other types, keys dropped, added, renamed or exchanged, lists cut
    and grown.
    """
    tree = copy.deepcopy(tree)
    if rng.random() < 0.01:
        return rng.choice(VALUES)
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        places = _places(tree)
        if not places:
            return tree
        if rng.random() < 0.5:  # large tables would otherwise get nearly all of it
            places = _shallow(places, tree)
        node, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind <= 2:
            node[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 3:
            del node[key]
        elif kind == 4 and isinstance(node, dict):
            node[rng.choice(["x", "", "name", "0", "__class__", "heads", "format"])] = (
                copy.deepcopy(rng.choice(VALUES))
            )
        elif kind == 5 and isinstance(node, dict):
            node[str(rng.choice(["x", "encoder/7", "full", "-1", "1e9"]))] = node.pop(key)
        elif kind == 6:
            other, name = rng.choice(places)
            node[key], other[name] = (
                copy.deepcopy(other.get(name) if isinstance(other, dict) else other[name]),
                copy.deepcopy(node[key]),
            )
        elif isinstance(node[key], list) and node[key]:
            node[key] = rng.choice(
                [node[key][:-1], node[key][1:], node[key] * 2, node[key][::-1], node[key][:1]]
            )
        elif isinstance(node[key], int | float) and not isinstance(node[key], bool):
            node[key] = rng.choice(
                [-node[key], node[key] + 1, node[key] * 2, node[key] // 3, str(node[key]), 10**9]
            )
    return tree


def _shallow(places: list[tuple[Any, Any]], tree: Any) -> list[tuple[Any, Any]]:
    near = [id(tree), *(id(value) for value in (tree.values() if isinstance(tree, dict) else tree))]
    return [(node, key) for node, key in places if id(node) in near] or places


def json_bytes(tree: Any, rng: Random) -> bytes:
    """As text, now and then nested beyond what a parser can follow."""
    if rng.random() < 0.004:
        return (json.dumps(tree)[:-1] + ', "deep": ' + DEEP + "}").encode()
    return json.dumps(tree, indent=rng.choice([None, 1])).encode()


def damaged_tensor(x: Tensor, rng: Random) -> Tensor:
    """Another shape, another type, other values."""
    kind = rng.randrange(9)
    flat = x.clone()
    if kind == 0:
        return flat[..., None] if rng.random() < 0.5 or not x.ndim else flat[0]
    if kind == 1:
        return flat.transpose(0, -1).contiguous() if x.ndim > 1 else flat.flatten()
    if kind == 2 and x.ndim:
        dim = rng.randrange(x.ndim)
        size = x.shape[dim]
        return flat.narrow(dim, 0, rng.randrange(size) if size else 0).contiguous()
    if kind == 3 and x.ndim:
        dim = rng.randrange(x.ndim)
        return torch.cat([flat, flat], dim)
    if kind == 4:
        wanted = rng.choice(DTYPES)
        return flat.to(wanted)
    if kind == 5:
        return torch.zeros(
            rng.choice([(), (0,), (0, 1 << 40), (1,), (3,), (2, 2), (1, 1, 1, 1)]), dtype=x.dtype
        )
    if x.is_floating_point() and x.numel():
        # as far as this type reaches
        value = float(torch.tensor(rng.choice(NUMBERS), dtype=torch.float64).to(x.dtype))
        if kind == 6:
            flat.view(-1)[rng.randrange(x.numel())] = value
            return flat
        if kind == 7:
            return torch.full_like(flat, value)
        return flat * rng.choice([-1.0, 1e150, 1e-150, 1e300])
    return ~flat if x.dtype == torch.bool else -flat


def damaged_tensors(tensors: dict[str, Tensor], rng: Random) -> dict[str, Tensor]:
    """One or a few of the tensors damaged, dropped, renamed, added, or exchanged with another."""
    tensors = dict(tensors)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not tensors:
            break
        name = rng.choice(sorted(tensors))
        kind = rng.randrange(10)
        if kind == 0:
            del tensors[name]
        elif kind == 1:
            tensors[_other_name(name, rng)] = tensors.pop(name)
        elif kind == 2:
            tensors[_other_name(name, rng)] = tensors[name].clone()
        elif kind == 3:
            other = rng.choice(sorted(tensors))
            tensors[name], tensors[other] = tensors[other].clone(), tensors[name].clone()
        else:
            tensors[name] = damaged_tensor(tensors[name], rng)
    return tensors


def _other_name(name: str, rng: Random) -> str:
    """A name with another number, another part, or none of the form."""
    kind = rng.randrange(5)
    if kind == 0:
        return "".join(
            rng.choice(["9", "999999999999", "-1", "x", ""]) if char.isdigit() else char
            for char in name
        )
    if kind == 1:
        return name.replace(rng.choice("/|:"), rng.choice(["/", "|", ":", "", "//"]))
    if kind == 2:
        return rng.choice(
            ["x", "", "/", "|", ":", "a|b|c|d|e|f", "__metadata_", "fit:x/0/second", "held:"]
        )
    if kind == 3:
        return name[: rng.randrange(len(name) + 1)] + rng.choice(["", "x", "\u202e", "\U0001f600"])
    return name.replace("0", "7").replace("1", "8")


def lying_header(content: bytes, rng: Random) -> bytes:
    """A safetensors file whose header says what is not so, the rest as it was."""
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
    except ValueError:
        return damaged_bytes(content, rng)
    header = damaged_tree(header, rng)
    if isinstance(header, dict) and rng.random() < 0.5:
        entries = [
            entry for entry in header.values() if isinstance(entry, dict) and "shape" in entry
        ]
        if entries:
            entry = rng.choice(entries)
            entry.update(
                rng.choice(
                    [
                        {"shape": [1 << 40]},
                        {"shape": [1 << 62, 4]},
                        {"shape": [-1]},
                        {"data_offsets": [0, 1 << 60]},
                        {"data_offsets": [8, 0]},
                        {"dtype": "X99"},
                        {"dtype": "BOOL"},
                        {"data_offsets": [-8, 0]},
                        {"shape": [0, 1 << 62]},
                    ]
                )
            )
    made = json.dumps(header).encode()
    length = rng.choice([len(made), len(made), len(made), 0, 1 << 40, 2**64 - 1, len(made) + 1])
    return length.to_bytes(8, "little") + made + content[8 + size :]


def damage_tensor_file(path: Path, rng: Random) -> None:
    """Damage a safetensors file, most often so that it still opens."""
    kind = rng.randrange(6)
    if kind == 0:
        path.write_bytes(damaged_bytes(path.read_bytes(), rng))
    elif kind == 1:
        path.write_bytes(lying_header(path.read_bytes(), rng))
    else:
        damaged = {
            name: x.contiguous() for name, x in damaged_tensors(load_file(path), rng).items()
        }
        save_file({name: x.clone() for name, x in damaged.items()}, path)


def damage_json_file(path: Path, rng: Random, reseal: Callable[[Any], Any] | None = None) -> None:
    """Damage a JSON file, most often so that it still is JSON.

    `reseal` puts its digests right again.
    """
    if rng.random() < 0.15:
        path.write_bytes(damaged_bytes(path.read_bytes(), rng))
        return
    tree = damaged_tree(json.loads(path.read_text()), rng)
    if reseal is not None and isinstance(tree, dict) and rng.random() < 0.97:
        tree = reseal(tree)
    path.write_bytes(json_bytes(tree, rng))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def study_seal(record: dict[str, Any]) -> dict[str, Any]:
    """A study's record with the seal that fits it."""
    rest = {key: value for key, value in record.items() if key != "seal"}
    return {
        **rest,
        "seal": (
            hashlib.sha256(
                json.dumps(json.loads(json.dumps(rest)), sort_keys=True).encode()
            ).hexdigest()
        ),
    }
