"""What cannot be explained is refused in one sentence."""

import numpy as np
import pytest

import eigenlens as el
from eigenlens import EigenlensError
from tiny import of_catalogue


def test_one_text_for_all_or_one_for_each(mini):
    few = {"methods": ["attention"], "deletion": False}
    many = [f"{i} cats" for i in range(17)]  # more than one batch
    listed = el.explain(mini, many, against=["An animal"], **few)
    plain = el.explain(mini, many, against="An animal", **few)
    assert [one.score for one in listed] == [one.score for one in plain]
    assert listed[16].stored["against"] == "An animal"
    for others, said in ((["a"] * 18, "17 texts and 18 to compare with"), ([], "17 texts and 0")):
        with pytest.raises(EigenlensError, match=said):
            el.explain(mini, many, against=others, **few)


def test_more_memory_than_allowed_is_refused_with_the_figure(llama):
    """Two layers of four heads, in single precision: patterns and gradients of T tokens are
    2·8·T²·4 bytes.
    """
    text = "cat " * 298  # and two special tokens
    needed = 2 * 8 * 300**2 * 4 / 1e9
    few = {"methods": ["attention"], "deletion": False}
    with pytest.raises(
        EigenlensError, match=rf"300 tokens takes {needed:.3g} GB.*8 heads.*limit is 0.005 GB"
    ):
        el.explain(llama, text, max_memory=0.005, **few)
    both = el.explain(llama, [text, text, "cat"], max_memory=0.006, **few)  # each for itself
    together = el.explain(llama, [text, "cat"], **few)
    np.testing.assert_allclose(
        both[2].scores["attention"], together[1].scores["attention"], rtol=1e-4
    )
    with pytest.raises(EigenlensError, match="must be above 0"):
        el.explain(llama, text, max_memory=0, **few)


def test_a_text_that_is_too_long_is_refused_with_both_lengths(mini):
    with pytest.raises(EigenlensError, match=rf"1,002 tokens.*{mini.max_length}"):
        el.explain(mini, "cat " * 1000, against="dog")


def test_what_does_not_exist_is_refused(llama, classifier, tokenizer):
    for target, said in (
        ("unbelievably good", "not one token"),
        (10**6, "no token 1000000"),
        ("", "no token"),
    ):
        with pytest.raises(EigenlensError, match=said):
            el.explain(llama, "the house", target=target)
    for target, said in (("best", "no class 'best'.*bad, good"), (2, "no class 2")):
        with pytest.raises(EigenlensError, match=said):
            el.explain(classifier, "the house", target=target, tokenizer=tokenizer)


def test_an_embedding_model_needs_something_to_compare_with(mini):
    with pytest.raises(EigenlensError, match="against"):
        el.explain(mini, "a cat")


@pytest.mark.parametrize("text", ["", "  \n", [], ["a cat", ""]])
def test_an_empty_text_is_refused(mini, text):
    with pytest.raises(EigenlensError, match="empty"):
        el.explain(mini, text, against="a dog")


@pytest.mark.parametrize("methods", [["relevence"], [], "nothing"])
def test_an_unknown_method_is_refused_with_those_there_are(mini, methods):
    with pytest.raises(EigenlensError, match=r"no method .*there are relevance, .*random"):
        el.explain(mini, "a cat", against="a dog", methods=methods)


@pytest.mark.download
def test_a_vision_model_needs_a_picture():
    with pytest.raises(EigenlensError, match="path of a picture"):
        el.explain(of_catalogue("dinov2-small"), "a cat sleeps", target="output")
