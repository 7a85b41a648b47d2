"""TensorLens.

The derivative and the measures against definitions written out, and the quick run end to end.
"""

import functools
import json

import numpy as np
import pytest
import torch

from eigenlens.anatomy import freeze
from eigenlens.bench.timing import peak_bytes
from eigenlens.captures.precision import stays_double
from eigenlens.explanations import in_out, linearize
from eigenlens.models.load import load
from eigenlens.papers import PAPERS
from eigenlens.papers import tensorlens as module
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.tensorlens.claims import claims_of
from eigenlens.papers.tensorlens.cost import width_row
from eigenlens.papers.tensorlens.exactness import exactness_row, family_rows
from eigenlens.papers.tensorlens.jacobian import Derivative, compare_operator, small_rows
from eigenlens.papers.tensorlens.maps import rollout
from eigenlens.papers.tensorlens.small import CAUSAL, FAMILIES, small_batch, small_model
from printed import check_printed


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorlens") / "run"
    return PAPERS["tensorlens"]("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact_with_padding(family):
    rows = family_rows(family, 1, 5)
    assert [row["precision"] for row in rows] == ["float64", "float32"]
    assert rows[0]["largest error"] < 1e-10 and rows[0]["completeness"] < 1e-10
    assert rows[1]["relative error"] < 1e-4
    assert rows[0]["largest a_ij of a later token"] == (0.0 if family in CAUSAL else None)
    if family not in ("vit", "dinov2"):
        assert not bool(small_batch(family, 5)["attention_mask"].all())


def test_what_is_off_is_seen(monkeypatch):
    """A model whose output is not that of its frozen graph has the error that was put in."""
    model, batch = small_model("bert", 0), small_batch("bert", 0)
    own = type(model).forward

    def nudged(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        out.last_hidden_state = out.last_hidden_state + 0.01
        return out

    monkeypatch.setattr(type(model), "forward", nudged)
    row = exactness_row(load(model, device=None), batch, False)
    assert row["largest error"] == pytest.approx(0.01, rel=1e-6)
    assert row["completeness"] > 1e-4 and row["relative error"] > 1e-4


@pytest.mark.parametrize("family", ["bert", "albert", "llama", "vit"])
def test_the_derivative_is_the_slope_of_the_model(family):
    """Along random directions of the stream, against central differences.

    ALBERT runs one block three times.
    """
    model, batch = small_model(family, 1), small_batch(family, 1, 1, 6, padded=False)
    true = Derivative(model, batch)
    (op,) = linearize(model, batch)
    v, u = torch.randn_like(op.inputs), torch.randn_like(op.inputs)
    with torch.no_grad():
        slope = (true(lambda x: x + 1e-5 * v) - true(lambda x: x - 1e-5 * v)) / 2e-5
        assert torch.allclose(true(lambda x: x), op.output, atol=1e-12)
    assert float((true.adjoint(u[None])[0] * v).sum()) == pytest.approx(
        float((u * slope).sum()), rel=1e-6, abs=1e-7
    )
    along = true.along_input()
    assert float((true.adjoint(u[None])[0] * op.inputs).sum()) == pytest.approx(
        float((u * along).sum()), rel=1e-6, abs=1e-7
    )
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_t_and_j_are_compared_as_the_matrices_that_they_are():
    model, batch = small_model("bert", 2), small_batch("bert", 2, 1, 4, padded=False)
    (op,) = linearize(model, batch)
    true, size = Derivative(model, batch), 4 * 32
    stack = freeze(model, batch)[0]
    T = torch.func.jacrev(stack)(op.inputs).view(size, size).numpy()
    kept = []
    with torch.enable_grad(), stays_double():
        out = true(lambda x: kept.append(x.detach().requires_grad_()) or kept[0])
        J = np.stack(
            [
                torch.autograd.grad(value, kept[0], retain_graph=True)[0].flatten().numpy()
                for value in out.flatten()
            ]
        )
    units = torch.cat([u for _, u in op.units()])
    (row,) = compare_operator(op, true, units)
    assert row["‖T−J‖/‖J‖"] == pytest.approx(np.linalg.norm(T - J) / np.linalg.norm(J), rel=1e-6)
    assert row["‖T−J‖/‖T‖"] == pytest.approx(np.linalg.norm(T - J) / np.linalg.norm(T), rel=1e-6)
    assert row["cosine of T and J"] == pytest.approx(
        (T * J).sum() / np.linalg.norm(T) / np.linalg.norm(J), rel=1e-6
    )
    x, y, b = (t.flatten().numpy() for t in (op.inputs, op.output, op.bias))
    assert row["‖JX+B−Y‖/‖Y‖"] == pytest.approx(
        np.linalg.norm(J @ x + b - y) / np.linalg.norm(y), rel=1e-6
    )
    assert row["‖JX−Y‖/‖Y‖"] == pytest.approx(
        np.linalg.norm(J @ x - y) / np.linalg.norm(y), rel=1e-6
    )
    assert row["‖TX+B−Y‖/‖Y‖"] < 1e-12
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(64, *op.inputs.shape, generator=generator, dtype=torch.float64)
    (guess,) = compare_operator(op, true, drawn)
    assert guess["‖T−J‖/‖J‖"] == pytest.approx(row["‖T−J‖/‖J‖"], rel=0.1)


def test_a_linear_model_is_its_own_jacobian():
    """With patterns that do not depend on the input, no norms and ReLU gates, T of the blocks is
    J.
    """
    from eigenlens.lab.model import Config, Transformer

    torch.manual_seed(0)
    config = Config(
        vocabulary=11, length=5, width=16, layers=2, heads=2, norm=False, activation="relu"
    )
    model, ids = Transformer(config).double(), torch.randint(0, 11, (1, 5))
    for block in model.blocks:
        block.attention.project.weight.data[:32] = 0  # no queries, no keys: uniform patterns
        block.attention.project.bias.data[:32] = 0
    (stack,) = freeze(model, {"ids": ids}, forward=lambda batch: model(batch["ids"]))
    T = torch.func.jacrev(lambda x: functools.reduce(lambda y, stage: stage(y), stack.stages(), x))(
        stack.inputs
    )
    kept = []
    hook = model.blocks[0].register_forward_pre_hook(
        lambda _m, args: (kept.append(args[0].detach().requires_grad_()) or kept[0],)
    )
    last = []
    tail = model.blocks[-1].register_forward_hook(lambda _m, _a, out: last.append(out))
    model(ids)
    hook.remove()
    tail.remove()
    J = torch.stack(
        [torch.autograd.grad(value, kept[0], retain_graph=True)[0] for value in last[0].flatten()]
    )
    torch.testing.assert_close(T.view(80, 80), J.view(80, 80), rtol=1e-8, atol=1e-10)


def test_small_models_are_as_the_library_starts_them_or_random_throughout():
    started, random = small_model("bert", 3, None), small_model("bert", 3)
    assert float(
        dict(started.named_parameters())["encoder.layer.0.attention.self.query.weight"]
        .detach()
        .std()
    ) == pytest.approx(0.02, rel=0.1)
    assert float(
        dict(random.named_parameters())["encoder.layer.0.attention.self.query.weight"]
        .detach()
        .std()
    ) == pytest.approx(0.2, rel=0.1)
    assert all(
        bool(parameter.ne(1).any() and parameter.ne(0).any()) for parameter in random.parameters()
    )
    (near,), (far,) = small_rows("bert", 1, 3, True), small_rows("bert", 1, 3, False)
    assert near["‖T−J‖/‖J‖"] < far["‖T−J‖/‖J‖"]


def test_memory_is_that_of_the_tensors():
    row = width_row(32, 16, 0)
    assert row["whole MB"] == pytest.approx(4 * (16 * 32) ** 2 / 1e6)
    assert row["graph and row / whole"] == pytest.approx(
        (row["graph MB"] + row["row MB"]) / row["whole MB"]
    )
    model, batch = small_model("bert", 0).float(), small_batch("bert", 0, 1, 16, padded=False)
    (op,) = linearize(model, batch)
    # the full tensor does take it
    assert peak_bytes(op.full_tensor, torch.device("cpu")) >= 4 * (16 * 32) ** 2
    assert row["row MB"] * 1e6 < 4 * (16 * 32) ** 2 / 10


@torch.no_grad()
def test_rollout_is_the_product_of_the_models_own_patterns():
    model = small_model("bert", 4)
    model.set_attn_implementation("eager")
    batch = small_batch("bert", 4, padded=False)
    with stays_double():
        patterns = model(**batch, output_attentions=True).attentions
    want = torch.eye(12, dtype=torch.float64).expand(3, -1, -1)
    for A in patterns:
        want = (0.5 * A.mean(1) + 0.5 * torch.eye(12)) @ want
    torch.testing.assert_close(rollout(linearize(model, batch)[0]), want, rtol=1e-10, atol=1e-12)


def test_the_quick_run_gives_every_claim_and_the_facts_hold(done):
    run, _ = done
    verdicts = {claim.claim: claim.verdict for claim in run.claims}
    assert len(verdicts) == len(run.claims) == 17
    facts = [
        name
        for name in verdicts
        if any(w in name for w in ("F(X) =", "complete", "j > i", "Jacobian", "(n·d)²"))
    ]
    assert len(facts) == 6 + 2 + 4 + 1
    flat = "small random models, as the library starts it: T is not the Jacobian"
    assert verdicts[flat] == "depends"  # nearly flat patterns: T is a fifth of J away
    assert {verdicts[name] for name in facts if name != flat} == {"reproduced"}
    assert sum("deletion area" in name for name in verdicts) == 2
    assert all(claim.criterion and claim.note for claim in run.claims)
    assert all(bool(c.reason) == (c.verdict == "not reproduced") for c in run.claims)
    again = Reproduction.from_record(json.loads(json.dumps(run.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(run.record()))
    drawn = module.charts(run.tables)
    assert list(drawn) == ["maps", "deletion", "jacobian", "cost"]
    assert all(chart.to_dict() for chart in drawn.values())


def test_the_tables_say_what_was_measured(done):
    run, _ = done
    maps = [row for row in run.tables["maps"] if row["map"] == "In+Out"]
    n = 1 + max(row["input"] for row in maps)
    shares = np.array([row["share"] for row in maps]).reshape(n, n)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-4)
    model = load("minilm")
    ids = model.tokenizer(module.maps.SENTENCE, return_tensors="pt")["input_ids"]
    a = in_out(linearize(model, {"input_ids": ids})[0])[0]
    np.testing.assert_allclose(shares, (a / a.sum(1, keepdim=True)).numpy(), atol=1e-5)
    assert maps[0]["input token"] == "[CLS]"
    areas = {row["method"]: row for row in run.tables["areas"]}
    curve = [
        row
        for row in run.tables["curves"]
        if (row["method"], row["order"]) == ("TensorLens In+Out", "positive")
    ]
    area = np.trapezoid([row["probability"] for row in curve], [row["fraction"] for row in curve])
    assert areas["TensorLens In+Out"]["positive"] == pytest.approx(area, rel=1e-9)
    assert {row["fraction"] for row in curve} == {0, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 1}
    family = next(
        row
        for row in run.tables["families"]
        if row["model"] == "bert" and row["precision"] == "float64"
    )
    assert family["largest error"] == max(
        row["largest error"]
        for row in run.tables["exactness"]
        if (row["model"], row["precision"]) == ("bert", "float64")
    )


def test_what_is_finished_is_not_done_again(done, monkeypatch):
    run, folder = done
    for name in (
        "family_rows",
        "catalogue_rows",
        "small_rows",
        "catalogue_jacobian",
        "length_row",
        "width_row",
        "deletion_run",
        "map_rows",
    ):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("done again"))
    assert PAPERS["tensorlens"]("quick", folder, resume=True).record() == run.record()


def tables_of(
    error=1e-13, later=0.0, apart=0.8, cost=0.7, power=1.0, share=0.001, gain=0.1, low=0.05
):
    """Tables of one model and two lengths, written by hand."""
    exact = {"model": "bert", "weights": "random", "largest error": error, "completeness": error}
    loaded = {**exact, "model": "minilm", "weights": "catalogue"}
    jacobian = {
        "model": "bert",
        "weights": "N(0, 0.2²)",
        "directions": 64,
        "‖T−J‖/‖J‖": apart,
        "‖T−J‖/‖T‖": apart,
        "cosine of T and J": 0.6,
        "‖TX+B−Y‖/‖Y‖": error,
        "‖JX+B−Y‖/‖Y‖": apart,
        "‖JX−Y‖/‖Y‖": 1.0,
    }

    def sizes(name, n):
        held = {"row MB": n**power, "graph MB": n**power, "whole MB": 1e4}
        return {name: n, **held, "graph and row / whole": share}

    area = {"positive": 0.5, "inputs": 100}
    return {
        "exactness": [
            {
                **row,
                "precision": precision,
                "relative error": error * (1 if precision == "float64" else 1e8),
                "relative completeness": error,
                "largest a_ij of a later token": later,
            }
            for row in (exact, loaded)
            for precision in ("float64", "float32")
        ],
        "jacobian": [jacobian, {**jacobian, "model": "minilm", "weights": "pretrained"}],
        "cost": [
            {"model": "minilm", "row / forward": cost, "freeze / forward": 3.0} | sizes("tokens", n)
            for n in (32, 64)
        ],
        "width": [sizes("channels", n) for n in (64, 128)],
        "areas": [
            {"method": name, **area}
            for name in ("TensorLens In+Out", "attention", "rollout", "random")
        ],
        "pairs": [
            {
                "method": method,
                "against": other,
                "order": order,
                "gain": gain if order == "positive" else -9.0,
                "low": low if order == "positive" else -9.0,
                "high": gain + 0.1,
            }
            for method in ("TensorLens In+Out", "TensorLens norm")
            for other in ("attention", "rollout")
            for order in ("positive", "negative")
        ],
    }


def judged_by(**changed):
    claims = claims_of(tables_of(**changed))
    assert all(bool(c.reason) == (c.verdict == "not reproduced") for c in claims)
    return {claim.claim: claim.verdict for claim in claims}


def test_every_claim_can_hold_and_can_fail():
    assert set(judged_by().values()) == {"reproduced"} and len(judged_by()) == 14
    bad = {"error": 1e-9, "later": 1e-30, "apart": 0.05, "cost": 3.0, "power": 2.5, "share": 0.5}
    assert set(judged_by(**bad, gain=-0.1, low=-0.2).values()) == {"not reproduced"}


def test_what_was_said_without_a_figure_depends_on_how_it_is_read():
    some = judged_by(apart=0.3, cost=1.8, gain=0.02, low=-0.01)
    words = ("Jacobian", "row of T", "deletion area")
    assert {v for n, v in some.items() if any(w in n for w in words)} == {"depends"}
    assert {v for n, v in some.items() if not any(w in n for w in words)} == {"reproduced"}


def test_what_the_paper_does_not_compare_is_no_claim():
    """Norm, and the least relevant tokens first: they stand in the table of pairs alone."""
    names = [name for name in judged_by() if "deletion" in name]
    assert len(names) == 2 and not any("norm" in n or "negative" in n for n in names)
