"""The spectrum of one input's scores: exact without scores being formed, over real tokens only."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenlens.captures import AttentionCall, Site
from eigenlens.errors import EigenlensError
from eigenlens.spectra.within import within_spectra
from eigenlens.stats import WithinSpectra
from eigenlens.stats.within import product_spectrum
from stats.calls import FORMS, call

SHARES = (0.5, 0.9, 0.95, 0.99)


def dense(one, b, head, tokens=None):
    """The scores of one input and head among its real tokens, as the definition has them."""
    valid = one.valid().expand(len(one.q), one.heads, one.q.shape[2], one.k.shape[2])[b, head]
    rows, keys = valid.any(1), valid.any(0)
    S = one.scale * one.q[b, head].double() @ one.k[b, head // one.group].double().T
    return S[rows][:, keys][:tokens, :tokens]


def needed(matrix, share):
    """The least number of singular values that hold a share of the energy, counted one by one."""
    squares = torch.linalg.svdvals(matrix.double()).square().tolist()
    total, held = sum(squares), 0.0
    for number, square in enumerate(squares, 1):
        held += square
        if held >= share * total * (1 - 1e-10):
            return number
    return 0


def spectra(*calls, **every):
    statistic, start = WithinSpectra(**every), 0
    for one in calls:
        statistic.update(one, start)
        start += len(one.q)
    return within_spectra(statistic.result())


@pytest.mark.parametrize("form", FORMS)
def test_components_are_those_of_the_dense_scores(form):
    one = call(form, batch=4, length=11, dimension=5)
    found = spectra(one)
    for head in range(4):
        for what in ("scores", "centred", "pattern"):
            made = found.one(what=what, head=head, tokens=11)
            matrices = [
                one.pattern()[b, head] if what == "pattern" else dense(one, b, head)
                for b in range(4)
            ]
            if what == "centred":
                matrices = [S - S.mean(1, keepdim=True) for S in matrices]
            assert made.inputs == 4
            for share in SHARES:
                expected = sorted(needed(S, share) for S in matrices)
                assert made.mean_dimension(share) == pytest.approx(sum(expected) / 4)
                assert made.dimension(share, 0.0) == expected[0]
                assert made.dimension(share, 0.5) == expected[1]
                assert made.dimension(share, 1.0) == expected[3]
            sigma = [torch.linalg.svdvals(S.double()) for S in matrices]
            p = [s / s.sum() for s in sigma]
            effective = [torch.special.entr(x).sum().exp() for x in p]
            assert made.effective_rank == pytest.approx(float(sum(effective) / 4), rel=1e-5)
            stable = [s.square().sum() / s[0].square() for s in sigma]
            assert made.stable_rank == pytest.approx(float(sum(stable) / 4), rel=1e-9)
            left = [s[2:].square().sum() / s.square().sum() for s in sigma]
            assert made.left(2) == pytest.approx(float(sum(left) / 4), abs=1e-9)


def test_growth_is_measured_on_the_first_tokens():
    one = call("causal", batch=2, length=100, dimension=6)
    found = spectra(one)
    assert found.lengths == [32, 64, 100]
    for tokens in (32, 64):
        S = [dense(one, b, 1, tokens) for b in range(2)]
        expected = [needed(s - s.mean(1, keepdim=True), 0.9) for s in S]
        made = found.one(what="centred", head=1, tokens=tokens)
        assert made.mean_dimension() == pytest.approx(sum(expected) / 2)
    assert [row["tokens"] for row in found.growth() if row["what"] == "scores"] == [32, 64, 100]


def test_a_padded_input_is_measured_as_a_whole():
    assert spectra(call("padded", length=80)).lengths == [80]


def test_only_every_nth_input_is_measured_wherever_batches_begin():
    calls = [call("full", batch=3, length=40, seed=seed) for seed in range(4)]  # inputs 0 to 11
    found = spectra(*calls, every=4, growth_every=8, pattern_every=12)
    counts = {(s.what, s.tokens): s.inputs for s in found if s.head == 0}
    assert counts == {
        ("scores", 40): 3,
        ("centred", 40): 3,
        ("scores", 32): 2,
        ("centred", 32): 2,
        ("pattern", 40): 1,
    }
    with pytest.raises(EigenlensError, match="at least 1"):
        WithinSpectra(every=0)


def test_patterns_of_long_inputs_are_left_out():
    kinds = {s.what for s in spectra(call("full", batch=1, heads=1, length=300))}
    assert kinds == {"scores", "centred"}


def test_scores_of_zero_need_no_component_and_alike_keys_none_after_centring():
    q = torch.randn(1, 1, 8, 4, dtype=torch.float64)
    zero = AttentionCall(Site("self", 0), "self", "", q, torch.zeros_like(q), q, 1.0)
    alike = AttentionCall(Site("self", 0), "self", "", q, torch.ones_like(q), q, 1.0)
    assert spectra(zero).one(what="scores", tokens=8).dimension(0.99) == 0
    found = spectra(alike)
    assert found.one(what="scores", tokens=8).dimension(0.99) == 1
    assert found.one(what="centred", tokens=8).dimension(0.99) == 0


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 12),
    dimension=st.integers(1, 6),
    rank=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_the_spectrum_of_a_product_comes_from_two_gram_matrices(tokens, dimension, rank, seed):
    """Also where there are fewer tokens than dimensions, or keys that depend on each other."""
    rng = torch.Generator().manual_seed(seed)
    Q, K = (
        torch.randn(tokens, rank, generator=rng, dtype=torch.float64)
        @ torch.randn(rank, dimension, generator=rng, dtype=torch.float64)
        for _ in range(2)
    )
    squares = product_spectrum((Q.T @ Q)[None], (K.T @ K)[None])[0].flip(0)
    expected = torch.zeros(dimension, dtype=torch.float64)
    values = torch.linalg.svdvals(Q @ K.T)[:dimension].square()
    expected[: len(values)] = values
    torch.testing.assert_close(squares, expected, rtol=1e-7, atol=1e-9 * float(values[0]))


def test_a_long_input_forms_no_pairs():
    """64 MB would be one byte per pair of a single head."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            for x in made if isinstance(made, tuple | list) else [made]:
                if isinstance(x, torch.Tensor):
                    self.most = max(self.most, x.numel())
            return made

    one = call("causal", batch=1, heads=2, length=8192, dimension=4)
    with Largest() as seen:
        found = spectra(one)
    assert found.lengths[-1] == 8192
    assert seen.most <= 2 * 8192 * 4


