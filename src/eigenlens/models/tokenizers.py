"""The tokenizer of a model's folder, or what is missing where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import EigenlensError, first_line
from ..extras import needs

FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""What holds a vocabulary; one of them is enough."""
FEW = 1000
EMPTY = "the tokenizer that it gives knows no words"


def tokenizer_of(folder: str | Path) -> tuple[Any, str]:
    """The tokenizer and no words, or None and why there is none: token ids do without it.

    The library makes a tokenizer out of a config alone, which knows its special tokens and takes
    every text for nothing, or for unknown words. That is no tokenizer.
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
        return f"{folder} holds none of {', '.join(FILES)}"
    if found[0].endswith(".model"):
        try:
            needs("sentencepiece", "google.protobuf", what=f"reading {folder / found[0]}")
        except EigenlensError as error:
            return str(error)
    return f"{folder / found[0]} cannot be used: {message}"
