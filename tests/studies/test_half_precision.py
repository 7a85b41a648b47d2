"""Models in half precision.

What their queries and keys make of each other is measured in float32.
"""

import copy

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from eigenlens import capture, collapse, study
from eigenlens.captures import Site
from eigenlens.captures.transformers_backend import AttentionNotSeen
from eigenlens.spectra.rows import row_basis
from eigenlens.stats import RowMoments
from tiny import of_catalogue, small_bert, small_llama

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def some_ids(vocabulary, number=12, length=24):
    return torch.randint(
        200, vocabulary, (number, length), generator=torch.Generator().manual_seed(3)
    )


def queries_and_keys(model, ids):
    """What each layer's attention gets, as it gets it.

    Q (B, H, T, D), k (B, G, T, D) and the scale, from a function of ours.
    """
    found = []

    def note(module, query, key, value, attention_mask, scaling=None, **kwargs):
        found.append((query.clone(), key.clone(), scaling))
        group = query.shape[1] // key.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (key, value))
        causal = attention_mask is None and getattr(module, "is_causal", False)
        out = scaled_dot_product_attention(
            query, k, v, attn_mask=attention_mask, is_causal=causal, scale=scaling
        )
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("test-note", note)
    AttentionMaskInterface.register("test-note", sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation("test-note")
    with torch.no_grad():
        model(input_ids=ids)
    model.set_attn_implementation(before)
    return found


@pytest.mark.parametrize("dtype", HALF.values(), ids=HALF)
def test_row_spectra_of_a_real_encoder_are_those_of_its_queries_and_keys(dtype):
    model = copy.deepcopy(of_catalogue("minilm").module).to(dtype)
    ids, moments = some_ids(30_000), RowMoments()
    with torch.no_grad(), capture(model, moments.update):
        model(input_ids=ids)
    for layer, (q, k, scale) in enumerate(queries_and_keys(model, ids)):
        basis = row_basis(moments.result()[Site("encoder", layer)], "centred")
        scores = torch.einsum("bhid,bhjd->hbij", q.double(), k.double()) * scale
        for head in (0, 7):
            truth = PCA(svd_solver="full").fit(scores[head].flatten(0, 1).numpy())
            share = (basis.eigenvalues[head].cumsum(0) / basis.total[head]).numpy()
            np.testing.assert_allclose(share, truth.explained_variance_ratio_.cumsum(), atol=1e-4)


@pytest.mark.download
def test_causal_rows_of_a_real_decoder_are_those_of_its_queries_and_keys():
    model = copy.deepcopy(of_catalogue("smollm2").module).bfloat16()
    ids, moments = some_ids(40_000), RowMoments()
    with torch.no_grad(), capture(model.base_model, moments.update):
        model.base_model(input_ids=ids)
    noted = queries_and_keys(model.base_model, ids)
    for layer in (0, 11, 29):
        q, k, scale = noted[layer]
        sums = moments.result()[Site("self", layer)]
        scores = (
            torch.einsum("bhid,bhjd->bhij", q.double(), k.double().repeat_interleave(3, 1)) * scale
        )
        scores = scores.tril()
        second = torch.einsum("bhij,bhik->hjk", scores, scores)
        torch.testing.assert_close(
            sums.second, second, rtol=1e-4, atol=1e-5 * float(second.abs().max())
        )


@pytest.mark.parametrize("dtype", HALF.values(), ids=HALF)
@pytest.mark.parametrize("make", [small_bert, small_llama])
def test_a_study_of_scores_beyond_half_precision_is_finite(make, dtype):
    """Squares of these scores, summed over a batch, are above the largest float16, 65,504."""
    model = make().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("query.weight", "key.weight", "q_proj.weight", "k_proj.weight")):
                parameter *= 12 if make is small_bert else 60
    found = study(
        model,
        torch.randint(50, (40, 24)),
        max_length=24,
        only=("rows", "moments", "matrices", "depth"),
        rank=8,
    )
    rows = next(iter(found.row_sums().values()))
    assert float(rows.second.max()) > 65_504
    assert all(np.isfinite(s.eigenvalues).all() for s in found.spectra)
    assert next(model.parameters()).dtype == dtype


@pytest.mark.parametrize("name", ["minilm", "stories15m"])
def test_rounding_is_not_taken_for_something_hidden(name):
    """Eager attention in bfloat16 differs by its own rounding from what is captured."""
    model = copy.deepcopy(of_catalogue(name).module).bfloat16()
    seen = []
    with torch.no_grad(), capture(model, lambda call: seen.append(call.pattern().dtype)):
        model(input_ids=some_ids(30_000))
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, *HALF.values()])
def test_what_a_family_hides_is_noticed_in_every_precision(dtype, monkeypatch):
    from transformers.models.bert import modeling_bert

    eager = modeling_bert.eager_attention_forward

    def hiding(module, query, key, value, attention_mask, **kwargs):
        near = -0.3 * (torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])).abs().to(
            query
        )
        return eager(
            module,
            query,
            key,
            value,
            near + (0 if attention_mask is None else attention_mask),
            **kwargs,
        )

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", hiding)
    model = small_bert().to(dtype)
    for _ in range(2):  # once it is refused it stays refused
        with (
            pytest.raises(AttentionNotSeen, match="does not show"),
            torch.no_grad(),
            capture(model, lambda call: None),
        ):
            model(input_ids=some_ids(250) % 50)


class Own(nn.Module):
    """A user's module in half precision, with torch's own multi-head attention."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(
            [nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2)]
        )

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x, x, x)[0]
        return x


def test_a_module_of_ones_own_in_half_precision_keeps_its_dtype():
    model = Own().bfloat16()
    ids = torch.randint(50, (3, 9))
    with torch.no_grad():
        plain = model(ids)
        with capture(model) as calls:
            out = model(ids)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, plain, rtol=0.05, atol=0.05)
    assert {call.scores().dtype for call in calls} == {torch.float32}


def test_collapse_of_a_module_in_bfloat16():
    found = collapse(
        small_bert().bfloat16(), torch.randint(50, (12, 16)), max_length=16, max_inputs=12
    )
    assert all(np.isfinite(row["residual"]) for row in found.rows() if "residual" in row)
