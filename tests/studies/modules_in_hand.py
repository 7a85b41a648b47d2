"""Modules as their owners have them in hand, and everything of them that nobody may leave changed."""

import random

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel

import eigenlens as el
from tiny import small_llama

IDS = torch.randint(1, 50, (24, 16), generator=torch.Generator().manual_seed(5))


SMALL = {"max_length": 16, "max_inputs": 24}


def training_bert():
    """In training with dropout, but for one frozen part in evaluation mode.

    On eager attention, with a hook of its owner's.
    """
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = BertModel(
        BertConfig(vocab_size=50, initializer_range=0.3, **sizes), add_pooling_layer=False
    )
    model.set_attn_implementation("eager")
    model.train()
    model.encoder.layer[0].eval()
    model.embeddings.requires_grad_(False)
    model.encoder.layer[1].register_forward_hook(lambda *_: None)
    return model


def training_llama():
    model = small_llama()
    for part in model.modules():
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.1
    return model.train()


def state_of(model):
    """Everything of a module, and of the process, that nobody may leave changed."""
    hooks = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_forward_hooks_with_kwargs",
    )
    return {
        "modes": {name: m.training for name, m in model.named_modules()},
        "gradients": {name: p.requires_grad for name, p in model.named_parameters()},
        "hooks": {
            (name, kind): tuple(getattr(m, kind))
            for name, m in model.named_modules()
            for kind in hooks
        },
        "weights": {
            name: (x.data_ptr(), x.dtype, x.device, x.double().sum().item())
            for name, x in model.state_dict().items()
        },
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "random": (
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        ),
        "threads": torch.get_num_threads(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad": torch.is_grad_enabled(),
    }


def a_study(model):
    return el.study(model, IDS, **SMALL, rank=4, depth_every=1, diagnostics_every=1)


class Encoder(nn.Module):
    """A user's own module around torch's."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.embed, self.layers = (
            nn.Embedding(50, 32),
            nn.ModuleList([layer, nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)]),
        )

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x
