"""The tasks: what is asked for, against slow computations of their own.

And that every one of them can be learned.
"""

import math

import pytest
import torch

from eigenlens.data.datasets import text
from eigenlens.errors import EigenlensError
from eigenlens.lab import (
    Composition,
    Digits,
    MaskedBytes,
    NearestNeighbour,
    NextBytes,
    NextTokens,
    Repeated,
    TrainingSettings,
    Transformer,
    documents,
    evaluate,
    penalty,
    split,
    train,
)
from eigenlens.lab.tasks import IGNORED

HALVES = split(list(text("python-docs"))[:40], 0.2)


def test_documents_are_those_of_the_named_text_and_end_in_time(tmp_path):
    everything = list(text("python-docs"))
    few = documents("python-docs", characters=20_000)
    assert all(document in everything for document in few) and len(few) < len(everything)
    assert sum(map(len, few)) >= 20_000 > sum(map(len, few[:-1]))
    assert sorted(documents("python-docs")) == sorted(everything)
    file = tmp_path / "one.txt"
    file.write_text("\n\n".join(f"Section {i}. " + "words " * 400 for i in range(4)))
    assert "\n\n".join(documents(file)) == file.read_text() and len(documents([file])) > 1


def test_the_next_byte_is_asked_for_everywhere():
    task = NextBytes(*HALVES, length=16, windows=20)
    batch = task.batch(8, seed=0, step=5)
    assert batch.inputs.shape == batch.targets.shape == (8, 16)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    kept, held = ("\n\n".join(half).encode() for half in HALVES)
    assert all(
        bytes([*x.tolist(), int(y[-1])]) in kept for x, y in zip(batch.inputs, batch.targets)
    )
    asked = list(task.held_out(size=7))
    assert [len(b.inputs) for b in asked] == [7, 7, 6]
    assert all(
        bytes([*x.tolist(), int(y[-1])]) in held for b in asked for x, y in zip(b.inputs, b.targets)
    )
    assert torch.equal(task.batch(8, 0, 5).inputs, batch.inputs) and not torch.equal(
        task.batch(8, 0, 6).inputs, batch.inputs
    )
    assert task.config().causal and task.config(width=8).width == 8
    with pytest.raises(EigenlensError, match="less than two inputs of 16"):
        NextBytes(["short"], ["short"], length=16)


@pytest.mark.parametrize("kind", [NextBytes, NextTokens])
def test_a_start_token_stands_first_and_is_never_asked_for(kind):
    plain, task = (
        kind(*HALVES, length=16, windows=20),
        kind(*HALVES, length=16, windows=20, start=True),
    )
    assert task.vocabulary == plain.vocabulary + 1
    left, right = plain.batch(8, 0, 5), task.batch(8, 0, 5)
    assert (right.inputs[:, 0] == plain.vocabulary).all() and torch.equal(
        left.inputs[:, 1:], right.inputs[:, 1:]
    )
    assert torch.equal(left.targets, right.targets) and int(left.inputs.max()) < plain.vocabulary


