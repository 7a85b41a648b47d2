"""What was found along the depth of a model: metrics of tokens and patterns per block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..captures import Site
from ..display import numbered
from ..errors import EigenlensError
from ..names import split_names, unknown_name
from ..stats import DepthNumber
from ..stats.depth import ATTENTION_METRICS, TOKEN_METRICS, TOKENS
from ..stats.rounding import rows_in_words
from .finding import Finding, Number

TITLES = {
    "residual": "relative residual",
    "effective_rank": "effective rank",
    "stable_rank": "stable rank",
    "participation_ratio": "participation ratio",
    "cosine": "mean cosine of two tokens",
    "high_frequency": "share of high frequencies",
    "entropy": "entropy of attention rows, in nats",
    "singular_ratio": "σ₂/σ₁ of the attention pattern",
    "dirichlet": "Dirichlet energy",
}

RESIDUALS = ("residual", "high_frequency")
"""Metrics that are 0 where all tokens are equal, but for rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class Depth:
    """All metrics at every block, each with its 95 % interval over inputs.

    Residuals below `floor` are only rounding.

    >>> study.depth.curve("residual")  # depth 0 is the input of the first block
    >>> study.depth.plot()
    """

    numbers: tuple[DepthNumber, ...]
    floor: float = 0.0

    def below_rounding(self, number: DepthNumber) -> bool:
        return number.metric in RESIDUALS and number.mean < self.floor

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks, such as `encoder`."""
        return tuple(dict.fromkeys(number.stack for number in self.numbers))

    def rows(self) -> list[dict[str, Any]]:
        """One record per metric, block and head.

        Its fields: stack, layer, place, tokens, metric, head (None for all heads), mean, low, high,
        number, and whether the mean is below rounding.
        """
        return [
            {**asdict(number), "below_rounding": self.below_rounding(number)}
            for number in self.numbers
        ]

    def curve(
        self, metric: str, stack: str | None = None, tokens: str = "all"
    ) -> list[dict[str, Any]]:
        """One metric along depth: records of depth, mean, low, high, number.

        For tokens, depth 0 is the input of the first block and depth l the output of the l-th. For
        patterns, depth l is the pattern of the l-th block, averaged over its heads. `stack` may be
        left out if the model has one.
        """
        if metric not in TITLES:
            raise unknown_name("metric", metric, TITLES)
        if tokens not in TOKENS:
            raise EigenlensError(f"tokens must be {' or '.join(map(repr, TOKENS))}, not {tokens!r}")
        if stack is None and len(self.stacks) == 1:
            stack = self.stacks[0]
        if stack not in self.stacks:
            raise unknown_name("stack", stack, self.stacks, guess=False)
        kept = [
            n
            for n in self.numbers
            if (n.metric, n.stack, n.tokens, n.head) == (metric, stack, tokens, None)
        ]
        layers = {
            layer: depth
            for depth, layer in enumerate(
                sorted({n.layer for n in self.numbers if n.stack == stack})
            )
        }
        points = []
        for n in kept:
            depth = layers[n.layer] + (n.place != "input")
            if n.place != "input" or depth == 0:
                points.append(
                    {
                        "depth": depth,
                        "mean": n.mean,
                        "low": n.low,
                        "high": n.high,
                        "number": n.number,
                    }
                )
        return sorted(points, key=lambda point: point["depth"])

    def by_layer(self) -> dict[Site, dict[str, float | None]]:
        """The numbers of each layer, such as `depth_output_residual_low`."""
        found: dict[Site, dict[str, float | None]] = {}
        for n in self.numbers:
            if n.head is None:
                name = f"depth_{n.place}_{n.metric}" + (
                    "" if n.tokens == "all" else f"_{n.tokens.replace(' ', '_')}"
                )
                record = found.setdefault(Site(n.stack, n.layer), {})
                record |= {name: n.mean, f"{name}_low": n.low, f"{name}_high": n.high}
                if n.metric in RESIDUALS:
                    record[f"{name}_below_rounding"] = self.below_rounding(n)
        return found

    def table(self, metrics: str | Sequence[str], tokens: str = "all") -> list[dict[str, Any]]:
        """One row per depth, the means of some metrics side by side; None if there is none."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        metrics = split_names(metrics)
        for stack in self.stacks:
            for metric in metrics:
                for point in self.curve(metric, stack, tokens):
                    start = {"stack": stack, "depth": point["depth"], **dict.fromkeys(metrics)}
                    rows.setdefault((stack, point["depth"]), start)[metric] = point["mean"]
        return [rows[place] for place in sorted(rows)]

    def table_in_words(self, metrics: Sequence[str], tokens: str = "all") -> list[dict[str, Any]]:
        """The same table for reading: residuals hidden by rounding say `below rounding`."""
        return rows_in_words(self.table(metrics, tokens), RESIDUALS, self.floor)

    def plot(self, metrics: str | Sequence[str] = TOKEN_METRICS + ATTENTION_METRICS) -> Any:
        """Draw metrics along depth, one panel each, with bands of intervals (an altair chart)."""
        import altair as alt

        from ..spectra.plots import integer_axis

        rows = [
            {"metric": TITLES[metric], "stack": stack, "tokens": tokens, **point}
            for metric in split_names(metrics)
            for stack in self.stacks
            for tokens in TOKENS
            for point in self.curve(metric, stack, tokens)
        ]
        ticks = integer_axis(max((row["depth"] for row in rows), default=0), about=8)
        base = alt.Chart().encode(x=alt.X("depth:Q", axis=ticks, title="depth"))
        domain = alt.Scale(domain=list(TOKENS))  # the same for colour and shape: one legend
        colour = alt.Color(
            "tokens:N", scale=domain, title="tokens", legend=alt.Legend(symbolOpacity=1)
        )
        legend = (
            alt.Legend(symbolType="stroke", symbolStrokeColor="gray")
            if len(self.stacks) > 1
            else None
        )
        dash = alt.StrokeDash("stack:N", title="stack", legend=legend)
        band = base.mark_area(opacity=0.2).encode(
            y=alt.Y("low:Q", title=None), y2="high:Q", color=colour, detail="stack:N"
        )
        large = "abs(datum.value) >= 1e5 ? format(datum.value, '.1e') : datum.label"
        axis = alt.Axis(labelExpr=large)
        curve = base.encode(
            y=alt.Y("mean:Q", title=None, scale=alt.Scale(zero=False), axis=axis),
            color=colour,
            detail="stack:N",
            tooltip=[
                "metric:N",
                "stack:N",
                "tokens:N",
                "depth:Q",
                alt.Tooltip("mean:Q", format=".4g"),
                "number:Q",
            ],
        )
        shape = alt.Shape("tokens:N", scale=domain, title="tokens")
        points = curve.mark_point(filled=True, size=25, opacity=1).encode(shape=shape)
        line = curve.mark_line().encode(strokeDash=dash) + points
        titles = [TITLES[metric] for metric in split_names(metrics)]
        return (
            alt.layer(band, line, data=alt.Data(values=rows))
            .properties(width=230, height=150)
            .facet(
                facet=alt.Facet("metric:N", sort=titles, title=None),
                columns=3,
                title="Metrics along the depth of the model",
            )
            .resolve_scale(y="independent")
        )

    @property
    def sentence(self) -> str:
        """One sentence per stack: rank and cosine at the first and last block, and the least rank.

        Empty if no tokens were captured.
        """
        parts = []
        for stack in self.stacks:
            rank, cosine = self.curve("effective_rank", stack), self.curve("cosine", stack)
            if not rank or not cosine:
                continue
            least = min(rank, key=lambda point: point["mean"])
            where = f" of the {stack}" if len(self.stacks) > 1 else ""
            blocks = numbered(rank[-1]["depth"], "block")
            parts.append(
                f"The effective rank of the tokens{where} goes from {rank[0]['mean']:.1f} to"
                f" {rank[-1]['mean']:.1f} over {blocks}; it is lowest ({least['mean']:.1f}) at"
                f" depth {least['depth']}. The mean cosine of two tokens goes from"
                f" {cosine[0]['mean']:.2f} to {cosine[-1]['mean']:.2f}."
            )
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"<metrics along depth of {', '.join(self.stacks)}: {len(self.numbers)} numbers>"

    def _repr_html_(self) -> str:
        from ..display import html_view

        rows = self.table_in_words(TOKEN_METRICS + ATTENTION_METRICS)
        return html_view(
            "Metrics along the depth of the model",
            self.sentence,
            self.plot() if rows else None,
            rows,
        )


