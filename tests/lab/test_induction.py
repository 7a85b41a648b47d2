"""The two-layer model of induction and its Markov sequences.

Against definitions written out, and the published curve.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError
from eigenlens.lab.induction import InductionModel, Start, half_way_epoch, loss_of, train_induction
from eigenlens.lab.markov import Markov


def by_hand(model, tokens):
    """One sequence (L,) by the definition, place by place, in numpy."""
    W = model.W.softmax(1).detach().numpy()
    H, M = W.shape
    c, a, d = model.c.detach().numpy(), float(model.a.detach()), model.states
    eye = np.eye(d)

    def v(place):
        rows = [
            sum(W[h, j - 1] * eye[tokens[place - j]] for j in range(1, M + 1)) for h in range(H)
        ]
        return [row / np.linalg.norm(row) for row in rows]

    L = len(tokens)
    query, weights = v(L), []
    for place in range(M, L):
        here = v(place)
        k = (
            sum(
                c[s] ** 2 * math.prod(query[h] @ here[h] for h in S)
                for s, S in enumerate(model.sets)
            )
            / (c**2).sum()
        )
        weights.append(math.exp(a * k))
    return sum(w * eye[tokens[place]] for w, place in zip(weights, range(M, L))) / sum(weights)


def moved(states=3, **start):
    """A model away from its start."""
    model = InductionModel(states, Start(**start))
    with torch.no_grad():
        model.W.add_(torch.randn_like(model.W))
        model.c.copy_(torch.rand_like(model.c) + 0.1)
        model.a.fill_(2.5)
    return model


@pytest.mark.parametrize(
    "start", [{}, {"window": 4}, {"empty": False}, {"heads": 2, "window": 2, "largest": 1}]
)
def test_the_model_is_its_definition_and_counts_give_the_same(start):
    drawn = Markov(number=5, length=20).draw(3)
    model = moved(**start)
    o = model(drawn.tokens[:, :-1])
    for row, tokens in zip(o, drawn.tokens[:, :-1]):
        np.testing.assert_allclose(row.detach().numpy(), by_hand(model, tokens.numpy()), rtol=1e-10)
    counted = model.of_counts(*drawn.counts(model.window))
    torch.testing.assert_close(counted, o)
    gradients = [
        torch.autograd.grad(loss_of(x, drawn.target, "output as logits"), list(model.parameters()))
        for x in (o, counted)
    ]
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other)


def test_sets_are_all_of_at_most_two_heads():
    model = InductionModel()
    assert model.sets == [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    assert float(model.share((2, 1)).detach()) == pytest.approx(1 / 7)
    assert InductionModel(3, Start(empty=False)).sets == model.sets[1:]
    assert model.copies.tolist() == pytest.approx(
        [math.exp(3) / (math.exp(3) + 2 * math.exp(0.1))] * 3
    )


def test_losses_are_what_they_say():
    o, target = (
        torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]], dtype=torch.float64),
        torch.tensor([0, 0]),
    )
    logits = [-math.log(math.exp(r[0]) / sum(math.exp(x) for x in r)) for r in o.tolist()]
    assert float(loss_of(o, target, "output as logits")) == pytest.approx(sum(logits) / 2)
    assert float(loss_of(o, target, "log of the output", 0.01)) == pytest.approx(
        -(math.log(0.71) + math.log(0.01)) / 2
    )


def test_a_step_is_plain_gradient_descent():
    drawn = Markov(number=50, length=30).draw(1)
    model = InductionModel()
    loss = loss_of(model(drawn.tokens[:, :-1]), drawn.target, "output as logits")
    expected = [
        x - g
        for x, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())))
    ]
    stepped, rows = train_induction(drawn, epochs=1)
    for x, y in zip(stepped.parameters(), expected):
        torch.testing.assert_close(x.data, y.data)
    assert [row["epoch"] for row in rows] == [0, 1] and rows[0]["loss"] == pytest.approx(
        float(loss.detach())
    )


def test_what_is_not_to_learn_stays():
    drawn = Markov(number=50, length=30).draw(1)
    model, _ = train_induction(drawn, epochs=3, only=("c",))
    start = InductionModel()
    assert (
        torch.equal(model.W, start.W)
        and torch.equal(model.a, start.a)
        and not torch.equal(model.c, start.c)
    )
    again, rows = train_induction(drawn, epochs=2, only=("a",), model=model)
    assert again is model and rows[0]["epoch"] == 0 and rows[-1]["a"] != 0.01


def test_sequences_follow_their_kernels():
    """Of one kernel many times: frequencies of what follows each past are its probabilities."""
    source = Markov(number=3, length=30_000, parents=(1, 3), alpha=1.0)
    drawn = source.draw(5)
    tokens = drawn.tokens.numpy()
    for row, truth in zip(tokens, drawn.truth.numpy()):
        last = (row[-2], row[-4])
        following = [row[t] for t in range(3, len(row) - 1) if (row[t - 1], row[t - 3]) == last]
        assert np.allclose(
            np.bincount(following, minlength=3) / len(following),
            truth,
            atol=5 / math.sqrt(len(following)),
        )
    assert torch.equal(source.draw(5).tokens, drawn.tokens) and not torch.equal(
        source.draw(6).tokens, drawn.tokens
    )


def test_kernels_of_a_small_alpha_are_nearly_sure():
    few, many = (
        Markov(number=400, length=10, alpha=alpha).draw(0).truth.amax(1).mean()
        for alpha in (0.1, 10.0)
    )
    assert few > 0.85 and many < 0.6


def test_counts_are_those_of_a_loop():
    drawn = Markov(number=4, length=25).draw(2)
    counts, last = drawn.counts(3)
    contexts = list(itertools.product(range(3), repeat=3))
    for b, row in enumerate(drawn.tokens.tolist()):
        expected = torch.zeros(27, 3, dtype=torch.float64)
        for place in range(3, 25):
            expected[
                contexts.index((row[place - 1], row[place - 2], row[place - 3])), row[place]
            ] += 1
        assert torch.equal(counts[b], expected) and contexts[int(last[b])] == (
            row[24],
            row[23],
            row[22],
        )


def test_the_published_curve():
    """p and a at epochs 3, 10 and 100 of a smaller draw.

    P within 0.1, a(100) in [3.8, 4.8], p > 0.99 by epoch 20.
    """
    _, rows = train_induction(Markov(number=3000).draw(0), epochs=100)
    for epoch, p, a in ((3, 0.637, 0.174), (10, 0.996, 0.701), (100, 1.0, 4.28)):
        assert rows[epoch]["p"] == pytest.approx(p, abs=0.1) and rows[epoch]["a"] == pytest.approx(
            a, rel=0.12
        )
    assert rows[20]["p"] > 0.99 and 3.8 <= rows[100]["a"] <= 4.8
    assert rows[100]["off"] < 0.1 < rows[0]["off"]
    assert half_way_epoch(rows, "p") < half_way_epoch(rows, "a")


@pytest.mark.parametrize("parents", [(2,), (1, 3)])
def test_the_true_parents_win_whatever_they_are(parents):
    model, rows = train_induction(Markov(number=1000, parents=parents).draw(0), epochs=40)
    assert rows[-1]["p"] > 0.99 and int(model.p.argmax()) == model.sets.index(
        tuple(x - 1 for x in parents)
    )


def test_tokens_without_a_past_teach_nothing():
    _, rows = train_induction(Markov(number=3000, parents=()).draw(0), epochs=100)
    assert abs(rows[-1]["a"]) < 0.1


def test_half_way_is_the_first_epoch_beyond_half_of_the_change():
    rows = [{"epoch": e, "x": x} for e, x in enumerate([0.0, 0.1, 0.4, 0.6, 1.0])]
    assert half_way_epoch(rows, "x") == 3
    assert half_way_epoch([{"epoch": e, "x": -r["x"]} for e, r in enumerate(rows)], "x") == 3


def test_the_floor_is_the_loss_of_who_knows_the_kernels():
    drawn = Markov(number=200, alpha=1.0).draw(0)
    by_loop = [-math.log(drawn.truth[b, drawn.target[b]]) for b in range(200)]
    assert drawn.floor == pytest.approx(sum(by_loop) / 200)


def test_wrong_sizes_are_told():
    for wrong in (
        {"number": 0},
        {"states": 1},
        {"parents": (0,)},
        {"parents": (1, 1)},
        {"length": 2},
        {"alpha": 0.0},
    ):
        with pytest.raises(EigenlensError):
            Markov(**wrong)
    for wrong in ({"heads": 4}, {"largest": 4}, {"c": 0.0}):
        with pytest.raises(EigenlensError):
            Start(**wrong)
    with pytest.raises(EigenlensError, match="no set of heads"):
        InductionModel().share((1, 2, 3))
    with pytest.raises(EigenlensError, match="smaller window"):
        Markov(number=2, length=50).draw(0).counts(9)
