"""Attention with a form per head.

Every form equals a dense masked formula, nothing sees the future, padding counts for nothing.
"""

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from eigenlens.attention import HeadForm, LayerForms, kept_attention, planned_attention
from eigenlens.attention.attend_by_forms import full_attention
from eigenlens.attention.head_keys import keep_keys, work_shares
from eigenlens.attention.kept_attention import attend_kept
from eigenlens.attention.key_selection import sampled_rows
from eigenlens.errors import EigenlensError
from eigenlens.kernels.build import kernel
from eigenlens.kernels.kept_keys import KeptKeys

BLOCK = 32
COMPUTED_BY = ["torch", *(["native"] if kernel().library is not None else [])]


def data(B=2, H=6, G=3, T=200, D=16, E=16, seed=0, sharpness=2.0):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(B, H, T, D, generator=g) * sharpness
    return q, torch.randn(B, G, T, D, generator=g), torch.randn(B, G, T, E, generator=g)


def menu(H, causal, D=16, correction=0.6, last=41):
    """One head of each form, and again."""
    forms = [
        HeadForm("blocks", 4e-3, 32, 3, correction=correction),
        HeadForm("dense"),
        HeadForm("ranked", 4e-3, 48, 4, rank=6, correction=correction),
        HeadForm("window", window=24),
        HeadForm("pooled", 1e-2, 32, 2),
        HeadForm("ranked", 8e-3, 32, 3, rank=3),
    ]
    heads = tuple(forms[i % len(forms)] for i in range(H))
    ranked = sum(form.kind == "ranked" for form in heads)
    maps = torch.randn(2, ranked, D, 8, generator=torch.Generator().manual_seed(9))
    return LayerForms(heads, causal, BLOCK, 3, 12, 24, last, maps[0] * 0.4, maps[1] * 0.4)


def by_native(dtype, graph=False):
    q, k, v = (x.to(dtype).requires_grad_(graph) for x in data())
    return planned_attention(q, k, v, menu(6, True), form="native")


def padding(which, B, T):
    valid = torch.ones(B, T, dtype=torch.bool)
    if which == "left":
        valid[0, :70] = False
    elif which == "right":
        valid[-1, 120:] = False
    return None if which is None else valid


def allowed(T, causal, valid):
    pairs = torch.ones(1, 1, T, T, dtype=torch.bool)
    pairs = pairs.tril() if causal else pairs
    return pairs if valid is None else pairs & valid[:, None, None]


def softmax_attention(q, k, v, mask, scale):
    """Written out without the package: repeat the heads, mask, softmax."""
    R = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(R, 1) for x in (k, v))
    scores = (q @ k.mT * scale).masked_fill(~mask, -math.inf)
    return torch.softmax(scores, -1).nan_to_num() @ v


