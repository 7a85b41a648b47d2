"""No file that is read can run code.

Every call of the package that loads something says so, and nothing of it unpickles.
"""

import ast
from pathlib import Path

import pytest

from imports import imports

SOURCE = Path(__file__).parents[1] / "src" / "eigenlens"
RUNS_CODE = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""Modules whose files can run code when they are read."""
ALLOWED = {"run/tasks.py": {"distributed.protocol.pickle"}}
"""A cluster is trusted: Dask itself sends everything in this form to its workers."""
NEVER = {
    "torch.hub.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "pandas.read_pickle",
}
MUST_BE = {"weights_only": True, "allow_pickle": False, "trust_remote_code": False}
"""What these options are wherever one of them is given."""
NEEDED = {"torch.load": "weights_only"}
"""The option without which a call is not safe; numpy's is safe by default."""


def unsafe(source, allowed=()):
    """What is wrong with a source, each with its line."""
    tree = ast.parse(source)
    found = [
        f"imports {path}"
        for path in (each.path for each in imports(tree))
        if RUNS_CODE & set(path.split(".")) and path.rpartition(".")[0] not in allowed
    ]
    known = _aliases(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        for problem in _problems(node, known, called):
            found.append(f"line {node.lineno}: {problem}")
    return found


def _aliases(tree):
    """What each name of a file stands for: `{"t": "torch", "read": "torch.load"}`."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name if alias.asname else alias.name.split(".")[0]
                known[alias.asname or first] = first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return known


def _dotted(node, known):
    """The dotted name of an expression, as far as it is one: `torch.load`."""
    if isinstance(node, ast.Name):
        name = known.get(node.id, "")
    elif isinstance(node, ast.Attribute) and (start := _dotted(node.value, known)):
        name = f"{start}.{node.attr}"
    else:
        return ""
    return name.replace("torch.serialization.", "torch.")


def _problems(node, known, called):
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        yield f"imports every name of {node.module}"
    if isinstance(node, ast.Name | ast.Attribute):
        name = _dotted(node, known)
        if name in NEVER:
            yield f"uses {name}"
        if name in ("torch.load", "numpy.load") and id(node) not in called:
            yield f"passes {name} on, so that its calls are not seen"
    if isinstance(node, ast.Call):
        yield from _problems_of_a_call(node, known)
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values):
            yield from _option(getattr(key, "value", None), value)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        for target in getattr(node, "targets", None) or [node.target]:
            place = getattr(target, "slice", None)
            name = getattr(place, "value", getattr(target, "attr", getattr(target, "id", None)))
            yield from _option(name, node.value)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = node.args
        positional = [*given.posonlyargs, *given.args]
        late = positional[len(positional) - len(given.defaults) :]
        for name, value in [*zip(late, given.defaults), *zip(given.kwonlyargs, given.kw_defaults)]:
            yield from _option(name.arg, value)


def _problems_of_a_call(call, known):
    name = _dotted(call.func, known)
    options = {option.arg: option.value for option in call.keywords}
    for option, value in options.items():
        yield from _option(option, value)
    if (needed := NEEDED.get(name)) and needed not in options:
        yield f"{name} without {needed}={MUST_BE[needed]}"
    if name == "numpy.load" and "allow_pickle" not in options:
        if None in options:
            yield "numpy.load with options that are not written out"
        if len(call.args) > 2 or any(isinstance(given, ast.Starred) for given in call.args):
            yield "numpy.load with allow_pickle by its place"
    if getattr(call.func, "id", "") == "getattr" and len(call.args) > 1:
        owner, attribute = _dotted(call.args[0], known), call.args[1]
        if owner in ("torch", "numpy", "torch.serialization", "yaml") and "load" in str(
            getattr(attribute, "value", "")
        ):
            yield f"takes a function of {owner} by its name"
    if getattr(call.func, "id", "") == "__import__" and not (
        call.args and isinstance(call.args[0], ast.Constant)
    ):
        yield "imports what is not written out"


def _option(name, value):
    if (
        name in MUST_BE
        and value is not None
        and not (isinstance(value, ast.Constant) and value.value is MUST_BE[name])
    ):
        yield f"{name} is not {MUST_BE[name]}"


def test_nothing_that_is_read_can_run():
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    found = {name: unsafe(text, ALLOWED.get(name, ())) for name, text in sources.items()}
    assert not {name: wrong for name, wrong in found.items() if wrong}


BAD = """
import torch; torch.load(f)
import torch; torch.load(f, weights_only=False)
import torch; torch.load(f, weights_only=safe)
import torch; torch.load(f, weights_only=1)
import torch; torch.load(f, **options)
import torch; torch.load(f, weights_only=True); torch.load(f)
import torch as t; t.load(f)
import torch.serialization; torch.serialization.load(f)
import torch.serialization as s; s.load(f)
from torch import load; load(f)
from torch import load as read; read(f, weights_only=False)
from torch.serialization import load; load(f)
from torch import serialization; serialization.load(f)
import torch; read = torch.load
import torch; partial(torch.load, f)
import torch; getattr(torch, 'load')(f)
def late(): import torch; torch.load(f)
from torch import *
import torch; torch.hub.load('a/b', 'c')
import torch; torch.jit.load(f)
import pickle
import pickle as p
import os, pickle
from pickle import loads
from pickle import Unpickler as U
def late(): from pickle import loads
__import__('pickle')
__import__(name)
import importlib; importlib.import_module('pickle')
from importlib import import_module; import_module('pickle')
import _pickle
import cloudpickle
import marshal
from marshal import loads
import shelve
import dill
from dill import load
import joblib
from joblib import load
from distributed.protocol import pickle
from distributed.protocol.pickle import loads
from sklearn.externals.joblib import load
import numpy as np; np.load(f, allow_pickle=True)
import numpy as np; np.load(f, allow_pickle=safe)
import numpy as np; np.load(f, None, True)
import numpy as np; np.load(f, *more)
import numpy as np; np.load(f, **options)
from numpy import load; load(f, allow_pickle=True)
import numpy as np; read = np.load
import pandas as pd; pd.read_pickle(f)
import yaml; yaml.load(f)
import yaml; yaml.load(f, Loader=yaml.Loader)
from yaml import load; load(f)
import yaml as y; y.unsafe_load(f)
AutoModel.from_pretrained(f, trust_remote_code=True)
AutoModel.from_pretrained(f, trust_remote_code=1)
AutoModel.from_pretrained(f, trust_remote_code='yes')
AutoModel.from_pretrained(f, trust_remote_code=trusted)
AutoModel.from_pretrained(f, weights_only=False)
AutoModel.from_pretrained(f, **{'trust_remote_code': True})
options = dict(trust_remote_code=True)
options['trust_remote_code'] = True
config.trust_remote_code = True
def load(f, trust_remote_code=True): pass
def load(f, *, trust_remote_code=None): pass
""".strip().splitlines()
GOOD = """
import torch; torch.load(f, weights_only=True)
import torch; torch.load(f, map_location='cpu', weights_only=True)
import torch; torch.load(f, weights_only=True, **options)
from torch import load as read; read(f, weights_only=True)
from ..models.load import load; load(f)
import json; json.load(f)
import numpy as np; np.load(f)
import numpy as np; np.load(f, allow_pickle=False)
import numpy as np; np.load(f, mmap_mode='r')
import numpy as np; np.save(f, x, allow_pickle=False)
import yaml; yaml.safe_load(f)
AutoModel.from_pretrained(f, trust_remote_code=False)
options = {'trust_remote_code': False}
def load(f, trust_remote_code=False): pass
import torch; getattr(torch, 'float32'), getattr(torch, name)
""".strip().splitlines()


@pytest.mark.parametrize("source", BAD)
def test_what_could_run_code_is_noticed(source):
    assert unsafe(source)


@pytest.mark.parametrize("source", GOOD)
def test_what_is_safe_is_fine(source):
    assert not unsafe(source)


def test_an_exception_is_for_one_module_in_one_file():
    allowed = ALLOWED["run/tasks.py"]
    assert not unsafe("from distributed.protocol.pickle import loads", allowed)
    assert unsafe("from pickle import loads", allowed)
