"""Which diagnostics run, by which thresholds; what is refused, compared and drawn."""

import json
import math

import numpy as np
import pytest

from eigenlens import EigenlensError, compare, load, study
from eigenlens.studies.plots import draw
from studies.diagnostic_runner.small import SMALL, finite
from tiny import tiny_llama


def test_single_diagnostics_and_thresholds(place, llama, data):
    strict = study(llama, data, **SMALL, only=["sinks"], thresholds={"sinks": {"epsilon": 0.99}})
    loose = study(llama, data, **SMALL, only=["sinks"], thresholds={"sinks": {"epsilon": 1e-9}})
    assert (
        list(strict.diagnostics) == ["sinks"] and not strict.has("rows") and not strict.has("depth")
    )
    assert strict.diagnostics["sinks"].settings["epsilon"] == 0.99
    rates = [sum(s.diagnostics["sinks"].values("rate").values()) for s in (strict, loose)]
    assert rates[0] < rates[1] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"only": ["sink"]},
            (
                "no statistic 'sink' .did you mean sinks.*; the statistics are rows, .*, and the diagnostics are"
                " sinks"
            ),
        ),
        ({"thresholds": {"sinks": {"epsilon": "much"}}}, "epsilon must be a number"),
        ({"thresholds": {"sinks": {"eps": 0.1}}}, "sinks has no setting 'eps'"),
        ({"thresholds": {"snks": {}}}, "no diagnostic 'snks'"),
        ({"diagnostics_every": 0}, "every n-th input: n must be at least 1, not 0"),
        ({"thresholds": {"sinks": 0.3}}, "the thresholds of sinks must be a mapping"),
        ({"thresholds": {"spikes": {"size": math.inf}}}, "size"),
        ({"thresholds": {"induction": {"seed": 10**30}}}, "seed must be a whole number"),
        (
            {"only": ["keys"], "thresholds": {"sinks": {"epsilon": 0.2}}},
            "not among the statistics of this study",
        ),
    ],
)
def test_bad_requests_are_refused(llama, data, options, message):
    with pytest.raises(EigenlensError, match=message):
        study(llama, data, **{**SMALL, **options})


def test_the_command_takes_thresholds(run, place, data):
    folder = tiny_llama(place / "command")
    asked = (
        "study",
        folder,
        data,
        "--max-length",
        16,
        "--max-inputs",
        24,
        "--only",
        "sinks",
        "--json",
    )
    done = run(*asked, "-o", place / "thresholds", "--thresholds", "sinks.epsilon=1e-9")
    assert done.code == 0 and all(head["sinks_rate"] == 1 for head in json.loads(done.out)["heads"])
    for wrong, message in (
        ("epsilon=0", "such as sinks.epsilon=0.2"),
        ("sinks.epsilon=x", "epsilon must be a number"),
    ):
        done = run(*asked, "-o", place / "wrong", "--thresholds", wrong)
        assert (done.code, message in done.err, (place / "wrong").exists()) == (2, True, False)


def test_compare_says_what_changed(run, place, llama, data, made):
    other = study(
        load(tiny_llama(place / "other", seed=1)),
        data,
        place / "other-study",
        **SMALL,
        diagnostics_every=3,
    )
    rows = compare(made, other).changes()
    assert {row["diagnostic"] for row in rows} == {*made.diagnostics, "within"}
    row = next(row for row in rows if (row["diagnostic"], row["number"]) == ("sinks", "strength"))
    values = [list(s.diagnostics["sinks"].values("strength").values()) for s in (made, other)]
    assert row["left"] == pytest.approx(np.mean(values[0])) and row["right"] == pytest.approx(
        np.mean(values[1])
    )
    assert row["change"] == pytest.approx(np.mean(np.abs(np.subtract(*values))))
    done = run("compare", made.folder, other.folder)
    assert done.code == 0 and "What heads and layers do in the first study" in done.out
    assert finite(json.loads(run("compare", made.folder, other.folder, "--json").out))["changes"]
    alone = [study(llama, data, **SMALL, only=["sinks"]) for _ in range(2)]
    same = compare(*alone)
    assert not same.pairs and all(
        row["change"] == 0 and row["settings"] is None for row in same.changes()
    )
    strict = study(llama, data, **SMALL, only=["sinks"], thresholds={"sinks": {"epsilon": 0.9}})
    assert "measured with different settings: epsilon 0.3 and 0.9" in compare(
        alone[0], strict
    ).sentence or not any(row["left"] for row in same.changes() if row["number"] == "rate")
    assert compare(alone[0], strict).changes()[0]["settings"] == "epsilon 0.3 and 0.9"
    with pytest.raises(EigenlensError, match="nothing in common"):
        compare(strict, study(llama, data, **SMALL, only=["keys"]))


@pytest.mark.slow
def test_pictures_of_every_diagnostic(made, place):
    names = {path.stem for path in draw(made, place / "pictures")}
    assert names >= {f"diagnostic-{name}" for name in made.diagnostics}