def test_tokens_are_learned_from_the_training_documents_and_spell_the_text():
    task = NextTokens(*HALVES, length=16, vocabulary=300, windows=10)
    assert task.vocabulary == 300
    for part, half in ((task.train, HALVES[0]), (task.held, HALVES[1])):
        assert task.tokenizer.decode(part.tolist()) == "\n\n".join(half)
    assert task.bytes_per_token == pytest.approx(
        len("\n\n".join(HALVES[1]).encode()) / len(task.held)
    )
    assert task.bytes_per_token > 1.2
    again = NextTokens(*HALVES, length=16, vocabulary=300)
    assert torch.equal(again.train, task.train)
    assert int(task.train.max()) < 300
    with pytest.raises(EigenlensError, match="256 bytes first; 100 is less"):
        NextTokens(*HALVES, vocabulary=100)


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
@pytest.mark.parametrize("functions", [1, 2, 3])
def test_a_composition_is_what_its_tables_say(order, functions):
    task = Composition(functions, 5, order)
    batch = task.batch(30, seed=1, step=2)
    assert batch.inputs.shape == (30, task.length) and int(batch.inputs.max()) < task.vocabulary
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist()):
        entries = inputs[: 10 * functions]
        table = {
            divmod(key, 5): value - 5 * functions for key, value in zip(entries[::2], entries[1::2])
        }
        assert len(table) == 5 * functions
        of = [key // 5 for key in entries[::2]]
        if order != "shuffled":
            assert of == sorted(of, reverse=order == "backward")
        value, answers = inputs[10 * functions] - 5 * functions, []
        for function in range(functions):
            value = table[function, value]
            answers.append(value)
        assert targets == [IGNORED] * 10 * functions + answers
    held = next(task.held_out(30))
    assert (held.targets != IGNORED).sum(1).tolist() == [1] * 30  # the last answer alone
    assert (held.targets[:, -1] != IGNORED).all()


def test_a_curriculum_asks_for_one_function_more_at_a_time():
    def asked(task, step):
        return (task.batch(4, 0, step).targets[0] != IGNORED).nonzero().flatten().tolist()

    task = Composition(3, 4, curriculum=(10, 20))
    first = 2 * 3 * 4
    assert [asked(task, step) for step in (0, 9, 10, 19, 20, 99)] == [
        [first],
        [first],
        [first, first + 1],
        [first, first + 1],
        [first, first + 1, first + 2],
        [first, first + 1, first + 2],
    ]
    task = Composition(3, 4, intermediate=False, curriculum=(10, 20))
    assert [asked(task, step) for step in (0, 10, 20)] == [[first], [first + 1], [first + 2]]
    assert asked(Composition(3, 4, intermediate=False), 0) == [first + 2]
    for wrong, message in (
        ({"curriculum": (5,)}, "has 2 steps, not 1"),
        ({"order": "sideways"}, "no order 'sideways'"),
        ({"values": 1}, "at least 2 values, not 3 on 1"),
    ):
        with pytest.raises(EigenlensError, match=message):
            Composition(**{"functions": 3, **wrong})


@pytest.mark.parametrize("farthest", [False, True])
def test_the_nearest_point_is_the_nearest(farthest):
    task = NearestNeighbour(points=6, dimension=3, farthest=farthest)
    batch = task.batch(20, 0, 0)
    assert batch.inputs.shape == (20, 7, 6) and batch.targets.shape == (20, 7, 3)
    for inputs, targets in zip(batch.inputs, batch.targets):
        points, query = inputs[:6, :3], inputs[6, 3:]
        assert torch.equal(inputs[:6, 3:], torch.zeros(6, 3)) and torch.equal(
            inputs[6, :3], torch.zeros(3)
        )
        torch.testing.assert_close(inputs.square().sum(1), torch.ones(7))
        distances = [float((point - query).square().sum()) for point in points]
        best = distances.index((max if farthest else min)(distances))
        assert torch.equal(targets[6], points[best]) and bool(targets[:6].isnan().all())


def test_one_hot_head_of_full_rank_solves_the_nearest_point():
    """The weights of the construction, put into a lab model of one layer: `W_Q W_Kᵀ = βI`, values
    the points.
    """
    d, beta = 4, 4000.0
    task = NearestNeighbour(points=8, dimension=d, test=300)
    config = task.config(
        width=3 * d,
        layers=1,
        heads=1,
        rank=d,
        value_width=d,
        mlp=False,
        norm=False,
        attention_skip=False,
    )
    model = Transformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        eye = torch.eye(d)
        model.vectors.weight[: 2 * d] = torch.eye(2 * d)
        attention = model.blocks[0].attention
        # queries read the second half, keys and values the first
        attention.project.weight[:d, d : 2 * d] = beta * eye
        attention.project.weight[d : 2 * d, :d] = eye
        attention.project.weight[2 * d :, :d] = eye
        attention.out.weight[:d] = eye
        model.readout.weight[:, :d] = eye
        outputs = torch.cat([model(b.inputs)[:, -1] for b in task.held_out()])
    targets = torch.cat([b.targets[:, -1] for b in task.held_out()])
    positive = torch.cat(
        [
            (b.inputs[:, :-1, :d] * b.inputs[:, -1:, d:]).sum(2).amax(1) > 0.01
            for b in task.held_out()
        ]
    )
    assert positive.float().mean() > 0.9  # elsewhere the query's own score of 0 is the largest
    errors = (outputs - targets).square().sum(1)[positive]
    assert errors.median() < 1e-8 and errors.mean() < 0.05  # ties of nearly equal points are split


def test_letters_are_repeated_and_the_distinct_ones_sorted():
    task = Repeated(letters=5, repeats=3, alphabet=9, train=40, test=10)
    assert task.train.inputs.shape == (40, 15) and task.test.inputs.shape == (10, 15)
    for inputs, targets in zip(task.train.inputs.tolist(), task.train.targets.tolist()):
        letters = inputs[::3]
        assert inputs == [letter for letter in letters for _ in range(3)] and len(set(letters)) == 5
        assert targets == [letter for letter in sorted(letters) for _ in range(3)]
    before = Repeated(letters=5, repeats=3, alphabet=9, asks="previous", train=40, test=10)
    for inputs, targets in zip(before.train.inputs.tolist(), before.train.targets.tolist()):
        assert targets == [IGNORED] * 3 + inputs[:12]
    with pytest.raises(
        EigenlensError, match="an alphabet of 8, 2 to 8 different letters can be drawn, not 9"
    ):
        Repeated(letters=9, alphabet=8)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    known = {tuple(picture.astype(int)): int(label) for picture, label in zip(pictures, labels)}
    task = Digits("rows")
    assert task.train.inputs.shape == (1437, 8, 8) and task.test.inputs.shape == (360, 8, 8)
    for half in (task.train, task.test):
        for picture, label in zip(half.inputs, half.targets):
            assert known[tuple((picture * 16).round().int().flatten().tolist())] == int(label)
    pixels = Digits("pixels")
    assert pixels.train.inputs.shape == (1437, 64, 1)
    assert torch.equal(pixels.train.inputs.flatten(1), task.train.inputs.flatten(1))
    both = {tuple(x.flatten().tolist()) for x in task.train.inputs} & {
        tuple(x.flatten().tolist()) for x in task.test.inputs
    }
    assert not both


# a task, how long, and the most held-out loss, as a share of what a model has that says the same of
# everything
LEARNED = {
    "next bytes": (lambda: NextBytes(*HALVES, length=32, windows=32), 60, 0.65),
    "next tokens": (lambda: NextTokens(*HALVES, length=32, vocabulary=300, windows=32), 60, 0.9),
    "masked bytes": (lambda: MaskedBytes(*HALVES, length=32, windows=32), 60, 0.7),
    "one function": (lambda: Composition(1, 3, test=200), 200, 0.8),
    "nearest": (lambda: NearestNeighbour(4, 4, test=200), 80, 0.5),
    "repeated": (lambda: Repeated(4, 3, 8, train=1000, test=100), 80, 0.3),
    "previous": (lambda: Repeated(4, 3, 8, "previous", train=1000, test=100), 60, 0.3),
    "digits": (lambda: Digits("rows"), 100, 0.5),
}


@pytest.mark.parametrize("name", LEARNED)
def test_every_task_is_learned(name):
    make, steps, share = LEARNED[name]
    task = make()
    config = task.config(width=32, layers=2, heads=2)
    same = (
        1 / task.dimension if name == "nearest" else math.log(config.classes or config.vocabulary)
    )
    torch.manual_seed(0)
    done = train(
        Transformer(config),
        task,
        TrainingSettings(steps, batch=32, rate=4e-3, warmup=10, measure=steps),
    )
    assert done.loss < share * same


def test_vectors_of_nan_are_not_asked_for():
    task = NearestNeighbour(4, 2, test=50)
    torch.manual_seed(0)
    model = Transformer(task.config(width=8, layers=1, heads=2))
    batch = next(task.held_out())
    with torch.no_grad():
        by_hand = float((model(batch.inputs)[:, -1] - batch.targets[:, -1]).square().mean())
    assert evaluate(model, task)[0] == pytest.approx(by_hand, rel=1e-5)


def test_the_penalty_is_that_of_the_whole_matrices_and_falls_in_training():
    task = NextBytes(*HALVES, length=16, windows=8)
    torch.manual_seed(0)
    start = Transformer(task.config(width=16, layers=2, heads=2))
    found = []
    for attention in start.attentions:
        queries, keys, _ = attention.project.weight.detach().double().chunk(3)
        for h in range(2):
            W = queries[8 * h : 8 * h + 8].T @ keys[8 * h : 8 * h + 8]  # (C, C)
            found.append(float(W.square().sum() - W.trace() ** 2 / 16))
    before = float(penalty(start).detach())
    assert before == pytest.approx(sum(found) / 4, rel=1e-5)

    def after(**settings):
        model = Transformer(start.config)
        model.load_state_dict(start.state_dict())
        train(model, task, TrainingSettings(20, batch=8, rate=3e-3, warmup=2, **settings))
        return float(penalty(model).detach())

    assert after(penalty=0.1) < 0.9 * after() and after(penalty=0.0) == after()


def test_a_further_loss_is_added():
    task = NextBytes(*HALVES, length=16, windows=8)
    torch.manual_seed(0)
    model = Transformer(task.config(width=16, layers=1, heads=2))
    train(
        model,
        task,
        TrainingSettings(60, batch=4, rate=1e-2, warmup=2),
        extra=lambda m: 1e3 * m.tokens.weight.square().sum(),
    )
    assert float(model.tokens.weight.detach().abs().mean()) < 0.01


@pytest.mark.parametrize("wrong", ["steps", "batch", "measure", "patience"])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(EigenlensError, match=f"{wrong} is at least"):
        TrainingSettings(**{"steps": 5, wrong: -1})
