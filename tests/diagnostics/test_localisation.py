"""Where heads look.

Against loops over the pairs, under every mask, and over patches in their grid.
"""

import math

import numpy as np
import pytest
import torch

from diagnostics.passes import diagnosed
from diagnostics.split import assert_parts_make_the_whole
from eigenlens import EigenlensError
from eigenlens.captures import AttentionCall, Head, Site
from eigenlens.diagnostics import CallView
from eigenlens.diagnostics.localisation import Grid, Localisation
from tiny import of_catalogue, small_bert, small_llama


def by_loop(A, allowed, distance):
    """The five numbers of one head from patterns (B, T, T), pairs that count (B, T, T) and
    distances (T, T), nan of no pair.
    """
    each, profile, uniform = [], {}, {}
    for P, may in zip(A, allowed):
        mass = far_mass = plain = plain_far = 0.0
        over = {True: [], False: []}
        for i in range(len(P)):
            n = int(may[i].sum())
            for j in range(len(P)):
                if not may[i, j] or math.isnan(distance[i, j]):
                    continue
                d = round(distance[i, j])
                mass, far_mass = mass + P[i, j], far_mass + P[i, j] * d
                plain, plain_far = plain + 1 / n, plain_far + d / n
                profile[d] = profile.get(d, 0) + P[i, j]
                uniform[d] = uniform.get(d, 0) + 1 / n
                over[d <= 2].append(P[i, j] > 1 / n)
        each.append(
            (
                far_mass / mass / (plain_far / plain),
                far_mass / mass,
                np.mean(over[True]),
                np.mean(over[False]),
            )
        )
    p, u = (np.array([x for x in table.values() if x > 0]) for table in (profile, uniform))
    p, u = p / p.sum(), u / u.sum()
    relative, mean, near, far = np.mean(each, 0)
    entropy = (p * np.log(p)).sum() / (u * np.log(u)).sum()
    return {"relative": relative, "distance": mean, "entropy": entropy, "near": near, "far": far}


def numbers(finding, stack, layer, head):
    return {name: finding.value(name, stack, layer, head) for name in finding.words}


def of_call(scores, **given):
    """What is found in one call with these scores (B, H, T, T)."""
    k = torch.eye(scores.shape[3]).expand(*scores.shape[:2], -1, -1)
    looks = Localisation()
    looks.update(
        CallView(
            AttentionCall(
                Site("self", 0), given.pop("kind", "self"), "attention", scores, k, k, 1.0, **given
            )
        )
    )
    return looks


def places(T):
    return np.abs(np.arange(T)[:, None] - np.arange(T)).astype(float)


@pytest.mark.parametrize("mask", ["full", "causal", "right", "left"])
def test_the_numbers_are_those_of_a_loop_over_the_pairs(mask):
    scores, T = 2 * torch.randn(3, 2, 7, 7), 7
    valid = torch.ones(3, T, dtype=torch.bool)
    if mask in ("right", "left"):
        valid[1, -2:], valid[2, -3:] = False, False
        valid = valid.flip(1) if mask == "left" else valid
    allowed = (valid[:, :, None] & valid[:, None, :]).numpy()
    if mask == "causal":
        found = of_call(scores, causal=True)
        allowed = allowed & np.tril(np.ones((T, T), dtype=bool))
    else:
        given = {} if mask == "full" else {"mask": valid[:, None, None, :], "query_valid": valid}
        found = of_call(scores, **given)
    A = np.where(allowed[:, None], np.exp(scores.double().numpy()), 0)
    A = A / np.maximum(A.sum(3, keepdims=True), 1e-300)
    for head in range(2):
        wanted = by_loop(A[:, head], allowed, places(T))
        assert numbers(found.result(), "self", 0, head) == pytest.approx(wanted, rel=1e-5)


def test_uniform_attention_looks_as_far_as_uniform_attention():
    for given in ({}, {"causal": True}):
        found = numbers(of_call(torch.zeros(1, 1, 9, 9), **given).result(), "self", 0, 0)
        assert found["relative"] == pytest.approx(1) and found["entropy"] == pytest.approx(1)
        assert found["near"] == found["far"] == 0
    assert found["distance"] == pytest.approx(np.mean([i / 2 for i in range(9)]))


