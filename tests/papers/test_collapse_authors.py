"""The authors' models, surgeries and trainings, against forwards written out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from eigenlens.lab import Circle, ConvexHull, Sort
from eigenlens.papers import rank_collapse
from eigenlens.papers.rank_collapse import authors_training
from eigenlens.papers.rank_collapse.authors_circle import (
    VARIANTS,
    AuthorsCircle,
    circle_run,
    fed_back,
    sequences,
    train_circle,
)
from eigenlens.papers.rank_collapse.authors_model import SKIPPED, AuthorsModel, AuthorsShape
from eigenlens.papers.rank_collapse.authors_settings import HULL, MEMORISE, QUICK_TRIALS, SORT
from eigenlens.papers.rank_collapse.authors_training import (
    Labelled,
    authors_table,
    make_model,
    make_task,
    one_seed,
    random_path,
    rate_at,
    train_as_authors,
)
from eigenlens.papers.rank_collapse.random_starts import random_model, residual_curve
from eigenlens.papers.rank_collapse.single_paths import from_rank_one
from eigenlens.papers.rank_collapse.surgery import (
    KEPT_ACTIVATION,
    KEPT_SKIP,
    operated,
    without_dense_layers,
)
from eigenlens.run.parts import Parts

SHAPES = {
    "tokens": AuthorsShape(3, layers=2, heads=2, width=8, vocabulary=7, positions=5),
    "vectors": AuthorsShape(2, layers=3, heads=2, width=8, features=2, embedding=2),
    "mlp": AuthorsShape(2, layers=2, heads=4, width=8, vocabulary=7, mlp=True),
    "no skip": AuthorsShape(2, layers=1, heads=2, width=8, features=2, adds_input=False),
}


def model_of(name):
    torch.manual_seed(3)
    model = AuthorsModel(SHAPES[name]).double().eval()
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    return model


def inputs_of(name):
    torch.manual_seed(4)
    if SHAPES[name].vocabulary:
        return torch.randint(7, (2, 5))
    return torch.randn(2, 5, 2, dtype=torch.float64)


def normed(x, gain=1.0, bias=0.0):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


class ByHand:
    """One sequence (T, …) through the weights of a model."""

    def __init__(self, model):
        self.shape = model.shape
        self.w = {name: x.detach().numpy() for name, x in model.state_dict().items()}

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, name, x):
        return normed(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def embed(self, inputs):
        x = inputs if self.shape.features else self.w["tokens.weight"][inputs]
        if self.shape.positions:
            x = x + self.w["places.weight"][: len(x)]
        x = self.linear("embedding.0", x)
        if self.shape.embedding == 2:
            x = self.linear("embedding.1", gelu(x))
        return self.norm("norm", x)

    def head(self, layer, head, x):
        """What a head adds, without the bias of the output projection."""
        D = self.shape.width // self.shape.heads
        rows = slice(head * D, (head + 1) * D)
        q, k, v = (
            self.linear(f"blocks.{layer}.{name}", x)[:, rows]
            for name in ("queries", "keys", "values")
        )
        p = np.exp(q @ k.T / math.sqrt(D))
        p /= p.sum(1, keepdims=True)
        return p @ v @ self.w[f"blocks.{layer}.out.weight"][:, rows].T

    def rest(self, layer, x):
        if not self.shape.mlp:
            return x
        name = f"blocks.{layer}"
        y = self.linear(f"{name}.narrow", gelu(self.linear(f"{name}.wide", x)))
        return self.norm(f"{name}.norm_2", x + y)

    def whole(self, inputs):
        x = self.embed(inputs)
        for layer in range(self.shape.layers):
            y = sum(self.head(layer, h, x) for h in range(self.shape.heads))
            y = y + self.w[f"blocks.{layer}.out.bias"] + (x if self.shape.adds_input else 0)
            x = self.rest(layer, self.norm(f"blocks.{layer}.norm_1", y))
        return self.linear("readout", x)

    def along(self, inputs, paths):
        total = 0
        for path in paths:
            x = self.embed(inputs)
            for layer, head in enumerate(path):
                if head != SKIPPED:
                    y = self.head(layer, head, x) + self.w[f"blocks.{layer}.out.bias"]
                    x = self.rest(layer, normed(y))
            total = total + x
        return self.linear("readout", normed(total))


@pytest.mark.parametrize("name", SHAPES)
def test_the_model_is_that_of_the_scripts(name):
    model, inputs = model_of(name), inputs_of(name)
    hand = ByHand(model)
    expected = np.stack([hand.whole(x) for x in inputs.numpy()])
    np.testing.assert_allclose(model(inputs).detach().numpy(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", SHAPES)
def test_a_path_is_one_head_per_layer_and_nothing_of_what_came_in(name):
    model, inputs = model_of(name), inputs_of(name)
    shape, hand = model.shape, ByHand(model)
    paths = [
        path
        for hops in range(shape.layers + 1)
        for path in random_path(shape.layers, shape.heads, hops, 3, 5)
    ]
    expected = np.stack([hand.along(x, paths) for x in inputs.numpy()])
    found = model.along_paths(inputs, paths).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_paths_have_as_many_heads_as_hops():
    for hops in range(5):
        paths = random_path(4, 3, hops, 20, 1)
        assert [sum(head != SKIPPED for head in path) for path in paths] == [hops] * 20
        assert all(SKIPPED <= head < 3 for path in paths for head in path)


def test_values_and_outputs_start_wider_than_the_other_weights():
    torch.manual_seed(0)
    model = AuthorsModel(AuthorsShape(10, layers=1, heads=2, width=100, vocabulary=300))
    block = model.blocks[0]
    for linear in (block.values, block.out):
        # uniform within ±1/√C
        assert float(linear.weight.detach().abs().max()) == pytest.approx(0.1, rel=0.01)
        assert float(linear.weight.detach().std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.02)
    for linear in (block.queries, block.keys, model.readout, model.embedding[0], model.tokens):
        assert float(linear.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert all(not x.any() for name, x in model.named_parameters() if name.endswith("out.bias"))


def albert(layers=3):
    return random_model("albert", layers, 48, 24, 0)


def test_the_authors_surgery_leaves_activation_skip_and_norm_of_the_mlp():
    model = albert()
    ids = torch.randint(100, (2, 24), generator=torch.Generator().manual_seed(0))
    (block,) = {m for m in model.modules() if hasattr(m, "full_layer_layer_norm")}
    with torch.no_grad():
        x = model.encoder.embedding_hidden_mapping_in(model.embeddings(ids))
        states = [x]
        for _ in range(3):
            attended = block.attention(x, None)[0]
            # tanh form of GELU, ALBERT's activation
            u = attended.double()
            act = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
            x = F.layer_norm(
                (u + act).float(),
                (48,),
                block.full_layer_layer_norm.weight,
                block.full_layer_layer_norm.bias,
                block.full_layer_layer_norm.eps,
            )
            states.append(x)
        before = {name: id(m) for name, m in model.named_modules()}
        with without_dense_layers(model):
            found = model(input_ids=ids, output_hidden_states=True).hidden_states
        assert {name: id(m) for name, m in model.named_modules()} == before
    for a, b in zip(found, states):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-5)


def test_the_authors_form_of_a_variant_is_measured_and_is_not_ours():
    model = albert()
    ids = torch.randint(100, (3, 24), generator=torch.Generator().manual_seed(0))
    with operated(model, KEPT_ACTIVATION):
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        curve = residual_curve(model, ids)
    by_hand = [np.mean([residual(x.detach().double().numpy()) for x in state]) for state in states]
    np.testing.assert_allclose(curve, by_hand, rtol=1e-4, atol=1e-7)
    with operated(model, KEPT_SKIP):
        kept = residual_curve(model, ids)
    assert kept[1] < 0.1 * curve[1]  # without the skip around attention one block is enough


def residual(X):
    return composite(X - X.mean(0)) / composite(X)


def composite(A):
    return np.sqrt(np.abs(A).sum(0).max() * np.abs(A).sum(1).max())


def test_the_residual_about_rank_one_is_that_of_the_best_approximation():
    torch.manual_seed(0)
    patterns = torch.randn(4, 9, 9, dtype=torch.float64).softmax(2)
    expected = []
    for P in patterns.numpy():
        u, s, v = np.linalg.svd(P)
        expected.append(composite(P - s[0] * np.outer(u[:, 0], v[0])) / composite(P))
    np.testing.assert_allclose(from_rank_one(patterns).numpy(), expected, rtol=1e-9)
    equal_rows = torch.rand(1, 1, 9, dtype=torch.float64).expand(1, 9, 9)
    assert float(from_rank_one(equal_rows)[0]) < 1e-12


def test_what_runs_has_the_settings_of_the_scripts():
    """What the commands and the scripts' defaults say, number by number."""
    paper = rank_collapse.paper
    sort, hull, memorise = paper.scale("full").authors
    assert (sort, hull) == (SORT, HULL)
    assert memorise.data == {**MEMORISE.data, "length": 64}  # cut down; thorough has all of it
    assert paper.scale("thorough").authors[2].data == {
        "text": "wikipedia",
        "number": 500,
        "length": 128,
    }
    shapes = [(t.shape.layers, t.shape.heads, t.shape.width) for t in (sort, hull, memorise)]
    assert shapes == [(6, 2, 48), (6, 3, 84), (6, 2, 250)]
    assert [t.epochs for t in (sort, hull, memorise)] == [65, 70, 50]
    assert [t.batch for t in (sort, hull, memorise)] == [30, 30, 8]
    assert [t.rate for t in (sort, hull, memorise)] == [1e-5, 1e-5, 3e-4]
    assert [t.schedule for t in (sort, hull, memorise)] == ["constant", "steps", "linear"]
    assert [t.decay for t in (sort, hull, memorise)] == [0.0, 1e-3, 0.0]
    assert all(t.repeats == 5 and t.numbers[0] == 5 for t in (sort, hull, memorise))
    assert sort.shape.positions > 0 and not hull.shape.positions and not memorise.shape.positions
    assert hull.shape.embedding == 2 and sort.shape.embedding == 1
    assert memorise.shape.mlp and not sort.shape.mlp and not hull.shape.mlp
    task = make_task(sort, 0)
    assert isinstance(task, Sort) and [len(task.train.inputs), len(task.test.inputs)] == [1000, 200]
    assert isinstance(make_task(QUICK_TRIALS[1], 0), ConvexHull) and hull.data["train"] == 10_000
    model = make_model(sort, task)
    assert model.readout.out_features == 10 and model.tokens.num_embeddings == 10
    circle = paper.scale("full").circle
    assert circle == AuthorsCircle(1000, 70, 30, 1e-5, 300)
    for variant in VARIANTS:
        shape = variant.shape
        assert (shape.layers, shape.heads, shape.width) == (1, 2, 32)
    assert [v.name for v in VARIANTS if not v.shape.adds_input] == ["SAN without its input"]
    assert [v.name for v in VARIANTS if v.carries] == ["SAN+skip"]
    assert [v.name for v in VARIANTS if v.shape.mlp] == ["SAN+MLP"]


