"""The folder of an explanation: it gives the explanation back, stays as it is, and is refused where
it is damaged.
"""

import json
import math

import pytest

import eigenlens as el
from eigenlens import EigenlensError, Explanation
from explanations.handmade import handmade


def test_its_folder_gives_it_back(found, tmp_path):
    opened = Explanation.open(found.save(tmp_path / "e"))
    assert opened.record() == found.record()
    assert json.loads(json.dumps(found.record(), allow_nan=False)) == found.record()


def test_several_texts_each_have_a_folder(llama, tmp_path):
    made = el.explain(
        llama,
        ["one", "two words"],
        methods=["attention"],
        deletion=False,
        output_dir=tmp_path / "all",
    )
    assert [Explanation.open(tmp_path / "all" / str(i)).record() for i in (1, 2)] == [
        one.record() for one in made
    ]


def test_with_force_nothing_of_an_earlier_explanation_is_left(llama, tmp_path):
    def make(text, force=True):
        el.explain(
            llama,
            text,
            methods=["attention"],
            deletion=False,
            output_dir=tmp_path / "d",
            overwrite=force,
        )
        return {str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*.*")}

    assert make(["one", "two", "three"], False) == {f"{i}/explanation.json" for i in (1, 2, 3)}
    (tmp_path / "d" / "2" / "mine.txt").write_text("mine")
    assert make("one") == {"explanation.json", "2/mine.txt"}  # what is no explanation stays
    assert make(["one"]) == {"1/explanation.json", "2/mine.txt"}


BROKEN = {
    "huge": (("scores", "relevance", 0), 10**400),
    "huge score": (("facts", "score"), -(10**400)),
    "notes": (("facts", "notes"), None),
    "note": (("facts", "notes"), [1]),
    "data": (("facts", "data"), ["x"]),
    "versions": (("facts", "versions"), "x"),
    "version": (("facts", "versions", "eigenlens"), 1),
    "name": (("facts", "model", "name"), {}),
    "label": (("facts", "target", "label"), None),
    "nan inside": (("facts", "more"), [{"a": math.nan}]),
    "special": (("special", 0), math.nan),
    "position": (("facts", "target", "position"), 99),
    "seconds": (("facts", "seconds"), "x"),
    "grid of words": (("facts", "grid"), ["a", "b"]),
    "curve": (("deletion", 0, "method"), [1]),
    "picture": (("facts", "picture"), 3),
    "length": (("facts", "length"), 10**400),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_value_anywhere_is_refused(tmp_path, what):
    folder = handmade().save(tmp_path / "e")
    content = json.loads((folder / "explanation.json").read_text())
    (*path, last), bad = BROKEN[what]
    inner = content
    for key in path:
        inner = inner[key]
    inner[last] = bad
    (folder / "explanation.json").write_text(json.dumps(content))
    with pytest.raises(EigenlensError, match=r"explanation.* damaged|cannot be read"):
        Explanation.open(folder)


@pytest.mark.parametrize(
    "what", ["missing", "foreign", "format", "short", "nan", "facts", "order", "grid"]
)
def test_a_damaged_folder_is_refused_with_the_reason(tmp_path, what):
    folder = handmade().save(tmp_path / "e")
    path = folder / "explanation.json"
    content = json.loads(path.read_text())
    if what == "missing":
        path.unlink()
    elif what == "foreign":
        content = [1]
    elif what == "format":
        content["format"] = 99
    elif what == "short":
        content["scores"]["relevance"].pop()
    elif what == "nan":
        content["scores"]["relevance"][0] = math.nan
    elif what == "facts":
        del content["facts"]["target"]
    elif what == "order":
        content["deletion"][0]["order"] = "sideways"
    elif what == "grid":
        content["facts"]["grid"] = [9, 9]
    if what != "missing":
        path.write_text(json.dumps(content))
    with pytest.raises(EigenlensError, match="explanation"):
        Explanation.open(folder)


def test_folders_that_are_there_stay(llama, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(EigenlensError, match="already exists"):
        el.explain(llama, "a cat", output_dir=tmp_path / "mine")
    (tmp_path / "mine" / "study.json").write_text("{}")
    with pytest.raises(EigenlensError, match="folder of a study"):
        el.explain(llama, "a cat", output_dir=tmp_path / "mine", overwrite=True)