def test_a_head_that_looks_at_itself_and_one_that_looks_one_back():
    itself, before = 1e4 * torch.eye(6), 1e4 * torch.eye(6).roll(-1, 1)
    found = of_call(torch.stack([itself, before])[None], causal=True).result()
    assert numbers(found, "self", 0, 0) == pytest.approx(
        {"relative": 0, "distance": 0, "entropy": 0, "near": 5 / 15, "far": 0}
    )
    assert found.value("distance", "self", 0, 1) == pytest.approx(5 / 6)


def test_what_has_no_distance_is_left_out():
    assert not of_call(torch.zeros(1, 2, 1, 1)).result().applies  # one token
    assert not of_call(torch.zeros(1, 2, 4, 4), kind="cross").sums
    valid = torch.ones(2, 4, dtype=torch.bool)
    valid[0] = False
    alone = of_call(torch.randn(2, 1, 4, 4), mask=valid[:, None, None], query_valid=valid).result()
    assert {number.number for number in alone.numbers} == {1} and all(
        math.isfinite(n.mean) for n in alone.numbers
    )
    short = of_call(torch.randn(1, 1, 3, 3)).result()
    # of three tokens none is farther than 2
    assert "far" not in {number.name for number in short.numbers}


@pytest.mark.download
def test_a_decoders_heads_look_where_its_own_eager_attention_says():
    model = of_catalogue("smollm2")
    ids = torch.randint(100, 20_000, (2, 12))
    looks = Localisation()
    diagnosed(model, [{"input_ids": ids}], looks)
    finding = looks.result()
    with torch.no_grad():
        before = model.backbone.config._attn_implementation
        model.backbone.set_attn_implementation("eager")
        try:
            attentions = model.backbone(input_ids=ids, output_attentions=True).attentions
        finally:
            model.backbone.set_attn_implementation(before)
    allowed = np.tril(np.ones((12, 12), dtype=bool))[None].repeat(2, 0)
    for layer, head in ((0, 0), (11, 1), (29, 8)):
        wanted = by_loop(attentions[layer][:, head].double().numpy(), allowed, places(12))
        assert numbers(finding, "self", layer, head) == pytest.approx(wanted, rel=2e-3, abs=1e-4)


@pytest.mark.download
@pytest.mark.parametrize("size", [(56, 56), (42, 70)])
def test_patches_are_as_far_apart_as_in_their_grid_also_if_it_is_no_square(size):
    model = of_catalogue("dinov2-small")
    pixels = torch.randn(2, 3, *size)
    looks = Localisation()
    diagnosed(model, [{"pixel_values": pixels}], looks)
    with torch.no_grad():
        before = model.backbone.config._attn_implementation
        model.backbone.set_attn_implementation("eager")
        try:
            attentions = model.backbone(pixel_values=pixels, output_attentions=True).attentions
        finally:
            model.backbone.set_attn_implementation(before)
    rows, columns = size[0] // 14, size[1] // 14
    T = 1 + rows * columns
    distance = np.full((T, T), np.nan)  # the first token has no place
    for i in range(rows * columns):
        for j in range(rows * columns):
            distance[1 + i, 1 + j] = math.hypot(
                i // columns - j // columns, i % columns - j % columns
            )
    assert attentions[0].shape[-1] == T
    for layer, head in ((0, 0), (7, 5)):
        A = attentions[layer][:, head].double().numpy()
        wanted = by_loop(A, np.ones_like(A, dtype=bool), distance)
        assert numbers(looks.result(), "encoder", layer, head) == pytest.approx(
            wanted, rel=2e-3, abs=1e-4
        )


