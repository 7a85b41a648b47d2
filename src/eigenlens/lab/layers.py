"""Reads and builds the layers of a configuration: the mechanism of every head, and gates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..attention import Mechanism, Shape, find, make
from ..attention.gates import POSITIONS, GateSettings
from ..attention.head_mix import HeadMix
from ..attention.registry import settings_of
from ..errors import EigenlensError

if TYPE_CHECKING:
    from .config import Config

Heads = tuple[tuple[str, int], ...]
"""The mechanisms of a layer, each with the number of heads that it gets.

`(("softmax", 2), ("window", 2))`.
"""


def layers_of(mechanism: Any, layers: int, heads: int) -> list[Heads]:
    """The heads of every layer, from what a configuration gives.

    >>> layers_of("softmax", 2, 4)
    [(('softmax', 4),), (('softmax', 4),)]
    >>> layers_of("DF", 4, 2)  # letters, repeated
    [(('gated-delta', 2),), (('softmax', 2),), (('gated-delta', 2),), (('softmax', 2),)]
    >>> layers_of([("full", 3), ("local", 1)], 1, 4)  # heads of every layer
    [(('softmax', 3), ('local', 1))]
    >>> layers_of(["full", [("full", 3), ("local", 1)]], 2, 4)  # one of these for every layer
    [(('softmax', 4),), (('softmax', 3), ('local', 1))]
    """
    if isinstance(mechanism, str) and mechanism.isalpha() and mechanism.isupper():
        if layers % len(mechanism):
            raise EigenlensError(
                f"the pattern {mechanism!r} of {len(mechanism)} layers does not divide {layers}"
                " layers"
            )
        return [_heads(letter, heads) for letter in mechanism * (layers // len(mechanism))]
    if isinstance(mechanism, str) or _is_heads(mechanism):
        return [_heads(mechanism, heads)] * layers
    if not isinstance(mechanism, Sequence):
        raise EigenlensError(
            f"a mechanism is a name, a pattern of letters, or a list of them, not {mechanism!r}"
        )
    if len(mechanism) != layers:
        raise EigenlensError(f"{len(mechanism)} mechanisms are listed for {layers} layers")
    return [_heads(one, heads) for one in mechanism]


def build_mechanisms(config: Config) -> list[Mechanism]:
    """The mechanism of every layer, with weights of its own where it has some."""
    settings = _by_name(config.mechanism_settings)

    def one(name: str, heads: int) -> Mechanism:
        shape = Shape(heads, config.head_width, config.width, config.length, config.head_values)
        return make(name, shape, **settings.get(name, {}))

    found: list[Mechanism] = []
    for groups in layers_of(config.mechanism, config.layers, config.heads):
        mixed = [(one(name, heads), heads) for name, heads in groups]
        found.append(mixed[0][0] if len(mixed) == 1 else HeadMix(mixed))
    return found


def check_mechanisms(config: Config) -> None:
    """Refuse what cannot be built, and mechanisms that do not run in the direction of the model."""
    settings = _by_name(config.mechanism_settings)
    direction = "causal" if config.causal else "both ways"
    # those of a mechanism that no layer has, too: several models may share a table
    for name, chosen in settings.items():
        settings_of(find(name), chosen)
    for name in {
        name
        for groups in layers_of(config.mechanism, config.layers, config.heads)
        for name, _ in groups
    }:
        kind = find(name)
        if direction not in kind.directions:
            raise EigenlensError(
                f"{name} runs {' and '.join(kind.directions)}, and the model {direction}; see"
                " `causal`"
            )


def gate_of(text: str) -> GateSettings:
    """The gate that `"G1"`, `"G1-head"`, `"G2-shared-silu"` or `"G1-bias=2"` stands for.

    The position comes first (G1 before the output projection, G2 values, G3 keys, G4 queries, G5
    behind the output projection). Options: `head` one number per head, `shared` one gate for all
    heads, `silu` additive instead of `sigmoid`, `bias=number`.
    """
    position, *options = re.split(r"-(?=[a-z])", text)
    chosen: dict[str, Any] = {"position": position}
    for option in options:
        if option in ("head", "element"):
            chosen["per"] = option
        elif option == "shared":
            chosen["shared"] = True
        elif option in ("silu", "sigmoid"):
            chosen["form"] = option
        elif option.startswith("bias="):
            try:
                chosen["bias"] = float(option[5:])
            except ValueError:
                raise EigenlensError(
                    f"the bias of a gate is a number, not {option[5:]!r} as in {text!r}"
                ) from None
        else:
            known = "element, head, shared, sigmoid, silu, bias=number"
            raise EigenlensError(
                f"no option {option!r} of a gate, as in {text!r}; there are {known}"
            )
    if position not in POSITIONS:
        raise EigenlensError(
            f"no gate {text!r}; it begins with its position: {', '.join(POSITIONS)}"
        )
    return GateSettings(**chosen)


def as_tuples(value: Any) -> Any:
    """Lists as tuples, all the way down: what a configuration keeps of what JSON or TOML gave."""
    return tuple(as_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _heads(one: Any, heads: int) -> Heads:
    if isinstance(one, str):
        return ((find(one).name, heads),)
    if not _is_heads(one):
        raise EigenlensError(
            f"a layer's mechanism is a name or a list of (name, heads), not {one!r}"
        )
    if (total := sum(count for _, count in one)) != heads:
        raise EigenlensError(f"mechanisms are given for {total} heads, and a layer has {heads}")
    if any(count < 1 for _, count in one):
        raise EigenlensError(f"every mechanism of a layer has at least one head, not as in {one!r}")
    return tuple((find(name).name, int(count)) for name, count in one)


def _is_heads(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(
            isinstance(item, Sequence)
            and len(item) == 2
            and isinstance(item[0], str)
            and isinstance(item[1], int)
            and not isinstance(item[1], bool)
            for item in value
        )
    )


def _by_name(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings under the mechanisms' own names, whichever name or letter they were given under."""
    found: dict[str, dict[str, Any]] = {}
    for name, chosen in settings.items():
        if not isinstance(chosen, Mapping):
            raise EigenlensError(
                f"the settings of {name} are a table such as {{'window': 16}}, not {chosen!r}"
            )
        found.setdefault(find(name).name, {}).update(chosen)
    return found
