"""What the solver found: Z, its objective, and how the certificate came down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...display import html_view, numbered


@dataclass(frozen=True, eq=False)
class Solution:
    """`Z` (P, rows, columns) of a `block`, and the `history` of its certificates.

    The problem of the block needs `heads` heads at most.

    A record of the history has the step, the objective, the lower `bound` of the optimum, the
    relative `gap` between the two, `excess` = (‖∇F‖₂/β − 1)₊, `slack`, and the rank of Z.
    """

    Z: Tensor
    beta: float
    tolerance: float
    block: str
    heads: int
    history: tuple[dict[str, float], ...]

    @property
    def objective(self) -> float:
        return self.history[-1]["objective"]

    @property
    def bound(self) -> float:
        """No Z has a smaller objective than this."""
        return self.history[-1]["bound"]

    @property
    def gap(self) -> float:
        """`(objective − bound)/bound`: no less than the relative distance to the optimum."""
        return self.history[-1]["gap"]

    @property
    def excess(self) -> float:
        """`(‖∇F‖₂/β − 1)₊`: the gap itself, where Z is stationary along its own ray."""
        return self.history[-1]["excess"]

    @property
    def steps(self) -> int:
        return int(self.history[-1]["step"])

    @property
    def rank(self) -> int:
        """How many heads the optimum has."""
        return int(self.history[-1]["rank"])

    @property
    def certified(self) -> bool:
        return self.gap <= self.tolerance

    def rows(self) -> list[dict[str, Any]]:
        return [dict(record) for record in self.history]

    @property
    def sentence(self) -> str:
        found = (
            f"The optimum of the {self.block} block with β = {self.beta:g} is {self.objective:.6g},"
            f" with {numbered(self.rank, 'head')} of {self.heads}; "
        )
        if self.certified:
            return (
                found + f"no solution is better by more than a share of {self.gap:.1e} (step"
                f" {self.steps:,})."
            )
        return (
            found
            + f"it is not certified: after {self.steps:,} steps the gap is {self.gap:.1e}, not"
            f" {self.tolerance:g}."
        )

    def plot(self) -> Any:
        """Objective and certificates along the steps (an altair chart)."""
        import altair as alt

        x = alt.X("step:Q", title="step")
        rows = [
            {k: v for k, v in row.items() if v not in (float("inf"), float("-inf"))}
            for row in self.history
        ]
        objective = [
            {"step": row["step"], "value": row[key], "what": what}
            for row in rows
            for key, what in (("objective", "objective"), ("bound", "lower bound"))
            if row.get(key, 0) > 0
        ]
        names = (("gap", "duality gap"), ("excess", "(‖∇F‖/β − 1)₊"), ("slack", "slack"))
        gaps = [
            {"step": row["step"], "value": row[key], "what": what}
            for row in rows
            for key, what in names
            if row.get(key, 0) > 0
        ]
        panels = []
        for data, order, title in (
            (objective, ["objective", "lower bound"], "objective"),
            (gaps, [what for _, what in names], "relative to the optimum"),
        ):
            y = alt.Y(
                "value:Q",
                title=title,
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format=".1e", tickCount=6),
            )
            colour = alt.Color("what:N", sort=order, title=None)
            chart = (
                alt.Chart(alt.Data(values=data))
                .mark_line(strokeWidth=1.5)
                .encode(x=x, y=y, color=colour)
            )
            panels.append(chart.properties(width=300, height=220))
        title = f"{self.block}, β = {self.beta:g}"
        return alt.hconcat(*panels).resolve_scale(color="independent").properties(title=title)

    def _repr_html_(self) -> str:
        return html_view(f"{self.block}, solved", self.sentence, self.plot(), self.rows())
