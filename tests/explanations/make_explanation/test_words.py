"""What an explanation says: its sentence, colours, votes, rows and pictures."""

from dataclasses import replace

import pytest

from eigenlens import EigenlensError
from eigenlens.cli.terminal import show
from eigenlens.explanations.methods import METHODS
from eigenlens.explanations.verdict import votes
from explanations.handmade import handmade


def test_colours_are_shares_of_the_method_s_own_largest():
    found = handmade()  # scores 0 1 2 3 4, the first and the last special
    # from the least to the largest of the inner three
    assert found.levels("relevance") == [0, 0, 5, 10, 10]
    assert found.levels("gradient × input") == [0, 3, -7, 10, -10]  # 1/3, −2/3, 3/3
    assert found.levels("random") == [0] * 5  # all alike
    zero = replace(found, scores={"attention": [0.0] * 5})
    assert zero.levels("attention") == [0] * 5 and zero.strongest("attention") == []


def test_the_strongest_tokens_and_who_votes_for_them():
    found = handmade()
    assert found.strongest("relevance") == [3, 2, 1]
    assert found.strongest("gradient × input") == [3, 1]  # −2 speaks against
    assert votes(found, 1) == [(3, 2)]  # chance has no vote
    assert votes(found) == [(3, 2), (1, 2), (2, 1)]
    read = handmade(position=3)
    assert read.strongest("relevance") == [2, 1]


def test_the_sentence_names_target_tokens_and_the_best_order():
    said = handmade().sentence
    assert said.startswith(
        "Similarity to 'a dog': cosine 0.8. 2 of 2 methods put 'sat' among the three tokens"
    )
    assert "2 put 'the' there" in said and "1 puts 'cat' there" in said
    assert (
        "soonest in the order of relevance (area under the curve 0.325, in random order 0.475)."
        in said
    )
    assert "where the target is read" in handmade(position=3).sentence
    alone = replace(handmade(), scores={"relevance": [0.0, 1.0, 2.0, 3.0, 4.0]}, deletion=[])
    assert (
        alone.sentence
        == "Similarity to 'a dog': cosine 0.8. By relevance, 'sat', 'cat' and 'the' matter most."
    )


def test_a_word_that_is_there_twice_is_told_with_its_place():
    assert "'the' (token 3)" in handmade(("[CLS]", "the", "cat", "the", "[SEP]")).sentence


def test_rows_have_every_token_by_every_method(found):
    rows = found.rows()
    assert [row["token"] for row in rows] == found.tokens
    assert [row["relevance"] for row in rows] == found.scores["relevance"]
    points = found.curves()
    assert len(points) == 2 * len(METHODS) * 9


def test_labels_and_notes_send_nothing_to_a_terminal(capsys):
    found = handmade()
    found.stored["target"]["label"] = "class \x1b]0;pwned\x07good"
    found.stored["model"]["name"] = "mi\u202eni"
    found.stored["notes"] = ["without \x1b[2J tokens"]
    show(found)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert (
        "mi\\u202eni: class \\u001b]0;pwned\\u0007good" in out
        and "Note: without \\u001b[2J tokens." in out
    )


def test_where_areas_are_equal_nobody_wins():
    found = handmade()
    alike = [{**curve, "scores": [0.8, 0.2, 0.1], "auc": 0.325} for curve in found.deletion]
    assert (
        "alike in the order of every method (area under the curve 0.325, in random order 0.325)"
        in replace(found, deletion=alike).sentence
    )
    third = [
        {**curve, "method": "rollout", "auc": 0.4}
        for curve in found.deletion
        if curve["method"] == "random"
    ]
    two = replace(found, deletion=alike + third).sentence
    assert (
        "soonest in the order of relevance and gradient × input (area under the curve 0.325" in two
    )
    fixed = replace(found, special=[True] * 5)
    assert fixed.sentence == "Similarity to 'a dog': cosine 0.8. No token can be taken away."


def test_a_notebook_shows_lines_and_runs_nothing():
    html = handmade(
        ("[CLS]", "<script>alert(1)</script>", '" onmouseover="x', "\u202eabc", "[SEP]")
    )._repr_html_()
    assert "<script" not in html and ' onmouseover="' not in html and "\u202e" not in html
    assert html.count("&lt;script&gt;") >= 3  # a line for each method
    assert "rgba(200, 64, 44, 0.60)" in html and "rgba(44, 111, 179" in html
    assert "<svg" in html  # the curves


def test_pictures_are_drawn(found):
    drawn = found.plot().to_dict()
    assert len(
        next(iter(drawn["datasets"].values())) if "datasets" in drawn else drawn["data"]["values"]
    ) == 10 * len(found.tokens)
    assert len(found.plot_deletion().to_dict()["hconcat"]) == 2
    maps = handmade(("cls", "0,0", "0,1", "1,0", "1,1"), grid=[2, 2]).plot().to_dict()
    assert maps["facet"]["field"] == "method"
    with pytest.raises(EigenlensError, match="without deletion"):
        replace(found, deletion=[]).plot_deletion()
