"""Short names of folders and hub ids, and that `load` knows them while a run lasts."""

from functools import partial

import pytest

from eigenlens import EigenlensError, load
from eigenlens.models.borrowed_names import named, place_of, short_names
from eigenlens.run.parts import _with_models
from eigenlens.run.tasks import pack_work, unpack_work
from tiny import tiny_bert


def folders(root, *names):
    made = []
    for name in names:
        (root / name).mkdir(parents=True)
        made.append(str(root / name))
    return made


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["x/bert"], ["bert"]),
        (["x/bert", "x/albert"], ["bert", "albert"]),
        (["x/bert", "y/bert"], ["x/bert", "y/bert"]),
        (["x/a/bert", "y/a/bert", "bert"], ["x/a/bert", "y/a/bert", None]),
        (["x/minilm"], ["x/minilm"]),  # the catalogue's name stays the catalogue's
    ],
)
def test_a_folder_is_named_by_as_little_of_its_end_as_tells_it(tmp_path, names, short):
    places = folders(tmp_path, *names)
    found = short_names(places)
    assert list(found.values()) == places
    for name, wanted in zip(found, short):
        assert name == (wanted or f"{tmp_path.name}/bert")


def test_names_of_the_catalogue_and_of_the_hub_stay(tmp_path):
    (folder,) = folders(tmp_path, "org/bert")
    assert short_names(["minilm", "gpt2", "other/bert", folder]) == {
        "minilm": "minilm",
        "gpt2": "gpt2",
        "other/bert": "other/bert",
        "bert": folder,
    }
    assert short_names(["bert", folder]) == {"bert": "bert", "org/bert": folder}


def test_a_model_goes_by_its_name_while_the_run_lasts(tmp_path):
    folder = tiny_bert(tmp_path / "mine")
    with named({"short/name": str(folder)}):
        model = load("short/name")
        with named({"other": "x"}):
            assert place_of("short/name") == str(folder)
    assert model.name == "short/name" and model.facts.load_from == folder
    assert place_of("short/name") == "short/name"
    with pytest.raises(EigenlensError, match="no such model: 'short/name'"):
        load("short/name")


def test_another_process_gets_the_names_with_its_work(tmp_path):
    """As a cluster does it: the names travel with a part, since no worker knows them."""
    folder = tiny_bert(tmp_path / "mine")
    packed = pack_work(partial(_with_models, {"mine": str(folder)}, partial(load, "mine")))
    assert unpack_work(packed)().name == "mine"
