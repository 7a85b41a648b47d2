"""Small models beside their forwards by hand, plain and frozen.

`frozen` runs the forwards on other streams with the patterns, norms and gates of a first run.
"""

import copy
from dataclasses import dataclass
from itertools import product

import torch

from captures.families import FAMILIES, build
from collapses.forwards_by_hand import FORWARDS
from collapses.tape import Tape, use
from eigenlens.lab.model import Config, Transformer

SWITCHES = ("attention_skip", "mlp_skip", "mlp", "norm", "attention")
COMBINATIONS = [dict(zip(SWITCHES, on)) for on in product((True, False), repeat=5)]


@dataclass(frozen=True)
class On:
    """The switches of every layer; a list of these has its own for each."""

    attention_skip: bool = True
    mlp_skip: bool = True
    mlp: bool = True
    norm: bool = True
    attention: bool = True

    def __getitem__(self, _layer):
        return self


def lively(name, dtype=torch.float64, **settings):
    """A small model of the family with no weight at its neutral value: norms, scales and biases are
    random too.
    """
    cls, config = FAMILIES[name]
    if settings:
        config = copy.deepcopy(config)
        for key, value in settings.items():
            setattr(config, key, value)
        config._attn_implementation = "eager"
        model = cls(config).eval()
    else:
        model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.2)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.to(dtype)


def lively_lab(inputs, **settings):
    """The lab's transformer in float64 with no weight at its start, and ids (inputs, 9) for it."""
    config = Config(vocabulary=11, length=9, width=16, layers=2, heads=2, **settings)
    model, ids = Transformer(config).double(), torch.randint(0, 11, (inputs, 9))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model, ids


def in_dtype(given, dtype=torch.float64):
    return {
        key: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x
        for key, x in given.items()
    }


def model_of(kind):
    """The small model of a kind of FORWARDS, in float64."""
    name, _, form = kind.partition("-")
    return lively(name, use_parallel_residual=False) if form else lively(name)


@torch.no_grad()
def forward(kind, model, given, layers=None, **switches):
    """The outputs of all stacks, with the same switches in every layer or a list `layers` of
    `On`.
    """
    return FORWARDS[kind](model, given, layers or On(**switches))


@torch.no_grad()
def frozen(kind, model, given, stack=0):
    """The model's stream into a stack, and the frozen graph from any stream `y` to the stack's
    output.
    """
    mine = Tape(records=True)

    def run(**weights):
        with use(mine):
            if weights:
                mine.rewind(stack, **weights)
            return forward(kind, model, given)[stack]

    run()
    return mine.starts[stack], lambda y, heads=None, mlp=1.0: run(stream=y, heads=heads, mlp=mlp)


def outputs(out):
    """What a model gave, stack by stack, the encoder first."""
    if hasattr(out, "text_model_output"):
        return [out.text_model_output.last_hidden_state, out.vision_model_output.last_hidden_state]
    encoded = getattr(out, "encoder_last_hidden_state", None)
    return [out.last_hidden_state] if encoded is None else [encoded, out.last_hidden_state]


def masks(given):
    """Which tokens of each stack are no padding, or None."""
    names = [name for name in ("attention_mask", "decoder_attention_mask") if name in given]
    return [given[name].bool() for name in names] or [None]


def distance(ours, theirs, real=None):
    """‖ours − theirs‖ / ‖theirs‖ over real tokens."""
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-30))
