"""Row moments against the definition, written out pair by pair."""

import pytest
import torch

from eigenlens.captures import Site, capture
from eigenlens.models.load import load
from eigenlens.spectra.centring import row_mean, row_scatter
from eigenlens.stats import RowMoments
from stats.calls import FORMS, call, dense_rows


def sums_of(*calls, of="scores"):
    moments = RowMoments(of)
    for each in calls:
        moments.update(each)
    return moments.result()[Site("self", 0)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_scatter_equals_the_definition(form, length):
    calls = [call(form, length=length, seed=seed) for seed in (0, 1)]
    sums = sums_of(*calls)
    for head in range(4):
        parts = [dense_rows(c, head) for c in calls]
        x, v = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]).double()
        number = v.sum(0).clamp_min(1)
        assert int(sums.rows) == len(x)
        raw = x * v
        own = raw - (raw.sum(1, keepdim=True) / v.sum(1, keepdim=True)) * v
        for centring, rows in {"raw": raw, "centred": raw, "row-centred": own}.items():
            mean = (
                torch.zeros(length, dtype=torch.float64)
                if centring == "raw"
                else rows.sum(0) / number
            )
            centred = (rows - mean) * v
            ours = row_mean(sums, centring)
            torch.testing.assert_close(ours[head], mean, atol=1e-9, rtol=1e-9)
            torch.testing.assert_close(
                row_scatter(sums, centring, ours)[head], centred.T @ centred, atol=1e-8, rtol=1e-8
            )


def test_the_causal_blocks_meet_at_every_length():
    """Lengths around the block size, against the form that knows nothing of blocks."""
    for length in (63, 64, 65, 130):
        causal = call("causal", length=length)
        bare = (
            torch.ones(length, length, dtype=torch.bool)
            .tril()[None, None]
            .expand(3, 4, length, length)
            .clone()
        )
        bare[0, 0, 0, 0] = True
        dense = sums_of(call("causal", length=length))
        scores = causal.scaled_q @ causal.keys.transpose(2, 3) * bare
        torch.testing.assert_close(
            dense.second, torch.einsum("bhij,bhik->hjk", scores, scores), atol=1e-8, rtol=1e-8
        )
        torch.testing.assert_close(
            dense.first,
            torch.einsum("bhij,ik->hjk", scores, bare[0, 0].double()),
            atol=1e-8,
            rtol=1e-8,
        )


def test_a_masked_batch_joins_unmasked_ones():
    """The sums of unmasked inputs take the masked form when a padded batch comes, and nothing is
    lost.
    """
    full, padded = call("full"), call("padded", seed=1)
    together = sums_of(full, padded)
    alone = [sums_of(c).as_masked() for c in (full, padded)]
    for name, tensor in together.tensors().items():
        torch.testing.assert_close(
            tensor, sum(a.tensors()[name] for a in alone).expand(tensor.shape)
        )


def test_pattern_rows_are_probabilities():
    sums = sums_of(call("full"), of="pattern")
    assert torch.allclose(sums.first.sum(1), sums.rows.expand(4, 1))


@torch.no_grad()
@pytest.mark.parametrize("padding", [False, True])
def test_masked_and_padded_tokens_leave_no_trace(padding):
    """What stands in the padding does not change a single number."""
    model = load("minilm")
    ids = torch.randint(1000, 20000, (4, 24))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, 15:], mask[3, 9:] = 0, 0
    found = []
    for junk in (0, 1):
        moments = RowMoments()
        with capture(model.backbone, moments.update):
            model.backbone(input_ids=torch.where(mask.bool(), ids, ids + junk), attention_mask=mask)
        found.append(moments.result())
    for site, sums in found[0].items():
        for name, tensor in sums.tensors().items():
            torch.testing.assert_close(tensor, found[1][site].tensors()[name], rtol=1e-6, atol=1e-6)
