"""Terms by path length against two other ways to them.

All paths one by one, and a frozen forward by hand whose heads are weighed.

With every head's output times a and every MLP's times b, the frozen forward is the polynomial
`Σ_k,m a^k b^m X_k,m` (plus biases, which the forward of a zero stream gives), so that values at a
few a and b give all X_k,m without any path.
"""

from itertools import product
from math import comb, prod

import numpy as np
import pytest
import torch

from captures.families import CAUSAL, inputs
from collapses.by_hand import distance, in_dtype, lively, masks, outputs
from collapses.graphs import batch, graphs
from eigenlens.anatomy import freeze
from eigenlens.captures.precision import stays_double
from eigenlens.collapses.enumeration import enumerate_paths, path_number
from eigenlens.collapses.marginals import head_marginals
from eigenlens.collapses.paths import decompose_paths, full_length_share, path_counts
from eigenlens.errors import EigenlensError

KINDS = ["bert", "albert", "distilbert", "gpt2", "vit", "llama", "gpt_neox", "gpt_neox-sequential"]
HEADS = 4


def linear(by_hand, x, heads, mlp=1.0):
    """The linear part of the weighed forward by hand on the stream x."""
    return by_hand(x, heads=heads, mlp=mlp) - by_hand(torch.zeros_like(x), heads=heads, mlp=mlp)


def coefficients(values):
    """Values of a polynomial at 0, 1, …, n, (n+1, …) → its coefficients."""
    nodes = np.vander(np.arange(len(values)), increasing=True).astype(float)
    return torch.tensordot(torch.from_numpy(np.linalg.inv(nodes)), values, 1)


def by_interpolation(by_hand, x, layers, by):
    ones = torch.ones(layers, HEADS, dtype=torch.float64)
    at = range(layers + 1)
    if by == "attention":
        return coefficients(torch.stack([linear(by_hand, x, a * ones) for a in at]))
    if by == "mlp":
        return coefficients(torch.stack([linear(by_hand, x, ones, float(b)) for b in at]))
    grid = torch.stack(
        [torch.stack([linear(by_hand, x, a * ones, float(b)) for b in at]) for a in at]
    )
    return coefficients(coefficients(grid).transpose(0, 1)).transpose(0, 1)


@torch.no_grad()
@pytest.mark.parametrize("by", ["attention", "mlp", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_terms_are_the_coefficients_of_the_weighed_forward(kind, by):
    graph, x, by_hand = graphs(kind)
    found = decompose_paths(graph, by)
    layers = len(graph.branches("attention"))
    want = by_interpolation(by_hand, x, layers, by)
    assert (found.layers, found.heads, found.by) == (layers, (HEADS,) * layers, by)
    assert found.terms.shape == want.shape
    for index in product(*map(range, want.shape[:-3])):
        if want[index].norm() < 1e-9:  # side by side, k + m cannot be more than the layers
            assert found.terms[index].norm() < 1e-9, index
        else:
            assert distance(found.terms[index], want[index]) < 1e-8, index
    assert distance(found.bias, by_hand(torch.zeros_like(x))) < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("by", ["attention", "mlp", "both"])
@pytest.mark.parametrize(
    "name", ["bert", "albert", "gpt2", "llama", "gpt_neox", "dinov2", "phi", "t5", "bart"]
)
def test_terms_are_the_sums_over_all_paths(name, by):
    """Of encoders and decoders; a cross-attention is no choice, for it reads another stack."""
    two = {"t5", "dinov2", "bart"}  # layers they have anyway
    model = lively(name) if name in two else lively(name, num_hidden_layers=2)
    given = (
        in_dtype(inputs(name))
        if name == "dinov2"
        else {**batch(name), **({"use_cache": False} if name == "bart" else {})}
    )
    with stays_double():
        found = freeze(model, given)
    assert len(found) == (2 if name in {"t5", "bart"} else 1)
    for graph in found:
        terms = decompose_paths(graph, by).terms
        want, number = torch.zeros_like(terms), 0
        for path in enumerate_paths(graph):
            hops = {
                "attention": path.length(),
                "mlp": path.length("mlp"),
                "both": (path.length(), path.length("mlp")),
            }[by]
            want[hops] += path.term
            number += 1
        side_by_side = name in {"gpt_neox", "phi"}
        assert (
            number
            == path_number(graph)
            == ((1 + HEADS + 1) ** 2 if side_by_side else ((1 + HEADS) * 2) ** 2)
        )
        torch.testing.assert_close(terms, want, rtol=1e-9, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "gpt_neox"])
def test_each_path_is_its_own_product_of_heads(kind):
    """The forward by hand with only the heads S on sums all paths over subsets of S.

    Inclusion and exclusion leaves one.
    """
    model = lively(kind, num_hidden_layers=2)
    graph, x, by_hand = graphs(kind, model=model)
    by_heads = {}
    for path in enumerate_paths(graph):
        taken = [
            hop
            for hop, stage in zip(path.hops, graph.stages())
            if any(b.kind == "attention" for b in stage.branches)
        ]
        key = tuple(hop[1] if hop is not None and hop[0] == "attention" else None for hop in taken)
        by_heads[key] = by_heads.get(key, 0) + path.term
    assert set(by_heads) == set(product([None, *range(HEADS)], repeat=2))

    def on(*heads):
        gates = torch.zeros(2, HEADS, dtype=torch.float64)
        for layer, head in heads:
            gates[layer, head] = 1
        return linear(by_hand, x, gates)

    nothing = on()
    assert distance(by_heads[None, None], nothing) < 1e-10
    assert distance(by_heads[2, None], on((0, 2)) - nothing) < 1e-9
    assert distance(by_heads[None, 1], on((1, 1)) - nothing) < 1e-9
    assert distance(by_heads[3, 1], on((0, 3), (1, 1)) - on((0, 3)) - on((1, 1)) + nothing) < 1e-9
    assert distance(by_heads[0, 2], on((0, 0), (1, 2)) - on((0, 0)) - on((1, 2)) + nothing) < 1e-9


@torch.no_grad()
@pytest.mark.parametrize("by", ["attention", "mlp", "both"])
@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "modernbert",
        "opt",
        "mistral",
        "gemma2",
        "phi",
        "t5",
        "bart",
        "whisper",
        "dinov2",
        "clip",
    ],
)
def test_terms_and_bias_add_up_to_the_models_output(name, by):
    model, given = lively(name), in_dtype(inputs(name))
    given |= {"use_cache": False} if name in CAUSAL | {"t5", "bart", "whisper"} else {}
    with stays_double():
        found, own = freeze(model, given), outputs(model(**given))
    for graph, output in zip(found, own):
        lengths = decompose_paths(graph, by)
        total = lengths.terms.flatten(0, -4).sum(0) + lengths.bias
        assert distance(total, output) < 1e-10
        assert lengths.error < 1e-10


