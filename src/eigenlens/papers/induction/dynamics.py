"""The training of the two-layer model, followed epoch by epoch.

It is run as published, by other readings of the text, in stages, and with controls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...lab.induction import Start, half_way_epoch, train_induction
from ...lab.markov import Markov

EPOCHS = (3, 10, 100, 300)
PUBLISHED = {3: (0.637, 0.174), 10: (0.996, 0.701), 100: (1.0, 4.28), 300: (1.0, 5.86)}
"""p of the true parents, and a, at these epochs."""
STAGES = (("c", 300, 1.0), ("W", 1000, 100.0), ("a", 300, 1.0))
"""What learns, for how many epochs, at which rate.

The gradient of W is proportional to a, which is still at its start.
"""
PARENTS: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (1, 2), (1, 3), (2, 3))
READINGS: tuple[tuple[str, Start, dict[str, Any]], ...] = (
    ("output as logits, all sets", Start(), {}),
    ("output as logits, no empty set", Start(empty=False), {}),
    ("output as logits, window of 5", Start(window=5), {}),
    ("−log(o + ε), all sets", Start(), {"loss": "log of the output"}),
)
"""The first is what the published figures are met with; the others are what the text also allows.
"""


def curve(number: int, seed: int, epochs: int = 300) -> dict[str, Any]:
    """One training of everything at once: rows by epoch, half-way epochs, processor seconds.

    `p > .99` is the epoch from which on p stays above.
    """
    start = time.process_time()
    drawn = Markov(number).draw(seed)
    _, rows = train_induction(drawn, epochs=epochs)
    seconds = time.process_time() - start
    # p can fall again after it has been above
    last = max(row["epoch"] for row in rows if row["p"] <= 0.99)
    dip = min(row["p"] for row in rows[10:])  # behind epoch 10, at which it is all but 1
    moments = {name: half_way_epoch(rows, name) for name in ("p", "copies", "a")}
    return {
        "seed": seed,
        "rows": rows,
        "p > .99": last + 1,
        "least p after epoch 10": dip,
        "seconds": seconds,
        **moments,
    }


def readings(number: int, seed: int, epochs: int = 300) -> list[dict[str, Any]]:
    """p and a at the published epochs, by what the text leaves open."""
    drawn, found = Markov(number).draw(seed), []
    for name, start, more in READINGS:
        _, rows = train_induction(drawn, start, epochs=epochs, **more)
        found += [{"reading": name, **_at(rows[epoch])} for epoch in EPOCHS if epoch <= epochs]
    return found


def _at(row: dict[str, Any]) -> dict[str, Any]:
    p, a = PUBLISHED[row["epoch"]]
    return {"epoch": row["epoch"], "p": row["p"], "a": row["a"], "published p": p, "published a": a}


def stages(number: int, seed: int, shrink: int = 1) -> list[dict[str, Any]]:
    """Training one parameter after the other, as in the theory: a row at the end of each.

    `shrink` divides the epochs.
    """
    drawn, model, found = Markov(number).draw(seed), None, []
    for name, epochs, rate in STAGES:
        model, rows = train_induction(
            drawn, epochs=epochs // shrink, rate=rate, only=(name,), model=model
        )
        last = {key: rows[-1][key] for key in ("p", "copies", "a", "off")}
        found.append(
            {"learns": name, "epochs": epochs // shrink, "rate": rate, "seed": seed, **last}
        )
    return found


def other_parent_rows(number: int, seed: int, epochs: int = 300) -> list[dict[str, Any]]:
    """Other true parents, and none: tokens of a sequence drawn independently, a control."""
    found = []
    for parents in (*PARENTS, ()):
        drawn = replace(Markov(number), parents=parents).draw(seed)
        model, rows = train_induction(drawn, epochs=epochs)
        winner = model.sets[int(model.p.argmax())]
        found.append(
            {
                "true parents": _describe(parents),
                "largest p": _describe([h + 1 for h in winner]),
                "p of the true": rows[-1]["p"],
                "a": rows[-1]["a"],
                "off at first": rows[0]["off"],
                "off": rows[-1]["off"],
            }
        )
    return found


def _describe(parents: Sequence[int]) -> str:
    return ", ".join(f"−{parent}" for parent in parents) or "none"


def table(curves: Sequence[dict[str, Any]], epochs: Sequence[int] = EPOCHS) -> list[dict[str, Any]]:
    """Published beside measured: the mean over seeds, the least and the largest."""
    rows = []
    for epoch in epochs:
        at = [run["rows"][epoch] for run in curves if epoch < len(run["rows"])]
        if at:
            row: dict[str, Any] = {"epoch": epoch}
            for place, name in enumerate(("p", "a")):
                values = [one[name] for one in at]
                row |= {
                    f"published {name}": PUBLISHED[epoch][place],
                    name: sum(values) / len(values),
                }
                row |= {f"{name} low": min(values), f"{name} high": max(values)}
            rows.append({**row, "off": sum(one["off"] for one in at) / len(at), "seeds": len(at)})
    return rows
