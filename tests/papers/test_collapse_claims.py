"""Verdicts on rank collapse follow from hand-made tables, and can go either way."""

import pytest

from eigenlens.papers.rank_collapse.circle_claims import circle_claims
from eigenlens.papers.rank_collapse.claims import CURVES, DEPTHS, SINGLE, claims_of
from eigenlens.papers.rank_collapse.pretrained_claims import pretrained_claims
from eigenlens.papers.rank_collapse.random_starts import NO_NORM, OTHER_TEXT
from eigenlens.papers.rank_collapse.surgery import KEPT_ACTIVATION, SURGERIES
from eigenlens.papers.rank_collapse.tables import rows_by_depth, share_rows
from eigenlens.papers.rank_collapse.training_claims import TASKS, lost, task_claims


def curve_rows(moved=None, spread=0.01):
    """Three seeds about every published curve; `moved` adds to one form at one depth."""
    rows = []
    for (family, variant), values in CURVES.items():
        forms = [variant, SURGERIES.get((family, variant), variant)]
        forms += [f"full {what}" for what in (NO_NORM, OTHER_TEXT)] if variant == "full" else []
        for form in dict.fromkeys(forms):
            for depth, value in zip(DEPTHS, values):
                middle = value + (moved or {}).get((family, form, depth), 0.0)
                each = [max(middle + x, 0.0) for x in (-spread, 0.0, spread)]
                rows.append(
                    {
                        "family": family,
                        "variant": form,
                        "depth": depth,
                        "residual": sum(each) / 3,
                        "low": min(each),
                        "high": max(each),
                        "seeds": 3,
                        "each": each,
                    }
                )
    return rows


def model_rows(end=1e-4, whole=0.5, beyond=0.4):
    rows = []
    for depth in (0, 6):
        at = {"SAN": end, "full": whole} if depth else {"SAN": 0.9, "full": 0.9}
        one = {"model": "a", "stack": "encoder", "depth": depth, **at, "theory": "covered"}
        other = {**one, "model": "b", "theory": "a mask"}
        rows += [one, {**other, "SAN": beyond} if depth else other]
    return rows


def single_rows(factor=0.5, start=1.0):
    rows = []
    for hops, (value, _) in enumerate(SINGLE, 1):
        each = [value * start * x for x in (0.9, 1.0, 1.1)]
        row = {"model": "bert random", "stack": "encoder", "hops": hops}
        rows.append({**row, "residual": 2 * value, "rank one": value * start, "each": each})
    for hops in (1, 2, 3):
        row = {"model": "a", "stack": "encoder", "hops": hops, "residual": 0.9}
        rows.append({**row, "rank one": 0.4 * factor ** (hops - 1)})
    return rows


def accuracy_rows(task, whole, curve, mode, chance=0.5):
    reading = "5 paths" if mode == "authors" else "alone"
    rows = [("model", "whole", None, whole), ("baseline", "majority", None, chance)]
    rows += [(mode, reading, length, value) for length, value in enumerate(curve, 1)]
    return [
        {
            "task": task,
            "mode": how,
            "reading": what,
            "length": length,
            "accuracy": value,
            "spread": 0.01,
            "each": [value - 0.01, value + 0.01],
        }
        for how, what, length, value in rows
    ]


GOOD = {"sort": (0.9, 0.2), "convex hull": (0.8, 0.55), "memorise": (0.9, 0.55)}
CHANCE = {"sort": 0.1, "convex hull": 0.55, "memorise": 0.5}


def accuracy(modes, curves=None, whole=None):
    rows = []
    for task, (published, _) in TASKS.items():
        for mode in modes:
            values = (curves or GOOD)[task]
            full = published if whole is None else whole
            rows += accuracy_rows(task, full, values, mode, CHANCE[task])
    return rows


def circle_rows(merging=("SAN", "SAN without its input"), turn=0.5):
    rows = []
    for settings, variants in (
        ("ours", ("SAN", "SAN+MLP", "SAN+skip")),
        ("authors", ("SAN", "SAN without its input", "SAN+MLP", "SAN+skip")),
    ):
        for variant in variants:
            for jitter in (0.0, 0.01) if settings == "ours" else (None,):
                for seed in range(2):
                    merged = variant in merging
                    rows.append(
                        {
                            "settings": settings,
                            "variant": variant,
                            "jitter": jitter,
                            "seed": seed,
                            "steps": 100,
                            "error": 0.01,
                            "left": None,
                            "distance at start": 0.6,
                            "least": 0.0 if merged else 0.55,
                            "turn": 100 * (turn if variant == "SAN+skip" else 1.0),
                            "merged": merged,
                        }
                    )
    return rows


def tables(**changed):
    made = {
        "random curves": curve_rows(),
        "models": model_rows(),
        "single paths": single_rows(),
        "path shares": share_rows(),
        "orders": [
            {"kind": kind, "order": order, "low": order, "high": order, "instances": 2}
            for kind, order in (("full", 3.0), ("causal", 1.0), ("position bias", 1.0))
        ],
        "path accuracy": accuracy(("frozen", "rerun")),
        "authors accuracy": accuracy(("authors",)),
        "circle": circle_rows(),
    }
    return {**made, **changed}


