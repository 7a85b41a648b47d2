"""What a collapse run found."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import EigenlensError
from ..run.files import read_json
from ..stats import DepthNumber
from ..study.depth import Depth

FACTS = {"model", "data", "length", "inputs", "by", "float64", "notes"}
"""What every run says of itself."""


class Collapse:
    """Curves of a model and its ablations, its output by path length, and the bounds of its heads.

    >>> run = Collapse.open("minilm-collapse")
    >>> run.curves["SAN"].curve("residual")
    >>> run.paths, run.heads, run.bounds                    # rows, ready for a data frame
    >>> print(run.sentence)
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.facts: dict[str, Any] = content["facts"]
        self._content = content

    @classmethod
    def open(cls, folder: str | Path) -> Collapse:
        """Open the folder of a finished run."""
        path = Path(folder) / "collapse.json"
        if not path.is_file():
            raise EigenlensError(
                f"{folder} holds no finished collapse run (no collapse.json); make one with: eigenlens collapse"
            )
        content = read_json(path)
        if not isinstance(content, dict) or not {"facts", "curves", "paths", "bounds"} <= set(content):
            raise EigenlensError(f"{path} is not what a collapse run writes; make it anew")
        if not isinstance(content["facts"], dict) or (missing := FACTS - set(content["facts"])):
            what = f"its facts lack {', '.join(sorted(missing))}" if isinstance(content["facts"], dict) else "it has no facts"
            raise EigenlensError(f"{path} is damaged or of another version: {what}; make it anew")
        parts = {"paths": {"lengths", "single", "heads", "error"}, "bounds": {"heads", "depth"}}
        for name, keys in parts.items():
            if not isinstance(content[name], dict) or not keys <= set(content[name]):
                raise EigenlensError(f"{path} is damaged or of another version: its {name} are not whole; make it anew")
        return cls(content)

    @cached_property
    def curves(self) -> dict[str, Depth]:
        """The metrics along depth by variant: `full`, `SAN`, `SAN+MLP`, `SAN+skip`, `without norm`, …"""
        return {name: Depth(tuple(DepthNumber(**row) for row in rows)) for name, rows in self._content["curves"].items()}

    @property
    def paths(self) -> list[dict[str, Any]]:
        """The output by path length: stack, hops, number of paths, share, size and residual with intervals."""
        return self._content["paths"]["lengths"]

    @property
    def single_paths(self) -> list[dict[str, Any]]:
        """`‖P − 1p̄ᵀ‖ / ‖P‖` of the product of patterns along random paths, by length."""
        return self._content["paths"]["single"]

    @property
    def heads(self) -> list[dict[str, Any]]:
        """What every head adds to the output over paths of each length."""
        return self._content["paths"]["heads"]

    @property
    def bounds(self) -> list[dict[str, Any]]:
        """Of every head: D, γ, β, whether the condition holds, and the bounds."""
        return self._content["bounds"]["heads"]

    def bounds_by_layer(self) -> list[dict[str, Any]]:
        """One row a layer: in how many of its heads the condition holds, and the median of each number."""
        rows = []
        for stack, layer in dict.fromkeys((row["stack"], row["layer"]) for row in self.bounds):
            heads = [row for row in self.bounds if (row["stack"], row["layer"]) == (stack, layer)]
            row: dict[str, Any] = {"stack": stack, "layer": layer, "heads": len(heads)}
            row["condition_holds"] = sum(head["holds"] == 1 for head in heads)
            for key in ("max_d", "gamma", "beta", "cubic", "unconditional", "dobrushin", "residual_in", "residual_out"):
                known = [head[key] for head in heads if head[key] is not None]
                row[key] = median(known) if known else None
            rows.append(row)
        return rows

    @property
    def depth_bounds(self) -> list[dict[str, Any]]:
        """The bounds composed over depth, base-ten logarithms; empty where they do not apply."""
        return self._content["bounds"]["depth"]

    @property
    def error(self) -> float | None:
        """How far the sum over path lengths was from the model's output, the worst input, relative."""
        return self._content["paths"]["error"]

    @property
    def name(self) -> str:
        """Model and data: `minilm on python-docs`."""
        return f"{self.facts['model']['name']} on {self.facts['data']['name']}"

    @property
    def sentence(self) -> str:
        """Where and why the model would collapse, and what holds it up, from the ablations."""
        from .verdict import sentence

        return sentence(self)

    def rows(self, metric: str = "residual", tokens: str = "all") -> list[dict[str, Any]]:
        """One row a depth: the metric of every variant side by side."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for name, depth in self.curves.items():
            for stack in depth.stacks:
                for point in depth.curve(metric, stack, tokens):
                    row = rows.setdefault((stack, point["depth"]), {"stack": stack, "depth": point["depth"]})
                    row[name] = point["mean"]
        return [{**dict.fromkeys(["stack", "depth", *self.curves]), **rows[place]} for place in sorted(rows)]

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it and the folder keeps it."""
        return {**self._content, "sentence": self.sentence}

    def plot(self) -> Any:
        """The residual of every variant along depth, on a logarithmic axis (an altair chart)."""
        from .plots import residual_curves

        return residual_curves(self)

    def _repr_html_(self) -> str:
        from ..display import html_view

        return html_view(self.name, self.sentence, self.plot(), self.rows())
