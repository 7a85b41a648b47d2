"""Heads cut to a low rank inside a loaded model.

The scores of the truncated dense matrix, and every weight back afterwards.
"""

import itertools
import sys

import numpy as np
import pytest
import torch

from captures.families import inputs
from collapses.by_hand import lively
from eigenlens import EigenlensError, capture
from eigenlens.anatomy.truncation import query_weights, truncated
from eigenlens.lab.model import Config, Transformer
from tiny import of_catalogue, small_bert, small_llama

PLAIN = [
    "bert",
    "distilbert",
    "albert",
    "gpt2",
    "opt",
    "vit",
    "dinov2",
    "clip",
    "t5",
    "whisper",
    "bart",
]
ROTARY = ["llama", "mistral", "qwen2", "gemma2", "phi", "gpt_neox", "modernbert"]


def first_call(model, given, module, **options):
    """The first attention's call and the stream that it reads."""
    seen = []
    hook = module.register_forward_pre_hook(
        lambda _m, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    with torch.no_grad(), capture(model, **options) as calls:
        model(**given)
    hook.remove()
    by_name = dict(model.named_modules())
    return next(call for call in calls if by_name[call.name] is module), seen[0]


def dense(weights, head, rank):
    """The best matrix of the rank for queries and keys with their biases as one more row, by
    numpy's SVD.
    """
    key = head // weights.group
    queries = np.vstack([weights.query[head].numpy(), weights.query_bias[head].numpy()])
    keys = np.vstack([weights.key[key].numpy(), weights.key_bias[key].numpy()])
    U, s, Vt = np.linalg.svd(queries.astype(np.float64) @ keys.astype(np.float64).T)
    return (U[:, :rank] * s[:rank]) @ Vt[:rank]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("rank", [1, 3])
def test_scores_are_those_of_the_truncated_dense_matrix(name, rank):
    torch.manual_seed(0)
    model, given = lively(name, torch.float32), inputs(name)
    given |= {"use_cache": False} if name in {"t5", "bart", "whisper"} else {}
    queries = query_weights(model)[0]
    before, _ = first_call(model, given, queries.module)
    wanted = [dense(queries.weights, head, rank) for head in range(queries.heads)]
    with truncated(model, rank):
        call, x = first_call(model, given, queries.module)
    stream = np.concatenate([x[0].numpy(), np.ones((x.shape[1], 1))], 1)  # (T, C + 1)
    for head in range(queries.heads):
        found = (call.scaled_q[0, head] @ call.k[0, head].T).numpy()
        expected = stream @ wanted[head] @ stream.T
        # the model's own, 1/√d mostly
        scale = float((found * expected).sum() / (expected**2).sum())
        assert 0.1 < scale <= 1 + 1e-5
        np.testing.assert_allclose(found, scale * expected, atol=1e-4 * abs(expected).max())
    assert float((before.scaled_q - call.scaled_q).abs().max()) > 1e-3  # something was cut


@pytest.mark.parametrize("name", PLAIN + ROTARY)
def test_weights_are_back_to_the_last_bit_also_after_an_error(name):
    torch.manual_seed(0)
    model = lively(name, torch.float32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="inside"), truncated(model, 1):
        changed = [
            key for key, value in model.state_dict().items() if not torch.equal(value, before[key])
        ]
        raise RuntimeError("inside")
    assert changed and all(
        torch.equal(value, before[key]) for key, value in model.state_dict().items()
    )


@pytest.mark.parametrize("name", ROTARY)
def test_with_rotary_positions_every_distance_has_the_rank_and_the_mean_error_is_that_of_the_metric(
    name,
):
    torch.manual_seed(0)
    model = lively(name, torch.float64)
    queries, rank = query_weights(model)[0], 2
    rotate = sys.modules[type(queries.module).__module__].apply_rotary_pos_emb
    w = queries.weights
    head, D = queries.heads - 1, w.query.shape[2]
    old = torch.cat([w.query[head], w.query_bias[head][None]])  # (C + 1, D)
    keys = torch.cat([w.key[head // w.group], w.key_bias[head // w.group][None]])
    metric = queries.metric(head)
    with truncated(model, rank, [(0, head)]):
        new = torch.cat(
            [
                queries.weight[head].T,
                old[-1:] * 0 if queries.bias is None else queries.bias[head][None],
            ]
        )
        assert np.linalg.matrix_rank(new.numpy(), tol=1e-9) == rank
        other = query_weights(model)[0].weights.query
        assert all(torch.equal(other[h], w.query[h]) for h in range(head))
    width = getattr(queries.module, "rotary_ndims", D)
    errors = []
    # four quarter turns of each plane have a circle's mean
    for angles in itertools.product(range(4), repeat=width // 2):
        angle = torch.tensor(angles, dtype=torch.float64) * torch.pi / 2
        both = torch.cat([angle, angle])[None, None]  # (1, 1, width)
        turned = rotate(
            keys[None, None, :, :width], keys[None, None, :, :width], both.cos(), both.sin()
        )[1][0, 0]
        turned = torch.cat([turned, keys[:, width:]], 1)
        errors.append(float(((old - new) @ turned.T).square().sum()))
        assert np.linalg.matrix_rank((new @ turned.T).numpy(), tol=1e-9) <= rank
    assert np.mean(errors) == pytest.approx(
        float(torch.einsum("cd,de,ce->", old - new, metric, old - new))
    )


def test_heads_that_share_keys_are_cut_apart():
    model = small_llama()
    queries = query_weights(model)[0]
    assert queries.weights.group == 2
    before = queries.weight.clone()
    with truncated(model, 1, [(0, 1), (1, 3)]):
        assert torch.equal(queries.weight[[0, 2, 3]], before[[0, 2, 3]])
        assert int(torch.linalg.matrix_rank(queries.weight[1])) == 1


def test_the_full_rank_changes_nothing_and_a_low_one_does():
    model, ids = small_bert(), torch.arange(1, 13)[None]
    with torch.no_grad():
        own = model(ids)[0]
        with truncated(model, 8):
            assert torch.equal(model(ids)[0], own)
        with truncated(model, 7):
            near = float((model(ids)[0] - own).norm())
        with truncated(model, 1):
            far = float((model(ids)[0] - own).norm())
        with truncated(model, 0):
            call, _ = first_call(model, {"input_ids": ids}, query_weights(model)[0].module)
        assert torch.equal(model(ids)[0], own)
    assert 0 < near < far
    torch.testing.assert_close(call.pattern(), torch.full_like(call.pattern(), 1 / 12))


@pytest.mark.parametrize("widths", [{}, {"rank": 5, "value_width": 3}])
def test_a_model_of_the_lab_is_cut_too(widths):
    torch.manual_seed(0)
    model = Transformer(Config(vocabulary=9, length=6, width=16, layers=2, heads=2, **widths))
    queries = query_weights(model)[1]
    wanted = [dense(queries.weights, head, 2) for head in range(2)]
    with truncated(model, 2):
        w = query_weights(model)[1].weights
        for head in range(2):
            found = (
                torch.cat([w.query[head], w.query_bias[head][None]])
                @ torch.cat([w.key[head], w.key_bias[head][None]]).T
            )
            np.testing.assert_allclose(found.numpy(), wanted[head], atol=1e-5)


def test_minilm_is_cut_as_numpy_would():
    model = of_catalogue("minilm").module
    attentions = query_weights(model)
    assert (
        len(attentions) == 6
        and attentions[0].heads == 12
        and attentions[0].weight.shape == (12, 32, 384)
    )
    wanted = dense(attentions[3].weights, 5, 4)
    with truncated(model, 4):
        w = query_weights(model)[3].weights
        found = (
            torch.cat([w.query[5], w.query_bias[5][None]])
            @ torch.cat([w.key[5], w.key_bias[5][None]]).T
        )
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4 * abs(wanted).max())


def test_what_cannot_be_cut_is_said():
    with (
        pytest.raises(EigenlensError, match="norm after its projections"),
        truncated(lively("qwen3", torch.float32), 2),
    ):
        pass
    with (
        pytest.raises(EigenlensError, match=r"no head \(7, 0\)"),
        truncated(small_bert(), 2, [(7, 0)]),
    ):
        pass
    with pytest.raises(EigenlensError, match="at least 0, not -2"), truncated(small_bert(), -2):
        pass
    with (
        pytest.raises(EigenlensError, match="blocks of Linear are not known"),
        truncated(torch.nn.Linear(3, 3), 2),
    ):
        pass
