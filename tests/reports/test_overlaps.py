"""Overlap matrices: the study's own values in either order, and those of a comparison between
studies.
"""

import numpy as np
import pytest

import eigenlens as el
from eigenlens.reports.overlaps import cluster_order
from tiny import tiny_bert


def matrix(rows):
    """Saved cells as left name → right name → overlap."""
    return {(row["left"], row["right"]): float(row["overlap"]) for row in rows}


def order(rows, side, place):
    """Names by the place they are drawn at."""
    found = {row[side]: int(row[place]) for row in rows}
    assert sorted(found.values()) == list(range(len(found)))
    return sorted(found, key=found.__getitem__)


@pytest.mark.parametrize(("which", "level"), [("heads", "head"), ("layers", "layer")])
def test_the_order_changes_and_the_values_stay(mini_shown, mini, which, level):
    page = mini_shown.page
    page.select_option("#overlap0 [data-which]", label=which)
    assert page.locator("#overlap0 [data-matrix]:visible").count() == 1
    page.select_option("#overlap0 [data-order]", "layer")
    before = mini_shown.figure(f"overlap0-{which}")
    page.select_option("#overlap0 [data-order]", "cluster")
    after = mini_shown.figure(f"overlap0-{which}")
    expected = mini.study.overlap(rank=16, level=level)
    assert len(before) == len(after) == expected.matrix.size
    found = matrix(after)
    assert matrix(before) == found
    for i, left in enumerate(expected.row_labels):
        for j, right in enumerate(expected.column_labels):
            assert found[left, right] == pytest.approx(expected.matrix[i, j], abs=1e-4)
    assert order(before, "left", "row") == order(before, "right", "column") == expected.row_labels
    clustered = order(after, "left", "row")
    assert clustered == order(after, "right", "column")
    assert which == "layers" or clustered != expected.row_labels


def test_ordering_by_cluster_puts_like_heads_beside_each_other(mini_shown, mini):
    """Neighbours share more than they do in the order of layers."""
    mini_shown.page.select_option("#overlap0 [data-which]", label="heads")
    mini_shown.page.select_option("#overlap0 [data-order]", "cluster")
    overlap = mini.study.overlap(rank=16, level="head")
    where = {name: i for i, name in enumerate(overlap.row_labels)}
    clustered = [where[name] for name in order(mini_shown.figure("overlap0-heads"), "left", "row")]

    def beside(places):
        return np.mean([overlap.matrix[a, b] for a, b in zip(places, places[1:])])

    assert beside(clustered) > beside(range(len(where))) + 0.02


def test_the_sentence_is_that_of_the_matrix(mini_shown, mini):
    overlap = mini.study.overlap(rank=16, level="head")
    mini_shown.page.select_option("#overlap0 [data-which]", label="heads")
    others = overlap.matrix[~np.eye(len(overlap.matrix), dtype=bool)]
    message = mini_shown.text("#overlap0 [data-matrix]:visible .sentence")
    assert message.startswith(
        f"Two heads share {others.mean():.2f} of their leading 16 directions on average"
    )
    assert f"({others.max():.2f})" in message


def test_two_planted_clusters_stand_together():
    rng = np.random.default_rng(0)
    member = rng.permutation(np.repeat([0, 1], 8))
    planted = np.where(member[:, None] == member, 0.9, 0.1) + rng.uniform(-0.05, 0.05, (16, 16))
    found = cluster_order(planted)
    assert sorted(found) == list(range(16))
    along = member[found]
    assert (np.diff(along) != 0).sum() == 1


@pytest.mark.parametrize("size", [1, 2])
def test_so_few_that_there_is_nothing_to_order(size):
    assert cluster_order(np.eye(size)) == list(range(size))


def test_between_two_studies_it_is_the_comparison(show, tiny, text, tmp_path):
    other = el.study(
        tiny_bert(tmp_path / "other", seed=1),
        text,
        tmp_path / "second",
        max_inputs=24,
        max_length=16,
        rank=8,
    )
    shown = show(el.report(tiny.study, other, output=tmp_path / "page.html"))
    comparison = el.compare(tiny.study, other)
    for level, which in (("layer", "layers"), ("head", "heads")):
        pair = max((p for p in comparison.pairs if p.level == level), key=lambda p: p.rank)
        shown.page.select_option("#between [data-which]", value="0" if which == "layers" else "1")
        found = matrix(shown.figure(f"between-{which}-0"))
        assert len(found) == pair.forward.matrix.size
        for i, left in enumerate(pair.forward.row_labels):
            for j, right in enumerate(pair.forward.column_labels):
                assert found[left, right] == pytest.approx(pair.forward.matrix[i, j], abs=1e-4)
    assert shown.page.locator("#heads0").count() == shown.page.locator("#heads1").count() == 1
    assert shown.complaints == []