def verdicts(claims):
    return {claim.claim: claim.verdict for claim in claims}


def test_all_that_is_judged_is_reproduced_where_the_published_is_measured():
    claims = claims_of(tables())
    judged = [claim for claim in claims if claim.verdict != "out of reach"]
    assert {claim.verdict for claim in judged} == {"reproduced"} and len(judged) > 45
    assert not any(claim.reason for claim in judged)
    assert len({claim.claim for claim in claims}) == len(claims)


def test_a_miniature_judges_nothing_that_depends_on_size():
    claims = claims_of(tables(), quick=True)
    judged = [claim for claim in claims if claim.verdict != "out of reach"]
    assert len(judged) == 5 and not any(claim.claim.startswith("circle") for claim in judged)


@pytest.mark.parametrize(("depth", "holds"), [(0, True), (1, False), (12, False)])
def test_a_curve_is_judged_by_the_range_of_seeds_from_depth_one_on(depth, holds):
    """Depth 0 is before any block: what a start has there, no part of a block has made."""
    moved = tables(**{"random curves": curve_rows({("bert", "full", depth): 0.02})})
    claim = next(c for c in claims_of(moved) if c.claim.startswith("BERT") and "full" in c.claim)
    assert claim.verdict == ("reproduced" if holds else "not reproduced")
    assert "depth 0, before any block: 0.597" in claim.note
    assert "every" not in claim.criterion and "1, 2, 3, 6, 12" in claim.criterion
    if not holds:
        published = dict(zip(DEPTHS, CURVES["bert", "full"]))[depth]
        assert f"at depth {depth}" in claim.note and f"{published:g} published" in claim.note
        assert claim.interval == pytest.approx((published + 0.01, published + 0.03))
        assert claim.reason.startswith("the protocol: ") and NO_NORM in claim.reason


def test_published_zeros_are_zeros_to_the_published_decimals():
    rows = curve_rows()
    for row in rows:
        if row["variant"] == "SAN" and row["depth"] > 1:
            row["each"] = [3e-7, 1e-5, 4e-4]
    claims = verdicts(claims_of(tables(**{"random curves": rows})))
    assert [v for name, v in claims.items() if ", SAN:" in name] == ["reproduced"] * 2
    for row in rows:
        if row["variant"] == "SAN" and row["depth"] > 1:
            row["each"] = [6e-4, 7e-4, 8e-4]
    claims = verdicts(claims_of(tables(**{"random curves": rows})))
    assert [v for name, v in claims.items() if ", SAN:" in name] == ["not reproduced"] * 2


def test_the_true_removal_and_the_authors_surgery_are_two_rows():
    """What fails with our cut holds with theirs, and the reason says so with the figure."""
    removed = {("albert", "SAN+skip", depth): -0.17 for depth in (6, 12)}
    claims = claims_of(tables(**{"random curves": curve_rows(removed)}))
    ours, theirs = (c for c in claims if c.claim.startswith("ALBERT") and "SAN+skip" in c.claim)
    assert "all of the MLP removed" in ours.claim and ours.verdict == "not reproduced"
    assert "authors' surgery: its activation kept" in theirs.claim
    assert theirs.verdict == "reproduced"
    depth = next(d for d in (6, 12) if f"at depth {d}" in ours.note)
    value = dict(zip(DEPTHS, CURVES["albert", "SAN+skip"]))[depth]
    assert (
        ours.reason.startswith("the protocol: as the authors cut") and f"{value:.3f}" in ours.reason
    )
    names = [row["variant"] for row in rows_by_depth(curve_rows()) if row["family"] == "albert"]
    assert names.count(KEPT_ACTIVATION) == 3 and names.count("SAN+skip") == 4


@pytest.mark.parametrize(
    ("end", "verdict"), [(0.0001, "reproduced"), (0.005, "depends"), (0.3, "not reproduced")]
)
def test_only_stacks_that_the_theory_covers_are_judged(end, verdict):
    pure, beyond, kept, _ = pretrained_claims(model_rows(end), single_rows())
    assert pure.verdict == verdict and "b encoder" not in pure.note
    assert beyond.verdict == "out of reach" and "b encoder 0.4" in beyond.note
    assert "b encoder: a mask" in beyond.note and beyond.measured == 0.0
    assert kept.verdict == "reproduced"


def test_skips_that_stop_nothing_are_seen():
    kept = pretrained_claims(model_rows(whole=0.01), single_rows())[2]
    assert kept.verdict == "not reproduced"
    assert pretrained_claims(model_rows(whole=0.2), single_rows())[2].verdict == "depends"
    assert pretrained_claims([], single_rows()) == []