@torch.no_grad()
def test_they_add_up_in_float32():
    model = lively("llama", torch.float32)
    given = {**inputs("llama"), "use_cache": False}
    (graph,) = freeze(model, given)
    lengths = decompose_paths(graph)
    assert distance(lengths.terms.sum(0) + lengths.bias, model(**given).last_hidden_state) < 1e-5


@torch.no_grad()
def test_the_error_says_when_they_do_not():
    graph, *_ = graphs("bert")
    lengths = decompose_paths(graph)
    broken = type(lengths)(
        lengths.terms, 0 * lengths.bias, lengths.output, "attention", lengths.heads
    )
    assert broken.error == pytest.approx(float(lengths.bias.norm() / lengths.output.norm()))


def through_each_head(graph, x, by_hand, real):
    """`Σ ⟨path, Y⟩ / ‖Y‖²` over paths through head (l, h), by length: X_k less what is left of it
    with the head at zero.
    """
    layers = len(graph.branches("attention"))
    keep = torch.ones(x.shape[:2], dtype=torch.float64) if real is None else real.double()
    y = by_hand(x) * keep[..., None]

    def shares(gates):
        terms = coefficients(
            torch.stack([linear(by_hand, x, a * gates) for a in range(layers + 1)])
        )
        return ((terms * y).sum((2, 3)) / y.square().sum((1, 2))).mean(1)  # (K+1,)

    ones, want = (
        torch.ones(layers, HEADS, dtype=torch.float64),
        torch.zeros(layers, HEADS, layers + 1, dtype=torch.float64),
    )
    for layer, head in product(range(layers), range(HEADS)):
        off = ones.clone()
        off[layer, head] = 0
        want[layer, head] = shares(ones) - shares(off)
    return want, shares(ones)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "padding"),
    [("bert", "right"), ("gpt2", "left"), ("gpt_neox", "none"), ("vit", "none")],
)
def test_head_marginals_are_what_is_lost_without_the_head(kind, padding):
    graph, x, by_hand = graphs(kind, padding)
    real = None if padding == "none" else masks(batch(kind, padding))[0]
    want, shares = through_each_head(graph, x, by_hand, real)
    found = head_marginals(graph)
    assert not found.requires_grad
    torch.testing.assert_close(found, want, rtol=1e-7, atol=1e-10)
    lengths = torch.arange(len(shares), dtype=torch.float64)
    torch.testing.assert_close(found.sum((0, 1)), lengths * shares, rtol=1e-7, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["distilbert", "llama"])
