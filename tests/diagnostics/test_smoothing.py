"""Over-smoothing.

Against hidden states and eager attentions, with padding, and the bound written out by hand.
"""

import json
import math

import numpy as np
import pytest
import torch

from diagnostics.passes import diagnosed, show, subject_of
from diagnostics.split import assert_parts_make_the_whole
from eigenlens.captures import Site, capture_layers
from eigenlens.diagnostics import CallView, LayerView
from eigenlens.diagnostics.smoothing import Smoothing
from tiny import of_catalogue, small_bert, small_llama


def found_in(model, *batches):
    smoothing = Smoothing()
    diagnosed(model, batches, smoothing)
    return smoothing.result()


def alike(X):
    """Similarity and distance of tokens (T, C), from every pair."""
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(len(X)) for j in range(len(X)) if i != j]
    return np.mean(pairs), np.linalg.norm(X - X.mean(0))


def eager(model, **batch):
    """Hidden states and attentions that the model gives itself."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            out = model(**batch, output_hidden_states=True, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    return [x.double().numpy() for x in out.hidden_states], [
        x.double().numpy() for x in out.attentions
    ]


@pytest.mark.parametrize("name", ["minilm", "stories15m", "dinov2-small"])
def test_the_numbers_are_those_of_hidden_states_and_eager_attentions(name):
    model = of_catalogue(name)
    batch = (
        {"pixel_values": torch.randn(2, 3, 56, 56)}
        if name == "dinov2-small"
        else {"input_ids": torch.randint(999, 9999, (2, 9))}
    )
    finding = found_in(model, batch)
    states, attentions = eager(model.backbone, **batch)
    (stack,) = finding.stacks
    maps = [a.mean(1).reshape(2, -1) for a in attentions]
    last = len(attentions) - 1
    # the last hidden state is behind the final norm of a pre-norm model
    for layer in (0, 1, last - 1):
        before, behind = (np.array([alike(x) for x in states[layer + more]]) for more in (0, 1))
        wanted = {
            "similarity_before": before[:, 0].mean(),
            "similarity": behind[:, 0].mean(),
            "distance_before": before[:, 1].mean(),
            "distance": behind[:, 1].mean(),
            "ratio": (behind[:, 1] / before[:, 1]).mean(),
        }
        if layer:
            p, q = maps[layer - 1], maps[layer]
            wanted["maps"] = (
                (p * q).sum(1) / np.linalg.norm(p, axis=1) / np.linalg.norm(q, axis=1)
            ).mean()
        for number, value in wanted.items():
            assert finding.value(number, stack, layer) == pytest.approx(value, rel=1e-4), number
    assert len(finding.values("maps")) == last and Site(stack, 0) not in finding.values("maps")
    assert bool(finding.values("v")) == (name == "minilm")
    assert (
        "no bound: it is computed only for blocks known to be post-norm" in finding.sentence
    ) == (name != "minilm")


def by_hand(model, ids, layer):
    """σ₁σ₂, √λ, v and the sharper bound of a block of a BERT on one input (1, T), with numpy and no
    capture.
    """
    states, attentions = eager(model, input_ids=ids)
    block = model.encoder.layer[layer]
    first, second = block.attention.output, block.output
    with torch.no_grad():
        H = torch.tensor(states[layer], dtype=torch.float32)
        x1 = H + first.dense(block.attention.self(H)[0])
        x = first.LayerNorm(x1)
        x2 = x + second.dense(block.intermediate(x))
    n, heads = ids.shape[1], attentions[0].shape[1]
    A = attentions[layer][0]
    middle = np.eye(n) - np.ones((n, n)) / n
    roots = np.array([math.sqrt(np.linalg.eigvalsh(P.T @ middle @ P)[-1]) for P in A])
    eps = first.LayerNorm.eps
    sigma = np.prod([np.sqrt(x[0].double().numpy().var(1) + eps).min() for x in (x1, x2)])
    V, O = (
        part.weight.detach().double().numpy() for part in (block.attention.self.value, first.dense)
    )
    E = len(V) // heads
    each = np.array(
        [
            np.linalg.norm(V[h * E : h * E + E].T @ O[:, h * E : h * E + E].T, 2)
            for h in range(heads)
        ]
    )
    maps = [
        np.linalg.norm(part.weight.detach().double().numpy(), 2)
        for part in (block.intermediate.dense, second.dense)
    ]
    s = max(*each, *maps)
    gain = np.prod(
        [float(norm.weight.detach().abs().max()) for norm in (first.LayerNorm, second.LayerNorm)]
    )
    v = (1 + 1.13 * s * s) * (1 + roots.max() * heads * s) / sigma
    return {
        "sigma": sigma,
        "root": roots.max(),
        "v": v,
        "sharp": gain * (1 + 1.13 * maps[0] * maps[1]) * (1 + roots @ each) / sigma,
    }


def test_the_bound_is_its_definition_and_is_kept():
    model, ids = small_bert(), torch.randint(1, 50, (3, 8))
    with torch.no_grad():
        for block in model.encoder.layer:
            block.output.LayerNorm.weight.uniform_(0.5, 2.0)
    finding = found_in(model, {"input_ids": ids})
    for layer in range(2):
        each = [by_hand(model, row[None], layer) for row in ids]
        for name in each[0]:
            wanted = np.mean([found[name] for found in each])
            assert finding.value(name, "encoder", layer) == pytest.approx(wanted, rel=1e-4), name
    assert {number.number for number in finding.numbers if number.name == "v"} == {3}
    assert (
        set(finding.values("bounded").values()) == {1.0}
        and "holds in 100 % of cases" in finding.sentence
    )


def test_only_dear_inputs_have_their_bound_computed():
    model, ids = small_bert(), torch.randint(1, 50, (4, 8))

    def of(sampled):
        studied, smoothing = subject_of(model, {"input_ids": ids}), Smoothing()
        smoothing.begin(studied)

        def leave(layer):
            everything = slice(None)
            smoothing.update(
                LayerView.of(layer, everything, None, CallView(layer.calls[0]), None, sampled)
            )

        names = {site.name: site.kind for site in studied.sites.values()}
        with torch.no_grad(), smoothing.attached(studied), capture_layers(model, names, leave):
            model(input_ids=ids)
        return smoothing.result()

    some, none = of([1, 3]), of([])
    counted = {number.name: number.number for number in some.numbers}
    assert counted["v"] == counted["bounded"] == 2 and counted["ratio"] == 4
    for layer in range(2):
        each = [by_hand(model, ids[i : i + 1], layer) for i in (1, 3)]
        for name in each[0]:
            wanted = np.mean([found[name] for found in each])
            assert some.value(name, "encoder", layer) == pytest.approx(wanted, rel=1e-4), name
    assert (
        not none.values("v")
        and none.values("ratio")
        and none.sentence.endswith("; the bound was not computed.")
    )
    (rows,) = none.tables.values()
    assert {row["bound"] for row in rows} == {"the bound was not computed"}


def test_a_block_that_leaves_the_bound_is_counted():
    """With gains in the bound that the norms do not have, it is too small."""
    model, ids = small_bert(), torch.randint(1, 50, (1, 8))
    studied, smoothing = subject_of(model, {"input_ids": ids}), Smoothing()
    smoothing.begin(studied)
    for block in smoothing.blocks.values():
        block.gain = 1e-6
    show(studied, [{"input_ids": ids}], [smoothing])
    assert set(smoothing.result().values("bounded").values()) == {0.0}


def test_the_bound_of_inputs_that_are_picked_from_a_batch_is_theirs():
    model, ids = small_bert(), torch.randint(1, 50, (6, 8))
    studied, smoothing = subject_of(model, {"input_ids": ids}), Smoothing()
    smoothing.begin(studied)
    chosen = slice(1, None, 3)

    def leave(layer):
        smoothing.update(
            LayerView.of(layer, chosen, None, CallView(layer.calls[0].of_inputs(chosen)), None)
        )

    names = {site.name: site.kind for site in studied.sites.values()}
    with torch.no_grad(), smoothing.attached(studied), capture_layers(model, names, leave):
        model(input_ids=ids)
    alone = found_in(model, {"input_ids": ids[chosen]})
    for name in alone.words:
        assert smoothing.result().values(name) == pytest.approx(alone.values(name), rel=1e-4), name


def test_padding_does_not_count_and_has_no_bound():
    model, ids = small_bert(), torch.randint(1, 50, (1, 6))
    wide, mask = (
        torch.cat([ids, torch.ones(1, 3, dtype=torch.long)], 1),
        (torch.arange(9) < 6).long()[None],
    )
    alone, padded = (
        found_in(model, {"input_ids": ids}),
        found_in(model, {"input_ids": wide, "attention_mask": mask}),
    )
    for name in ("similarity", "similarity_before", "ratio", "distance", "distance_before", "maps"):
        assert padded.values(name) == pytest.approx(alone.values(name), rel=1e-4), name
    assert alone.values("v") and not padded.values("v") and not padded.values("bounded")
    assert "no bound: it is computed only for inputs without padding" in padded.sentence
    (rows,) = padded.tables.values()
    assert all("padding" in row["bound"] for row in rows)


def test_one_token_has_no_pairs_and_there_is_no_nan():
    for model in (small_bert(), small_llama()):
        finding = found_in(model, {"input_ids": torch.tensor([[5]])})
        assert not finding.values("similarity") and not finding.values("ratio") and finding.sentence
        json.dumps(finding.record(), allow_nan=False)
        assert all(math.isfinite(number.mean) for number in finding.numbers)


@pytest.mark.download
def test_stacks_are_apart():
    model = of_catalogue("flan-t5-small")
    ids = torch.randint(5, 999, (2, 7))
    finding = found_in(model, {"input_ids": ids, "decoder_input_ids": ids[:, :5]})
    assert set(finding.stacks) == {"encoder", "decoder"} and len(finding.values("similarity")) == 16
    assert Site("decoder", 0) not in finding.values("maps") and len(finding.values("maps")) == 14
    assert (
        "in decoder" in finding.sentence
        and "no bound: it is computed only for blocks known to be post-norm" in finding.sentence
    )
    assert finding.plot().to_dict()


def test_a_pass_in_parts_is_the_pass_whole():
    batches = [{"input_ids": torch.randint(1, 50, (2, 7))} for _ in range(3)]
    whole = assert_parts_make_the_whole(Smoothing, small_bert(), batches)
    assert {number.number for number in whole.result().numbers if number.name == "v"} == {6}


@pytest.mark.parametrize("first", [True, False])
def test_a_post_norm_block_that_is_not_known_is_not_called_pre_norm(first):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    finding = found_in(model, {"x": torch.randn(2, 5, 8)})
    (rows,) = finding.tables.values()
    for message in (finding.sentence, *(row["bound"] for row in rows)):
        assert (
            "no bound: it is computed only for blocks known to be post-norm" in message
            and "pre-norm" not in message
        )


def test_tokens_that_are_equal_but_for_rounding_have_no_ratio():
    model = small_llama()
    finding = found_in(model, {"input_ids": torch.full((2, 9), 7)})
    assert finding.values("distance_before") and not finding.values("ratio")
    states, _ = eager(model, input_ids=torch.full((2, 9), 7))
    away = [np.linalg.norm(x - x.mean(1, keepdims=True)) / np.linalg.norm(x) for x in states[1:]]
    assert 0 < max(away) < 1e-6  # there is something to divide by, and it is rounding
    nearly = torch.full((1, 9), 7)
    nearly[0, 4] = 8
    assert found_in(model, {"input_ids": nearly}).values("ratio")
