"""The public Python API explains itself.

Every parameter of every public function one by one, every class and method with a sentence, and
functions are verbs.
"""

import inspect
import re

import pytest

import eigenlens as el
from eigenlens import lab
from eigenlens.bench import run_bench

SECTIONS = ("Parameters", "Returns", "Yields", "Raises", "Examples")
OF_ATTENTION = [
    name for name in el.attention.__all__ if inspect.isfunction(getattr(el.attention, name))
]
FUNCTIONS = {
    **{name: x for name in el.__all__ if inspect.isfunction(x := getattr(el, name))},
    **{f"attention.{name}": getattr(el.attention, name) for name in OF_ATTENTION},
    "lab.run": lab.run,
    "lab.train": lab.train,
    "bench.run_bench": run_bench,
}
CLASSES = {
    **{name: x for name in el.__all__ if inspect.isclass(x := getattr(el, name))},
    **{
        f"attention.{name}": x
        for name in el.attention.__all__
        if inspect.isclass(x := getattr(el.attention, name))
    },
}


def section(function, name):
    """The text of a section of a docstring; empty where it has none."""
    text = inspect.getdoc(function)
    found = re.search(
        rf"^{name}\n-{{{len(name)}}}\n(.*?)(?=^(?:{'|'.join(SECTIONS)})\n---|\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return found[1] if found else ""


def parameters(function):
    """`*results` and `**settings` as they are documented."""
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return {
        star.get(given.kind, "") + name: given
        for name, given in inspect.signature(function).parameters.items()
    }


def documented(function):
    """Names of the section Parameters, with what stands behind their colon."""
    return dict(re.findall(r"^(\*{0,2}\w+) : (.+)$", section(function, "Parameters"), re.MULTILINE))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_documented_and_nothing_else(name):
    function = FUNCTIONS[name]
    assert list(documented(function)) == list(parameters(function))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_defaults_are_those_of_the_signature(name):
    """`default 16` says the value; `optional` stands for a parameter whose None is explained."""
    function = FUNCTIONS[name]
    for parameter, given in parameters(function).items():
        kind = documented(function)[parameter]
        if given.default is inspect.Parameter.empty:
            assert "default" not in kind and "optional" not in kind, parameter
        elif given.default is None or callable(given.default):
            assert kind.endswith("optional"), parameter
        else:
            _, _, default = kind.partition(", default ")
            assert default == _shown(given.default), parameter


def _shown(default):
    if isinstance(default, tuple):
        return "all" if default == el.studies.options.STATISTICS else repr(default)
    return f'"{default}"' if isinstance(default, str) else repr(default)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_returns_and_what_it_refuses(name):
    function = FUNCTIONS[name]
    first = inspect.getdoc(function).splitlines()[0]
    assert first.endswith("."), "the first line is a sentence"
    returned = inspect.signature(function).return_annotation
    if returned not in ("None", None):
        assert section(function, "Returns") or section(function, "Yields")
    assert ">>> " in section(function, "Examples")


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_and_its_public_methods_have_a_docstring(name):
    kind = CLASSES[name]
    assert inspect.getdoc(kind)
    for member, value in vars(kind).items():
        value = getattr(value, "__func__", value)
        if not member.startswith("_") and (
            inspect.isfunction(value) or isinstance(value, property)
        ):
            assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("engine", [el.Local, el.Dask])
def test_what_an_engine_is_made_with_is_documented(engine):
    assert list(documented(engine)) == list(parameters(engine))


def test_public_functions_are_verbs():
    """A list that grows by hand: whoever adds a function looks for its verb."""
    assert {name for name in FUNCTIONS if "." not in name} == {
        "ablate",
        "capture",
        "collapse",
        "compare",
        "decompose_paths",
        "evaluate",
        "explain",
        "freeze",
        "linearize",
        "load",
        "plan",
        "replace_attention",
        "report",
        "study",
        "use_attention",
    }
