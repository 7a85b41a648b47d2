"""The toy tasks.

Labels against slow computations of their own, sizes, and that a seed fixes them.
"""

import pytest
import torch

from eigenlens.lab import (
    Circle,
    ConvexHull,
    Memorise,
    Sort,
    TrainingSettings,
    Transformer,
    evaluate,
    feed_back,
    train,
)

SMALL_TASKS = [
    lambda seed=0: Sort(50, 20, seed),
    lambda seed=0: ConvexHull(50, 20, seed),
    lambda seed=0: Memorise(20, 8, seed=seed),
]


def everything(task):
    return [(x, y) for half in (task.train, task.test) for x, y in zip(half.inputs, half.targets)]


def test_sorting_asks_for_the_letters_in_order():
    task = Sort()
    assert len(task.train.inputs) == 1000 and len(task.test.inputs) == 200
    for letters, target in everything(task):
        assert len(letters) == 8
        assert target.tolist() == sorted(letters.tolist())
    assert set(task.train.inputs.flatten().tolist()) == set(range(10))


def test_the_hull_is_that_of_orientation_tests():
    """A point is a vertex where all others lie within less than a half turn.

    It has a neighbour with none to its right.
    """
    for points, label in everything(ConvexHull(100, 50)):
        for i, vertex in enumerate(label.tolist()):
            others = [j for j in range(10) if j != i]
            first = [
                j for j in others if all(side(points[i], points[j], points[k]) >= 0 for k in others)
            ]
            assert bool(first) == bool(vertex)


def side(a, b, c):
    (ax, ay), (bx, by), (cx, cy) = a.tolist(), b.tolist(), c.tolist()
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)


def test_the_points_of_the_hull_are_a_shifted_square():
    task = ConvexHull(3000, 300)
    points = task.train.inputs
    assert points.shape == (3000, 10, 2) and task.test.inputs.shape == (300, 10, 2)
    assert (points.amax(1) - points.amin(1)).max() <= 10
    assert points.var(1).mean() == pytest.approx(100 / 12, rel=0.05)
    shift = points.mean(1) - 5  # its variance is that of the shift and a tenth of a point's
    assert shift.mean() == pytest.approx(0, abs=0.2)
    assert shift.var() == pytest.approx(3.3**2 + 10 / 12, rel=0.1)
    # the majority's share is known
    assert task.train.targets.double().mean() == pytest.approx(0.596, abs=0.01)


def test_memorising_is_measured_on_the_sequences_that_were_learned():
    task = Memorise()
    assert task.train.inputs.shape == (500, 128) and task.train.targets.shape == (500,)
    assert set(task.train.targets.tolist()) == {0, 1}
    assert 0.4 < task.train.targets.double().mean() < 0.6
    assert torch.equal(torch.cat([b.inputs for b in task.held_out()]), task.train.inputs)
    assert len({tuple(x.tolist()) for x in task.train.inputs}) == 500


def test_the_arcs_are_two_halves_of_a_circle_and_the_target_is_the_next_point():
    task = Circle()
    inputs, targets = task.train.inputs.double(), task.train.targets.double()
    assert inputs.shape == targets.shape == (999, 2, 2)
    assert torch.equal(inputs[1:], targets[:-1])
    torch.testing.assert_close(
        inputs.square().sum(2).sqrt(), torch.full((999, 2), 0.3, dtype=torch.float64)
    )
    torch.testing.assert_close(inputs[:, 0], -inputs[:, 1])
    (x, y), (u, v) = inputs.movedim(2, 0), targets.movedim(2, 0)
    turned = torch.atan2(x * v - y * u, x * u + y * v)
    torch.testing.assert_close(
        turned, torch.full((999, 2), torch.pi / 999, dtype=torch.float64), rtol=1e-3, atol=0
    )


def test_jitter_moves_what_is_learned_from_and_nothing_else():
    exact, jittered = Circle(50), Circle(50, jitter=0.02)
    left, right = exact.batch(2000, 0, 3), jittered.batch(2000, 0, 3)
    assert torch.equal(left.targets, right.targets)
    off = right.inputs - left.inputs
    assert off.std() == pytest.approx(0.02, rel=0.05) and off.mean() == pytest.approx(0, abs=0.001)
    assert torch.equal(next(exact.held_out()).inputs, next(jittered.held_out()).inputs)
    assert torch.equal(right.inputs, jittered.batch(2000, 0, 3).inputs)


def test_feeding_back_is_the_model_again_and_again():
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    path = feed_back(lambda x: x @ quarter.T, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), 3)
    assert path[:, 0].tolist() == [[1, 0], [0, 1], [-1, 0], [0, -1]]
    assert path[:, 1].tolist() == [[0, 2], [-2, 0], [0, -2], [2, 0]]


@pytest.mark.parametrize("make", SMALL_TASKS)
def test_a_seed_fixes_the_sequences_and_a_step_the_batch(make):
    first, again, other = make(), make(), make(seed=1)
    assert torch.equal(first.train.inputs, again.train.inputs) and torch.equal(
        first.test.targets, again.test.targets
    )
    assert not torch.equal(first.train.inputs, other.train.inputs)
    batch = first.batch(6, seed=2, step=3)
    assert torch.equal(batch.inputs, again.batch(6, seed=2, step=3).inputs)
    assert not torch.equal(batch.inputs, first.batch(6, seed=2, step=4).inputs)
    pairs = [(x.tolist(), y.tolist()) for x, y in zip(first.train.inputs, first.train.targets)]
    assert all((x.tolist(), y.tolist()) in pairs for x, y in zip(batch.inputs, batch.targets))


@pytest.mark.parametrize("make", SMALL_TASKS)
def test_held_out_loss_and_accuracy_are_means_over_all_answers(make):
    task = make()
    torch.manual_seed(0)
    model = Transformer(task.config(width=8, layers=1, heads=2))
    right, nats = [], []
    for x, y in zip(task.test.inputs, task.test.targets):
        for output, target in zip(
            model(x[None])[0].detach().reshape(-1, task.classes).double(), y.flatten()
        ):
            right.append(int(output.argmax()) == int(target))
            nats.append(float(output.exp().sum().log() - output[target]))
    assert evaluate(model, task) == pytest.approx(
        (sum(nats) / len(nats), sum(right) / len(right)), rel=1e-5
    )


def test_vectors_are_learned_by_their_squared_error():
    task = Circle(50)
    torch.manual_seed(0)
    model = Transformer(task.config(width=8, layers=1, heads=2, size=1.0))
    with torch.no_grad():
        before = float((model(task.train.inputs) - task.train.targets).square().mean())
    loss, accuracy = evaluate(model, task)
    assert loss == pytest.approx(before, rel=1e-5) and accuracy != accuracy
    assert train(model, task, TrainingSettings(100, rate=1e-2, warmup=5)).loss < 0.1 * before
