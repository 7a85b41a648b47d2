"""Sinks and spikes: the task and the windows against loops, and the quick run end to end."""

import importlib
import json
import math

import numpy as np
import pytest
import torch

from eigenlens.diagnostics.spikes import Spikes
from eigenlens.lab import Transformer
from eigenlens.models.load import load
from eigenlens.papers import PAPERS
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.diagnostic_pass import find_sites
from eigenlens.papers.pictures import draw
from eigenlens.papers.sinks.claims import _binomial, claims_of
from eigenlens.papers.sinks.exact import pattern_checks, planted
from eigenlens.papers.sinks.models import massive, on_texts
from eigenlens.papers.sinks.rank_one import rank_one_share
from eigenlens.papers.sinks.training import VARIANTS, SinksTraining, Triggers, one_run, sink_numbers
from eigenlens.papers.sinks.windows import ALL, ALONE, CACHE, KEPT, next_losses, ways, window_means
from printed import check_printed
from tiny import of_catalogue, small_llama

module = importlib.import_module("eigenlens.papers.sinks")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    of_catalogue("smollm2")  # skipped where it cannot be had
    folder = tmp_path_factory.mktemp("sinks") / "run"
    return PAPERS["sinks"]("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


def test_patterns_whose_sinks_are_known():
    uniform, first = pattern_checks(64)
    assert uniform["α₁"] == pytest.approx(0.0741, abs=5e-5) and uniform["sink rate"] == 0
    assert first["α₁"] == pytest.approx(1.0) and first["sink rate"] == 1


def test_a_planted_amplifier_is_recovered():
    row = planted(3)
    assert (
        sorted(row["found"]) == [7, 31] and row["λ₁/λ₂"] > 100 and row["|cos(s*, planted)|"] > 0.999
    )


def test_what_follows_a_trigger_is_a_copy_and_the_rest_a_chain():
    task = Triggers(12, 3, 40, held=400)
    batch = next(task.held_out())
    assert bool((batch.inputs[:, 0] == 12).all()) and torch.equal(
        batch.inputs[:, 1:], batch.targets[:, :-1]
    )
    copied, counts = task.copied(batch.inputs), np.zeros((12, 12))
    for b in range(400):
        for t in range(1, 40):
            x, y = int(batch.inputs[b, t]), int(batch.targets[b, t])
            if x < 3 and t > 1:
                assert bool(copied[b, t]) and y == int(batch.inputs[b, t - 1])
            else:
                assert not bool(copied[b, t])
                counts[x, y] += 1
    seen = counts.sum(1) > 400
    assert seen.sum() > 5
    np.testing.assert_allclose(
        counts[seen] / counts[seen].sum(1, keepdims=True), task.chain.numpy()[seen], atol=0.08
    )
    assert torch.equal(task.batch(4, 0, 7).inputs, task.batch(4, 0, 7).inputs)
    assert not torch.equal(task.batch(4, 0, 7).inputs, task.batch(4, 0, 8).inputs)


def test_sinks_of_a_trained_model_are_counted_head_by_head():
    task = Triggers(12, 3, 16, held=5)
    torch.manual_seed(0)
    model = Transformer(task.config(width=16, layers=2, heads=2))
    found = sink_numbers(model, task)
    alphas = []
    for A in model.patterns(next(task.held_out()).inputs):
        A = A.detach()
        for b in range(5):
            for h in range(2):
                alphas.append(sum(float(A[b, h, i, 0]) for i in range(16)) / 16)
    assert found["sink strength"] == pytest.approx(np.mean(alphas), rel=1e-5)
    assert found["sink rate"] == pytest.approx(np.mean(np.array(alphas) > 0.3))


def test_every_remedy_trains():
    scale = SinksTraining(12, 3, 16, 16, 1, 2, 3, 4, 1e-3, 1)
    rows = [one_run(variant, scale, 0, lambda *_: None) for variant in VARIANTS]
    assert [row["attention"] for row in rows] == list(VARIANTS) and all(
        math.isfinite(row["loss"]) for row in rows
    )


def test_a_window_with_and_without_the_first_keys():
    """Against eager attention with the mask written out."""
    model = load(small_llama(), device=None)
    ids = torch.randint(0, 50, (1, 20))
    mask = torch.full((1, 1, 20, 20), -torch.inf)
    for name, first in ((KEPT, 4), (ALONE, 0)):
        for i in range(20):
            for j in range(i + 1):
                mask[0, 0, i, j] = 0.0 if i - j < 8 - first or j < first else -torch.inf
        found = next_losses(model, ids, ways(model, 8)[name])
        plain = small_llama()
        plain.set_attn_implementation("eager")
        with torch.no_grad():
            logits = plain(input_ids=ids, attention_mask=mask).logits[0, :-1]
        expected = -logits.log_softmax(1).gather(1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        mask.fill_(-torch.inf)


def test_positions_of_a_cache_are_those_of_a_text_without_what_was_left_out():
    """One layer sees its keys' embeddings alone, so a query of a cache is one of a short text."""
    module = small_llama()
    module.model.layers = module.model.layers[:1]
    model, ids, window = load(module, device=None), torch.randint(0, 50, (1, 20)), 8
    found = next_losses(model, ids, ways(model, window)[CACHE])
    for i in range(19):
        kept = [*range(4), *range(max(4, i - window + 5), i + 1)] if i >= window else range(i + 1)
        with torch.no_grad():
            logits = module(input_ids=ids[:, list(kept)]).logits[0, -1]
        expected = -logits.log_softmax(0)[ids[0, i + 1]]
        assert found[i].item() == pytest.approx(expected.item(), abs=1e-5)
    far = next_losses(model, ids, ways(model, window)[KEPT])
    torch.testing.assert_close(far[:8], found[:8], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(far[8:], found[8:], atol=1e-5)


def test_the_share_of_rank_one_is_that_of_the_dense_matrix():
    draw = torch.Generator().manual_seed(5)
    G, U = (torch.randn(30, 12, generator=draw, dtype=torch.float64) for _ in range(2))
    w = torch.randn(30, generator=draw, dtype=torch.float64)
    P = sum(w[i] * torch.outer(G[i], U[i]) for i in range(30))
    values = np.linalg.eigvalsh(((P + P.T) / 2).numpy())
    expected = max(values**2) / (values**2).sum()
    assert rank_one_share(G, U, w) == pytest.approx(expected, rel=1e-6)


def test_perplexities_are_exponentials_of_mean_losses():
    row = {"model": "a", "text": "t", "keys": "all keys"}
    rows = [{**row, "loss": 1.0}, {**row, "loss": 3.0}, {**row, "keys": "latest", "loss": 0.0}]
    assert [(r["loss"], r["texts"]) for r in window_means(rows)] == [(2.0, 2), (0.0, 1)]
    assert window_means(rows)[0]["perplexity"] == pytest.approx(math.e**2)


def test_tokens_with_massive_activations_are_those_of_the_hidden_states():
    model = load(small_llama(), device=None)
    ids = torch.randint(0, 50, (3, 6))
    studied = find_sites(model, lambda: model.backbone(input_ids=ids[:1], use_cache=False))
    spikes, medians = Spikes(size=0.05, ratio=3.0), torch.tensor([0.02, 0.02])
    kept = []
    hooks = [
        layer.register_forward_hook(
            lambda _m, _a, out: kept.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in model.backbone.layers
    ]
    with torch.no_grad():
        model.backbone(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    expected = torch.stack([x.abs().amax(2) for x in kept]).amax(0) >= 0.06
    found = massive(studied, ids, medians, spikes)
    assert torch.equal(found, expected) and 0 < int(found.sum()) < found.numel()
    sinks, _, rates = on_texts(studied, ids)
    assert np.mean(rates) == pytest.approx(np.mean(list(sinks.result().values("rate").values())))


def test_the_interval_of_a_share():
    # Wilson's, in closed form: n/(n+z²)
    assert _binomial(1.0, 100) == pytest.approx((0.963, 1.0), abs=1e-3)
    low, high = _binomial(0.5, 100)
    assert low == pytest.approx(0.4038, abs=1e-3) and high == pytest.approx(0.5962, abs=1e-3)


def test_the_quick_run_judges_every_claim(done):
    claims = done[0].claims
    assert [claim.verdict for claim in claims[:4]] == ["reproduced"] * 4  # mathematics
    verdicts = {claim.claim: claim.verdict for claim in claims}
    assert verdicts["smollm2: there are massive activations"] == "reproduced"
    steps_claim = "smollm2: activations step up in an early block and down in a late one"
    # in the first and the last half of the blocks, not in the outer thirds
    assert verdicts[steps_claim] == "depends"
    assert verdicts["smollm2: in the spike channel S_k is near rank one"] == "depends"
    assert len(claims) == 4 + 9 + 4 + 1 and done[0].tables["missing"] == []
    steps = {row["steps"]: row for row in done[0].tables["steps"]}
    assert (steps["up"]["layer"], steps["down"]["layer"]) == (11, 28)
    assert steps["up"]["largest channel"] == steps["up"]["amplified channel"] == 507
    assert all(claim.note and claim.criterion for claim in claims)
    assert all(claim.reason for claim in claims if claim.verdict == "not reproduced")
    assert claims_of(done[0].tables, True) == claims
    assert len(done[0].tables["window means"]) == 2 * 4
    json.dumps(done[0].record(), allow_nan=False)


def tables_of(
    parameters=2e8,
    massive=1.0,
    front=0.9,
    steps=((1,), (9,)),
    spiking=1.0,
    share=0.995,
    cosine=0.99,
    losses=(3.0, 3.1, 3.2, 5.0),
    less=0.1,
    known=True,
):
    """Tables of one model of ten blocks, written by hand."""
    up, down = steps
    kinds = dict.fromkeys(up, "up") | dict.fromkeys(down, "down")
    layer = {"model": "a", "dominance": 5.0, "channels": 100, "largest channel": 7}
    pattern = {"α₁": 0.5, "expected": 0.5 if known else 0.4}
    return {
        "patterns": [{**pattern, "sink rate": 0.0}, {**pattern, "sink rate": 1.0}],
        "planted": [
            {
                "found": [7, 31] if known else [7, 30],
                "planted": [7, 31],
                "d": 64,
                "λ₁/λ₂": 500.0 if known else 50.0,
                "|cos(s*, planted)|": 1.0 if known else 0.9,
            }
        ],
        "models": [
            {
                "model": "a",
                "parameters": parameters,
                "inputs": 4,
                "tokens": 8,
                "layers": 10,
                "sink rate": 0.7,
                "low": 0.6,
                "high": 0.8,
                "sink strength": 0.5,
                "anywhere": 0.7,
                "spike": 5000.0,
                "spike over median": 2000.0,
                "inputs with spikes": massive,
                "spikes at the first token": 1.0,
                "steps up": list(up),
                "steps down": list(down),
            }
        ],
        "places": [
            {"model": "a", "ε": e, "sinks": 9, "at the first token": front}
            for e in (0.1, 0.2, 0.3, 0.5)
        ],
        "layers": [
            {
                **layer,
                "layer": i,
                "steps": kinds.get(i, ""),
                "amplified channel": 7 if known else 8,
                "rank-one share": share,
                "shared": cosine,
            }
            for i in range(10)
        ],
        "first tokens": [
            {
                "model": "a",
                "vocabulary": 50,
                "sampled": 40,
                "spike at position 0": spiking,
                "of texts, at position 0": 1.0,
                "of texts, elsewhere": 0.0,
            }
        ],
        "windows": [
            {
                "model": "a",
                "text": text,
                "keys": way,
                "window": 4,
                "tokens": 9,
                "input": at,
                "loss": loss + 0.01 * at,
            }
            for text in ("tales", "own")
            for way, loss in zip((ALL, CACHE, KEPT, ALONE), losses)
            for at in range(3)
        ],
        "training": [
            {
                "attention": kind,
                "seed": 0,
                "sink strength": 0.3 if kind == "softmax" else 0.3 - less,
                "sink rate": 0.2,
                "largest activation": 4.0,
            }
            for kind in VARIANTS
        ],
    }


def judged_by(**changed):
    claims = claims_of(tables_of(**changed), False)
    assert all(bool(c.reason) == (c.verdict == "not reproduced") for c in claims)
    return {claim.claim: claim for claim in claims}


OF_MODELS = (
    "a: the sinks are the first token",
    "a: there are massive activations",
    "a: activations step up in an early block and down in a late one",
    "a: the channel that a step block amplifies most is the one that spikes",
    "a: in the spike channel S_k is near rank one",
    "a: the amplified channels share their eigenvector",
    "a: most of the vocabulary spikes at position 0",
    "a: a window of keys needs the first 4",
)


def test_every_claim_can_hold_and_can_fail():
    good = judged_by()
    assert [good[name].verdict for name in OF_MODELS] == ["reproduced"] * 8
    losses = (3.0, 4.9, 4.8, 5.0)
    bad = judged_by(
        front=0.2,
        steps=((8,), (9,)),
        spiking=0.9,
        share=0.3,
        cosine=0.5,
        losses=losses,
        known=False,
    )
    failed = {name for name, claim in bad.items() if claim.verdict == "not reproduced"}
    assert failed == {*OF_MODELS, *list(bad)[:4]} - {"a: there are massive activations"}
    few = judged_by(massive=0.2)
    assert few["a: there are massive activations"].verdict == "not reproduced"
    assert "5,000" in few["a: there are massive activations"].reason
    assert not any("amplif" in name or "S_k" in name for name in few)  # no channel spikes


def test_what_was_said_without_a_figure_depends_on_how_it_is_read():
    some = judged_by(massive=0.7, steps=((3,), (7,)), share=0.92, cosine=0.91)
    assert {some[name].verdict for name in OF_MODELS[1:3]} == {"depends"}
    assert {some[name].verdict for name in OF_MODELS[4:6]} == {"depends"}
    window = judged_by(losses=(3.0, 3.2, 4.9, 5.0))[OF_MODELS[-1]]
    assert window.verdict == "depends" and "not at tales, positions in the text" in window.note


def test_a_small_model_and_small_trainings_bear_nothing_out_and_refute_nothing():
    """Whatever they show, what was published of large models stays out of reach."""
    for changed in ({}, {"spiking": 0.0, "losses": (3.0, 5.0, 5.0, 4.0), "less": -0.1}):
        found = judged_by(parameters=15e6, **changed)
        assert {found[name].verdict for name in OF_MODELS[1:]} == {"out of reach"}
        assert all("15 million" in found[name].note for name in OF_MODELS[1:])
        remedies = [claim for name, claim in found.items() if "weaker sinks" in name]
        assert len(remedies) == 4 and {claim.verdict for claim in remedies} == {"out of reach"}
        assert all(claim.measured is not None for claim in remedies)
    assert judged_by(parameters=15e6, front=0.2)[OF_MODELS[0]].verdict == "not reproduced"


def test_too_few_texts_are_not_held_against_the_claim():
    tables = tables_of()
    for row in tables["windows"]:
        if row["keys"] == ALONE:
            row["loss"] += (-4.0, 4.0, 8.0)[row["input"]]
    window = {claim.claim: claim for claim in claims_of(tables, False)}[OF_MODELS[-1]]
    assert window.verdict == "not reproduced" and window.reason.startswith("the scale: 3 texts")


def test_a_run_that_is_resumed_does_nothing_again(done, monkeypatch):
    for name in ("model_rows", "one_run"):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("it is finished"))
    again = PAPERS["sinks"]("quick", done[1], resume=True)
    assert again.record() == done[0].record()
    assert Reproduction.from_record(again.record()).claims == again.claims


def test_its_pictures_are_drawn(done, tmp_path):
    drawn = draw(done[0], tmp_path)
    assert {path.stem for path in drawn} == {"sinks", "heads", "amplifiers", "windows", "training"}
    assert all(path.stat().st_size > 3_000 for path in drawn)
