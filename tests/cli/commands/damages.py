"""Models, texts, studies and plans with something wrong."""

import math
import os
import shutil

import torch
from safetensors.torch import load_file, save_file


def damaged(world, tmp_path, name, change):
    """A copy of the finished study with one file changed."""
    folder = tmp_path / "damaged"
    shutil.copytree(world.study, folder)
    file = folder / name
    file.write_bytes(change(file.read_bytes()))
    return folder


def flipped(content, at=-100):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def model_with(world, tmp_path, change):
    """A copy of the model with other weights."""
    folder = tmp_path / "changed"
    shutil.copytree(world.model, folder)
    change(folder / "model.safetensors")
    return folder


def with_nan(path):
    weights = load_file(path)
    weights["encoder.layer.1.attention.self.query.weight"][3, 5] = math.nan
    save_file(weights, path, metadata={"format": "pt"})


def without_a_layer(path):
    weights = load_file(path)
    save_file(
        {k: x for k, x in weights.items() if "layer.1" not in k}, path, metadata={"format": "pt"}
    )


def as_pickle(path):
    """Weights that would run a command if they were unpickled."""

    class Command:
        def __reduce__(self):
            return (os.mkdir, (str(path.parent / "ran"),))

    path.unlink()
    torch.save({"embeddings": Command()}, path.with_name("pytorch_model.bin"))


def text_of(tmp_path, content):
    path = tmp_path / "given.txt"
    path.write_bytes(content)
    return path


def folder_with(path, **files):
    path.mkdir()
    for name, content in files.items():
        (path / name).write_text(content)
    return path


def interrupted(tmp_path):
    (tmp_path / "half").mkdir()
    return folder_with(tmp_path / "half" / "unfinished", **{"request.json": "{}"}).parent


def cut(content):
    return content[: len(content) // 2]


def other_format(content):
    return content.replace(b'"format": 4', b'"format": 99')


def other_plan(world, tmp_path):
    folder = shutil.copytree(world.plan, tmp_path / "plan")
    (folder / "plan.json").write_text(
        (folder / "plan.json").read_text().replace('"format": 1', '"format": 99')
    )
    return folder