def test_sums_by_distance_are_those_of_the_pairs():
    for rows, columns in ((1, 1), (1, 5), (3, 4), (4, 1)):
        n = rows * columns
        A = torch.rand(2, n, n)
        wanted = np.zeros((2, round(math.hypot(rows - 1, columns - 1)) + 1))
        near = set()
        for i in range(n):
            for j in range(n):
                d = round(math.hypot(i // columns - j // columns, i % columns - j % columns))
                wanted[:, d] += A[:, i, j].numpy()
                near |= {i * n + j} if d <= 2 else set()
        grid = Grid(rows, columns)
        np.testing.assert_allclose(grid.by_distance(A).numpy(), wanted, rtol=1e-5, atol=1e-6)
        assert set(grid.pairs_within(2).tolist()) == near


def test_padding_on_either_side_changes_nothing():
    model, ids = small_bert(), torch.randint(1, 50, (1, 6))
    alone = Localisation()
    diagnosed(model, [{"input_ids": ids}], alone)
    wide = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1)
    mask = (torch.arange(9) < 6).long()[None]
    padded = Localisation()
    diagnosed(model, [{"input_ids": wide, "attention_mask": mask}], padded)
    for name in alone.numbers:
        assert padded.result().values(name) == pytest.approx(alone.result().values(name), rel=1e-4)


def test_a_pass_in_parts_is_the_pass_whole_also_of_other_lengths():
    batches = [{"input_ids": torch.randint(1, 50, (2, T))} for T in (6, 9, 4)]
    assert_parts_make_the_whole(Localisation, small_llama(), batches)


def test_near_is_a_setting():
    assert Localisation(near=1).result().settings == {"near": 1}
    with pytest.raises(
        EigenlensError, match="near must be a distance from 0 to below 2147483648, not -1"
    ):
        Localisation(near=-1)
    with pytest.raises(EigenlensError, match="below 2147483648, not 1000"):
        Localisation(near=10**30)
    looks = Localisation(near=2**31 - 1)
    k = torch.eye(5).expand(1, 1, 5, 5)
    looks.update(
        CallView(
            AttentionCall(Site("self", 0), "self", "attention", torch.randn(1, 1, 5, 5), k, k, 1.0)
        )
    )
    assert looks.result().values("near") and not looks.result().values("far")  # all pairs are near


def test_the_nearest_and_the_farthest_are_told_by_what_they_were_chosen_by():
    """Two stacks of other lengths.

    The nearest head beside uniform attention is the farther one in tokens.
    """
    looks = Localisation()
    for stack, T, away in (("encoder", 60, 5.0), ("decoder", 4, 1.0)):
        far = torch.tensor(places(T))
        scores = (-60 * (far - away).abs()).float()[None, None]
        k = torch.eye(T)[None, None]
        looks.update(
            CallView(AttentionCall(Site(stack, 0), "self", "attention", scores, k, k, 1.0))
        )
    finding = looks.result()
    relative, distance = finding.values("relative"), finding.values("distance")
    near, far = Head("encoder", 0, 0), Head("decoder", 0, 0)
    assert relative[near] < relative[far] and distance[near] > distance[far]
    assert f"encoder L0H0 looks least far ({100 * relative[near]:.0f} %)" in finding.sentence
    assert f"decoder L0H0 farthest ({100 * relative[far]:.0f} %)." in finding.sentence
    assert "tokens" not in finding.sentence  # they may be patches


def test_one_head_is_named_once():
    message = of_call(torch.zeros(1, 1, 6, 6)).result().sentence
    assert message == "The only head, L0H0, looks 100 % as far away as uniform attention would."


def test_entropy_says_of_how_many_inputs_it_is_in_the_order_of_layers():
    looks = Localisation()
    k = torch.eye(5).expand(3, 2, 5, 5)
    valid = torch.ones(3, 5, dtype=torch.bool)
    valid[2, 1:] = False  # one token has no other to look at
    scores = torch.randn(3, 2, 5, 5)
    for layer in (10, 2):
        mask = valid[:, None, None].expand(3, 1, 5, 5)
        call = AttentionCall(
            Site("self", layer),
            "self",
            "attention",
            scores,
            k,
            k,
            1.0,
            mask=mask,
            query_valid=valid,
        )
        looks.update(CallView(call))
    entropies = [n for n in looks.result().numbers if n.name == "entropy"]
    assert [(n.layer, n.head, n.number) for n in entropies] == [
        (2, 0, 2),
        (2, 1, 2),
        (10, 0, 2),
        (10, 1, 2),
    ]
    A = scores[:2].softmax(-1).double().numpy()
    far = places(5)
    for head in range(2):
        profile = np.array([A[:, head][:, far == d].sum() for d in range(5)]) / 10
        uniform = np.array([(far == d).sum() for d in range(5)]) / 25
        wanted = (profile * np.log(profile)).sum() / (uniform * np.log(uniform)).sum()
        assert entropies[head].mean == pytest.approx(wanted, rel=1e-5)
