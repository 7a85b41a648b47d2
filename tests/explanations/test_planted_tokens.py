"""A token that decides, planted among others, is found."""

import torch

from eigenlens import load
from eigenlens.explanations import attribute, deletion_curves, target_of
from eigenlens.explanations.propagation import (
    relevance,
)
from eigenlens.lab import TrainingSettings, Transformer, train
from eigenlens.lab.tasks import IGNORED, TaskBatch
from eigenlens.lab.toys import Toy


class Planted(Toy):
    """Noise with one token that decides the class, which is asked for at the first token, the same
    in every input.
    """

    vocabulary, classes, length = 21, 4, 13

    def __init__(self, number=1200, held=200):
        tokens, self.labels = torch.randint(4, 20, (number, 13)), torch.randint(4, (number,))
        self.places = torch.randint(1, 13, (number,))
        tokens[torch.arange(number), self.places] = self.labels
        tokens[:, 0] = 20
        asked = torch.full((number, 13), IGNORED)
        asked[:, 0] = self.labels
        super().__init__(
            TaskBatch(tokens[:-held], asked[:-held]), TaskBatch(tokens[-held:], asked[-held:])
        )
        self.labels, self.places = self.labels[-held:], self.places[-held:]


def planted(norm):
    """A trained model, the batch, the target, and where the planted tokens are."""
    torch.manual_seed(0)
    task = Planted()
    model = Transformer(task.config(layers=1, width=32, heads=4, norm=norm))
    train(model, task, TrainingSettings(150, batch=64, rate=3e-3, measure=150))
    with torch.no_grad():
        assert (
            float((model.eval()(task.test.inputs)[:, 0].argmax(-1) == task.labels).float().mean())
            > 0.98
        )
    loaded, batch = load(model), {"inputs": task.test.inputs}
    return loaded, batch, target_of(loaded, batch, target=(0, None)), task.places


def found_first(scores, places):
    """How often the highest score is the planted token's, the token that is read left out."""
    return float((scores[:, 1:].argmax(1) + 1 == places).float().mean())


def test_a_planted_token_is_found():
    """The token that decides ranks first, and taking tokens away in its order tells relevance from
    chance.
    """
    model, batch, target, places = planted(norm=False)
    found = attribute(model, batch, target, ["relevance", "random"])
    assert (
        found_first(found["relevance"], places) >= 0.95
        and found_first(relevance(found.observed), places) >= 0.95
    )
    areas = {
        (d.method, d.order): float(d.auc.mean())
        for d in deletion_curves(model, batch, target, found)
    }
    for chance in (areas["random", "positive"], areas["random", "negative"]):
        assert areas["relevance", "positive"] < chance < areas["relevance", "negative"]


def test_a_planted_token_behind_a_norm_is_found_by_the_operator_alone():
    """A norm takes away the gradient along the stream, and the planted token is most of the stream:
    relevance misses it.
    """
    model, batch, target, places = planted(norm=True)
    found = attribute(model, batch, target, ["relevance", "TensorLens In+Out", "random"])
    assert found_first(found["random"], places) < found_first(found["relevance"], places) < 0.95
    assert found_first(found["TensorLens In+Out"], places) >= 0.95
