"""What is padding does not depend on which inputs stand in a batch, nor on which side they are
padded.
"""

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from eigenlens import AttentionCall, EigenlensError, capture, load, study
from eigenlens.captures import MaskShapes, Site
from eigenlens.stats import MatrixGram, QueryKeyMoments, RowMoments
from tiny import small_bert, small_llama, some_text, tiny_bert, tiny_llama

LENGTH, NUMBERS = 11, (11, 4, 7, 11, 5, 9)
MODELS = {"encoder": small_bert, "decoder": small_llama}


def padded_inputs(side):
    """Token ids and their mask, (6, 11) each; two inputs are complete."""
    place = torch.arange(LENGTH)
    real = torch.stack([place < n if side == "right" else place >= LENGTH - n for n in NUMBERS])
    ids = torch.randint(1, 50, (len(NUMBERS), LENGTH), generator=torch.Generator().manual_seed(1))
    return ids * real, real


def seen_in_batches(model, side, size, *statistics):
    """The statistics after all inputs in batches of one size, and what the key projection of layer
    0 gave, (6, 11, C).
    """
    ids, real = padded_inputs(side)
    keys = []
    projection = next(m for name, m in model.named_modules() if name.endswith((".key", ".k_proj")))
    hook = projection.register_forward_hook(lambda _, args, out: keys.append(out))

    def sink(call):
        for statistic in statistics:
            statistic.update(call)

    with torch.no_grad(), capture(model, sink):
        for at in range(0, len(ids), size):
            model(input_ids=ids[at : at + size], attention_mask=real[at : at + size].long())
    hook.remove()
    return real, torch.cat(keys)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", MODELS)
def test_moments_are_the_same_in_batches_of_any_size(kind, side):
    model = MODELS[kind]().double()
    found = {}
    for size in (1, 2, 3, 4, 6):
        moments = QueryKeyMoments()
        real, keys = seen_in_batches(model, side, size, moments)
        found[size] = next(iter(moments.result().values()))
    assert int(found[6].key_number) == int(found[6].query_number) == sum(NUMBERS)
    assert found[6].key_counts.tolist() == found[6].query_counts.tolist() == real.sum(0).tolist()
    if kind == "encoder":  # without a rotary embedding the keys are the projection's own
        heads = keys.double().unflatten(2, (4, 8))[real]  # (tokens, G, D)
        torch.testing.assert_close(found[6].key_second, torch.einsum("nhd,nhe->hde", heads, heads))
    for size in (1, 2, 3, 4):
        for name, x in vars(found[size]).items():
            torch.testing.assert_close(
                x, getattr(found[6], name), msg=f"{name} in batches of {size}"
            )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", MODELS)
def test_rows_and_matrices_are_the_same_in_batches_of_any_size(kind, side):
    model = MODELS[kind]().double()
    found = []
    for size in (1, 2, 3, 6):
        rows, matrices = RowMoments(), MatrixGram()
        seen_in_batches(model, side, size, rows, matrices)
        site = next(iter(matrices.result()))
        found.append((rows.result()[site].as_masked(), matrices.result()[site]))
    for rows, matrices in found:
        assert int(matrices.number) == NUMBERS.count(LENGTH)  # padded inputs have no whole matrix
        torch.testing.assert_close(matrices.first, found[-1][1].first)
        for name, x in rows.tensors().items():
            wide = found[-1][0].tensors()[name]
            torch.testing.assert_close(
                x.expand_as(wide), wide.expand_as(x.expand_as(wide)), msg=name
            )


