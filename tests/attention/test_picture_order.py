"""The patches of a picture along a curve."""

import pytest
import torch

from eigenlens.attention import HeadForm, LayerForms, planned_attention
from eigenlens.attention.attend_by_forms import full_attention
from eigenlens.attention.picture_order import picture_order
from eigenlens.errors import EigenlensError


@pytest.mark.parametrize(("side", "before"), [(2, 0), (4, 1), (16, 5), (37, 1), (74, 1)])
def test_every_token_comes_once_and_those_before_the_picture_first(side, before):
    order = picture_order(side**2 + before, before)
    assert sorted(order.tolist()) == list(range(side**2 + before))
    assert order[:before].tolist() == list(range(before))


@pytest.mark.parametrize("bits", [1, 2, 4, 6])
def test_the_curve_goes_from_neighbour_to_neighbour(bits):
    side = 2**bits
    order = picture_order(side**2, 0)
    y, x = order // side, order % side
    assert ((y.diff().abs() + x.diff().abs()) == 1).all()


def test_tokens_in_a_row_are_a_region_of_the_picture():
    side, order = 74, picture_order(74**2 + 1, 1)[1:] - 1
    for block in order.split(128)[:-1]:
        y, x = block // side, block % side
        assert (y.max() - y.min() + 1) * (x.max() - x.min() + 1) <= 8 * 128
    strip = torch.arange(128)  # row by row: from side to side
    assert (strip % side).max() == side - 1


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 20, 257])
def test_what_is_no_square_has_no_order(tokens):
    assert picture_order(tokens, 0) is None


@pytest.mark.parametrize("form", ["auto", "torch", "reference"])
def test_attention_does_not_depend_on_the_order_but_for_what_is_left_out(form):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 401, 16), torch.randn(1, 2, 401, 16), torch.randn(1, 2, 401, 16)
    forms = (HeadForm("blocks", 0.0), HeadForm(), HeadForm("window", window=401), HeadForm())
    ordered = LayerForms(forms, False, 32, before_picture=1)
    out = planned_attention(q, k, v, ordered, form=form)
    torch.testing.assert_close(
        out, full_attention(q, k, v, False, 0.25, None), atol=1e-5, rtol=1e-5
    )
    near = LayerForms((HeadForm("window", window=32),) * 4, False, 32, 0, before_picture=1)
    order = picture_order(401, 1)
    by_hand = planned_attention(
        q[:, :, order], k[:, :, order], v[:, :, order], LayerForms(near.heads, False, 32, 0)
    )
    out = planned_attention(q, k, v, near, form=form)
    torch.testing.assert_close(out[:, :, order], by_hand, atol=1e-5, rtol=1e-5)
    assert LayerForms.from_record(near.record()) == near


KINDS = (
    HeadForm("blocks", 0.004, window=16, correction=0.5),
    HeadForm("pooled", 0.004, window=16),
    HeadForm("ranked", 0.004, window=16, rank=4, correction=1.0),
    HeadForm("window", window=32),
)


@pytest.mark.parametrize("form", ["auto", "torch", "reference"])
@pytest.mark.parametrize("real", [401, 350])
def test_every_form_of_head_in_an_order_is_the_same_on_ordered_tokens(form, real):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 401, 16), torch.randn(2, 2, 401, 16), torch.randn(2, 2, 401, 16)
    x, y = torch.randn(2, 1, 16, 4)
    valid = torch.arange(401).expand(2, -1) < torch.tensor([[401], [real]])
    settings = {"block": 32, "group": 16, "to_x": x, "to_y": y}
    order = picture_order(401, 1)
    out = planned_attention(
        q, k, v, LayerForms(KINDS, False, **settings, before_picture=1), valid=valid, form=form
    )
    by_hand = planned_attention(
        *(z[:, :, order] for z in (q, k, v)),
        LayerForms(KINDS, False, **settings),
        valid=valid[:, order],
        form="reference",
    )
    kept = valid[:, None, :, None]
    torch.testing.assert_close(
        (out * kept)[:, :, order], by_hand * kept[:, :, order], atol=1e-5, rtol=1e-5
    )


def test_a_causal_call_has_no_other_order():
    with pytest.raises(EigenlensError, match="only in attention both ways"):
        LayerForms((HeadForm(),), True, before_picture=1)
