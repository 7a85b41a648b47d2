"""Models are converted once, anew when their recipe changes, and never by half."""

import errno
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import transformers
from transformers import AutoModel

from eigenlens.errors import EigenlensError
from eigenlens.models import catalogue
from eigenlens.models.catalogue import DEFAULT_MODEL, MODELS
from eigenlens.models.fetch import cache_folder


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """A catalogue of one tiny model, whose recipe lists the folders it wrote."""
    written: list[Path] = []

    def convert(archive: Path, folder: Path) -> None:
        sizes = {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 8,
        }
        transformers.BertModel(transformers.BertConfig(vocab_size=10, **sizes)).save_pretrained(
            folder
        )
        written.append(folder)

    recipe = ModuleType("eigenlens.models.recipes.toy")
    recipe.convert = convert  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, recipe.__name__, recipe)
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path))
    monkeypatch.setattr(catalogue, "fetch", lambda source: tmp_path / "archive")
    monkeypatch.setitem(MODELS, "toy", replace(MODELS["minilm"], name="toy", recipe="toy"))
    return written


def test_a_model_is_converted_once_even_by_many_at_a_time(toy: list[Path]) -> None:
    assert not catalogue.is_converted("toy")
    threads = [threading.Thread(target=catalogue.model_folder, args=("toy",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert catalogue.is_converted("toy")
    assert len(toy) == 1
    AutoModel.from_pretrained(catalogue.model_folder("toy"))


def test_a_changed_recipe_converts_anew(toy: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.model_folder("toy")
    monkeypatch.setitem(MODELS, "toy", replace(MODELS["toy"], recipe_version=2))
    assert not catalogue.is_converted("toy")
    catalogue.model_folder("toy")
    assert len(toy) == 2
    assert {path.name for path in (cache_folder() / "models").iterdir()} == {"toy", ".toy.lock"}


def test_weights_that_do_not_fit_are_an_error_and_leave_nothing(toy: list[Path]) -> None:
    recipe = sys.modules["eigenlens.models.recipes.toy"]
    complete = recipe.convert

    def incomplete(archive: Path, folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        complete(archive, folder)
        weights = load_file(folder / "model.safetensors")
        weights["renamed"] = weights.pop("embeddings.word_embeddings.weight")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    recipe.convert = incomplete
    with pytest.raises(
        EigenlensError,
        match=r"missing keys: embeddings\.word_embeddings\.weight; unexpected keys: renamed",
    ):
        catalogue.model_folder("toy")
    assert not catalogue.is_converted("toy")
    assert {path.name for path in (cache_folder() / "models").iterdir()} == {".toy.lock"}


def test_an_unknown_name_lists_the_known_ones() -> None:
    for ask in (catalogue.model_folder, catalogue.is_converted):
        with pytest.raises(
            EigenlensError, match=r"no catalogue model 'gpt-9'; there are minilm, smollm2"
        ):
            ask("gpt-9")
    assert next(iter(MODELS)) == DEFAULT_MODEL == "minilm"


def test_a_missing_converter_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path))
    monkeypatch.setattr("eigenlens.extras.find_spec", lambda name: None)
    monkeypatch.setattr(
        catalogue,
        "fetch",
        lambda source: pytest.fail("fetched before the libraries were asked for"),
    )
    with pytest.raises(
        EigenlensError, match=r"gguf and accelerate.*pip install 'eigenlens\[catalogue\]'"
    ):
        catalogue.model_folder("smollm2")


def test_a_disk_that_knows_no_locks_converts_without(
    toy: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    AutoModel.from_pretrained(catalogue.model_folder("toy"))
    assert len(toy) == 1
