"""Path lengths of trained toys.

Against paths written out one by one, and that a run is resumed and repeated.
"""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.collapses.sampling import draw_paths
from eigenlens.errors import EigenlensError
from eigenlens.lab import ConvexHull, Memorise, Sort, Transformer
from eigenlens.papers.rank_collapse import training as collapse_training
from eigenlens.papers.rank_collapse.training import (
    QUICK,
    baselines,
    frozen_answers,
    path_table,
    rerun_answers,
    train_toys,
)
from eigenlens.run.parts import Parts

LAYERS, HEADS, WIDTH = 3, 2, 8
TOYS = {"sort": Sort(30, 12), "hull": ConvexHull(30, 12), "memorise": Memorise(12, 6, vocabulary=9)}


def model_of(toy):
    torch.manual_seed(1)
    model = Transformer(
        toy.config(layers=LAYERS, heads=HEADS, width=WIDTH, mlp=False, norm=False, size=0.7)
    )
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    return model.double()


def weights_of(model):
    return {name: x.detach().numpy() for name, x in model.state_dict().items()}


def pattern(w, layer, head, x):
    """P of one head on a stream (T, C), with the biases of queries and keys."""
    both = (
        x @ w[f"blocks.{layer}.attention.project.weight"].T
        + w[f"blocks.{layer}.attention.project.bias"]
    )
    D = WIDTH // HEADS
    q, k = both[:, head * D : (head + 1) * D], both[:, WIDTH + head * D : WIDTH + (head + 1) * D]
    p = np.exp(q @ k.T / math.sqrt(D))
    return p / p.sum(1, keepdims=True)


def value_map(w, layer, head):
    """W_h (C, C) and the bias that a token's value has of it, (C,)."""
    D = WIDTH // HEADS
    rows = slice(2 * WIDTH + head * D, 2 * WIDTH + (head + 1) * D)
    out = w[f"blocks.{layer}.attention.out.weight"][:, head * D : (head + 1) * D].T
    return (
        w[f"blocks.{layer}.attention.project.weight"][rows].T @ out,
        w[f"blocks.{layer}.attention.project.bias"][rows] @ out,
    )


def said(toy, w, x):
    """The class of a stream (T, C): at every token, or of their mean."""
    x = x.mean(0) if toy.pooled else x
    return (x @ w["readout.weight"].T + w["readout.bias"]).argmax(-1)


def residual(x):
    return x - x.mean(0)


@pytest.mark.parametrize("name", TOYS)
def test_terms_of_every_length_are_the_sum_of_its_paths(name):
    """27 paths through three layers of two heads and a skip, one by one, with the patterns of the
    whole model.
    """
    toy = TOYS[name]
    model = model_of(toy)
    w, batch = weights_of(model), double(next(toy.held_out()))
    found = frozen_answers(model, batch)
    for b, start in enumerate(model.embed(batch.inputs).detach().numpy()):
        patterns, x = [], start
        for layer in range(LAYERS):
            patterns.append([pattern(w, layer, head, x) for head in range(HEADS)])
            x = x + w[f"blocks.{layer}.attention.out.bias"]
            before = x - w[f"blocks.{layer}.attention.out.bias"]
            for head in range(HEADS):
                W, bias = value_map(w, layer, head)
                x = x + patterns[layer][head] @ before @ W + bias
        terms = np.zeros((LAYERS + 1, *start.shape))
        for path in itertools.product([None, *range(HEADS)], repeat=LAYERS):
            y = start
            for layer, head in enumerate(path):
                y = y if head is None else patterns[layer][head] @ y @ value_map(w, layer, head)[0]
            terms[sum(head is not None for head in path)] += y
        rest = x - terms.sum(0)
        for k in range(LAYERS + 1):
            np.testing.assert_array_equal(found["alone"][k, 0, b], said(toy, w, terms[k]))
            np.testing.assert_array_equal(
                found["up to"][k, 0, b], said(toy, w, terms[: k + 1].sum(0) + rest)
            )
            if not toy.pooled:
                np.testing.assert_array_equal(
                    found["residual"][k, 0, b], said(toy, w, residual(terms[k]))
                )
    assert ("residual" in found) == (not toy.pooled)
    assert torch.equal(found["up to"][-1, 0], model(batch.inputs).argmax(-1))


@pytest.mark.parametrize("name", TOYS)
def test_a_path_that_is_rerun_is_a_network_of_single_heads(name):
    toy = TOYS[name]
    model = model_of(toy)
    w, batch = weights_of(model), double(next(toy.held_out()))
    found = rerun_answers(model, batch, 5, seed=3)
    for hops in range(1, LAYERS + 1):
        sample = draw_paths(torch.ones(LAYERS, HEADS), hops, 5, 3)
        for b, start in enumerate(model.embed(batch.inputs).detach().numpy()):
            ends = []
            for layers, heads in zip(sample.layers.tolist(), sample.heads.tolist()):
                y = start
                for layer, head in zip(layers, heads):
                    y = pattern(w, layer, head, y) @ y @ value_map(w, layer, head)[0]
                ends.append(y)
            for i, y in enumerate(ends):
                np.testing.assert_array_equal(found["single"][hops - 1, i, b], said(toy, w, y))
            mean = np.mean(ends, axis=0)
            np.testing.assert_array_equal(found["alone"][hops - 1, 0, b], said(toy, w, mean))
            if not toy.pooled:
                np.testing.assert_array_equal(
                    found["residual"][hops - 1, 0, b], said(toy, w, residual(mean))
                )