@pytest.mark.parametrize(("tiny", "inputs"), [(tiny_bert, 41), (tiny_llama, 41), (tiny_bert, 40)])
def test_a_padded_study_does_not_depend_on_the_batch(tiny, inputs, tmp_path):
    """41 inputs: the last of 33 fit inputs is alone in its batch."""
    model, data = load(tiny(tmp_path / "tiny")), tmp_path / "short.jsonl"
    words = some_text(tmp_path / "text.txt").read_text().split()
    texts = (" ".join(words[10 * i : 10 * i + 3 + i % 14]) for i in range(200))
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = {
        "max_length": 16,
        "max_inputs": inputs,
        "padding": True,
        "only": ("rows", "moments", "matrices"),
        "rank": 4,
    }
    studies = [study(model, data, **options, batch_size=size) for size in (1, 8, 32)]
    first = studies[0]
    real = first.moments()[Site("self" if tiny is tiny_llama else "encoder", 0)]
    assert (
        int(real.key_number)
        == int(real.query_number)
        == int(real.key_counts.sum())
        < 15 * int(real.key_counts[0])
    )
    assert real.key_counts.tolist() == real.query_counts.tolist()
    for other in studies[1:]:
        for site, sums in other.moments().items():
            for name, x in vars(sums).items():
                torch.testing.assert_close(
                    x, getattr(first.moments()[site], name), rtol=1e-4, atol=1e-3
                )
        for a, b in zip(first.spectra, other.spectra, strict=True):
            assert (a.at, a.samples) == (b.at, b.samples)
            assert abs(a.total / b.total - 1) < 1e-3


class Window(nn.Module):
    """Attention in a window, with a mask that is made anew in every call and gone after it."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        far = (torch.arange(9)[:, None] - torch.arange(9)).abs()
        mask = torch.zeros(1, 1, 9, 9).masked_fill(far >= self.width, -torch.inf)
        return scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_a_mask_is_not_taken_for_an_earlier_one_that_is_gone():
    widths = [1 + 5 * i % 9 for i in range(45)]
    model, found = nn.Sequential(*map(Window, widths)), []
    with torch.no_grad(), capture(model, lambda call: found.append(int(call.valid().sum()))):
        model(torch.randn(2, 3, 9, 8))
    far = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    assert found == [int((far < width).sum()) for width in widths]


def test_a_mask_that_is_written_into_is_read_again():
    q = torch.randn(1, 2, 5, 4)
    shapes, mask = MaskShapes(), torch.zeros(1, 1, 5, 5)
    first = AttentionCall(Site("self", 0), "self", "", q, q, q, 0.5, mask=mask, shapes=shapes)
    assert first.mask_shape.form == "full"
    mask.masked_fill_(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    second = AttentionCall(Site("self", 1), "self", "", q, q, q, 0.5, mask=mask, shapes=shapes)
    assert second.mask_shape.form == "causal"
    torch.testing.assert_close(second.pattern(), (q @ q.mT * 0.5 + mask).softmax(-1))


def test_calls_of_different_lengths_may_share_a_mask():
    shapes, mask, k = (
        MaskShapes(),
        torch.tensor([True, True, False, True])[None, None, None],
        torch.randn(1, 2, 4, 3),
    )
    for T in (3, 2):
        call = AttentionCall(
            Site("cross", T),
            "cross",
            "",
            torch.randn(1, 2, T, 3),
            k,
            k,
            1.0,
            mask=mask,
            shapes=shapes,
        )
        assert call.valid().sum() == 3 * T


def test_heads_with_masks_of_their_own_are_summed_by_their_own():
    """The first head is causal, the second sees a window."""
    far = torch.arange(6)[:, None] - torch.arange(6)
    mask = torch.stack([far >= 0, (far >= 0) & (far < 3)])[None]  # (1, 2, 6, 6)
    q, k = torch.randn(2, 3, 2, 6, 4, dtype=torch.float64)
    moments = RowMoments()
    moments.update(AttentionCall(Site("self", 0), "self", "", q, k, k, 0.5, mask=mask))
    sums, valid = moments.result()[Site("self", 0)], mask[0].double()  # (2, 6, 6)
    scores = (q @ k.mT * 0.5) * valid
    torch.testing.assert_close(sums.first, torch.einsum("bhij,hik->hjk", scores, valid))
    torch.testing.assert_close(
        sums.count.expand(2, 6, 6), 3 * torch.einsum("hij,hik->hjk", valid, valid)
    )


def test_whole_matrices_of_different_masks_are_refused():
    """Two packed inputs, of 3 + 3 and of 2 + 4 tokens."""
    blocks = [
        torch.block_diag(*(torch.ones(n, n) for n in parts)).bool() for parts in ((3, 3), (2, 4))
    ]
    q = torch.randn(2, 2, 6, 4)
    call = AttentionCall(
        Site("self", 0), "self", "", q, q, q, 0.5, mask=torch.stack(blocks)[:, None]
    )
    with pytest.raises(EigenlensError, match="two different masks"):
        MatrixGram().update(call)
