"""Every mechanism under every mask that it takes, and what it says of the others."""

import pytest
import torch

from attention.by_name import (
    BOTH_WAYS,
    CAUSAL,
    DIRECTIONS,
    NAMES,
    PAIRS,
    H,
    assert_same,
    inputs,
    made,
    padding,
)
from eigenlens.attention import make
from eigenlens.errors import EigenlensError


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_padding_is_honoured_by_both_forms(name, causal, left):
    keys = padding(21, left)
    assert_same(made(name, 21), *inputs(21), rows=keys, causal=causal, keys=keys)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_what_stands_at_padding_does_not_matter(name, causal, left):
    """An independent check of both forms: the keys, values and stream of padding are replaced by
    something else.
    """
    mechanism, keys = made(name, 21), padding(21, left)
    q, k, v, x = (t.detach() for t in inputs(21))
    given = {"causal": causal, "keys": keys, "x": x if mechanism.reads_stream else None}
    before = mechanism(q, k, v, **given)
    gone = ~keys[:, None, :, None]
    q, k, v = (torch.where(gone, torch.full_like(t, 3.0), t) for t in (q, k, v))
    if mechanism.reads_stream:
        given["x"] = torch.where(~keys[:, :, None], torch.full_like(x, 3.0), x)
    after = mechanism(q, k, v, **given)
    stands = keys[:, None, :, None].expand_as(before)
    torch.testing.assert_close(after[stands], before[stands], atol=1e-5, rtol=1e-5)
    assert torch.isfinite(after).all()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", ["window", "bias"])
@pytest.mark.parametrize("causal", [False, True])
def test_other_masks_of_pairs_are_honoured(name, kind, causal):
    if (causal and name not in CAUSAL) or (not causal and name not in BOTH_WAYS):
        pytest.skip("not in this direction")
    place = torch.arange(21)
    pairs = (
        ((place[:, None] - place).abs() <= 4)[None, None]
        if kind == "window"
        else torch.randn(1, H, 21, 21)
    )
    assert_same(made(name, 21), *inputs(21), causal=causal, pairs=pairs)
    if kind == "window":
        q, k, _, x = (t.detach() for t in inputs(21))
        A = made(name, 21).weights(q, k, causal=causal, pairs=pairs, x=x)
        assert float(A.masked_fill(pairs, 0.0).abs().max()) == 0.0


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(PAIRS)))
def test_masks_that_cannot_be_honoured_are_refused(name):
    q, k, v, x = inputs(8)
    pairs = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu()
    with pytest.raises(EigenlensError, match=f"{name} supports causality and padding"):
        made(name, 8)(q, k, v, causal=name in CAUSAL, pairs=pairs, x=x)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (
            {"keys": torch.ones(2, 7, dtype=torch.bool)},
            r"keys must be a boolean mask of shape \(2, 8\)",
        ),
        ({"keys": torch.ones(2, 8)}, "keys must be a boolean mask"),
        ({"pairs": torch.ones(8, 7, dtype=torch.bool)}, "pairs must be a mask or bias"),
        ({"pairs": torch.ones(1, 1, 8, 8, dtype=torch.long)}, "pairs must be a mask or bias"),
    ],
)
def test_masks_of_another_shape_or_kind_are_refused(terms, said):
    q, k, v, _ = inputs(8)
    with pytest.raises(EigenlensError, match=said):
        make("softmax")(q, k, v, **terms)


@pytest.mark.parametrize("name", PAIRS)
def test_a_very_negative_bias_hides_a_pair_as_minus_infinity_does(name):
    """As masks of transformers are written, with positions' biases beside the least number there
    is.
    """
    mechanism = made(name, 8)
    q, k, v, x = inputs(8)
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    bias = torch.randn(1, 1, 8, 8)
    outs = [
        mechanism(q, k, v, x=x, pairs=bias.masked_fill(hidden, never))
        for never in (torch.finfo(torch.float32).min, -1e4, -1e9, -torch.inf)
    ]
    for out in outs[:-1]:
        torch.testing.assert_close(out, outs[-1])
