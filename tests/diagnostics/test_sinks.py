"""Attention sinks.

Exact patterns, padding, and loops over the attentions that models give themselves.
"""

from collections import Counter

import pytest
import torch

from diagnostics.passes import diagnosed
from eigenlens import EigenlensError
from eigenlens.captures import AttentionCall, Site
from eigenlens.diagnostics import DIAGNOSTICS, CallView
from eigenlens.diagnostics.sinks import Sinks
from eigenlens.papers.inputs import make_batches
from tiny import of_catalogue, small_llama


def call_of(scores, **given):
    """A call with these scores (B, H, T, S): keys are unit vectors, queries rows of scores."""
    B, H, _, S = scores.shape
    k = torch.eye(S, dtype=scores.dtype).expand(B, H, S, S)
    return AttentionCall(Site("self", 0), "self", "attention", scores, k, k, 1.0, **given)


def found(call, ids=None, vocabulary=None, **settings):
    sinks = Sinks(**settings)
    sinks.update(CallView(call, ids, vocabulary))
    return sinks, sinks.result()


def numbers(finding, head=0):
    return {name: finding.value(name, "self", 0, head) for name in finding.words}


def test_uniform_causal_attention_has_no_sink():
    T = 64
    _, finding = found(call_of(torch.zeros(1, 1, T, T), causal=True))
    assert numbers(finding)["strength"] == pytest.approx(
        sum(1 / i for i in range(1, 65)) / 64, rel=1e-6
    )
    assert numbers(finding)["strength"] == pytest.approx(0.0741, abs=5e-5)
    assert numbers(finding)["rate"] == 0 and numbers(finding)["anywhere"] == 0


def test_all_mass_on_the_first_token():
    scores = torch.zeros(1, 1, 64, 64)
    scores[..., 0] = 1e4
    _, finding = found(call_of(scores, causal=True))
    assert numbers(finding) == pytest.approx({"rate": 1, "strength": 1, "anywhere": 1, "weight": 1})


def test_a_sink_elsewhere_counts_if_half_of_the_queries_see_it():
    T = 8
    for at, anywhere in ((4, 1.0), (5, 0.0)):  # of 8 queries, 4 see key 4 and 3 see key 5
        scores = torch.zeros(1, 1, T, T)
        scores[..., at] = 1e4
        sinks, finding = found(call_of(scores, causal=True), torch.arange(T)[None], T)
        assert numbers(finding)["anywhere"] == anywhere and numbers(finding)["rate"] == 0
        assert sinks.token_ids() == ([at] if anywhere else [])
        if anywhere:
            row = finding.tables["Tokens that are sinks"][0]
            assert (row["id"], row["at the front"], row["elsewhere"], row["share"]) == (
                at,
                0,
                1,
                1.0,
            )
            places = finding.tables["Where the sinks are, over heads and inputs"][0]
            assert places["elsewhere"] == 1.0 and places["sinks"] == 1


def test_padding_on_either_side_changes_nothing():
    T, pad = 10, 3
    scores = 3 * torch.randn(1, 2, T, T)
    _, plain = found(call_of(scores, causal=True))
    for left in (True, False):
        at = slice(pad, None) if left else slice(None, T)
        wide, valid = torch.randn(1, 2, T + pad, T + pad), torch.zeros(1, T + pad, dtype=torch.bool)
        wide[:, :, at, at], valid[:, at] = scores, True
        mask = (
            torch.ones(T + pad, T + pad, dtype=torch.bool).tril()[None, None] & valid[:, None, None]
        )
        _, padded = found(call_of(wide, mask=mask, query_valid=valid))
        for head in range(2):
            assert numbers(padded, head) == pytest.approx(numbers(plain, head), rel=1e-6)


def test_an_input_of_one_token_has_none():
    sinks, finding = found(
        call_of(torch.zeros(1, 2, 1, 1), causal=True), torch.zeros(1, 1, dtype=torch.long), 4
    )
    assert not finding.applies and finding.tables == {} and sinks.token_ids() == []


