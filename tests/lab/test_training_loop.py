"""Training: the text is split by document, runs are deterministic, go on where they were killed,
and learn.
"""

import pytest
import torch

from eigenlens.data.datasets import text
from eigenlens.errors import EigenlensError
from eigenlens.lab import Config, MaskedBytes, TrainingSettings, Transformer, evaluate, split, train
from eigenlens.lab.tasks import IGNORED, MASK

CONFIG = Config(MaskedBytes.vocabulary, length=16, width=32, layers=1, heads=2)


@pytest.fixture(scope="module")
def task():
    return MaskedBytes(*split(list(text("python-docs"))[:30], 0.2), length=16, windows=32)


def fresh():
    torch.manual_seed(3)
    return Transformer(CONFIG)


def same(left, right):
    return all(
        torch.equal(a, b) for a, b in zip(left.state_dict().values(), right.state_dict().values())
    )


def test_documents_are_never_in_both_halves():
    documents = [f"document {i} " * (i + 1) for i in range(20)]
    kept, held = split(documents, 0.2, seed=1)
    assert sorted(kept + held) == sorted(documents)
    assert sum(map(len, held)) >= 0.2 * sum(map(len, documents))
    assert split(documents, 0.2, seed=1) == (kept, held)
    assert split(documents, 0.2, seed=2) != (kept, held)
    with pytest.raises(EigenlensError, match="1 document"):
        split(["alone"])


def test_masked_bytes_are_asked_for_and_no_others(task):
    batch = task.batch(8, seed=0, step=5)
    hidden = batch.inputs == MASK
    assert (hidden.sum(1) == 2).all()  # 15 % of 16
    assert ((batch.targets != IGNORED) == hidden).all()
    whole = torch.where(hidden, batch.targets, batch.inputs)
    everything = bytes(task.train.tolist())
    assert all(bytes(row.tolist()) in everything for row in whole)
    again, other = task.batch(8, seed=0, step=5), task.batch(8, seed=0, step=6)
    assert torch.equal(again.inputs, batch.inputs) and not torch.equal(other.inputs, batch.inputs)


def test_the_loss_is_in_nats_of_masked_bytes(task):
    """A model that says nothing has ln 257 nats, whatever the text."""
    model = fresh()
    torch.nn.init.zeros_(model.tokens.weight)
    assert evaluate(model, task)[0] == pytest.approx(torch.tensor(257.0).log().item(), rel=1e-5)


def test_training_lowers_the_held_out_loss_and_is_deterministic(task):
    settings = TrainingSettings(60, batch=8, rate=5e-3, warmup=5, measure=20, seed=1)
    first, second = fresh(), fresh()
    before = evaluate(first, task)[0]
    done, again = train(first, task, settings), train(second, task, settings)
    assert done.loss < before - 1
    assert same(first, second) and [p.loss for p in done.curve] == [p.loss for p in again.curve]
    assert [p.step for p in done.curve] == [20, 40, 60]
    assert done.flops == 6 * first.cost(16) * 8 * 60


def test_a_killed_run_ends_as_if_it_had_not_been(task, tmp_path):
    settings = TrainingSettings(30, batch=4, rate=3e-3, warmup=5, measure=10)
    whole = fresh()
    expected = train(whole, task, settings)
    file = tmp_path / "run.safetensors"

    def killed(step):
        if step == 17:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(fresh(), task, settings, before=killed, checkpoint=file, every=0.0)
    seen = []
    resumed = fresh()
    done = train(resumed, task, settings, before=seen.append, checkpoint=file)
    assert seen[0] == 17
    assert same(whole, resumed)
    assert [p.loss for p in done.curve] == [p.loss for p in expected.curve]
    assert (
        train(
            fresh(), task, settings, before=lambda _: pytest.fail("it is finished"), checkpoint=file
        ).loss
        == done.loss
    )


def test_a_checkpoint_of_another_run_is_refused(task, tmp_path):
    file = tmp_path / "run.safetensors"
    train(fresh(), task, TrainingSettings(2, batch=2), checkpoint=file)
    with pytest.raises(EigenlensError, match="other settings"):
        train(fresh(), task, TrainingSettings(3, batch=2), checkpoint=file)
    with pytest.raises(EigenlensError, match="another model"):
        train(
            Transformer(Config(257, length=16, width=16, layers=1, heads=2)),
            task,
            TrainingSettings(2, batch=2),
            checkpoint=file,
        )
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(EigenlensError, match="cannot be read"):
        train(fresh(), task, TrainingSettings(2, batch=2), checkpoint=file)


def test_a_run_that_gets_no_better_stops_early(task):
    model = fresh()
    done = train(
        model, task, TrainingSettings(200, batch=2, rate=0.0, decay=0.0, measure=5, patience=2)
    )
    assert done.steps == 15  # one measurement, then two that are no better
