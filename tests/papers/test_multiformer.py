"""Multiformer.

The configurations, relevance of loaded models against their own projections, and the quick run.
"""

import json

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError, load
from eigenlens.attention import HeadMix
from eigenlens.papers import PAPERS
from eigenlens.papers import multiformer as module
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.multiformer.claims import MIXED, claims_of
from eigenlens.papers.multiformer.encoders import encoder
from eigenlens.papers.multiformer.relevance import lab_relevance, loaded_relevance
from printed import check_printed
from tiny import small_bert, small_llama


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multiformer") / "run"
    return PAPERS["multiformer"]("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


@pytest.mark.parametrize(
    ("name", "local", "conv"),
    [("lc", 24, 24), ("v1", 6 + 12, 18 + 12), ("v2", 3 + 15 + 8, 9 + 5 + 8)],
)
def test_the_configurations_have_the_heads_of_the_paper_and_run(name, local, conv):
    model = encoder(name, 0)
    counts = {"local": 0, "conv": 0}
    for mix in model.mechanisms:
        assert isinstance(mix, HeadMix) and sum(mix.counts) == 4
        for member, count in zip(mix.members, mix.counts):
            counts[member.name] += count
            assert member.name == "conv" or member.settings.window == 33
            assert member.name == "local" or (member.settings.kernel, member.settings.stride) == (
                5,
                2,
            )
    assert len(model.mechanisms) == 12 and counts == {"local": local, "conv": conv}
    for frames in (1, 100):
        assert torch.isfinite(model(torch.randn(1, frames, 80))).all()


def by_hand(inputs_of_projection, projection, heads):
    """The map's row of one layer from what goes into its output projection: (inputs, T, H·E), with
    plain loops.
    """
    medians = []
    for x in inputs_of_projection:
        shares = []
        for token in x:
            parts = token.reshape(heads, -1)
            sizes = [
                np.abs(part @ projection[h * len(part) : (h + 1) * len(part)]).sum()
                for h, part in enumerate(parts)
            ]
            shares.append(np.array(sizes) / np.sum(sizes))
        medians.append(np.median(shares, 0))
    return np.median(medians, 0)


def seen_by(layers, run):
    """What goes into each of these modules in one pass."""
    kept = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, given: kept.append(given[0].detach().numpy()))
        for layer in layers
    ]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_relevance_of_a_loaded_model_is_that_of_what_its_output_projection_is_given(family):
    torch.manual_seed(0)
    ids = torch.randint(1, 50, (3, 9))
    if family == "bert":
        model = small_bert()
        projections = [layer.attention.output.dense for layer in model.encoder.layer]
    else:
        model = small_llama().model
        projections = [layer.self_attn.o_proj for layer in model.layers]
    (found,) = loaded_relevance(model, [{"input_ids": ids[:2]}, {"input_ids": ids[2:]}]).values()
    given = seen_by(projections, lambda: model(ids))
    for layer, projection in enumerate(projections):
        expected = by_hand(given[layer], projection.weight.detach().numpy().T, 4)
        np.testing.assert_allclose(found[layer].numpy(), expected, rtol=1e-4)


def test_padding_does_not_enter_the_map():
    torch.manual_seed(0)
    model, ids = small_bert(), torch.randint(1, 50, (1, 9))
    mask = torch.ones(1, 9, dtype=torch.long)
    mask[0, 6:] = 0
    (padded,) = loaded_relevance(model, [{"input_ids": ids, "attention_mask": mask}]).values()
    (short,) = loaded_relevance(model, [{"input_ids": ids[:, :6]}]).values()
    torch.testing.assert_close(padded, short, atol=1e-5, rtol=1e-5)


def test_minilm_heads_are_weighed_by_their_own_projection():
    model = load("minilm")
    ids = torch.randint(1000, 20_000, (2, 12))
    (found,) = loaded_relevance(model.backbone, [{"input_ids": ids}]).values()
    dense = model.backbone.encoder.layer[3].attention.output.dense
    (given,) = seen_by([dense], lambda: model.backbone(input_ids=ids))
    np.testing.assert_allclose(
        found[3].numpy(), by_hand(given, dense.weight.detach().numpy().T, 12), rtol=1e-4
    )
    assert found.shape == (6, 12)


def test_relevance_of_a_lab_model_is_that_of_what_its_output_projection_is_given():
    model = encoder("v2", 0)
    x = torch.randn(2, 20, 80)
    found = lab_relevance(model, x)
    given = seen_by([attention.out for attention in model.attentions], lambda: model(x))
    for layer in (0, 5, 11):
        expected = by_hand(given[layer], model.attentions[layer].out.weight.detach().numpy().T, 4)
        np.testing.assert_allclose(found[layer].numpy(), expected, rtol=1e-4)