def by_hand(A, causal, epsilon=0.3):
    """α of a pattern, T lists of S numbers, one key after another."""
    T, S = len(A), len(A[0])
    alpha = [
        sum(A[i][k] for i in range(T) if i >= k or not causal) / (T - k if causal else T)
        for k in range(S)
    ]
    most = max(alpha[k] for k in range(S) if not causal or 2 * (T - k) >= T)
    return [alpha[0] > epsilon, alpha[0], most > epsilon, most]


@pytest.mark.parametrize(
    ("name", "text"),
    [("smollm2", "self"), ("minilm", "encoder"), ("flan-t5-small", "decoder.cross")],
)
def test_a_model_is_measured_as_by_its_own_attentions(name, text):
    model = of_catalogue(name)
    batches = make_batches(model, "python-docs", 20, 3, 0, 3)[:1]
    sinks = Sinks()
    diagnosed(model, batches, sinks)
    finding = sinks.result()
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        given = model.backbone(**batches[0], output_attentions=True)
    patterns = given.cross_attentions if text.endswith("cross") else given.attentions
    causal, ids, counts = text == "self", batches[0]["input_ids"], Counter()
    for layer in range(len(patterns)):
        A = patterns[layer].double()
        for head in range(A.shape[1]):
            if layer % 7 and head:  # all heads of some layers, one head of the others
                continue
            expected = torch.tensor(
                [by_hand(a, causal) for a in A[:, head].tolist()], dtype=torch.float64
            ).mean(0)
            for number, value in zip(finding.words, expected.tolist()):
                assert finding.value(number, text, layer, head) == pytest.approx(value, abs=2e-5)
        alpha = A.sum(2) / (torch.arange(A.shape[3], 0, -1) if causal else A.shape[2])
        # keys that half of the queries see
        alpha = alpha[..., : A.shape[3] // 2 + 1] if causal else alpha
        for b, _, k in (alpha > 0.3).nonzero().tolist():
            counts[int(ids[b, k])] += 1
    rows = [row for row in finding.tables["Tokens that are sinks"] if row["stack"] == text]
    assert (
        rows
        and {row["id"]: row["at the front"] + row["elsewhere"] for row in rows}.items()
        <= counts.items()
    )
    assert sum(row["share"] for row in rows) == pytest.approx(
        sum(counts[row["id"]] for row in rows) / counts.total()
    )


def test_passes_that_are_merged_or_kept_are_one_pass():
    model = small_llama()
    batches = [{"input_ids": torch.randint(0, 50, (3, 12))} for _ in range(3)]
    whole, parts = Sinks(epsilon=0.15), [Sinks(epsilon=0.15) for _ in range(3)]
    diagnosed(model, batches, whole)
    for part, batch in zip(parts, batches):
        diagnosed(model, [batch], part)
    kept = Sinks.from_state({name: x.clone() for name, x in parts[0].state().items()}, epsilon=0.15)
    assert kept.result().record() == parts[0].result().record()
    rest = Sinks.from_state(parts[1].state(), epsilon=0.15)
    rest.merge(parts[2])
    kept.merge(rest)
    one, other = whole.result(), kept.result()
    assert one.tables == other.tables and one.tables["Tokens that are sinks"]
    assert [n.mean for n in other.numbers] == pytest.approx(
        [n.mean for n in one.numbers], rel=1e-12
    )
    assert set(kept.state()) == set(whole.state())


def test_it_is_told_and_drawn():
    scores = torch.zeros(1, 2, 8, 8)
    scores[:, 1, :, 0] = 1e4
    _, finding = found(call_of(scores, causal=True))
    # H₈/8 = .34 is one, too
    assert finding.sentence.startswith("In 2 of 2 heads the first token gets more than 30 %")
    assert "gets most attention in L0H1 (100 %)" in finding.sentence
    assert "rect" in finding.plot().to_json() and DIAGNOSTICS["sinks"] is Sinks
    tables = Sinks.from_state({}, epsilon=0.3)
    assert tables.result().sentence == ""
    with pytest.raises(EigenlensError, match="between 0 and 1"):
        Sinks(epsilon=1.5)