def double(batch):
    return (
        batch
        if not batch.inputs.is_floating_point()
        else replace(batch, inputs=batch.inputs.double())
    )


@pytest.mark.parametrize("name", TOYS)
def test_baselines_guess_what_was_commonest_in_training(name):
    toy = TOYS[name]
    learned = [row if isinstance(row, list) else [row] for row in toy.train.targets.tolist()]
    asked = [row if isinstance(row, list) else [row] for row in toy.test.targets.tolist()]

    def commonest(values):
        counts = Counter(values)
        return min(c for c in counts if counts[c] == max(counts.values()))

    whole = commonest([c for row in learned for c in row])
    places = [commonest(column) for column in zip(*learned)]
    flat = [(c == whole, c == place) for row in asked for c, place in zip(row, places)]
    found = baselines(toy)
    assert found["chance"] == 1 / toy.classes
    assert found["majority"] == pytest.approx(np.mean([a for a, _ in flat]))
    assert found["place"] == pytest.approx(np.mean([b for _, b in flat]))


def test_the_accuracies_of_a_table_are_shares_of_all_answers(quick):
    """Counted answer by answer, from the model that the quick experiment left."""
    parts, rows = quick
    model, toy, _ = train_toys("sort", QUICK, 0, parts)
    batch = next(toy.held_out())
    for mode, answers in (
        ("frozen", frozen_answers(model, batch)),
        ("rerun", rerun_answers(model, batch, 4, 0)),
    ):
        for reading, classes in answers.items():
            mine = [
                row
                for row in rows
                if (row["task"], row["mode"], row["reading"]) == ("sort", mode, reading)
            ]
            assert len(mine) == len(classes)
            for row, networks in zip(mine, classes.tolist()):
                pairs = [
                    a == t
                    for network in networks
                    for line, target in zip(network, batch.targets.tolist())
                    for a, t in zip(line, target)
                ]
                assert row["accuracy"] == pytest.approx(sum(pairs) / len(pairs))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    parts = Parts(tmp_path_factory.mktemp("quick"))
    return parts, path_table(QUICK, parts)


def test_the_quick_experiment_has_a_row_for_every_length_and_reading(quick):
    _, paths = quick
    for trial in QUICK.trials:
        mine = [row for row in paths if row["task"] == trial.task]
        alone = [
            row["length"] for row in mine if (row["mode"], row["reading"]) == ("frozen", "alone")
        ]
        rerun = [
            row["length"] for row in mine if (row["mode"], row["reading"]) == ("rerun", "single")
        ]
        assert alone == list(range(trial.layers + 1)) and rerun == list(range(1, trial.layers + 1))
        assert all(0 <= row["accuracy"] <= 1 and len(row["each"]) == QUICK.seeds for row in mine)
        (whole,) = (row["accuracy"] for row in mine if row["mode"] == "model")
        up_to = [row["accuracy"] for row in mine if row["reading"] == "up to"]
        assert up_to[-1] == pytest.approx(whole, abs=0.01)  # all lengths and the bias are the model


def test_sorting_and_memorising_are_learned_even_quickly(quick):
    found = {(row["task"], row["mode"], row["reading"]): row["accuracy"] for row in quick[1]}
    for task in ("sort", "memorise"):
        assert found[task, "model", "whole"] > found[task, "baseline", "place"] + 0.1


def test_a_finished_part_is_not_done_again(quick, monkeypatch):
    parts, paths = quick
    monkeypatch.setattr(collapse_training, "train", lambda *_, **__: pytest.fail("it is finished"))
    assert path_table(QUICK, parts) == paths
    (parts.folder / "collapse/sort/seed-0.json").unlink()
    with pytest.raises(pytest.fail.Exception, match="it is finished"):
        path_table(QUICK, parts)


def test_the_same_seed_gives_the_same_rows_and_another_does_not(quick, tmp_path):
    few = replace(QUICK, trials=QUICK.trials[:1], seeds=2)
    rows = path_table(few, Parts(tmp_path))
    first = [row for row in quick[1] if row["task"] == "sort"]
    assert [row["each"][0] for row in rows] == [row["each"][0] for row in first]
    assert any(row["each"][0] != row["each"][1] for row in rows if row["mode"] == "frozen")
    for row in rows:
        assert row["accuracy"] == pytest.approx(np.mean(row["each"]))
        assert row["spread"] == pytest.approx(np.std(row["each"], ddof=1))


def test_a_model_that_was_trained_is_found_again(tmp_path):
    model, _, trained = train_toys("sort", QUICK, 0, Parts(tmp_path))
    seen = []
    again, _, found = train_toys("sort", QUICK, 0, Parts(tmp_path), lambda *done: seen.append(done))
    assert not seen and found == trained
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values())
    )
    with pytest.raises(
        EigenlensError, match="no task 'chess'; there are sort, convex hull, memorise"
    ):
        train_toys("chess", QUICK, 0, Parts(tmp_path))