def depth_findings(depth: Depth) -> list[Finding]:
    """Return entropy and spectral gap of every head as findings.

    Both are measured together with the metrics along depth.
    """
    sets = {"all": "", "without sinks": ", without the sink tokens"}
    found = []
    for name, title, metric, words in (
        ("entropy", "Attention entropy", "entropy", "entropy of attention rows, in nats"),
        ("gap", "Spectral gap", "singular_ratio", "1 − σ₂/σ₁ of the attention pattern"),
    ):
        numbers = [
            _gap(n) if name == "gap" else n
            for n in depth.numbers
            if n.metric == metric and n.head is not None
        ]
        made = tuple(
            Number(
                n.stack,
                n.layer,
                n.head,
                n.tokens.replace(" ", "_"),
                n.mean,
                n.low,
                n.high,
                n.number,
            )
            for n in numbers
        )
        message = {tokens.replace(" ", "_"): words + more for tokens, more in sets.items()}
        finding = Finding(name, title, "head", message, made)
        found.append(finding.with_sentence(_spread_sentence(finding), {}) if made else finding)
    return found


def _gap(n: DepthNumber) -> DepthNumber:
    low, high = (None if end is None else 1 - end for end in (n.high, n.low))
    return replace(n, mean=1 - n.mean, low=low, high=high)


def _spread_sentence(finding: Finding) -> str:
    values, labels = finding.values("all"), finding.labels
    least, most = min(values, key=lambda at: values[at]), max(values, key=lambda at: values[at])
    ends = [f"{values[at]:.2f} ({labels(at)})" for at in (least, most)]
    middle = sorted(values.values())[len(values) // 2]
    return (
        f"{finding.title} ({finding.words['all']}) goes from {ends[0]} to {ends[1]} over the heads;"
        f" the median is {middle:.2f}."
    )
