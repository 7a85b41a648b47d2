"""Equal weights for every mechanism, and models that are not trained twice."""

import pytest
import torch

from eigenlens.attention import mechanisms
from eigenlens.bench import training
from eigenlens.bench.quality import QUALITY_QUICK, sentence
from eigenlens.bench.training import TASKS, LabScale, config_of, spread, task_named, trained
from eigenlens.errors import EigenlensError
from eigenlens.lab import Transformer

TINY = LabScale(
    ("next bytes",), (0,), 3, 4, length=16, width=16, layers=1, windows=4, characters=20_000
)


@pytest.mark.parametrize("at", TASKS)
@pytest.mark.parametrize("scale", [LabScale(), QUALITY_QUICK])
def test_all_models_of_a_task_have_equal_weights_within_a_hundredth(at, scale):
    task = task_named(at, scale)
    numbers = {}
    for name, kind in mechanisms().items():
        if ("causal" if TASKS[at] else "both ways") in kind.directions:
            torch.manual_seed(0)
            numbers[name] = sum(
                p.numel() for p in Transformer(config_of(task, name, scale)).parameters()
            )
    assert len(numbers) > 8
    assert max(numbers.values()) <= 1.01 * min(numbers.values()), numbers
    assert config_of(task, "softmax", scale).mlp_width == 4 * scale.width


def test_a_mechanism_with_too_many_weights_is_refused(monkeypatch):
    monkeypatch.setattr(
        training, "weights_of", lambda config: 10**6 if config.mechanism == "local" else 10**4
    )
    with pytest.raises(EigenlensError, match="local brings 990,000 weights"):
        config_of(task_named("next bytes", TINY), "local", TINY)


def test_a_kept_model_is_not_trained_again(tmp_path, monkeypatch):
    task = task_named("next bytes", TINY)
    config = config_of(task, "local", TINY)
    model, found = trained(task, config, 0, TINY, tmp_path)
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained again"))
    again, kept = trained(task, config, 0, TINY, tmp_path)
    inputs = task.batch(2, 0, 0).inputs
    assert torch.equal(model(inputs), again(inputs)) and kept == found
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        trained(task, config, 1, TINY, tmp_path)  # another seed is another model
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        trained(task, config_of(task, "softmax", TINY), 0, TINY, tmp_path)


def test_training_depends_on_nothing_but_its_seed():
    task = task_named("next bytes", TINY)
    config = config_of(task, "softmax", TINY)
    assert (
        trained(task, config, 0, TINY, None)[1].loss == trained(task, config, 0, TINY, None)[1].loss
    )
    assert (
        trained(task, config, 0, TINY, None)[1].loss != trained(task, config, 1, TINY, None)[1].loss
    )


def test_tasks_that_do_not_exist_are_named():
    with pytest.raises(
        EigenlensError, match="no task 'chess' of the bench; there are next bytes, digits"
    ):
        task_named("chess", TINY)


def test_the_spread_and_the_sentence():
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    rows = [
        {"task": "t", "mechanism": "softmax", "loss": 2.0, "loss_low": 1.8, "loss_high": 2.2},
        {"task": "t", "mechanism": "local", "loss": 1.5, "loss_low": 1.4, "loss_high": 1.6},
        {"task": "u", "mechanism": "softmax", "loss": 1.0, "loss_low": 1.0, "loss_high": 1.0},
    ]
    message = sentence(rows)
    assert message.startswith("On t local ends lowest with a loss of 1.500 (full attention 2.000);")
    assert message.endswith("on u softmax ends lowest with a loss of 1.000.")
    rows[1] |= {"loss_high": 1.9}
    assert "(full attention 2.000, within the spread of the seeds)" in sentence(rows)