def test_batches_come_in_the_order_and_at_the_rates_of_the_script(monkeypatch):
    """Three epochs written out: Adam on batches of 30 in a row, decayed rates, its own dropout."""
    trial = QUICK_TRIALS[1]
    toy = make_task(trial, 0)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make_model(trial, toy))
    torch.manual_seed(1)
    train_as_authors(models[0], toy, trial)
    torch.manual_seed(1)
    optimiser = torch.optim.Adam(models[1].parameters(), lr=trial.rate)
    models[1].train()
    for _ in range(trial.epochs):
        for start in range(0, 90, 30):
            x, y = toy.train.inputs[start : start + 30], toy.train.targets[start : start + 30]
            loss = F.cross_entropy(models[1](x).reshape(-1, 2), y.reshape(-1))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for a, b in zip(*(m.state_dict().values() for m in models)):
        torch.testing.assert_close(a, b)
    assert not models[0].training


def test_rates_fall_as_the_scripts_have_it():
    assert {rate_at(SORT, epoch, epoch / 65) for epoch in range(65)} == {1e-5}
    steps = [rate_at(HULL, epoch, 0.0) / 1e-5 for epoch in (0, 14, 15, 29, 30, 69)]
    assert steps == pytest.approx([1, 1, 0.91, 0.91, 0.91**2, 0.91**5])
    assert [rate_at(MEMORISE, 0, s) for s in (0.0, 0.5, 1.0)] == pytest.approx([3e-4, 1.5e-4, 0])


