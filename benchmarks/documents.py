"""The texts of the benchmarks: long Wikipedia articles, by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from eigenlens.data.datasets import text

TOKENS = 8193
"""Articles of at least so many tokens are counted."""


def articles(tokenizer: Any) -> Iterator[tuple[str, Tensor]]:
    """Articles of at least 8,193 tokens in the order of the data set, with all their tokens."""
    for article in text("wikipedia"):
        if len(article) > 4 * TOKENS:
            ids = tokenizer(article, return_tensors="pt", verbose=False).input_ids[0]
            if len(ids) >= TOKENS:
                yield article, ids


def documents(tokenizer: Any, numbers: Sequence[int]) -> dict[int, Tensor]:
    """The first 8,193 tokens of some articles, by their number."""
    found = enumerate(islice(articles(tokenizer), max(numbers) + 1))
    return {number: ids[:TOKENS] for number, (_, ids) in found if number in numbers}


def numbers_of(listed: str) -> list[int]:
    """The numbers of a list: `1,4-6` is 1, 4, 5 and 6."""
    found: list[int] = []
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
