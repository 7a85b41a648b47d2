"""What examples are compared with: held-out inputs, and patterns by the model's eager attention."""

from dataclasses import astuple

import numpy as np
import torch

import eigenlens as el
from eigenlens.data.inputs import Request, prepare
from eigenlens.data.split import FIT


def held_out_ids(plan, model, scratch):
    """The ids of every held-out input the plan may have seen, with its document, and those of the
    fit inputs.
    """
    stored = plan.stored["study"]["request"]
    scratch.mkdir()
    inputs = prepare(model, Request.from_record(stored), scratch)
    rows = [
        np.flatnonzero(np.isin(inputs.buckets, plan.stored["groups"])),
        np.flatnonzero(inputs.buckets == FIT),
    ]
    return [(inputs.make(np.array([row])), inputs.documents[row]) for row in rows[0]], [
        inputs.make(rows[1])
    ]


def words(tokenizer, ids):
    return tuple(tokenizer.decode([i]) for i in ids)


def matched(plan, model, scratch, name="input_ids", stack="encoder"):
    """For each example the one batch of a held-out input that has its tokens."""
    batches, _ = held_out_ids(plan, model, scratch)
    found = []
    for tokens in plan.examples.tokens:
        n = len(tokens[stack])
        same = [
            (b, d)
            for b, d in batches
            if words(model.tokenizer, b[name][0].tolist())[:n] == tokens[stack]
        ]
        assert len(same) == 1
        found += same
    return found


def check_patterns(plan, model, batches, attentions):
    """True patterns against the model's eager attention, reconstructed ones against the plan's
    scores, head by head.
    """
    examples, moved = plan.examples, 0.0
    n = examples.true.shape[-1]
    for i, batch in enumerate(batches):
        own = attentions(batch)  # stack → layers of (1, H, T, T)
        with torch.no_grad(), el.capture(model.backbone) as calls:
            model.backbone(**batch)
        for p, (stack, layer, head) in enumerate(map(astuple, examples.heads)):
            torch.testing.assert_close(
                examples.true[i, p].float(),
                own[stack][layer][0, head, :n, :n],
                atol=6e-4,
                rtol=1e-3,
            )
            call = next(
                call for call in calls if (call.site.stack, call.site.layer) == (stack, layer)
            )
            scores = (
                plan.scores(call)
                .scores[0, head]
                .masked_fill(~call.valid().expand(1, call.heads, -1, -1)[0, head], -1e30)
            )
            expected = (
                torch.softmax(scores, -1) * call.valid().expand(1, call.heads, -1, -1)[0, head]
            )
            true, made = examples.patterns(i, p)
            torch.testing.assert_close(made, expected[:n, :n], atol=6e-4, rtol=1e-3)
            moved = max(moved, float((true - made).abs().max()))
    assert moved > 0.01  # the plan does change patterns, so the two checks above are two


def eager_of(model, stacks=("encoder",)):
    model.module.set_attn_implementation("eager")
    names = ("attentions",) if len(stacks) == 1 else ("encoder_attentions", "decoder_attentions")

    def attentions(batch):
        with torch.no_grad():
            out = model.module(**batch, output_attentions=True)
        return {stack: out[name] for stack, name in zip(stacks, names)}

    return attentions


def same(a, b):
    assert (a.tokens, a.heads, a.candidates, a.chosen) == (
        b.tokens,
        b.heads,
        b.candidates,
        b.chosen,
    )
    for name in ("true", "estimated"):
        assert getattr(a, name).dtype == torch.float16
        # to the bit, NaN too
        assert torch.equal(getattr(a, name).view(torch.int16), getattr(b, name).view(torch.int16))
    for name in ("work", "total_variation"):
        assert getattr(a, name).dtype == np.float64 and np.array_equal(
            getattr(a, name), getattr(b, name)
        )
