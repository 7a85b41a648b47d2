"""Over-smoothing.

The metrics and the bound against definitions written out, and the quick run end to end.
"""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from eigenlens import EigenlensError, lab, load
from eigenlens.diagnostics.smoothing import distance, map_cosine
from eigenlens.diagnostics.smoothing_bound import smoothing_bound
from eigenlens.papers import PAPERS
from eigenlens.papers import over_smoothing as module
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.over_smoothing.blocks import block_steps
from eigenlens.papers.over_smoothing.claims import claims_of
from eigenlens.papers.over_smoothing.fine_tuning import SHOWN
from eigenlens.papers.over_smoothing.models import Reader, clear_reviews, quarters
from eigenlens.stats.geometry import mean_cosine
from printed import check_printed
from tiny import small_bert, small_llama


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("over-smoothing") / "run"
    return PAPERS["over-smoothing"]("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


def encoder(seed=0, layers=3, **more):
    torch.manual_seed(seed)
    shape = {
        "vocabulary": 20,
        "length": 12,
        "width": 16,
        "heads": 2,
        "layers": layers,
        "norm_position": "post",
    }
    return lab.Transformer(lab.Config(**shape, activation="relu", **more)).double()


def test_the_metrics_of_tokens_that_are_equal_and_of_tokens_at_right_angles():
    equal, apart = torch.randn(1, 1, 6).expand(1, 5, 6), torch.eye(5)[None]
    assert float(mean_cosine(equal)) == pytest.approx(1.0) and float(distance(equal)) == 0.0
    assert float(mean_cosine(apart)) == pytest.approx(0.0, abs=1e-12)
    X = torch.randn(1, 7, 4)
    by_hand = [
        float(X[0, i] @ X[0, j] / (X[0, i].norm() * X[0, j].norm()))
        for i, j in itertools.permutations(range(7), 2)
    ]
    assert float(mean_cosine(X)) == pytest.approx(float(np.mean(by_hand)), abs=1e-6)
    centring = np.eye(7) - np.ones((7, 7)) / 7
    assert float(distance(X)) == pytest.approx(
        float(np.linalg.norm(centring @ X[0].double().numpy()))
    )


def test_the_cosine_of_maps_is_that_of_their_means_over_heads():
    P, Q = torch.rand(2, 3, 4, 4), torch.rand(2, 5, 4, 4)
    for b in range(2):
        p, q = P[b].mean(0).flatten().numpy(), Q[b].mean(0).flatten().numpy()
        assert float(map_cosine(P.mean(1), Q.mean(1))[b]) == pytest.approx(
            float(p @ q / np.linalg.norm(p) / np.linalg.norm(q)), rel=1e-5
        )


def by_hand(model, ids, layer):
    """v of a block from its definition, with numpy's singular values and no capture."""
    with torch.no_grad():
        H = model.embed(ids)
        for block in model.blocks[:layer]:
            H = block(H)
        block = model.blocks[layer]
        x1 = H + block.attention(H)
        x2 = block.norm_1(x1)
        x2 = x2 + block.narrow(block.act(block.wide(x2)))
        out, A = block.norm_2(x2), block.attention.pattern(H)
    C, heads = model.config.width, model.config.heads
    value, output = (
        block.attention.project.weight[2 * C :].detach().numpy(),
        block.attention.out.weight.detach().numpy(),
    )
    E = C // heads
    products = [
        value[h * E : (h + 1) * E].T @ output[:, h * E : (h + 1) * E].T for h in range(heads)
    ]
    matrices = [*products, block.wide.weight.detach().numpy(), block.narrow.weight.detach().numpy()]
    s = max(np.linalg.svd(m, compute_uv=False)[0] for m in matrices)
    n = ids.shape[1]
    rows = []
    for b in range(len(ids)):
        middle = np.eye(n) - np.ones((n, n)) / n
        lam = max(np.linalg.eigvalsh(P.T @ middle @ P)[-1] for P in A[b].numpy())
        sigma = np.prod([np.sqrt(x[b].numpy().var(1) + 1e-5).min() for x in (x1, x2)])
        d = [np.linalg.norm(middle @ x[b].numpy()) for x in (H, out)]
        rows.append((d[1] / d[0], (1 + s**2) * (1 + math.sqrt(lam) * heads * s) / sigma))
    return rows


def test_ratio_and_bound_of_every_block_are_the_definitions():
    model, ids = encoder(), torch.randint(20, (3, 12))
    steps = block_steps(model, [{"input_ids": ids}])
    assert len(steps) == 3 * 3
    for layer in range(3):
        found = [step for step in steps if step.layer == layer]
        for step, (ratio, v) in zip(found, by_hand(model, ids, layer)):
            assert step.ratio == pytest.approx(ratio, rel=1e-6) and step.v == pytest.approx(
                v, rel=1e-6
            )
            assert (
                step.v == pytest.approx(smoothing_bound(step.s, step.root, 2, step.sigma))
                and step.gained == step.v
            )


@pytest.mark.parametrize("scale", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_no_block_of_a_post_norm_relu_encoder_is_beyond_the_bound(scale, seed):
    """Weights from tiny to large; the sharper form is smaller and holds too.

    Gains of the norms must be in it.
    """
    model = encoder(seed)
    with torch.no_grad():
        for block in model.blocks:
            for part in (block.attention.project, block.attention.out, block.wide, block.narrow):
                part.weight.mul_(scale)
                part.bias.normal_()
            block.norm_1.weight.uniform_(0.2, 3.0)
            block.norm_2.weight.uniform_(0.2, 3.0)
            block.norm_2.bias.normal_()
    ids = torch.randint(20, (4, 12))
    for step in block_steps(model, [{"input_ids": ids}]):
        assert step.ratio <= step.sharp * (1 + 1e-9) <= step.gained * (1 + 1e-8)


def saying_something(gain=1.0):
    """A block whose bound says something.

    Uniform attention, and a large vector that the MLP's bias adds to every token.
    """
    model = encoder(layers=1)
    with torch.no_grad():
        block = model.blocks[0]
        for part in (block.attention.project, block.attention.out, block.wide, block.narrow):
            part.weight.mul_(1e-3)
        block.attention.out.bias.copy_(10 * torch.randn(16))
        block.narrow.bias.copy_(10 * torch.randn(16))
        block.norm_1.weight.fill_(gain)
        block.norm_2.weight.fill_(gain)
    return model


def test_a_bound_below_one_is_a_promise_that_is_kept():
    model, ids = saying_something(), torch.randint(20, (4, 12))
    steps = block_steps(model, [{"input_ids": ids}])
    assert all(step.ratio <= step.v < 1 for step in steps)
    assert all(step.similarity > step.similarity_in for step in steps)


def test_without_the_gains_of_the_norms_the_published_bound_can_be_broken():
    model, ids = saying_something(gain=30.0), torch.randint(20, (4, 12))
    steps = block_steps(model, [{"input_ids": ids}])
    assert all(step.ratio > step.v and step.ratio <= step.gained for step in steps)


def test_models_of_other_builds_are_refused():
    torch.manual_seed(0)
    pre = lab.Transformer(lab.Config(vocabulary=20, length=12, width=16, heads=2, layers=1))
    with pytest.raises(EigenlensError, match="for post-norm blocks"):
        block_steps(pre, [{"input_ids": torch.randint(20, (1, 5))}])
    llama = small_llama()
    with pytest.raises(EigenlensError, match="for post-norm blocks"):
        block_steps(llama, [{"input_ids": torch.randint(20, (1, 5))}])
    bert = small_bert()
    ids, mask = torch.randint(1, 20, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    mask[0, 4:] = 0
    with pytest.raises(EigenlensError, match="without padding"):
        block_steps(bert, [{"input_ids": ids, "attention_mask": mask}])


def test_the_curve_of_a_loaded_encoder_is_that_of_its_hidden_states():
    model = load("minilm")
    ids = torch.randint(1000, 20_000, (2, 16))
    with torch.no_grad():
        states = model.backbone(input_ids=ids, output_hidden_states=True).hidden_states
    steps = block_steps(model.backbone, [{"input_ids": ids}])
    for layer in range(6):
        for i in range(2):
            x = nn.functional.normalize(states[layer + 1][i].double(), dim=1)
            expected = float((x @ x.T).fill_diagonal_(0).sum() / (16 * 15))
            step = next(step for step in steps if (step.layer, step.input) == (layer, i))
            assert step.similarity == pytest.approx(expected, abs=1e-6)
            assert step.ratio <= step.sharp


def test_a_frozen_reader_reads_what_its_name_says_and_no_padding():
    torch.manual_seed(0)
    states, tokens = torch.randn(3, 4, 5, 6), torch.ones(3, 5, dtype=torch.bool)
    tokens[1, 2:] = False
    for read_out, fused in (
        ("last layer", states[:, -1]),
        ("max", states.amax(1)),
        ("concat", states.mean(1)),
    ):
        reader = Reader(read_out, 4, 6)
        pooled = torch.stack([fused[b][tokens[b]].mean(0) for b in range(3)])
        torch.testing.assert_close(reader(states, tokens), reader.out(pooled))


def test_the_quick_run_gives_every_claim_and_the_facts_hold(done):
    run, _ = done
    names = [claim.claim for claim in run.claims]
    assert len(names) == len(set(names)) == 18
    verdicts = {claim.claim: claim.verdict for claim in run.claims}
    facts = [
        name
        for name in names
        if "d_M(H_l+1)" in name and ("random start" in name or "gains" in name)
    ]
    assert len(facts) == 3 and all(verdicts[name] == "reproduced" for name in facts)
    assert {verdicts[name] for name in names if "fusion by" in name} == {"out of reach"}
    assert all(bool(c.reason) == (c.verdict == "not reproduced") for c in run.claims)
    assert all(claim.criterion and claim.note for claim in run.claims)
    again = Reproduction.from_record(json.loads(json.dumps(run.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(run.record()))
    assert set(module.charts(run.tables)) == {"depth", "bound", "fusion"}
    assert all(chart.to_dict() for chart in module.charts(run.tables).values())


def test_the_bound_is_drawn_of_one_encoder_in_one_state():
    tables = tables_of()
    rows = [
        {"model": "minilm", "state": state, "layer": layer, "ratio": 1.0, "sigma": 0.5}
        | {"least v": 9.0, "least sharp": 3.0}
        for state in ("pretrained", "fine-tuned")
        for layer in range(3)
    ]
    depth = [{"model": "minilm", "state": "pretrained", "depth": 0, "similarity": 0.1}]
    places = [{**row, "low": 0.0, "high": 0.2} for row in depth]
    drawn = module.charts({**tables, "layers": rows, "depth": places})["bound"]
    words = json.dumps(drawn.to_dict(), ensure_ascii=False)
    assert words.count('"what": "σ₁σ₂"') == 3


def test_the_tables_are_means_of_what_was_measured(done):
    run, _ = done
    rows = [
        row
        for row in run.tables["blocks"]
        if (row["model"], row["state"], row["layer"]) == ("minilm", "pretrained", 2)
    ]
    depth = next(
        row
        for row in run.tables["depth"]
        if (row["model"], row["state"], row["depth"]) == ("minilm", "pretrained", 3)
    )
    assert depth["similarity"] == pytest.approx(np.mean([row["similarity"] for row in rows]))
    layer = next(
        row
        for row in run.tables["layers"]
        if (row["model"], row["state"], row["layer"]) == ("minilm", "pretrained", 2)
    )
    assert layer["least v"] == min(row["v"] for row in rows) and layer["inputs"] == len(rows) == 4


def test_what_is_finished_is_not_done_again(done, monkeypatch):
    run, folder = done
    for name in ("pretrained", "digits_run", "reviews_run", "tuned_run"):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("done again"))
    assert PAPERS["over-smoothing"]("quick", folder, resume=True).record() == run.record()


def test_depths_of_reviews_are_those_of_the_encoder_that_reads_them(done):
    """Before fine-tuning, against each review alone, without padding."""
    run, _ = done
    model = load("minilm")
    texts, labels = clear_reviews(48)
    learned, asked = quarters(48, torch.Generator().manual_seed(0))
    assert sorted([*learned.tolist(), *asked.tolist()]) == list(range(48)) and len(asked) == 12
    before = [
        row
        for row in run.tables["on reviews"]
        if (row["state"], row["seed"]) == ("pretrained, reviews", 0)
    ]
    assert len(before) == 7 * min(12, SHOWN) and {r["input"] for r in before} == {*asked.tolist()}
    at = int(asked[0])
    ids = model.tokenizer(texts[at], return_tensors="pt", truncation=True, max_length=32)
    with torch.no_grad():
        states = model.backbone(**ids, output_hidden_states=True).hidden_states
    for row in (row for row in before if row["input"] == at):
        x = nn.functional.normalize(states[row["depth"]][0].double(), dim=1)
        n = len(x)
        expected = float((x @ x.T).fill_diagonal_(0).sum() / (n * (n - 1)))
        assert row["similarity"] == pytest.approx(expected, abs=1e-5)


def test_fine_tuning_moves_the_encoder(done):
    run, _ = done
    rows = {
        state: [r["similarity"] for r in run.tables["on reviews"] if r["state"].startswith(state)]
        for state in ("pretrained", "fine-tuned")
    }
    assert len(rows["pretrained"]) == len(rows["fine-tuned"])
    assert np.abs(np.subtract(*rows.values())).max() > 1e-4
    steps = [row for row in run.tables["blocks"] if row["state"] == "fine-tuned"]
    assert len(steps) == 6 * 12 * 2  # blocks, reviews, seeds
    last = [r for r in run.tables["on reviews"] if (r["depth"], r["state"][0]) == (6, "f")]
    behind = [row["similarity"] for row in steps if row["layer"] == 5]
    np.testing.assert_allclose(behind, [row["similarity"] for row in last], atol=1e-5)


def block_rows(model, state, ratio, sigma, v, maps, rise=0.1):
    """Two inputs of a stack of three blocks, written by hand."""
    return [
        {
            "model": model,
            "state": state,
            "seed": 0,
            "layer": layer,
            "input": i,
            "similarity_in": 0.2 + rise * layer + 0.01 * i,
            "similarity": 0.3 + rise * (layer + 1) + 0.01 * i,
            "distance": ratio[layer],
            "maps": maps[layer],
            "s": 3.0,
            "sigma": sigma[layer],
            "ratio": ratio[layer],
            "v": v,
            "gained": 2 * v,
            "sharp": v,
        }
        for layer in range(3)
        for i in range(2)
    ]


def tables_of(v=20.0, ratio=(1.2, 0.9, 0.8), sigma=(0.5, 1.2, 1.3), rise=0.1, fused=0.2):
    maps = (None, 0.3, 0.3 + rise)
    each = {"ratio": ratio, "sigma": sigma, "v": v, "maps": maps, "rise": rise}
    accuracy = {"last layer": 0.5, "concat": 0.7, "max": 0.4, "gate": 0.5}
    alike = {"last layer": 0.5, "concat": fused, "max": 0.6, "gate": fused}
    return {
        "blocks": [
            row
            for model, state in (
                ("minilm", "pretrained"),
                ("minilm", "fine-tuned"),
                ("digits", "trained"),
                ("digits", "random start"),
            )
            for row in block_rows(model, state, **each)
        ],
        "on reviews": [
            {
                "model": "minilm",
                "state": "fine-tuned, reviews",
                "depth": depth,
                "similarity": 0.2 + rise * depth + 0.01 * i,
            }
            for depth in range(4)
            for i in range(2)
        ],
        "fusion": [
            {
                "model": model,
                "read-out": read_out,
                "seed": seed,
                "accuracy": accuracy[read_out],
                "similarity": alike[read_out],
            }
            for model in ("digits", "minilm frozen", "minilm fine-tuned")
            for read_out in accuracy
            for seed in (0, 1)
        ],
    }


def judged_by(**changed):
    claims = claims_of(tables_of(**changed))
    assert all(bool(c.reason) == (c.verdict == "not reproduced") for c in claims)
    return {claim.claim: claim for claim in claims}


def verdicts_of(found, words):
    return [claim.verdict for name, claim in found.items() if words in name]


def test_every_claim_can_hold_and_can_fail():
    good = judged_by(v=0.95, ratio=(0.9, 0.8, 0.7))
    assert set(verdicts_of(good, "d_M(H_l+1)")) == {"reproduced"}
    assert verdicts_of(good, "v < 1") == ["reproduced"]
    assert verdicts_of(good, "rises with depth") == ["reproduced"] * 2
    assert verdicts_of(good, "grow alike") == ["reproduced"]
    assert verdicts_of(good, "draws tokens together") == ["reproduced"] * 3
    bad = judged_by(v=1.0, ratio=(0.9, 1.8, 2.7), rise=-0.2, fused=0.9)
    broken = [name for name in bad if "d_M(H_l+1)" in name and "gains" not in name]
    assert [bad[name].verdict for name in broken] == ["not reproduced"] * 3
    assert all("4 of 6 blocks and inputs are beyond v" in bad[name].reason for name in broken)
    assert verdicts_of(bad, "v < 1") == ["not reproduced"]
    assert "s², which alone is 9 to 9" in bad[next(n for n in bad if "v < 1" in n)].reason
    for words in ("rises with depth", "grow alike", "draws tokens together", "less alike"):
        assert set(verdicts_of(bad, words)) == {"not reproduced"}


def test_what_was_said_without_a_figure_depends_on_how_it_is_read():
    # the block of σ₁σ₂ 1.2 lets its tokens apart, that of 1.3 does not
    some = judged_by(ratio=(1.3, 1.1, 0.9))
    assert verdicts_of(some, "draws tokens together") == ["depends"] * 3
    note = some["minilm: where σ₁σ₂ is large, a block draws tokens together"].note
    assert "not at σ₁σ₂ > 1 (0.5 of 4)" in note and "> 1.25 (1 of 2)" in note
    assert verdicts_of(some, "less alike") == ["depends"] * 3  # max makes them more alike


def test_fusion_of_other_models_is_out_of_reach_whatever_ours_gain():
    found = judged_by()
    assert verdicts_of(found, "fusion by") == ["out of reach"] * 3
    gains = [claim.measured for name, claim in found.items() if "fusion by" in name]
    assert gains == pytest.approx([0.2, -0.1, 0.0])


def test_without_large_deviations_the_claim_about_them_cannot_be_judged():
    for ratio in ((1.2, 0.9, 0.8), (0.8, 0.9, 1.2)):
        found = judged_by(sigma=(0.5, 0.6, 0.7), ratio=ratio)
        assert verdicts_of(found, "draws tokens together") == ["out of reach"] * 3
