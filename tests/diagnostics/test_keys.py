"""Keys explained away.

Columns summed one by one, the guarantee of the double normalisation, and real models.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from diagnostics.passes import diagnosed
from diagnostics.test_sinks import call_of
from eigenlens import EigenlensError
from eigenlens.captures import Site
from eigenlens.diagnostics import CallView
from eigenlens.diagnostics.keys import BINS, Keys, balanced_weights
from eigenlens.papers.inputs import make_batches
from tiny import of_catalogue, small_bert


def found(call, sampled=None, **settings):
    keys = Keys(**settings)
    keys.update(CallView(call, sampled=sampled))
    return keys.result()


def by_loops(s, tau):
    """Below tau, below 1/S, least, of softmax and doubly normalised, from scores (T, S) by the
    definitions.
    """
    e, (T, S) = np.exp(s), s.shape
    soft = e / e.sum(1, keepdims=True)
    xi = e / e.sum(0, keepdims=True)
    both = xi / xi.sum(1, keepdims=True)
    rows = []
    for A in (soft, both):
        columns = [sum(A[i, j] for i in range(T)) for j in range(S)]
        weights = [S / T * c for c in columns]
        rows += [
            np.mean([w < tau for w in weights]),
            np.mean([c < 1 / S - 1e-9 for c in columns]),
            min(weights),
        ]
    return rows


@pytest.mark.parametrize(("T", "S"), [(9, 9), (5, 12), (12, 5)])
def test_numbers_are_those_of_the_definitions(T, S):
    s = 4 * torch.randn(1, 2, T, S, dtype=torch.float64)
    finding = found(call_of(s), tau=0.3)
    for head in range(2):
        expected = by_loops(s[0, head].numpy(), 0.3)
        assert [finding.value(name, "self", 0, head) for name in finding.words] == pytest.approx(
            expected, rel=1e-6
        )
        assert finding.value("balanced_below_uniform", "self", 0, head) == 0  # the guarantee


def test_a_causal_mask_takes_the_mean_over_the_queries_that_see_a_key_and_has_no_second_pattern():
    n = 6
    finding = found(call_of(torch.zeros(1, 1, n, n), causal=True))
    least = min(n * np.mean([1 / (i + 1) for i in range(j, n)]) for j in range(n))
    assert finding.value("least", "self", 0, 0) == pytest.approx(least)
    assert not finding.values("balanced_below") and "queries first" not in finding.sentence
    assert [row["normalised"] for row in next(iter(finding.tables.values()))] == ["softmax"]


def test_padding_changes_nothing():
    T, pad = 7, 3
    s = 3 * torch.randn(1, 2, T, T)
    plain = found(call_of(s))
    wide, valid = torch.randn(1, 2, T + pad, T + pad), torch.ones(1, T + pad, dtype=torch.bool)
    wide[:, :, pad:, pad:], valid[:, :pad] = s, False
    mask = valid[:, None, None].expand(1, 1, T + pad, T + pad)
    padded = found(call_of(wide, mask=mask, query_valid=valid))
    assert [n.mean for n in padded.numbers] == pytest.approx(
        [n.mean for n in plain.numbers], rel=1e-5
    )
    assert {n.name for n in padded.numbers} == set(plain.words)


def test_only_dear_inputs_are_normalised_twice_and_one_key_is_no_choice():
    s = 3 * torch.randn(3, 1, 4, 4, dtype=torch.float64)
    finding = found(call_of(s), sampled=[1], tau=0.3)
    expected = by_loops(s[1, 0].numpy(), 0.3)[3:]
    names = ("balanced_below", "balanced_below_uniform", "balanced_least")
    assert [finding.value(name, "self", 0, 0) for name in names] == pytest.approx(expected)
    (rows,) = finding.tables.values()
    assert [(row["normalised"], row["heads"], row["inputs"]) for row in rows] == [
        ("softmax", 1, 3),
        ("doubly normalised", 1, 1),
    ]
    assert not found(call_of(s), sampled=[]).values("balanced_below")
    assert {n.name: n.number for n in finding.numbers} == {
        "below": 3,
        "below_uniform": 3,
        "least": 3,
        "balanced_below": 1,
        "balanced_below_uniform": 1,
        "balanced_least": 1,
    }
    assert not found(call_of(torch.zeros(2, 1, 1, 1))).applies


def test_heads_in_parts_are_heads_at_once(monkeypatch):
    call = call_of(torch.randn(1, 5, 6, 6))
    whole, _ = balanced_weights(call)
    monkeypatch.setattr("eigenlens.diagnostics.keys.PAIRS", 2 * 36)
    parts, real = balanced_weights(call)
    assert torch.equal(whole, parts) and bool(real.all())


@pytest.mark.parametrize(
    ("name", "data", "stack"),
    [
        ("stories15m", "python-docs", "self"),
        ("flan-t5-small", "python-docs", "decoder.cross"),
        ("dinov2-small", "photos", "encoder"),
    ],
)
def test_a_model_is_measured_as_by_its_own_attentions(name, data, stack):
    model = of_catalogue(name)
    vision = model.kind == "vision"
    batch = {
        key: x[:2]
        for key, x in make_batches(model, data, None if vision else 16, 3, 0, 3)[0].items()
    }
    keys = Keys()
    diagnosed(model, [batch], keys)
    finding = keys.result()
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        given = model.backbone(**batch, output_attentions=True)
    patterns = given.cross_attentions if stack.endswith("cross") else given.attentions
    for layer in (0, len(patterns) - 1):
        A = patterns[layer].double().numpy()
        T, S = A.shape[2:]
        seen = np.arange(S, 0, -1) if stack == "self" else T
        weights = S * A.sum(2) / seen  # (B, H, S)
        expected = [(weights < 0.1).mean(2), (weights < 1 / T).mean(2), weights.min(2)]
        for number, values in zip(finding.words, expected):
            for head, value in enumerate(values.mean(0)):
                assert finding.value(number, stack, layer, head) == pytest.approx(
                    value, rel=1e-3, abs=1e-3
                )
    assert bool(finding.values("balanced_below", stack)) == (stack != "self")
    assert all(value == 0 for value in finding.values("balanced_below_uniform").values())
    assert np.isfinite([n.mean for n in finding.numbers]).all()


def test_passes_that_are_merged_or_kept_are_one_pass():
    model = small_bert()
    batches = [{"input_ids": torch.randint(0, 50, (3, 12))} for _ in range(3)]
    whole, parts = Keys(tau=0.5), [Keys(tau=0.5) for _ in range(3)]
    diagnosed(model, batches, whole)
    for part, batch in zip(parts, batches):
        diagnosed(model, [batch], part)
    kept = Keys.from_state({name: x.clone() for name, x in parts[0].state().items()}, tau=0.5)
    assert kept.result().record() == parts[0].result().record()
    rest = Keys.from_state(parts[1].state(), tau=0.5)
    rest.merge(parts[2])
    kept.merge(rest)
    one, other = whole.result(), kept.result()
    assert [n.mean for n in other.numbers] == pytest.approx(
        [n.mean for n in one.numbers], rel=1e-12
    )
    assert torch.equal(whole.sums["encoder/histogram"], kept.sums["encoder/histogram"])
    assert (
        whole.sums["encoder/histogram"].sum(1).tolist() == [9 * 12 * 8, 9 * 12 * 8]
        and BINS[2] == 128
    )
    assert "Normalised over queries first" in one.sentence and one.plot() is not None


def test_the_sentence_compares_the_same_heads_and_inputs():
    keys, tau = Keys(tau=0.5), 0.5
    scores = [4 * torch.randn(4, 2, 8, 8, dtype=torch.float64) for _ in range(2)]
    keys.update(CallView(call_of(scores[0]), sampled=[0, 3]))
    causal = replace(call_of(scores[1], causal=True), site=Site("self", 1))
    keys.update(CallView(causal, sampled=[0, 3]))
    finding = keys.result()
    # (inputs, heads, numbers)
    rows = np.array([[by_loops(scores[0][b, h].numpy(), tau) for h in range(2)] for b in (0, 3)])
    assert (
        f"the share would be {100 * rows[..., 3].mean():.1f} % instead of"
        f" {100 * rows[..., 0].mean():.1f} % in the 2 heads where no" in finding.sentence
    )
    everything = np.mean(list(finding.values("below").values()))
    assert finding.sentence.startswith(
        f"On average over heads, {100 * everything:.1f} % of the keys"
    )


def test_whether_a_mask_is_causal_is_asked_of_every_input_alone():
    """An input with padding beside one with a causal mask.

    The first has its second pattern in any batch.
    """
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[0] = (torch.arange(5) < 3)[None, None]
    valid = torch.ones(2, 5, dtype=torch.bool)
    valid[0, 3:] = False
    s = torch.randn(2, 1, 5, 5)
    both = found(call_of(s, mask=mask, query_valid=valid))
    alone = found(call_of(s[:1], mask=mask[:1], query_valid=valid[:1]))
    assert both.values("balanced_least") == pytest.approx(alone.values("balanced_least")) != {}
    assert {n.number for n in both.numbers if n.name == "balanced_below"} == {1}


def test_where_no_key_is_explained_away_none_is_named():
    assert (
        found(call_of(torch.zeros(1, 3, 4, 4))).sentence
        == "No keys get less than 0.1 of the attention that uniform attention would give them in any of"
        " 3 heads."
    )
    one = torch.zeros(1, 1, 4, 4)
    assert found(call_of(one)).sentence.endswith("in the only head.")
    one[..., 0] = 50.0
    assert found(call_of(one)).sentence.startswith("In the only head, L0H0, 75.0 % of the keys")


def test_a_threshold_out_of_range_is_refused():
    with pytest.raises(EigenlensError, match=r"tau, the weight .* between 0 and 1, not 0\.0"):
        Keys(tau=0.0)