def test_head_marginals_are_sums_over_the_paths_through_a_head(kind):
    model = lively(kind, num_hidden_layers=2)
    graph, *_ = graphs(kind, model=model)
    y, want = graph.output, torch.zeros(2, HEADS, 3, dtype=torch.float64)
    for path in enumerate_paths(graph):
        share = ((path.term * y).sum((1, 2)) / y.square().sum((1, 2))).mean()
        for layer, hop in enumerate(path.hops[::2]):  # attention, MLP, attention, MLP
            if hop is not None:
                want[layer, hop[1], path.length()] += share
    torch.testing.assert_close(head_marginals(graph), want, rtol=1e-8, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("padding", ["none", "right"])
def test_numbers_of_a_term_against_numpy(padding):
    graph, *_ = graphs("bert", padding)
    lengths = decompose_paths(graph)
    real = masks(batch("bert", padding))[0].numpy()
    y, parts = lengths.output.numpy(), [*lengths.terms.numpy(), lengths.bias.numpy()]
    shares, sizes, residuals = lengths.shares(), lengths.sizes(), lengths.residuals()
    for index, part in enumerate(parts):
        rows = [(part[b][real[b]], y[b][real[b]]) for b in range(len(y))]
        assert float(shares[index]) == pytest.approx(
            np.mean([(p * o).sum() / (o * o).sum() for p, o in rows])
        )
        assert float(sizes[index]) == pytest.approx(
            np.mean([np.linalg.norm(p) / np.linalg.norm(o) for p, o in rows])
        )
        assert float(residuals[index]) == pytest.approx(
            np.mean([norm(p - p.mean(0)) / norm(p) for p, _ in rows])
        )
    assert float(shares.sum()) == pytest.approx(1)


def norm(X):
    return np.sqrt(np.abs(X).sum(0).max() * np.abs(X).sum(1).max())


@torch.no_grad()
def test_rows_name_hops_and_numbers_of_paths():
    graph, *_ = graphs("gpt2")
    rows = decompose_paths(graph).rows()
    assert [row["attention_hops"] for row in rows] == [0, 1, 2, 3, None]
    assert [row["paths"] for row in rows] == [1, 12, 48, 64, None]
    assert [row["path_share"] for row in rows[:-1]] == pytest.approx(
        [1 / 125, 12 / 125, 48 / 125, 64 / 125]
    )
    assert [row["part"] for row in rows] == ["paths"] * 4 + ["bias"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    both = decompose_paths(graph, "both").rows()
    assert [(row["attention_hops"], row["mlp_hops"]) for row in both[:-1]] == list(
        product(range(4), range(4))
    )
    assert [row["mlp_hops"] for row in decompose_paths(graph, "mlp").rows()] == [0, 1, 2, 3, None]


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (3, 4), (12, 12), (24, 16), (96, 96)])
def test_numbers_of_paths_are_binomial(layers, heads):
    counts = path_counts([heads] * layers)
    assert counts == tuple(comb(layers, k) * heads**k for k in range(layers + 1))
    assert sum(counts) == (heads + 1) ** layers
    assert full_length_share(layers, heads) == pytest.approx(counts[-1] / sum(counts))


def test_numbers_of_paths_through_layers_of_unlike_heads():
    heads = [2, 3, 5]
    counts = [0] * 4
    for taken in product(*(range(number + 1) for number in heads)):
        counts[sum(head > 0 for head in taken)] += 1
    assert path_counts(heads) == tuple(counts) == (1, 10, 31, 30)
    assert path_counts([]) == (1,)


@pytest.mark.parametrize(
    ("layers", "heads", "published"),
    [
        (12, 12, 0.383),
        (6, 12, 0.619),
        (24, 16, 0.233),
        (32, 16, 0.144),
        (96, 96, 0.370),
        (12, 3, 0.032),
    ],
    ids=["BERT-base", "DistilBERT", "BERT-large", "ViT-H", "GPT-3", "DeiT-T"],
)
def test_published_shares_of_paths_through_every_layer(layers, heads, published):
    assert round(full_length_share(layers, heads), 3) == published


@torch.no_grad()
def test_too_many_paths_are_refused_with_their_number():
    graph, *_ = graphs("bert")
    assert path_number(graph) == prod([1 + HEADS, 2] * 3) == 1000
    with pytest.raises(
        EigenlensError, match=r"1,000 paths are too many to enumerate \(at most 999\)"
    ):
        next(iter(enumerate_paths(graph, most=999)))
    assert next(iter(enumerate_paths(graph, most=1000))).hops == (None,) * 6


@torch.no_grad()
def test_paths_are_counted_by_attention_mlp_or_both():
    graph, *_ = graphs("gpt2")
    with pytest.raises(EigenlensError, match="not by 'heads'"):
        decompose_paths(graph, "heads")