def test_what_is_not_finite_stays_so_beside_heads_that_are():
    """A study finds it, and says which inputs; the other head is measured."""
    q = torch.randn(1, 2, 8, 4, dtype=torch.float64)
    k = q.clone()
    k[0, 1, 3, 2] = torch.nan
    statistic = WithinSpectra()
    statistic.update(AttentionCall(Site("self", 0), "self", "", q, k, q, 1.0))
    curves = statistic.state()["self/0/centred|8|curve"]
    assert bool(curves[0].isfinite().all()) and bool(curves[1].isnan().all())


@pytest.mark.parametrize("first", [5, 10])
def test_patterns_over_as_many_keys_add_up_for_any_number_of_queries(first):
    """As when a decoder reads an encoder's states: its own length may differ from call to call."""
    k = torch.randn(1, 1, 20, 4, dtype=torch.float64)
    calls = [
        AttentionCall(Site("cross", 0), "cross", "", torch.randn(1, 1, T, 4).double(), k, k, 1.0)
        for T in (first, 15 - first)
    ]
    found = spectra(*calls).one(what="pattern")
    expected = sorted(needed(one.pattern()[0, 0], 0.9) for one in calls)
    assert (found.inputs, found.dimension(0.9, 0.0), found.dimension(0.9, 1.0)) == (2, *expected)
