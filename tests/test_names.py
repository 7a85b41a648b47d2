"""Names as users give them: a list or a text with commas.

A wrong one is told the right ones, and the likeliest of them.
"""

import pytest

import eigenlens as el
from eigenlens import EigenlensError
from eigenlens.attention import find as mechanism
from eigenlens.bench.choice import _candidates
from eigenlens.bench.entrants import entrants
from eigenlens.captures import Site
from eigenlens.collapses.run_collapse import ABLATIONS
from eigenlens.data import datasets
from eigenlens.diagnostics import DIAGNOSTICS
from eigenlens.estimators.candidates import ESTIMATORS, chosen_names
from eigenlens.explanations.methods import METHODS
from eigenlens.models import catalogue
from eigenlens.names import split_names
from eigenlens.papers import find_paper
from eigenlens.spectra.bases import Scope
from eigenlens.studies.options import STATISTICS
from tiny import small_bert, token_ids

IDS = token_ids(40, 12)


@pytest.fixture(scope="module")
def bert():
    return small_bert()


@pytest.fixture(scope="module")
def made(bert):
    return el.study(bert, IDS, max_length=12, max_inputs=40, only="rows, moments,depth,sinks")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("sinks", ["sinks"]),
        ("rows,moments", ["rows", "moments"]),
        (" rows , ", ["rows"]),
        (("a", "b"), ["a", "b"]),
        ("", []),
    ],
)
def test_one_text_or_a_list_are_names(given, wanted):
    assert split_names(given) == wanted


def test_a_study_takes_its_statistics_as_one_text(made, bert):
    """`only="rows,moments"` is what `only=["rows", "moments"]` is."""
    assert (
        made.has("rows") and made.has("moments") and made.has("depth") and not made.has("matrices")
    )
    assert list(made.stored["options"]["diagnosed"]) == ["sinks"]
    one = el.study(bert, IDS, max_length=12, max_inputs=40, only="sinks")
    listed = el.study(bert, IDS, max_length=12, max_inputs=40, only=["sinks"])
    assert one.diagnostics["sinks"].rows() == listed.diagnostics["sinks"].rows()


def test_every_call_that_takes_names_takes_one_text(made, bert, llama):
    assert chosen_names("mean, joint") == ["mean", "joint"] and chosen_names("mean") == ["mean"]
    plan = el.plan(made, budget=0.5, model=bert, data=IDS, estimators="mean,key-pca", max_inputs=4)
    assert {choice.estimator for choice in plan.choices} <= {"mean", "key-pca", "exact"}
    run = el.collapse(bert, IDS, max_length=12, max_inputs=4, paths=0, bounds=0, variants="SAN")
    assert set(run.curves) == {"full", "SAN"}
    found = el.explain(llama, "Seven, eight, nine", methods="relevance", deletion=False)
    assert found.methods == ["relevance"]
    assert entrants("softmax,window") == ["softmax", "window"]
    assert list(_candidates("window", True, {})) == ["window"]
    assert set(made.depth.table("residual")[0]) == {"stack", "depth", "residual"}
    assert made.depth.plot("residual").to_dict()


WRONG = {
    "sink": (
        lambda made: el.study("minilm", only="rows,sink"),
        "sinks",
        [*STATISTICS, *DIAGNOSTICS],
    ),
    "minillm": (lambda made: catalogue.model_folder("minillm"), "minilm", list(catalogue.MODELS)),
    "Mini-LM": (lambda made: el.load("Mini-LM"), "minilm", list(catalogue.MODELS)),
    "wikipeda": (
        lambda made: el.study("minilm", "wikipeda"),
        "wikipedia",
        ["python-docs", "wikipedia", "reviews"],
    ),
    "photo": (
        lambda made: next(datasets.images("photo")),
        "photos",
        ["fashion-mnist", "photos", "digits"],
    ),
    "rank-colapse": (
        lambda made: find_paper("rank-colapse"),
        "rank-collapse",
        ["sinks", "rank-collapse"],
    ),
    "windows": (lambda made: mechanism("windows"), "window", ["softmax", "window"]),
    "cross": (lambda made: chosen_names("cross"), None, list(ESTIMATORS)),
    "relevence": (
        lambda made: el.explain("minilm", "x", methods="relevence"),
        "relevance",
        list(METHODS),
    ),
    "san": (lambda made: el.collapse("minilm", variants="san"), "SAN", list(ABLATIONS)),
    "sinkz": (lambda made: made.diagnostics["sinkz"], "sinks", ["sinks"]),
    "rat": (lambda made: made.diagnostics["sinks"].values("rat"), "rate", ["rate"]),
    "L9H0": (
        lambda made: made.diagnostics["sinks"].value("rate", "encoder", 9, 0),
        None,
        ["L0H0", "L1H3"],
    ),
    "encoders L1": (
        lambda made: made.row_basis(Scope("layer", "encoders", 1)),
        "encoder L1",
        ["encoder L0", "encoder L1"],
    ),
    "L7": (lambda made: made.row_sums()[Site("encoder", 7)], None, ["L0", "L1"]),
    "self L0": (lambda made: made.moments()[Site("self", 0)], None, ["encoder L0", "encoder L1"]),
    "fitted": (lambda made: made.row_sums("fitted"), None, ["fit", "held"]),
    "heads": (lambda made: made.spectra.select(level="heads"), "head", ["head", "layer", "stack"]),
    "layers": (lambda made: made.spectra.select(layers=1), "layer", ["analysis", "stack", "layer"]),
    "row": (lambda made: made.overlap(analysis="row"), "rows", ["rows", "matrices"]),
    "decoder": (lambda made: made.depth.curve("residual", "decoder"), None, ["encoder"]),
    "residuals": (lambda made: made.depth.curve("residuals"), "residual", ["residual"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_name_is_told_the_right_ones(made, name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    call, meant, right = WRONG[name]
    with pytest.raises(EigenlensError) as raised:
        call(made)
    message = str(raised.value)
    assert repr(name) in message and all(one in message for one in right)
    assert (f"(did you mean {meant}?)" in message) if meant else ("did you mean" not in message), (
        message
    )


def test_a_spectrum_that_is_not_there_says_which_there_are(made):
    with pytest.raises(
        EigenlensError, match=r"^0 spectra have .*stack model.*; stack may be encoder$"
    ):
        made.spectra.one(
            analysis="rows", level="head", centring="centred", stack="model", layer=0, head=0
        )
    with pytest.raises(
        EigenlensError,
        match=r"^4 spectra have .*but one was asked for; head may be 0, 1, 2, 3$",
    ):
        made.spectra.one(analysis="rows", level="head", centring="centred", layer=0)


def test_a_measure_and_a_variant_that_are_not_there_list_those_that_are(made, bert):
    plan = el.plan(made, budget=0.5, model=bert, data=IDS, estimators="mean,key-pca", max_inputs=4)
    measured = el.evaluate(bert, IDS[:20], plan=plan, max_inputs=4)
    with pytest.raises(EigenlensError, match=r"no measure 'cosine'; there are .*cosine of the"):
        measured.value("cosine")
    with pytest.raises(
        EigenlensError,
        match=r"no variant 'SAN\+mlp' \(did you mean SAN\+MLP\?\); there are full, SAN\+MLP",
    ):
        el.collapse(
            bert, IDS, max_length=12, max_inputs=4, paths=0, bounds=0, variants="SAN+MLP"
        ).curves["SAN+mlp"]
