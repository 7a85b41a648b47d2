"""Sinks and spikes: the task and the windows against loops, and the quick run end to end."""

import importlib
import json
import math

import numpy as np
import pytest
import torch

from eigenlens.attention.window import Window, WindowSettings
from eigenlens.diagnostics.spikes import Spikes
from eigenlens.lab import Transformer
from eigenlens.models.load import load
from eigenlens.papers import PAPERS
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.diagnostic_pass import find_sites
from eigenlens.papers.pictures import draw
from eigenlens.papers.sinks.claims import _binomial, claims_of
from eigenlens.papers.sinks.exact import pattern_checks, planted
from eigenlens.papers.sinks.models import _loss, massive, on_texts
from eigenlens.papers.sinks.training import VARIANTS, SinksTraining, Triggers, one_run, sink_numbers
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
    for first in (4, 0):
        for i in range(20):
            for j in range(i + 1):
                mask[0, 0, i, j] = 0.0 if i - j < 8 - first or j < first else -torch.inf
        found = _loss(model, ids, Window(WindowSettings(8 - first, first)))
        plain = small_llama()
        plain.set_attn_implementation("eager")
        with torch.no_grad():
            logits = plain(input_ids=ids, attention_mask=mask).logits[0, :-1]
        expected = -logits.log_softmax(1).gather(1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        mask.fill_(-torch.inf)


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
    assert (
        verdicts["smollm2: activations step up in an early block and down in a late one"]
        == "reproduced"
    )
    assert verdicts["smollm2: in the spike channel S_k is near rank one"] == "not reproduced"
    assert len(claims) == 4 + 9 + 4 + 1 and done[0].tables["missing"] == []
    steps = {row["steps"]: row for row in done[0].tables["steps"]}
    assert (steps["up"]["layer"], steps["down"]["layer"]) == (11, 28)
    assert steps["up"]["largest channel"] == steps["up"]["amplified channel"] == 507
    assert all(claim.note for claim in claims)
    assert claims_of(done[0].tables, True) == claims
    json.dumps(done[0].record(), allow_nan=False)


def test_a_model_without_spikes_does_not_bear_the_claims_out(done):
    tables = json.loads(json.dumps(done[0].tables))
    row = tables["models"][0]
    row |= {
        "inputs with spikes": 0.0,
        "steps up": [],
        "steps down": [],
        "sinks at the first token": None,
    }
    for layer in tables["layers"]:
        layer["steps"] = ""
    verdicts = {claim.claim.partition(": ")[2]: claim.verdict for claim in claims_of(tables, True)}
    for claim in (
        "there are massive activations",
        "the sinks are the first token",
        "activations step up in an early block and down in a late one",
    ):
        assert verdicts[claim] == "not reproduced"


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
