"""The claims about over-smoothing: what was published, which criterion each verdict rests on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...display import numbered
from ...lab.fusion import FUSIONS
from ..claims import Claim, Tables, Verdict
from ..fits import rank_correlation
from ..verdicts import judged

Rows = Sequence[dict[str, Any]]
ROUNDING = 1e-6


def claims_of(tables: Tables, quick: bool = False) -> tuple[Claim, ...]:
    """Every claim, in the order: the bound, the curves, the remedy."""
    by_state: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in tables["blocks"]:
        by_state[row["state"]].append(row)
    loaded = by_state["pretrained"]
    names = list(dict.fromkeys(row["model"] for row in loaded))
    of = {name: [row for row in loaded if row["model"] == name] for name in names}
    return (
        _bound("lab encoder (ReLU) at its random start", by_state["random start"], "v"),
        _bound("lab encoder (ReLU), trained", by_state["trained"], "v"),
        _bound(
            "lab encoder (ReLU), trained, with the gains of the norms in v",
            by_state["trained"],
            "gained",
        ),
        _bound(f"{' and '.join(names)} (GELU: s² times 1.13)", loaded, "v"),
        _bound(f"{' and '.join(names)}, with the gains of the norms in v", loaded, "gained"),
        _says_something(loaded),
        *(_rises(name, rows) for name, rows in of.items()),
        *(_maps(name, rows) for name, rows in of.items()),
        *(_sigma(name, rows) for name, rows in of.items()),
        *(claim for model in _models(tables) for claim in _fusion(model, tables["fusion"])),
        *(_less_alike(model, tables["fusion"]) for model in _models(tables)),
        Claim(
            "hierarchical fusion raises the scores of BERT, RoBERTa and ALBERT",
            "tables of the paper",
            None,
            None,
            "out of reach",
            "their weights are in no package registry, and fine-tuning them takes a GPU",
        ),
    )


def _models(tables: Tables) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in tables["fusion"]))


def _bound(what: str, rows: Rows, key: str) -> Claim:
    shares = [row["ratio"] / row[key] for row in rows]
    note = (
        f"the largest d_M(H_l+1) / (v d_M(H_l)) of {len(rows)} blocks and inputs;"
        f" d_M(H_l+1) / d_M(H_l) is"
        f" {min(r['ratio'] for r in rows):.3g} to {max(r['ratio'] for r in rows):.3g}, v"
        f" {min(r[key] for r in rows):.3g} to {max(r[key] for r in rows):.3g}; interval: least and"
        " largest; reproduced if none exceeds 1"
    )
    return judged(
        f"{what}: d_M(H_l+1) ≤ v d_M(H_l)",
        "theorem",
        max(shares),
        (min(shares), max(shares)),
        note,
        at_most=1 + ROUNDING,
    )


def _says_something(rows: Rows) -> Claim:
    share = float(np.mean([row["v"] < 1 for row in rows]))
    sharp = float(np.mean([row["sharp"] < 1 for row in rows]))
    note = (
        f"share of {len(rows)} blocks and inputs of pretrained encoders with v < 1, above which the"
        f" bound says nothing; the least v is {min(r['v'] for r in rows):.3g}; of the sharper form"
        f" share {sharp:.3g}, least {min(r['sharp'] for r in rows):.3g}; reproduced if there is one"
    )
    verdict: Verdict = "reproduced" if share > 0 else "not reproduced"
    return Claim(
        "v < 1: the bound forces tokens of pretrained encoders together",
        "condition of the theorem",
        share,
        None,
        verdict,
        note,
    )


def _rises(name: str, rows: Rows) -> Claim:
    last = max(row["layer"] for row in rows)
    first = np.array([row["similarity_in"] for row in rows if row["layer"] == 0])
    end = np.array([row["similarity"] for row in rows if row["layer"] == last])
    mean, interval = _mean(end - first)
    note = (
        f"mean cosine of two tokens {first.mean():.3f} before the first block, {end.mean():.3f}"
        " behind the last; measured is their difference, with the 95 % interval of the mean over"
        f" {len(end)} inputs; reproduced if it is above 0"
    )
    return _above_zero(f"{name}: token similarity rises with depth", "rises", mean, interval, note)


def _maps(name: str, rows: Rows) -> Claim:
    last = max(row["layer"] for row in rows)
    first = np.array([row["maps"] for row in rows if row["layer"] == 1])
    end = np.array([row["maps"] for row in rows if row["layer"] == last])
    mean, interval = _mean(end - first)
    note = (
        f"cosine of the maps (mean over heads) of two consecutive blocks, {first.mean():.3f} of the"
        f" first pair, {end.mean():.3f} of the last; measured is their difference, with the"
        " 95 %"
        f" interval of the mean over {len(end)} inputs; reproduced if it is above 0"
    )
    return _above_zero(
        f"{name}: attention maps of consecutive layers grow alike with depth",
        "grow alike",
        mean,
        interval,
        note,
    )


def _sigma(name: str, rows: Rows) -> Claim:
    inputs = sorted({row["input"] for row in rows})
    each = []
    for i in inputs:
        some = [row for row in rows if row["input"] == i]
        each.append(
            rank_correlation([row["sigma"] for row in some], [row["ratio"] for row in some])
        )
    mean, interval = _mean(np.array(each))
    above = float(np.mean([row["sigma"] > 1 for row in rows]))
    note = (
        "rank correlation over the blocks of σ₁σ₂ and d_M behind over before, mean of the inputs"
        f" with its 95 % interval; σ₁σ₂ is above 1 in a share of {above:.2f} of all; reproduced if"
        " the interval is below −0.5"
    )
    verdict: Verdict = "reproduced" if interval[1] < -0.5 else "not reproduced"
    return Claim(
        f"{name}: the larger σ₁σ₂, the more a block smooths",
        "σ₁σ₂ decides",
        mean,
        interval,
        verdict,
        note,
    )


def _fusion(model: str, rows: Rows) -> list[Claim]:
    def of(read_out: str) -> dict[int, float]:
        return {
            row["seed"]: row["accuracy"]
            for row in rows
            if (row["model"], row["read-out"]) == (model, read_out)
        }

    plain = of("last layer")
    claims = []
    for fusion in FUSIONS:
        gains = [of(fusion)[seed] - plain[seed] for seed in plain]
        note = (
            f"accuracy {np.mean(list(of(fusion).values())):.4f}, of the last layer alone"
            f" {np.mean(list(plain.values())):.4f}; measured is the mean gain; interval: least and"
            f" largest of {numbered(len(gains), 'seed')}; reproduced if every seed gains"
        )
        claims.append(
            Claim(
                f"{model}: fusion by {fusion} beats the last layer",
                "it does, in a fine-tuned BERT",
                float(np.mean(gains)),
                (min(gains), max(gains)),
                "reproduced" if min(gains) > 0 else "not reproduced",
                note,
            )
        )
    return claims


def _less_alike(model: str, rows: Rows) -> Claim:
    def mean(read_out: str) -> float:
        return float(
            np.mean(
                [r["similarity"] for r in rows if (r["model"], r["read-out"]) == (model, read_out)]
            )
        )

    plain, fused = mean("last layer"), {fusion: mean(fusion) for fusion in FUSIONS}
    change = [value - plain for value in fused.values()]
    message = ", ".join(f"{name} {value:.3f}" for name, value in fused.items())
    note = (
        f"token similarity of what is read out: last layer {plain:.3f}, {message}; measured is"
        " the largest change, interval: least and largest of the three; reproduced if all are"
        " below 0"
    )
    return judged(
        f"{model}: fused tokens are less alike",
        "less alike",
        max(change),
        (min(change), max(change)),
        note,
        at_most=-1e-9,
    )


def _mean(values: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Mean and its 95 % interval."""
    mean = float(values.mean())
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return mean, (mean - half, mean + half)


def _above_zero(
    claim: str, published: str, mean: float, interval: tuple[float, float], note: str
) -> Claim:
    return Claim(
        claim,
        published,
        mean,
        interval,
        "reproduced" if interval[0] > 0 else "not reproduced",
        note,
    )
