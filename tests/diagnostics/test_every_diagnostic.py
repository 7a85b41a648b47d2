"""What holds for every diagnostic.

Means and intervals, merging, states, settings, and what changed between two models.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError
from eigenlens.captures import AttentionCall, Head, Site
from eigenlens.diagnostics import (
    DIAGNOSTICS,
    CallView,
    Diagnostic,
    Finding,
    Findings,
    Number,
    changes,
    changes_sentence,
)


@dataclass(frozen=True)
class Limit:
    limit: float = 0.5


class First(Diagnostic):
    """How much every head gives the first key, and whether that is much."""

    name, title, sees, level = "first", "The first key", "calls", "head"
    numbers = {  # noqa: RUF012
        "share": "attention to the first key",
        "much": "share of inputs over the limit",
    }
    Settings = Limit

    def measure(self, seen):
        share = seen.pattern[..., 0].mean(2)  # (B, H)
        return torch.stack([share, torch.where(share > self.settings.limit, share, torch.nan)], 1)

    def sentence(self, finding):
        return f"{len(finding.numbers)} numbers."


def calls(number, layers=2, seed=0):
    """Calls of some inputs, layer by layer: 3 heads, 5 tokens."""
    draw = torch.Generator().manual_seed(seed)
    for layer in range(layers):
        q, k, v = (torch.randn(number, 3, 5, 4, generator=draw) for _ in range(3))
        yield AttentionCall(Site("encoder", layer), "self", f"layers.{layer}", q, k, v, 2.0)


def shown(diagnostic, some, inputs=slice(None)):
    for call in some:
        diagnostic.update(CallView(call.of_inputs(inputs)))
    return diagnostic


def test_means_and_intervals_are_those_of_students_t():
    from scipy import stats

    found = shown(First(), calls(9)).result()
    for layer, call in enumerate(calls(9)):
        # (9, 3)
        share = torch.softmax(call.q @ call.k.mT * 2.0, -1)[..., 0].mean(2).double().numpy()
        for head in range(3):
            number = next(
                n
                for n in found.numbers
                if n.at == Head("encoder", layer, head) and n.name == "share"
            )
            low, high = stats.t.interval(0.95, 8, share[:, head].mean(), stats.sem(share[:, head]))
            np.testing.assert_allclose(
                (number.mean, number.low, number.high),
                (share[:, head].mean(), low, high),
                rtol=1e-6,
            )
            over = share[:, head][share[:, head] > 0.5]
            kept = [
                n
                for n in found.numbers
                if n.at == Head("encoder", layer, head) and n.name == "much"
            ]
            # what has no value is left out, and there is no NaN
            assert len(kept) == bool(len(over))
            assert not kept or (
                kept[0].number == len(over) and kept[0].mean == pytest.approx(over.mean())
            )


def test_a_pass_in_parts_is_the_pass_whole_and_merging_leaves_the_other_alone():
    whole = shown(First(), calls(8))
    parts = [shown(First(), calls(8), slice(i, i + 2)) for i in (0, 2, 4, 6)]
    before = {name: x.clone() for name, x in parts[1].state().items()}
    left = First()
    for part in parts:
        left.merge(part)
    right = parts[2]
    right.merge(parts[3])
    both = parts[0]
    both.merge(parts[1])
    both.merge(right)
    for found in (left, both):
        for name, x in whole.state().items():
            torch.testing.assert_close(found.state()[name], x, rtol=1e-13, atol=1e-15)
    assert all(torch.equal(x, before[name]) for name, x in parts[1].state().items())


def test_a_state_is_the_statistic_to_the_last_bit():
    made = shown(First(limit=0.4), calls(4))
    made.peak("encoder/0/most", torch.tensor([1.0, -3.0]))
    made.peak("encoder/0/most", torch.tensor([0.5, 2.0]))
    again = First.from_state(made.state(), limit=0.4)
    assert again.peaks["encoder/0/most"].tolist() == [1.0, 2.0]
    assert again.result().numbers == made.result().numbers
    twice = First.from_state(made.state(), limit=0.4)
    twice.merge(again)
    # the larger of equal numbers is the number
    assert twice.peaks["encoder/0/most"].tolist() == [1.0, 2.0]


def test_settings_are_checked():
    with pytest.raises(EigenlensError, match="first has no setting 'limt'; its settings are limit"):
        First(limt=0.3)
    with pytest.raises(EigenlensError, match="limit must be a number, not 'much'"):
        First(limit="much")


@pytest.mark.parametrize("kind", DIAGNOSTICS.values(), ids=lambda kind: kind.name)
def test_every_diagnostic_is_whole(kind):
    """It has words for its numbers, papers' defaults, refuses what it does not know, and finds
    nothing in nothing.
    """
    assert kind.numbers and all(
        name.isidentifier() and words for name, words in kind.numbers.items()
    )
    assert kind.sees in ("calls", "layers", "weights", "probe") and kind.level in ("head", "layer")
    assert (kind.__doc__ or "").strip() and kind.title
    empty = kind().result()
    assert not empty.applies and empty.rows() == [] and empty.sentence == ""
    assert "nothing was measured" in repr(empty)
    with pytest.raises(EigenlensError, match="nothing to draw"):
        empty.plot()
    assert kind().result("it reads no tokens").note == "it reads no tokens"
    with pytest.raises(EigenlensError, match=f"{kind.name} has no setting 'nonsense'"):
        kind(nonsense=1)


def finding(values, name="sinks"):
    numbers = tuple(
        Number("self", layer, head, "rate", value) for (layer, head), value in values.items()
    )
    return Finding(name, "Sinks", "head", {"rate": "rate of sinks"}, numbers)


def test_what_changed_between_two_models():
    one = Findings([finding({(0, 0): 0.5, (0, 1): 0.1})])
    two = Findings([finding({(0, 0): 0.1, (0, 1): 0.3})])
    (row,) = changes(one, two)
    assert row["left"] == pytest.approx(0.3) and row["right"] == pytest.approx(0.2)
    assert row["change"] == pytest.approx(0.3)  # the mean of |−.4| and |.2|
    assert (row["most"], row["most_left"], row["most_right"]) == ("L0H0", 0.5, 0.1)
    assert "rate of sinks (sinks) goes from 0.3 to 0.2" in changes_sentence([row], "one", "two")
    assert "no diagnostic's mean changes" in changes_sentence(changes(one, one), "one", "one")
    other = Findings([finding({(0, 0): 0.5})])
    assert changes(one, other)[0]["change"] is None  # other places: only the means can be compared
    assert changes(one, Findings([])) == []


def test_an_unknown_name_is_told():
    found = Findings([finding({(0, 0): 0.5})])
    with pytest.raises(EigenlensError, match="no diagnostic 'spikes'; there are sinks"):
        found["spikes"]
    with pytest.raises(EigenlensError, match="no number of sinks 'size'; there are rate"):
        found["sinks"].values("size")
    with pytest.raises(EigenlensError, match="no rate of sinks 'L3H1'; there are L0H0"):
        found["sinks"].value("rate", "self", 3, 1)


def test_roles_are_counted_by_the_thresholds():
    from eigenlens.diagnostics.roles import roles, roles_sentence

    places = [(0, 0), (0, 1), (1, 0)]
    rates, strengths, previous = (0.5, 0.49, 1.0), (0.31, 0.4, 0.9), (0.2, 0.42, 0.6)
    sinks = tuple(
        Number("self", layer, head, name, value)
        for name, values in (("rate", rates), ("strength", strengths))
        for (layer, head), value in zip(places, values)
    )
    words = {"rate": "rate", "strength": "strength"}
    scores = {"previous": previous, "prefix": (0.0, 0.0, 0.5), "duplicate": (0.0, 0.0, 0.0)}
    probe = tuple(
        Number("self", *place, name, v)
        for name, values in scores.items()
        for place, v in zip(places, values)
    )
    limits = {"previous": 0.42, "prefix": 0.14, "duplicate": 0.14}
    found = Findings(
        [
            Finding("sinks", "Sinks", "head", words, sinks),
            Finding(
                "induction",
                "Induction",
                "head",
                {name: name for name in scores},
                probe,
                settings=limits,
            ),
        ]
    )
    message = roles(found)
    assert set(message) == {Head("self", 0, 0), Head("self", 0, 1), Head("self", 1, 0)}
    assert "31 %" in message[Head("self", 0, 0)][0] and len(message[Head("self", 1, 0)]) == 3
    assert (
        roles_sentence(found)
        == "Roles of 3 heads, by the thresholds of the diagnostics: 2 sink, 2 previous token, 1"
        " induction, 0 duplicate token."
    )
    assert roles_sentence(Findings([])) == "" and roles(Findings([])) == {}
