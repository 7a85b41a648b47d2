"""The tokenizer of a model's folder, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import EigenlensError, first_line
from ..extras import needs

FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""Files that can hold a vocabulary; one of them is enough."""
FEW = 1000
EMPTY = "the tokenizer in it has no vocabulary"


def tokenizer_of(folder: str | Path) -> tuple[Any, str]:
    """Return the tokenizer and "", or None and why there is none; token ids need none.

    From a config alone the library makes a tokenizer that knows only its special tokens and turns
    every text into nothing or unknown words. That does not count as a tokenizer.
    """
    import transformers

    try:
        made = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a folder can be wrong in as many ways as there are tokenizers
        return None, _why(folder, first_line(error))
    return (None, _why(folder, EMPTY)) if _empty(made) else (made, "")


def _empty(tokenizer: Any) -> bool:
    return len(tokenizer) <= FEW and not set(tokenizer.get_vocab()) - {
        *tokenizer.all_special_tokens,
        "▁",
    }


def _why(folder: str | Path, message: str) -> str:
    if not isinstance(folder, Path):
        return message
    found = [name for name in FILES if (folder / name).is_file()]
    if not found:
        return f"{folder} has none of the files {', '.join(FILES)}"
    if found[0].endswith(".model"):
        try:
            needs("sentencepiece", "google.protobuf", what=f"reading {folder / found[0]}")
        except EigenlensError as error:
            return str(error)
    return f"{folder / found[0]} cannot be used: {message}"