def test_equal_tokens_of_a_sequence_cannot_be_told_apart():
    """No answer that is the same for equal tokens is right more often than the ceiling."""
    ids = torch.tensor([[5, 5, 5, 9], [9, 9, 2, 2]])
    toy = Labelled(ids, seed=1)
    assert toy.vocabulary == 3 and toy.train.targets.shape == ids.shape
    right = 0
    for row, labels in zip(ids.tolist(), toy.train.targets.tolist()):
        for token in set(row):
            mine = [label for at, label in zip(row, labels) if at == token]
            right += max(mine.count(0), mine.count(1))
    assert toy.ceiling == pytest.approx(right / 8)
    model = AuthorsModel(AuthorsShape(2, layers=1, heads=1, width=4, vocabulary=3)).eval()
    answers = model(toy.train.inputs)
    torch.testing.assert_close(answers[0, 0], answers[0, 1])


def test_the_table_counts_answers_and_means_seeds(tmp_path, monkeypatch):
    trial = replace(QUICK_TRIALS[0], seeds=2, numbers=(3,))
    rows = authors_table([trial], Parts(tmp_path))
    singles = [one_seed(trial, seed) for seed in range(2)]
    assert len(rows) == len(singles[0])
    for row, *same in zip(rows, *singles):
        assert row["each"] == [one["accuracy"] for one in same]
        assert row["accuracy"] == pytest.approx(np.mean(row["each"]))
        assert row["spread"] == pytest.approx(np.std(row["each"], ddof=1))
    lengths = [row["length"] for row in rows if row["mode"] == "authors"]
    assert lengths == list(range(trial.shape.layers + 1))
    torch.manual_seed(0)
    toy = make_task(trial, 0)
    model = make_model(trial, toy)
    train_as_authors(model, toy, trial, 0)
    right = (model(toy.test.inputs).argmax(2) == toy.test.targets).double().mean()
    assert rows[0]["mode"] == "model" and rows[0]["each"][0] == pytest.approx(float(right))
    monkeypatch.setattr(authors_training, "train_as_authors", lambda *_: pytest.fail("again"))
    assert authors_table([trial], Parts(tmp_path)) == rows


