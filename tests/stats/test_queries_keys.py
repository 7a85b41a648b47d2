"""Moments of queries and keys."""

import pytest
import torch

from eigenlens.captures import Site
from eigenlens.stats import QueryKeyMoments
from stats.calls import call


@pytest.mark.parametrize("form", ["full", "grouped", "padded", "causal padded"])
def test_moments_are_those_of_the_valid_tokens(form):
    each = call(form)
    moments = QueryKeyMoments()
    moments.update(each)
    sums = moments.result()[Site("self", 0)]
    real = torch.ones(3, 9, dtype=torch.bool) if each.query_valid is None else each.query_valid
    q = (each.q * each.scale).transpose(1, 2)[real]  # (tokens, H, D)
    k = each.k.transpose(1, 2)[real]
    torch.testing.assert_close(sums.query_first, q.sum(0))
    torch.testing.assert_close(sums.query_second, torch.einsum("nhd,nhe->hde", q, q))
    torch.testing.assert_close(sums.key_second, torch.einsum("nhd,nhe->hde", k, k))
    assert int(sums.query_number) == int(sums.key_number) == int(real.sum())
    by_position = (
        (each.q * each.scale * real[:, None, :, None]).sum(0),
        (each.k * real[:, None, :, None]).sum(0),
    )
    torch.testing.assert_close(sums.query_positions, by_position[0])
    torch.testing.assert_close(sums.key_positions, by_position[1])
    assert sums.query_counts.tolist() == sums.key_counts.tolist() == real.sum(0).tolist()


def test_they_give_the_mean_square_of_the_scores():
    """E[s²] over independent pairs is tr(E[qqᵀ] E[kkᵀ]).

    Over all pairs of one input it is exact.
    """
    each = call("full", batch=1)
    moments = QueryKeyMoments()
    moments.update(each)
    sums = moments.result()[Site("self", 0)]
    product = torch.einsum("hde,hed->h", sums.query_second, sums.key_second)
    torch.testing.assert_close(product, each.scores().square().sum((0, 2, 3)))
