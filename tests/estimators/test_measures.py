"""Errors of estimated scores, pair by pair from their definitions."""

import math

import pytest
import torch

from eigenlens.estimators.estimator import Estimate
from eigenlens.estimators.measures import Errors, Truth
from stats.calls import FORMS, call


def softmax(row):
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize("form", FORMS)
def test_every_measure_is_its_definition(form):
    calls = [call(form, seed=seed) for seed in (0, 1)]
    rng = torch.Generator().manual_seed(5)
    errors, head = Errors(), 1
    tv = kl = same = rows = squared = missed = output = 0.0
    values: dict[int, list[float]] = {}
    for each in calls:
        noisy = each.raw_scores() + torch.randn(3, 4, 9, 9, generator=rng, dtype=torch.float64)
        errors.add(Truth(each), Estimate(noisy, torch.full((4,), 0.3), torch.full((4,), 0.4)))
        scores, valid = each.raw_scores()[:, head], each.valid().expand(3, 4, 9, 9)[:, head]
        for b in range(3):
            for i in range(9):
                seen = [j for j in range(9) if valid[b, i, j]]
                if not seen:
                    continue
                s, e = (
                    [float(scores[b, i, j]) for j in seen],
                    [float(noisy[b, head, i, j]) for j in seen],
                )
                p, g = softmax(s), softmax(e)
                rows += 1
                tv += sum(abs(x - y) for x, y in zip(p, g)) / 2
                kl += sum(x * math.log(x / y) for x, y in zip(p, g))
                same += p.index(max(p)) == g.index(max(g))
                squared += sum((x - y) ** 2 for x, y in zip(s, e))
                v = each.values[b, head, seen]
                output += float((torch.tensor(p, dtype=torch.float64) @ v).square().sum())
                missed += float(
                    (
                        (
                            torch.tensor(g, dtype=torch.float64)
                            - torch.tensor(p, dtype=torch.float64)
                        )
                        @ v
                    )
                    .square()
                    .sum()
                )
                for j, x in zip(seen, s):
                    values.setdefault(j, []).append(x)
    variance = sum(sum((x - sum(xs) / len(xs)) ** 2 for x in xs) for xs in values.values())
    found = {
        name: float(getattr(errors, name)[head])
        for name in ("total_variation", "kl", "top_1", "score_error", "output_error")
    }
    expected = {
        "total_variation": tv / rows,
        "kl": kl / rows,
        "top_1": same / rows,
        "score_error": squared / variance,
        "output_error": math.sqrt(missed / output),
    }
    assert found == pytest.approx(expected, rel=1e-5)
    assert float(errors.pairs[head]) == pytest.approx(0.3) and float(
        errors.work[head]
    ) == pytest.approx(0.4)


def test_the_truth_has_no_error_and_a_constant_head_none_to_divide_by():
    each = call("full")
    each.q = torch.zeros_like(each.q)
    errors = Errors()
    errors.add(Truth(each), Estimate(each.raw_scores(), torch.ones(4), torch.ones(4)))
    assert (
        errors.score_error.tolist()
        == errors.total_variation.tolist()
        == errors.output_error.tolist()
        == [0.0] * 4
    )