def test_the_authors_circle_is_ours_at_other_points():
    inputs, targets = sequences(1000)
    assert inputs.shape == targets.shape == (499, 2, 2)
    np.testing.assert_allclose(inputs.norm(dim=2), 0.3, rtol=1e-5)
    torch.testing.assert_close(targets[:-1], inputs[1:])
    gap = math.pi - 2 * math.pi / 1000  # the script's second arc starts one step early
    for a, b in inputs.tolist():
        assert (math.atan2(b[1], b[0]) - math.atan2(a[1], a[0])) % (2 * math.pi) == pytest.approx(
            gap, abs=1e-4
        )
    assert Circle(1000).train.inputs.shape == (999, 2, 2)


def test_a_skip_carries_the_outputs_into_the_next_input():
    circle = AuthorsCircle(points=40, epochs=1, batch=10, rate=1e-3, steps=3, seeds=1)
    start = sequences(40)[0][0]
    for variant in VARIANTS:
        model, _ = train_circle(variant, circle, 0)
        path = fed_back(model, variant, start, 3)
        given = start
        with torch.no_grad():
            for step in range(3):
                said = model(given[None])[0]
                torch.testing.assert_close(path[step + 1], said)
                given = given + said if variant.name == "SAN+skip" else said
    row = circle_run(VARIANTS[0], circle, 0)
    assert row["settings"] == "authors" and row["variant"] == "SAN" and row["error"] > 0
    assert len(row["distance"]) == 4
