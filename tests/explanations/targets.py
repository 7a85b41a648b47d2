"""A small classifier, and the score of a target."""

import torch
import transformers as tf

from captures.families import TEXT
from eigenlens import load
from eigenlens.explanations import target_of
from eigenlens.models.forward import forward_of


def score(model, batch, **settings):
    target = target_of(model, batch, **settings)
    with torch.no_grad():
        return target, target.score(forward_of(model, with_head=True)(batch), batch)


def classifier(classes=3, names=("bad", "fair", "good")):
    torch.manual_seed(0)
    config = tf.BertConfig(
        **TEXT, num_labels=classes, id2label=dict(enumerate(names)), initializer_range=0.5
    )
    return load(tf.BertForSequenceClassification(config).eval())
