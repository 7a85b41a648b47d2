"""Gates: what is exact is exact, the miniature runs from end to end, and a run that goes on does
nothing twice.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.papers import PAPERS
from eigenlens.papers import gated as module
from eigenlens.papers.gated import checks, claims, pictures
from eigenlens.papers.gated.checks import random_layer, random_stream
from printed import check_printed


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gated") / "run"
    return PAPERS["gated"]("quick", folder), folder


def test_what_is_printed_fits_a_page(reproduction, capsys):
    check_printed(reproduction[0], capsys)


def of(reproduction, text):
    (found,) = [claim for claim in reproduction.claims if text in claim.claim]
    return found


@pytest.mark.parametrize("text", ["sum over routes", "W_θ = 0", "large positive bias", "span"])
def test_what_is_exact_is_reproduced(reproduction, text):
    assert of(reproduction[0], text).verdict == "reproduced"


def test_every_gate_is_trained_from_every_seed_and_looked_into(reproduction):
    rows = reproduction[0].tables["runs"]
    assert {(row["gate"], row["seed"]) for row in rows} == {
        (gate, seed)
        for gate in ("none", "G1", "G1-head", "G2", "G3", "G4", "G5")
        for seed in (0, 1)
    }
    for row in rows:
        assert (row["mean_gate"] is None) == (row["gate"] == "none")
        assert 0 < row["first_token"] < 1 and row["largest_activation"] > 0 and row["loss"] < 5
    weights = {row["gate"]: row["weights"] for row in rows}
    assert (
        weights["G1"] - weights["none"] == 2 * 32 * 32
        and weights["G1-head"] - weights["none"] == 2 * 32 * 2
    )


def test_published_figures_of_large_models_are_out_of_reach(reproduction):
    far = [claim for claim in reproduction[0].claims if "15A2B" in claim.claim]
    assert len(far) == 9 and {claim.verdict for claim in far} == {"out of reach"}
    rows = {(row["gate"], row["seed"]): row for row in reproduction[0].tables["runs"]}
    ratio = [rows["G2", seed]["first_token"] / rows["none", seed]["first_token"] for seed in (0, 1)]
    claim = of(reproduction[0], "G2 changes the attention to the first token")
    assert claim.measured == pytest.approx(sum(ratio) / 2) and claim.interval == pytest.approx(
        (min(ratio), max(ratio))
    )
    perplexity = [np.exp(rows["G1", s]["loss"]) / np.exp(rows["none", s]["loss"]) for s in (0, 1)]
    assert of(reproduction[0], "G1 changes the perplexity").measured == pytest.approx(
        sum(perplexity) / 2
    )


def test_a_run_that_goes_on_does_nothing_twice(reproduction, monkeypatch):
    done, folder = reproduction
    for place, name in ((module, "one_run"), (module, "exact_checks")):
        monkeypatch.setattr(place, name, lambda *_: pytest.fail("it is finished"))
    again = PAPERS["gated"]("quick", folder, resume=True)
    assert again.record() == done.record()
    json.dumps(again.record())


def test_the_pictures_show_every_model(reproduction):
    charts = pictures.charts(reproduction[0].tables)
    assert list(charts) == ["gated", "loss", "spans"]
    assert all(chart.to_dict() for chart in charts.values())


def test_the_sum_over_routes_is_the_sum_of_loops():
    """`out[i,c] = Σ_h Σ_e Σ_j A_ij g_ie v_je W_O[h,e,c]`, every number by itself, against the
    layer's own output.
    """
    made, x = random_layer("G1", 3, width=6, heads=2), random_stream(4, 3, width=6)[:1]
    with torch.no_grad():
        rows = x[0] @ made.project.weight.T + made.project.bias
        wanted = made(x)[0] - made.out.bias
    found = np.zeros((4, 6))
    for h in range(2):
        q, k, v = (rows[:, 6 * part + 3 * h : 6 * part + 3 * h + 3].numpy() for part in range(3))
        for i in range(4):
            A = np.exp(q[i] @ k[: i + 1].T / 3**0.5)
            A /= A.sum()
            g = 1 / (1 + np.exp(-x[0, i].numpy() @ made.gate.weight[:, h].detach().numpy()))
            for e in range(3):
                for j in range(i + 1):
                    found[i] += (
                        A[j] * g[e] * v[j, e] * made.out.weight[:, 3 * h + e].detach().numpy()
                    )
    np.testing.assert_allclose(wanted.numpy(), found, atol=1e-12)
    assert checks.decomposition("G1", 9, 5) < 1e-10


def test_a_zero_gate_halves_and_others_do_not():
    assert checks.at_zero("G1", 7, 0) == 0.0
    assert checks.at_zero("G4", 7, 0) > 1e-3  # inside the softmax it does not halve
    assert checks.wide_open("G3", 7, 0) < 1e-12


@pytest.mark.parametrize(
    ("gate", "n", "expected"),
    [(None, 9, 1), ("G1-head", 9, 1), ("G1", 3, 3), ("G1", 9, 6), ("G1", 1, 1)],
)
def test_the_span_of_the_maps(gate, n, expected):
    """Against the rank of the gates themselves.

    The maps `w_e ⊗ o_e` are independent where heads are narrower than the stream.
    """
    assert checks.span(gate, n, 2, width=12, heads=2) == expected
    if gate is not None:
        with torch.no_grad():
            g = random_layer(gate, 2, width=12, heads=2).gate.values(
                random_stream(n, 2, width=12)[:1]
            )[0, 0]
        assert (
            int(np.linalg.matrix_rank(g.expand(n, 6).numpy() if gate == "G1" else g.numpy()))
            == expected
        )


def test_even_attention_gives_the_first_token_what_a_model_of_equal_scores_does():
    A = torch.ones(9, 9).tril()
    assert module.uniform_share(9) == pytest.approx(
        float((A / A.sum(1, keepdim=True))[4:, 0].mean())
    )


def test_the_claim_about_sinks_follows_the_models():
    rows = [
        {"gate": f"G{i}", "seed": 0, "mean_gate": i / 12, "first_token": (i / 12) ** 2}
        for i in range(1, 12)
    ]
    plain = {"gate": "none", "seed": 0, "mean_gate": None, "first_token": 0.123, "even": 0.045}
    found = claims._sink({"runs": [*rows, plain]})
    assert found.verdict == "reproduced" and "gets 0.123, and 0.045 if" in found.note
    turned = [{**row, "first_token": 1 - row["first_token"]} for row in rows]
    found = claims._sink({"runs": [*turned, plain]})
    assert found.verdict == "not reproduced" and found.reason.startswith("the claim: the sink is")


def test_models_without_a_sink_say_nothing_of_one_that_shrinks():
    rows = [
        {"gate": f"G{i}", "seed": 0, "mean_gate": i / 12, "first_token": 0.05 - i / 1000}
        for i in range(1, 12)
    ]
    plain = {"gate": "none", "seed": 0, "mean_gate": None, "first_token": 0.05, "even": 0.045}
    found = claims._sink({"runs": [*rows, plain]})
    assert found.verdict == "out of reach" and found.measured == pytest.approx(-1)


def test_what_is_exact_can_fail(reproduction):
    tables = {name: [dict(row) for row in rows] for name, rows in reproduction[0].tables.items()}
    for row in tables["exact"]:
        row["error"] = 1e-6
    tables["spans"][0]["span"] += 1
    found = claims.claims_of(tables, True)[:4]
    assert {claim.verdict for claim in found} == {"not reproduced"}
    assert all(claim.reason.startswith("the claim: ") for claim in found)


def test_what_is_seen_inside_is_what_the_model_computes():
    scale = replace(PAPERS["gated"].quick, steps=1)
    task = module.byte_task(scale)
    torch.manual_seed(0)
    model = module.Transformer(task.config(width=16, layers=2, heads=2, gate="G1"))
    found = module.gate_numbers(model, task)
    gates, first, largest = [], [], []
    for block in model.blocks:
        block.register_forward_hook(
            lambda _, given, out: largest.append(float(out.detach().abs().max()))
        )
        block.attention.gate.register_forward_hook(
            lambda gate, given, out: gates.append(
                torch.sigmoid(given[0] @ gate.weight.flatten(1)).detach().mean()
            )
        )
    with torch.no_grad():
        for batch in task.held_out():
            model(batch.inputs)
            first += [A[:, :, 16:, 0].mean() for A in model.patterns(batch.inputs)]
    assert found["largest_activation"] == pytest.approx(max(largest), rel=1e-6)
    assert found["mean_gate"] == pytest.approx(float(torch.stack(gates).mean()), rel=1e-5)
    assert found["first_token"] == pytest.approx(float(torch.stack(first).mean()), rel=1e-5)