def test_single_paths_are_judged_about_rank_one():
    claims = [c for c in claims_of(tables()) if "single paths of" in c.claim]
    assert [c.verdict for c in claims] == ["reproduced"] * 3
    moved = tables(**{"single paths": single_rows(start=2.0)})
    claims = [c for c in claims_of(moved) if "single paths of" in c.claim]
    assert [c.verdict for c in claims] == ["not reproduced"] * 3
    assert all("about the mean row" in c.reason for c in claims)
    slow = pretrained_claims(model_rows(), single_rows(factor=0.8))[3]
    assert slow.verdict == "not reproduced" and slow.measured == pytest.approx(0.8)


def test_shares_and_orders_can_fail():
    shares = [{**row, "published": row["published"] + 0.01} for row in share_rows()]
    rows = [{**row, "order": row["order"] + 0.1} for row in tables()["orders"]]
    claims = claims_of(tables(**{"path shares": shares, "orders": rows}))
    failed = [c for c in claims if c.verdict == "not reproduced"]
    assert len(failed) == 2 and all(c.reason.startswith("the claim: ") for c in failed)
    assert failed[1].measured == 3.1 and "causal 1.10, position bias 1.10" in failed[1].note


def test_the_loss_along_lengths_counts_only_where_something_was_learned():
    def curve(*values):
        return accuracy_rows("sort", 0.9, values, "rerun", 0.1)[2:]

    assert lost(curve(0.9, 0.5, 0.1), 0.9, 0.1) == pytest.approx(1.0)
    assert lost(curve(0.9, 0.7, 0.5), 0.9, 0.1) == pytest.approx(0.5)
    assert lost(curve(0.9, 0.95, 0.1), 0.9, 0.1) == 0.0  # longer paths are better
    assert lost(curve(0.9, 0.5, 0.1), 0.15, 0.1) == 0.0  # nothing was learned
    assert lost(curve(0.11, 0.11, 0.105), 0.9, 0.1) == 0.0  # within the spread


def test_tasks_can_fail_and_say_whose_settings_hold():
    flat = dict.fromkeys(TASKS, (0.55, 0.55))
    claims = task_claims(
        tables(**{"path accuracy": accuracy(("frozen", "rerun"), flat, whole=0.7)})
    )
    found = verdicts(claims)
    assert found["sort: attention with skips learns it"] == "not reproduced"
    assert found["sort: attention with skips learns it (authors' settings)"] == "reproduced"
    for mode in (
        "each length read out alone, patterns of the whole model",
        "each path a network of its own",
    ):
        assert found[f"memorise: accuracy falls with path length ({mode})"] == "not reproduced"
        assert found[f"sort: what paths of length one are worth ({mode})"] == "not reproduced"
    reasons = {c.claim: c.reason for c in claims if c.verdict == "not reproduced"}
    assert all(reason.startswith("the protocol: ") for reason in reasons.values())
    assert "0.98" in reasons["sort: attention with skips learns it"]
    claims = task_claims(tables(**{"authors accuracy": accuracy(("authors",), flat)}))
    reasons = {c.claim: c.reason for c in claims if c.verdict == "not reproduced"}
    assert set(reasons) and all(reason.startswith("the claim: ") for reason in reasons.values())
    few = task_claims(tables(**{"authors accuracy": accuracy(("authors",), flat, whole=0.6)}))
    reasons = [c.reason for c in few if c.claim.startswith("sort: what") and c.reason]
    assert reasons and "reaches 0.600, not the published 0.98" in reasons[0]


def test_circle_claims_follow_from_how_the_points_ended():
    found = verdicts(circle_claims(circle_rows()))
    assert set(found.values()) == {"reproduced"} and len(found) == 9
    apart = circle_claims(circle_rows(merging=("SAN+MLP", "SAN+skip", "SAN without its input")))
    found = verdicts(apart)
    assert found["circle: pure attention merges the arcs"] == "not reproduced"
    assert found["circle: pure attention merges the arcs (authors' settings)"] == "not reproduced"
    bare = "circle: pure attention merges the arcs (authors' settings, the block does not add its input)"
    assert found[bare] == "reproduced"
    assert found["circle: an MLP prevents it (authors' settings)"] == "not reproduced"
    reasons = {claim.claim: claim.reason for claim in apart}
    why = reasons["circle: pure attention merges the arcs (authors' settings)"]
    assert why == "the protocol: the authors' block adds its input; without, 2 of 2 merge"


def test_a_circle_depends_on_what_was_trained_on():
    rows = circle_rows()
    for row in rows:
        if row["settings"] == "ours" and row["jitter"]:
            row["merged"] = False
    claim = circle_claims(rows)[0]
    assert claim.verdict == "depends" and "not at points off it by 0.01 (0)" in claim.note


def test_a_skip_that_slows_nothing_is_seen_and_few_runs_say_nothing():
    fast = circle_claims(circle_rows(turn=1.5))[-2:]
    assert [claim.verdict for claim in fast] == ["not reproduced"] * 2
    alone = circle_claims(circle_rows(merging=("SAN", "SAN without its input", "SAN+MLP")))[-2:]
    assert [claim.verdict for claim in alone] == ["out of reach"] * 2