def test_the_quick_run_gives_every_claim_and_the_facts_hold(done):
    run, _ = done
    names = [claim.claim for claim in run.claims]
    assert len(names) == len(set(names)) == 8
    assert [claim.verdict for claim in run.claims[:6]] == ["reproduced"] * 6
    assert run.claims[-1].verdict == "out of reach"
    assert all(claim.criterion and claim.note for claim in run.claims)
    assert all(bool(c.reason) == (c.verdict == "not reproduced") for c in run.claims)
    again = Reproduction.from_record(json.loads(json.dumps(run.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(run.record()))
    assert list(module.charts(run.tables)) == ["map-minilm", "miniature"]
    assert all(chart.to_dict() for chart in module.charts(run.tables).values())
    shares = [row["cost at 1024"] for row in run.tables["configurations"]]
    assert all(0 < share < 1 for share in shares)
    heads = [row for row in run.tables["maps"] if row["layer"] == 0]
    assert len(heads) == 12 and sum(row["relevance"] for row in heads) == pytest.approx(
        1.0, abs=0.1
    )


def test_what_is_finished_is_not_done_again(done, monkeypatch):
    run, folder = done
    for name in ("checks", "configurations", "catalogue_map", "miniature"):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("done again"))
    assert PAPERS["multiformer"]("quick", folder, resume=True).record() == run.record()
    with pytest.raises(EigenlensError, match="already holds a reproduction"):
        PAPERS["multiformer"]("quick", folder)


MIX = "speech translation: heads of several kinds beat one kind"
EVEN = "the more alike the heads count, the better the model"


def tables_of(evenness, accuracy, off=0.0, keys=50.0, runs=True):
    """Tables of six kinds of layers with one seed, written by hand."""
    kinds = ("all full", "all local", "all conv", "1 local, 3 conv", MIXED, "3 local, 1 conv")
    rows = [
        {"heads": kind, "seed": 0, "evenness": even, "accuracy": right, "cost": 0.5}
        for kind, even, right in zip(kinds, evenness, accuracy)
    ]
    return {
        "checks": [
            {"check": "all full heads: farthest from torch's MultiheadAttention", "value": off},
            {"check": "terms of the heads and bias: farthest from the output", "value": off},
            {"check": "relevance of the heads of a token", "value": off},
            {"check": "local heads: largest weight outside the window", "value": off},
            {"check": "keys of 100 tokens under kernel 5, stride 2", "value": keys},
            {"check": "finite without a mask, also for one token", "value": 1.0},
        ],
        "configurations": [
            {"configuration": name, "cost at 1024": 0.3, "runs": runs} for name in ("lc", "v1")
        ],
        "runs": rows,
        "kinds": rows,
    }


RISING, FALLING = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)


@pytest.mark.parametrize("keys", [48.0, 51.0])
def test_every_claim_can_hold_and_can_fail(keys):
    good = claims_of(tables_of(RISING, RISING))
    assert [claim.verdict for claim in good] == [*["reproduced"] * 7, "out of reach"]
    bad = claims_of(tables_of(RISING, FALLING, off=2e-5, keys=keys, runs=False))
    assert [claim.verdict for claim in bad] == [*["not reproduced"] * 7, "out of reach"]
    assert all(bool(c.reason) == (c.verdict == "not reproduced") for c in (*good, *bad))
    reason = {claim.claim: claim for claim in bad}[EVEN].reason
    assert "0.600 in the worst kind of layer (3 local, 1 conv, accuracy 0.400)" in reason


def test_evenness_depends_on_which_layers_are_compared():
    accuracy = (0.9, 0.1, 0.8, 0.5, 0.6, 0.7)  # rises among the mixes alone
    found = {c.claim: c for c in claims_of(tables_of(RISING, accuracy))}[EVEN]
    assert found.verdict == "depends" and "the mixes alone (1.00)" in found.note


def test_the_mix_is_compared_with_the_better_single_kind_and_never_judged():
    for accuracy, gain in (((0.9, 0.1, 0.5, 0.5, 0.7, 0.7), 0.2), (FALLING, -0.3)):
        found = {c.claim: c for c in claims_of(tables_of(RISING, accuracy))}[MIX]
        assert found.verdict == "out of reach" and found.measured == pytest.approx(gain)
