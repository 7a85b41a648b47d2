"""The result of a collapse run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ..diagnostics.depth import Depth
from ..display import numbered
from ..errors import EigenlensError
from ..names import Named
from ..passes.facts import ModelResultViews
from ..run.result import TitledTable
from ..run.result_folder import read_result, report_damage, write_result
from ..run.schema import COUNT, LAYER, MEASURED, NUMBER, TableSchema, check_schema
from ..shell import command
from ..stats import DepthNumber
from ..stats.rounding import Precision, rounding_floor, rows_in_words

MAYBE = (MEASURED, None)
PLACE = {"stack": str, "layer": LAYER, "head": LAYER}
POINT = {
    "stack": str,
    "layer": LAYER,
    "place": Literal["input", "output", "attention"],
    "tokens": Literal["all", "without sinks"],
    "metric": str,
    "head": (LAYER, None),
    "mean": MEASURED,
    "low": MAYBE,
    "high": MAYBE,
    "number": COUNT,
}
TERM = {
    "stack": str,
    "part": str,
    "attention_hops": (COUNT, None),
    "mlp_hops": (COUNT, None),
    "paths": (NUMBER, None),
    "path_share": MAYBE,
    "share": MEASURED,
    "size": MEASURED,
    "residual": MEASURED,
}
BOUND = {
    **PLACE,
    "holds": MAYBE,
    "max_d": MAYBE,
    "gamma": MAYBE,
    "beta": MAYBE,
    "cubic": MAYBE,
    "unconditional": MAYBE,
    "dobrushin": MAYBE,
    "residual_in": MAYBE,
    "residual_out": MAYBE,
}
SCHEMA: dict[str, Any] = {
    "facts": {
        "model": {"name": str, "fingerprint": str},
        "data": {"name": str},
        "length": COUNT,
        "inputs": COUNT,
        "by": Literal["attention", "mlp", "both"],
        "float64": bool,
        "notes": [str],
        "versions?": TableSchema(str),
        "created?": str,
        "seconds?": NUMBER,
        "precision?": Precision,
    },
    "curves": TableSchema([POINT]),
    "paths": {
        "error": MAYBE,
        "lengths": [TERM],
        "heads": [{**PLACE, "by_length": [MEASURED], "all": MEASURED}],
        "single": [
            {
                "stack": str,
                "attention_hops": COUNT,
                "residual": MEASURED,
                "low": MAYBE,
                "high": MAYBE,
            }
        ],
    },
    "bounds": {
        "heads": [BOUND],
        "depth": [{"stack": str, "depth": LAYER, "holds": (bool, MEASURED, None)}],
    },
}
"""The form of `collapse.json`."""


class Collapse(ModelResultViews):
    """Curves of a model and its ablations, its output by path length, and the bounds of its heads.

    >>> run = Collapse.open("minilm-collapse")
    >>> run.curves["SAN"].curve("residual")
    >>> run.paths, run.heads, run.bounds                    # rows, ready for a data frame
    >>> print(run.sentence)
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.stored: dict[str, Any] = content["facts"]
        """The facts about its model, data and options, as JSON keeps them."""
        self._content = content

    @classmethod
    def open(cls, folder: str | Path) -> Collapse:
        """Open the folder of a finished run."""
        if not (Path(folder) / "collapse.json").is_file():
            raise EigenlensError(
                f"{folder} holds no finished collapse run (no collapse.json); make one with: "
                f"{command('collapse', 'MODEL', 'DATA', '-o', Path(folder))}"
            )
        content = read_result(folder, "collapse", None, ("collapse", "MODEL", "DATA"))
        with report_damage(folder, "collapse"):
            for name in ("paths", "bounds"):
                if (
                    isinstance(content.get(name), dict)
                    and not SCHEMA[name].keys() <= content[name].keys()
                ):
                    raise ValueError(f"its {name} are not complete")
            if missing := [
                key
                for key in SCHEMA["facts"]
                if not key.endswith("?") and key not in content["facts"]
            ]:
                raise ValueError(f"its facts lack {', '.join(missing)}")
            check_schema(content, SCHEMA, "it")
            found = cls(content)
            found._check()
        return found

    def _check(self) -> None:
        """Raise an error if the run is not complete."""
        _ = self.sentence, self.rows(tokens="without sinks")  # every curve that they name is there
        by = "mlp_hops" if self.by == "mlp" else "attention_hops"
        if self.paths and (
            self.error is None
            or any(row[by] is None for row in self.paths if row["part"] == "paths")
        ):
            raise ValueError("the paths have no error or no number of hops")
        if any(row.keys() != self.bounds[0].keys() for row in self.bounds):
            raise ValueError("the bounds of the heads are not of one kind")

    @property
    def floor(self) -> float:
        """Smaller relative residuals are rounding: 8ε of the precision in which the model ran."""
        return rounding_floor(
            self.stored.get("precision", "float64" if self.stored.get("float64") else "float32")
        )

    def in_words(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of residuals with `below rounding` in place of numbers that are rounding."""
        return rows_in_words(rows, {*self.curves, "residual", "low", "high"}, self.floor)

    @cached_property
    def curves(self) -> dict[str, Depth]:
        """The metrics along depth by variant: `full`, `SAN`, `SAN+MLP`, `SAN+skip` and others."""
        return Named(
            "variant",
            {
                name: Depth(
                    tuple(DepthNumber(**{key: row[key] for key in POINT}) for row in rows),
                    self.floor,
                )
                for name, rows in self._content["curves"].items()
            },
        )

    @property
    def paths(self) -> list[dict[str, Any]]:
        """The output by path length, one row per length.

        A row has the stack, hops, number of paths, and share, size and residual with intervals.
        """
        return self._content["paths"]["lengths"]

    @property
    def single_paths(self) -> list[dict[str, Any]]:
        """The residual `‖P − 1p̄ᵀ‖ / ‖P‖` of products of patterns along random paths, by length."""
        return self._content["paths"]["single"]

    @property
    def heads(self) -> list[dict[str, Any]]:
        """What every head adds to the output over paths of each length."""
        return self._content["paths"]["heads"]

    @property
    def bounds(self) -> list[dict[str, Any]]:
        """One row per head: D, γ, β, whether the condition holds, and the bounds."""
        return self._content["bounds"]["heads"]

    def bounds_by_layer(self) -> list[dict[str, Any]]:
        """One row per layer: how many heads meet the condition, and the median of each number."""
        rows = []
        for stack, layer in dict.fromkeys((row["stack"], row["layer"]) for row in self.bounds):
            heads = [row for row in self.bounds if (row["stack"], row["layer"]) == (stack, layer)]
            row: dict[str, Any] = {"stack": stack, "layer": layer, "heads": len(heads)}
            row["condition_holds"] = sum(head["holds"] == 1 for head in heads)
            for key in (
                "max_d",
                "gamma",
                "beta",
                "cubic",
                "unconditional",
                "dobrushin",
                "residual_in",
                "residual_out",
            ):
                known = [head[key] for head in heads if head[key] is not None]
                row[key] = median(known) if known else None
            rows.append(row)
        return rows

    @property
    def depth_bounds(self) -> list[dict[str, Any]]:
        """The bounds composed over depth, as base-ten logarithms; empty if they do not apply."""
        return self._content["bounds"]["depth"]

    @property
    def error(self) -> float | None:
        """The distance of the sum over path lengths from the model's output, on the worst input."""
        return self._content["paths"]["error"]

    @property
    def title(self) -> str:
        """Model and data, the number and length of inputs, and the precision."""
        precision = ", float64" if self.float64 else ""
        inputs = numbered(self.facts.inputs or 0, "input")
        return f"{self.name}: {inputs} of {self.facts.length} tokens{precision}"

    @property
    def by(self) -> Literal["attention", "mlp", "both"]:
        """The hops that count in the length of a path."""
        return self.stored["by"]

    @property
    def float64(self) -> bool:
        """Whether the model ran in double precision."""
        return self.stored["float64"]

    @property
    def sentence(self) -> str:
        """Where the model would collapse with attention alone, and what keeps it from that."""
        from .verdict import sentence

        return sentence(self)

    def rows(self, metric: str = "residual", tokens: str = "all") -> list[dict[str, Any]]:
        """One row per depth: a metric of every variant side by side."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for name, depth in self.curves.items():
            for stack in depth.stacks:
                for point in depth.curve(metric, stack, tokens):
                    row = rows.setdefault(
                        (stack, point["depth"]), {"stack": stack, "depth": point["depth"]}
                    )
                    row[name] = point["mean"]
        return [
            {**dict.fromkeys(["stack", "depth", *self.curves]), **rows[place]}
            for place in sorted(rows)
        ]

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it and the folder keeps it."""
        paths = self._content["paths"]
        flagged = {
            key: [{**row, "below_rounding": row["residual"] < self.floor} for row in paths[key]]
            for key in ("lengths", "single")
        }
        return {
            **self._content,
            "curves": {name: depth.rows() for name, depth in self.curves.items()},
            "paths": {**paths, **flagged},
            "sentence": self.sentence,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `collapse.json` into a folder."""
        return write_result(folder, "collapse", self.record())

    def rows_to_read(self) -> list[dict[str, Any]]:
        """One row per depth, with words for residuals that are rounding."""
        return self.in_words(self.rows())

    def printed(self) -> list[TitledTable]:
        """What a terminal prints: curves, paths and bounds."""
        from .tables import collapse_tables

        return collapse_tables(self)

    def plot(self) -> Any:
        """Draw the residual of every variant along depth, on a log axis (an altair chart)."""
        from .plots import residual_curves

        return residual_curves(self)

    def __repr__(self) -> str:
        more = [name for name, held in (("paths", self.paths), ("bounds", self.bounds)) if held]
        inputs = numbered(self.facts.inputs or 0, "input")
        holds = "; ".join([", ".join(self.curves), *more])
        return f"<collapse run of {self.name}: {inputs} of {self.facts.length} tokens; {holds}>"
