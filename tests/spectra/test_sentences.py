"""Every number of a sentence is that of the result, counted again by hand."""

import numpy as np
import pytest

from eigenlens.captures import Head, Site
from eigenlens.display import html_view
from eigenlens.spectra import Overlap, Spectra, Spectrum


def spectrum(head, held_out, analysis="rows", dimensions=16):
    curve = np.array(held_out)
    return Spectrum(
        analysis,
        "head",
        "centred",
        "encoder",
        0,
        head,
        100,
        dimensions,
        1.0,
        np.ones(len(curve)) / len(curve),
        curve,
        curve,
        curve,
    )


def overlap(matrix, names, left="a", right="a"):
    return Overlap(left, right, tuple(names), tuple(names), 2, 0.125, np.array(matrix), None)


def test_dimensions_of_the_median_head():
    """Heads that need 1, 3 and 4 of 16 dimensions: an eighth is 2."""
    heads = [
        spectrum(0, [0.95, 0.96, 0.97, 1]),
        spectrum(1, [0.1, 0.2, 0.92, 1]),
        spectrum(2, [0.1, 0.2, 0.3, 0.9]),
    ]
    message = Spectra(tuple(heads)).sentence
    assert (
        message
        == "The score rows of the median head need 3 of 16 dimensions for 90 % of their held-out"
        " variance; the least is 1 (L0H0), the most 4 (L0H2). 1 of 3 heads gets by"
        " with an eighth of the dimensions or less."
    )


def test_matrices_speak_where_there_are_no_rows_and_spectra_may_end_too_early():
    heads = (spectrum(0, [0.1, 0.2], "matrices"), spectrum(1, [0.1, 0.2], "matrices"))
    message = Spectra(heads).sentence
    assert (
        message.startswith("The score matrices of the median head need >2 of 16 dimensions")
        and "the least" not in message
    )
    # an eighth is 2, and 2 were kept
    assert message.endswith("0 of 2 heads get by with an eighth of the dimensions or less.")
    more = tuple(spectrum(i, [0.1, 0.95], "matrices", dimensions=64) for i in range(2))
    assert (
        Spectra(more, "pattern").sentence
        == "The pattern matrices of the median head need 2 of 64 dimensions for 90 % of their"
        " held-out variance; the least is 2 (L0H0), the most 2 (L0H1). 2 of 2"
        " heads get by with the 2 that were kept."
    )
    alone = Spectra((spectrum(0, [0.1, 0.95]),)).sentence
    assert (
        alone == "The score rows of L0H0 need 2 of 16 dimensions for 90 % of their held-out"
        " variance."
    )
    assert Spectra(()).sentence == ""


def test_spectra_of_matrices_alone_have_a_picture_with_their_curves():
    chart = Spectra((spectrum(0, [0.1, 0.2], "matrices"),)).plot().to_dict()
    rows = (
        [row for rows in chart["datasets"].values() for row in rows]
        if "datasets" in chart
        else chart["data"]["values"]
    )
    assert sorted({row["share"] for row in rows if row["variance"] == "held out"}) == [0.1, 0.2]


def test_spaces_are_compared_with_the_others_only():
    """The ones of the diagonal are in no mean.

    0.6 is inside a layer, the others are between two.
    """
    matrix = [[1, 0.6, 0.2, 0.3], [0.6, 1, 0.1, 0.2], [0.2, 0.1, 1, 0.4], [0.3, 0.2, 0.4, 1]]
    found = overlap(matrix, [Head("x", layer, head) for layer in (0, 1) for head in (0, 1)])
    mean = (0.6 + 0.2 + 0.3 + 0.1 + 0.2 + 0.4) / 6
    assert (
        found.sentence
        == f"Two heads share {mean:.2f} of their leading 2 directions on average, which"
        f" is {mean / 0.125:.1f} times chance (0.125): 0.50 inside a layer, 0.20 between layers."
        " The most alike are L0H0 and L0H1 (0.60); L1H0 is least like the others (0.23)."
    )


def test_two_models_are_compared_head_by_head():
    found = overlap([[0.9, 0.1], [0.2, 0.4]], [Site("x", 0), Site("x", 1)], right="b")
    assert found.sentence.startswith(
        "The layers of a and of b share 0.40 of their leading 2 directions"
    )
    assert "The most alike are L0 and L0 (0.90)." in found.sentence


def test_one_space_has_nothing_to_be_compared_with():
    assert (
        overlap([[1.0]], ["x"]).sentence
        == "There is only one of the stacks, so there is nothing to compare."
    )


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_names_of_models_are_text_in_every_view(name):
    found = overlap([[1.0, 0.5], [0.5, 1.0]], ["x/0.0", "x/0.1"], left=name, right=name)
    view = found._repr_html_()
    assert (
        name not in view
        and html_view(name, "", None, []).split("</h4>")[0].removeprefix("<h4>") in view
    )