def kept_by_hand(q, k, v, forms, h, I, b, valid, scale):
    """The far keys of one unit, what it drops with its mass and mean value, from the formula."""
    T, g, form = q.shape[2], h // (q.shape[1] // k.shape[1]), forms.heads[h]
    i0 = I * forms.block
    i1 = min(T, i0 + forms.block)
    real = torch.ones(T, dtype=torch.bool) if valid is None else valid[b]
    if forms.causal:
        near = range(max(0, i0 - form.window), i0)
        far = [j for j in range(max(0, i0 - form.window)) if real[j]]
        rows = [max(0, i0 - s * forms.stride) for s in range(form.samples)]
    else:
        near = range(max(0, i0 - form.window), min(T, i0 + forms.block + form.window))
        far = [j for j in range(T) if real[j] and j not in near]
        rows = [
            min(T - 1, i0 + (2 * s + 1) * forms.block // (2 * form.samples))
            for s in range(form.samples)
        ]
    x, y = q[b, h] * scale, k[b, g]
    if form.kind == "ranked":
        at = [i for i, f in enumerate(forms.heads) if f.kind == "ranked"].index(h)
        x = x @ forms.to_x[at, :, : form.rank]
        y = y @ forms.to_y[at, :, : form.rank]
    mass = []
    for s in rows:
        if not real[s]:
            continue
        sees = real & (torch.arange(T) <= s if forms.causal else torch.ones(T, dtype=torch.bool))
        mass.append(torch.softmax((x[s] @ y.T).masked_fill(~sees, -math.inf), 0))
    first = real.nonzero()[:, 0][: forms.first].tolist()
    if not mass:
        return far, list(near), i0, i1, [], 0.0, None
    mean = torch.stack(mass).mean(0)
    keys = [j for j in far if j in first or mean[j] >= form.threshold]
    gone = [j for j in far if j not in keys]
    lost = float(mean[gone].sum()) if gone else 0.0
    value = (mean[gone] @ v[b, g, gone]) / lost if lost else None
    return keys, list(near), i0, i1, gone, lost, value


@pytest.mark.parametrize("by", COMPUTED_BY)
@pytest.mark.parametrize("pad", [None, "left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_output_is_that_of_the_kept_keys_one_unit_at_a_time(causal, pad, by):
    q, k, v = data(H=6, G=3)
    (B, H, T, _), scale = q.shape, 0.25
    forms, valid = menu(H, causal), padding(pad, B, T)
    out = planned_attention(q, k, v, forms, scale=scale, valid=valid, form=by)
    full = softmax_attention(q, k, v, allowed(T, causal, valid), scale)
    torch.testing.assert_close(out[:, 1], full[:, 1], atol=1e-5, rtol=1e-5)  # the dense head
    for h in (0, 2, 4, 5):
        for b in range(B):
            for I in range(-(-T // BLOCK)):
                keys, near, i0, i1, gone, lost, value = kept_by_hand(
                    q, k, v, forms, h, I, b, valid, scale
                )
                for i in range(i0, i1):
                    if valid is not None and not valid[b, i]:
                        continue
                    real = range(T) if valid is None else valid[b].nonzero()[:, 0].tolist()
                    if i in (real[-forms.last :] if causal else real[: forms.first]):
                        expected = full[b, h, i]
                    else:
                        own = list(range(i0, i + 1)) if causal else []
                        these = [j for j in {*keys, *near, *own} if valid is None or valid[b, j]]
                        kinds, numbers = [k[b, h // 2, these]], [torch.ones(len(these))]
                        values, form = [v[b, h // 2, these]], forms.heads[h]
                        for m in {j // forms.group for j in gone if form.kind == "pooled"}:
                            some = [j for j in gone if j // forms.group == m]
                            kinds.append(k[b, h // 2, some].mean(0, keepdim=True))
                            values.append(v[b, h // 2, some].mean(0, keepdim=True))
                            numbers.append(torch.tensor([float(len(some))]))
                        scores = q[b, h, i] @ torch.cat(kinds).T * scale
                        p = torch.softmax(scores + torch.cat(numbers).log(), 0)
                        expected = p @ torch.cat(values)
                        weight = form.correction * lost
                        if weight:
                            expected = (1 - weight) * expected + weight * value
                    torch.testing.assert_close(out[b, h, i], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pad", [None, "left", "right"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "shape",
    [{}, {"H": 4, "G": 4, "T": 257, "D": 20, "E": 36}, {"H": 3, "G": 1, "T": 97, "D": 64, "E": 64}],
)
def test_all_forms_of_computing_agree(shape, causal, pad):
    q, k, v = data(**shape)
    B, H, T, D = q.shape
    valid, forms = padding(pad if T > 150 else None, B, T), menu(H, causal, D)
    kept = keep_keys(q, k, v, forms, scale=0.2, valid=valid)
    true = attend_kept(q, k, v, kept, 0.2, valid, "reference")
    for by in COMPUTED_BY:
        torch.testing.assert_close(
            attend_kept(q, k, v, kept, 0.2, valid, by), true, atol=1e-5, rtol=1e-5
        )
    mask = kept.mask(T, T) & allowed(T, causal, valid)
    bare = attend_kept(q, k, v, replace(kept, mean=None, weight=None, pooled=None), 0.2, valid)
    torch.testing.assert_close(bare, softmax_attention(q, k, v, mask, 0.2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("by", COMPUTED_BY)
@pytest.mark.parametrize("H", [1, 6])
@pytest.mark.parametrize("dims", [(1, 2), (2, 3)])
def test_queries_and_keys_may_lie_anyhow_in_memory(dims, H, by):
    straight = data(B=1, H=H, G=H)
    q, k, v = (x.transpose(*dims).contiguous().transpose(*dims) for x in straight)
    forms = menu(H, True)
    torch.testing.assert_close(
        planned_attention(q, k, v, forms, form=by),
        planned_attention(*straight, forms, form="reference"),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("by", COMPUTED_BY)
def test_no_output_moves_with_a_later_token(by):
    q, k, v = data(B=1)
    forms, cut = menu(6, True), 150
    before = planned_attention(q, k, v, forms, form=by)
    for x in (q, k, v):
        x[:, :, cut:] = torch.randn_like(x[:, :, cut:])
    after = planned_attention(q, k, v, forms, form=by)
    assert torch.equal(before[:, :, :cut], after[:, :, :cut])
    assert not torch.allclose(before[:, :, cut:], after[:, :, cut:])


@pytest.mark.parametrize("causal", [True, False])
def test_padding_changes_nothing_for_the_tokens_that_stand(causal):
    q, k, v = data(B=1, T=160)
    forms = menu(6, causal)
    alone = planned_attention(q, k, v, forms)
    longer = [torch.nn.functional.pad(x, (0, 0, 0, 64), value=7.0) for x in (q, k, v)]
    valid = torch.ones(1, 224, dtype=torch.bool)
    valid[:, 160:] = False
    padded = planned_attention(*longer, forms, valid=valid)[:, :, :160]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_a_threshold_of_nothing_keeps_everything(causal):
    q, k, v = data()
    forms = LayerForms((HeadForm("blocks", 0.0, 32, 3, correction=1.0),) * 6, causal, BLOCK, 3, 12)
    full = full_attention(q, k, v, causal, 0.25, None)
    out = planned_attention(q, k, v, forms, scale=0.25)
    torch.testing.assert_close(out, full, atol=1e-5, rtol=1e-5)
    kept = keep_keys(q, k, v, forms, scale=0.25)
    torch.testing.assert_close(
        kept.pairs(200), torch.full((6,), 2 * (200 * 201 / 2 if causal else 200.0**2)).double()
    )


def test_work_counts_pairs_and_the_rows_that_choose():
    q, k, v = data(B=1, H=2, G=1, T=128)
    heads = (HeadForm("window", window=32), HeadForm("ranked", 1.0, 32, 4, rank=4))
    maps = torch.randn(1, 16, 4)
    forms = LayerForms(heads, False, BLOCK, 0, 8, to_x=maps, to_y=maps)
    kept = keep_keys(q, k, v, forms, scale=0.25)
    near = (64 + 96 + 96 + 64) * 32  # both ways: a block, and a window on each side
    assert kept.pairs(128).tolist() == [near, near]
    shares = work_shares(kept, forms, 128, 16)
    assert shares[0] == near / 128**2
    assert shares[1] == pytest.approx(near / 128**2 + 4 / 32 * (4 / 16) / 2)


def test_a_pooled_head_counts_one_pair_more_per_query_and_group():
    q, k, v = data(B=1, H=1, G=1, T=130)
    form = HeadForm("pooled", 1.0, 32, 4)
    # causal windows begin at 0, 0, 32, 64 and 96: 0, 0, 1, 1 and 2 groups lie before them
    for causal, groups in ((False, 3 * 130), (True, 32 * (0 + 0 + 1 + 1) + 2 * 2)):
        forms = LayerForms((form,), causal, BLOCK, 0, 8, group=64, last=0)
        kept = keep_keys(q, k, v, forms, scale=0.25)
        bare = replace(kept, pooled=None)
        assert float(kept.pairs(130) - bare.pairs(130)) == groups


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_of_exact_queries_count(causal):
    q, k, v = data()
    valid = padding("left", *q.shape[::2])
    heads = tuple(form for form in menu(6, causal).heads if form.kind in {"blocks", "window"})
    forms = LayerForms(heads * 3, causal, BLOCK, 3, 12, last=41)
    kept = keep_keys(q, k, v, forms, scale=0.25, valid=valid)
    by_hand = (kept.mask(200, 200) & allowed(200, causal, None)).sum((0, 2, 3))
    assert kept.pairs(200).tolist() == by_hand.tolist()
    assert bool((replace(kept, exact=None).pairs(200) < kept.pairs(200)).all())


@pytest.mark.parametrize("by", [*COMPUTED_BY, "reference"])
@pytest.mark.parametrize("length", [256, 261])
def test_a_question_at_the_end_finds_what_nothing_before_it_looked_for(length, by):
    """Without exact queries the block of the question does not keep the key it asks for."""
    q, k, v = data(B=1, H=1, G=1, T=length)
    q[..., :8], k[..., :8] = 0.0, 0.0  # coordinates of the question alone
    k[0, 0, 50, 0], q[0, 0, -3:, 0] = 30.0, 30.0
    full = full_attention(q, k, v, True, 0.25, None)
    assert (full[0, 0, -1] - v[0, 0, 50]).abs().max() < 1e-5

    def missed(last):
        forms = LayerForms((HeadForm("blocks", 0.05, 32, 2),), True, 64, 2, 8, last=last)
        out = planned_attention(q, k, v, forms, scale=0.25, form=by)
        return float((out - full)[0, 0, -3:].abs().max())

    assert missed(0) > 0.5 and missed(3) < 1e-5 and missed(64) < 1e-5


def test_groups_of_equal_keys_are_exact():
    """Where the keys of a group are all the same, pooling them loses nothing."""
    q, k, v = data(B=1, H=2, G=1, T=256)
    k = k[:, :, ::64].repeat_interleave(64, 2)
    form = HeadForm("pooled", 1.0, 32, 2)  # drops all that is far
    forms = LayerForms((form,) * 2, False, BLOCK, 0, 8, group=64)
    out = planned_attention(q, k, v, forms, scale=0.25)
    full = full_attention(q, k, v, False, 0.25, None)
    torch.testing.assert_close(out, full, atol=1e-5, rtol=1e-5)


def test_sampled_rows_lie_before_the_block_or_inside_it():
    assert sampled_rows(100, 32, 3, 12, True).tolist()[2] == [64, 52, 40]
    inside = sampled_rows(100, 32, 3, 12, False)
    assert inside.tolist()[0] == [5, 16, 26] and inside.max() == 99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_half_precision_is_computed_in_float32(dtype):
    q, k, v = (x.to(dtype) for x in data())
    out = planned_attention(q, k, v, menu(6, True))
    expected = planned_attention(*(x.float() for x in (q, k, v)), menu(6, True))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected.to(dtype).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padding", [None, slice(40), slice(2, None), slice(None)])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_of_the_torch_form_are_those_of_the_masked_formula(causal, padding):
    forms, gradients = menu(6, causal), {}
    valid = torch.ones(2, 80, dtype=torch.bool)
    if padding is not None:  # also with fewer real tokens than exact queries
        valid[0, padding] = False
    kept = keep_keys(*data(T=80), forms, scale=0.25, valid=valid)
    for by in ("torch", "reference"):
        inputs = [x.double().requires_grad_() for x in data(T=80)]
        out = attend_kept(*inputs, kept, 0.25, valid, by)
        out = out * valid[:, None, :, None]  # what padding attends to is nobody's business
        gradients[by] = torch.autograd.grad(out.square().sum(), inputs)
    for ours, true in zip(gradients["torch"], gradients["reference"], strict=True):
        torch.testing.assert_close(ours, true, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_flow_through_a_planned_call(causal):
    q, k, v = (x.requires_grad_() for x in data(T=80))
    planned_attention(q, k, v, menu(6, causal)).sum().backward()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in (q, k, v))


@pytest.mark.parametrize("by", COMPUTED_BY)
@pytest.mark.parametrize("causal", [True, False])
def test_under_autocast_the_output_is_about_the_same(causal, by):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = planned_attention(*data(), menu(6, causal), form=by)
    expected = planned_attention(*data(), menu(6, causal), form=by)
    assert (out.float() - expected).abs().mean() < 0.02


def test_a_whole_number_may_be_a_threshold():
    q, k, v = data()
    kept = [
        keep_keys(q, k, v, LayerForms((HeadForm("blocks", one),) * 6), scale=0.25).counts
        for one in (1, 1.0)
    ]
    assert torch.equal(*kept)


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_kernel_dense_heads_are_computed_apart(causal, monkeypatch):
    q, k, v = data()
    forms = menu(6, causal)
    expected = planned_attention(q, k, v, forms, form="reference")
    monkeypatch.setattr(kept_attention, "by_torch", Mock(side_effect=kept_attention.by_torch))
    out = planned_attention(q, k, v, forms, form="torch")
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert kept_attention.by_torch.call_args.args[0].shape[1] == 5  # the dense head is not gathered


@pytest.mark.parametrize("T", [1, 2, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_inputs_may_be_shorter_than_the_first_keys(T, causal):
    q, k, v = data(T=T)
    out = planned_attention(q, k, v, menu(6, causal), scale=0.25)
    full = full_attention(q, k, v, causal, 0.25, None)
    torch.testing.assert_close(out, full, atol=1e-5, rtol=1e-5)


def test_a_unit_without_keys_gives_zero():
    q, k, v = data(B=1, H=2, G=2, T=64)
    empty = torch.zeros(1, 2, 2, dtype=torch.int32)
    kept = KeptKeys(32, False, torch.zeros(1, 2, 2, 2, dtype=torch.int32), empty[..., None], empty)
    for by in (*COMPUTED_BY, "reference"):
        assert not attend_kept(q, k, v, kept, 0.25, None, by).any()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: HeadForm("sparse"), "one of dense, window, blocks, ranked, pooled, not 'sparse'"),
        (lambda: HeadForm("blocks", 2.0), "threshold of a head must be from 0 to 1, not 2.0"),
        (lambda: HeadForm("blocks", correction=-1), "correction of a head must be from 0 to 1"),
        (lambda: HeadForm("ranked"), "needs a rank"),
        (lambda: HeadForm("pooled", correction=0.5), "a pooled head drops nothing"),
        (lambda: HeadForm("window", window=-1), "must be 0 or more"),
        (lambda: LayerForms((HeadForm("blocks", window=8),)), "must cover the sampled rows"),
        (lambda: LayerForms((HeadForm("ranked", window=64, rank=4),)), "1 ranked heads need"),
        (lambda: LayerForms((), block=0), "block, stride and group must be at least 1"),
        (lambda: planned_attention(*data(), menu(5, True)), "5 forms were given for 6 heads"),
        (lambda: by_native(torch.float64), "the native kernel cannot compute this: "),
        (lambda: by_native(torch.float32, True), "the native kernel cannot compute this: "),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(EigenlensError, match=says):
        wrong()
