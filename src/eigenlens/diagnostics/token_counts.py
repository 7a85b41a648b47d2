"""Which tokens something happens at: counts by token id, per stack.

Counted separately at the first token of an input and elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

TOP = 20
"""How many tokens a table shows."""


class TokenCounts:
    """Tables of tokens for a diagnostic that has sums `STACK/tokens` (2, vocabulary).

    The first row counts the first token of an input, the second all other places.
    """

    sums: dict[str, Tensor]

    def _top(self) -> Iterator[tuple[str, int, list[float], float]]:
        """Stack, token id, counts at the front and elsewhere, share of the stack's counts.

        The most frequent token comes first.
        """
        for name, counts in self.sums.items():
            if name.endswith("/tokens"):
                total = counts.sum(0)
                for i in total.argsort(descending=True, stable=True)[:TOP].tolist():
                    if total[i] > 0:
                        yield (
                            name.removesuffix("/tokens"),
                            i,
                            counts[:, i].tolist(),
                            float(total[i] / total.sum()),
                        )

    def token_ids(self) -> list[int]:
        """The token ids that the table names."""
        return list(dict.fromkeys(i for _, i, _, _ in self._top()))

    def token_rows(self, tokens: Mapping[int, str]) -> list[dict[str, Any]]:
        """One record per token: stack, token, id, at the front, elsewhere, share."""
        return [
            {
                "stack": stack,
                "token": tokens.get(i, f"id {i}"),
                "id": i,
                "at the front": int(at[0]),
                "elsewhere": int(at[1]),
                "share": share,
            }
            for stack, i, at, share in self._top()
        ]
