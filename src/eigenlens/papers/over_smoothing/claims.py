"""The claims about over-smoothing: what was published, which criterion each verdict rests on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..claims import Claim, Tables
from ..fits import rank_correlation
from ..verdicts import judged, judged_at, out_of_reach
from .fusion_claims import fusion_claims

Rows = Sequence[dict[str, Any]]
ROUNDING = 1e-6
LARGE = (1.0, 1.1, 1.25)
"""What "sufficiently large" may mean of σ₁σ₂."""


def claims_of(tables: Tables, quick: bool = False) -> tuple[Claim, ...]:
    """Every claim, in the order: the bound, the curves, the remedy."""
    by_state: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in tables["blocks"]:
        by_state[row["state"]].append(row)
    loaded = by_state["pretrained"]
    names = list(dict.fromkeys(row["model"] for row in loaded))
    of = {name: [row for row in loaded if row["model"] == name] for name in names}
    trained = "lab encoder (ReLU), trained"
    gained = "with the gains of the norms in v"
    return (
        _bound("lab encoder (ReLU) at its random start", by_state["random start"], "v"),
        _bound(trained, by_state["trained"], "v"),
        _bound(f"{trained}, {gained}", by_state["trained"], "gained"),
        _bound(f"{' and '.join(names)} (GELU: s² times 1.13)", loaded, "v"),
        _bound(f"{' and '.join(names)}, {gained}", loaded, "gained"),
        _says_something(loaded),
        *(_rises(name, _depths(rows)) for name, rows in of.items()),
        *_on_reviews(tables["on reviews"]),
        *(_maps(name, rows) for name, rows in of.items()),
        *(
            _sigma(name, rows)
            for name, rows in {
                **of,
                f"{names[0]} fine-tuned on reviews": by_state["fine-tuned"],
                trained: by_state["trained"],
            }.items()
        ),
        *fusion_claims(tables["fusion"]),
    )


def _bound(what: str, rows: Rows, key: str) -> Claim:
    shares = [row["ratio"] / row[key] for row in rows]
    beyond = sum(share > 1 + ROUNDING for share in shares)
    v, ratio = ([row[name] for row in rows] for name in (key, "ratio"))
    return judged(
        f"{what}: d_M(H_l+1) ≤ v d_M(H_l)",
        "theorem",
        max(shares),
        (min(shares), max(shares)),
        "reproduced if no d_M(H_l+1) / (v d_M(H_l)) exceeds 1",
        f"the largest d_M(H_l+1) / (v d_M(H_l)) of {len(rows)} blocks and inputs;"
        f" d_M(H_l+1) / d_M(H_l) is {min(ratio):.3g} to {max(ratio):.3g}, v {min(v):.3g} to"
        f" {max(v):.3g}; interval: least and largest",
        at_most=1 + ROUNDING,
        reason=f"the claim: {beyond} of {len(rows)} blocks and inputs are beyond v"
        + (", which leaves out the gains of the norms" if key == "v" else ""),
    )


def _says_something(rows: Rows) -> Claim:
    share, sharp = (float(np.mean([row[key] < 1 for row in rows])) for key in ("v", "sharp"))
    least, least_sharp = (min(row[key] for row in rows) for key in ("v", "sharp"))
    squares = [row["s"] ** 2 for row in rows]
    return judged(
        "v < 1: the bound forces tokens of pretrained encoders together",
        "condition of the theorem",
        share,
        None,
        "reproduced if v < 1 in at least one block and input",
        f"share of {len(rows)} blocks and inputs with v < 1, above which the bound says nothing;"
        f" the least v is {least:.3g}; of the sharper form share {sharp:.3g}, least"
        f" {least_sharp:.3g}",
        at_least=1 / (2 * len(rows)),
        reason=f"the claim: v contains s², which alone is {min(squares):.3g} to"
        f" {max(squares):.3g}, so its least value is {least:.3g}",
    )


def _depths(rows: Rows) -> np.ndarray:
    """Similarity of every input at every depth, (inputs, L + 1), from every block."""
    L = 1 + max(row["layer"] for row in rows)
    first = [row["similarity_in"] for row in rows if row["layer"] == 0]
    behind = [[row["similarity"] for row in rows if row["layer"] == i] for i in range(L)]
    return np.array([first, *behind]).T


def _on_reviews(rows: Rows) -> list[Claim]:
    """The same on the authors' kind of task, for the encoder that was fine-tuned on it."""
    made = []
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if (row["model"], row["state"]) == (name, "fine-tuned, reviews")]
        depths = 1 + max(row["depth"] for row in own)
        each = [[row["similarity"] for row in own if row["depth"] == i] for i in range(depths)]
        made.append(_rises(f"{name} fine-tuned on reviews", np.array(each).T))
    return made


def _rises(name: str, similarity: np.ndarray) -> Claim:
    mean, interval = _mean(similarity[:, -1] - similarity[:, 0])
    along = similarity.mean(0)  # (L + 1,)
    steps = np.diff(along)
    return judged_at(
        f"{name}: token similarity rises with depth",
        "rises",
        mean,
        {"the whole depth": interval[0] > 0, "every single block": bool((steps > 0).all())},
        interval,
        "holds over the whole depth where the interval is above 0, and over every block where its"
        " mean step is",
        f"mean cosine of two tokens {along[0]:.3f} before the first block, {along[-1]:.3f} behind"
        f" the last, least step {steps.min():.3g}; measured is the difference over the whole depth,"
        f" with the 95 % interval of the mean over {len(similarity)} inputs",
        reason=f"the claim: it goes from {along[0]:.3f} to {along[-1]:.3f}",
    )


def _maps(name: str, rows: Rows) -> Claim:
    L = 1 + max(row["layer"] for row in rows)
    each = [[row["maps"] for row in rows if row["layer"] == i] for i in range(1, L)]
    maps = np.array(each).T  # (inputs, L − 1)
    mean, interval = _mean(maps[:, -1] - maps[:, 0])
    along, half = maps.mean(0), maps.shape[1] // 2
    later = along[-half:].mean() - along[:half].mean() if half else np.nan
    return judged_at(
        f"{name}: attention maps of consecutive layers grow alike with depth",
        "grow alike",
        mean,
        {
            "the last pair beside the first": interval[0] > 0,
            "the second half of the pairs beside the first": bool(later > 0),
        },
        interval,
        "holds where the difference is above 0, of the pairs with its interval",
        f"cosine of the maps (mean over heads) of two consecutive blocks, pair by pair"
        f" {', '.join(f'{x:.3f}' for x in along)}; measured is the last less the first, with the"
        f" 95 % interval of the mean over {len(maps)} inputs; the halves differ by {later:.3f}",
        reason=f"the claim: it goes from {along[0]:.3f} to {along[-1]:.3f}",
    )


def _sigma(name: str, rows: Rows) -> Claim:
    """That large deviations at the norms make a block draw tokens together."""
    claim = f"{name}: where σ₁σ₂ is large, a block draws tokens together"
    published = "sufficiently large σ₁σ₂ of a fine-tuned BERT: tokens converge"
    correlation = _rank_correlations(rows)
    large = {bound: [row for row in rows if row["sigma"] > bound] for bound in LARGE}
    share = {bound: _together(some) for bound, some in large.items() if some}
    rest = [row for row in rows if row["sigma"] <= LARGE[0]]
    note = (
        f"share of blocks and inputs with d_M behind below d_M before; σ₁σ₂ is above {LARGE[0]:g}"
        f" in {len(large[LARGE[0]])} of {len(rows)}, and of the others"
        f" {_together(rest):.3g} do so too; the rank correlation of σ₁σ₂ and d_M behind over"
        f" before, over the blocks, is {correlation:.2f} in the mean of the inputs"
    )
    if not share:
        missing = f"an encoder with σ₁σ₂ above {LARGE[0]:g} in some block"
        return out_of_reach(claim, published, missing, note, measured=_together(rest))
    points = {
        f"σ₁σ₂ > {bound:g} ({value:.3g} of {len(large[bound])})": value >= 0.95
        for bound, value in share.items()
    }
    steady = f"the larger, the more (rank correlation {correlation:.2f})"
    return judged_at(
        claim,
        published,
        share[LARGE[0]],
        {**points, steady: correlation <= -0.5},
        None,
        "holds at a bound where 95 % of the blocks beyond it draw tokens together, and as a matter"
        " of degree where the rank correlation is at most −0.5; both figures are ours",
        note,
        reason=f"the claim: of the blocks with σ₁σ₂ above {LARGE[0]:g} a share of"
        f" {share[LARGE[0]]:.3g} draws tokens together",
    )


def _together(rows: Rows) -> float:
    return float(np.mean([row["ratio"] < 1 for row in rows])) if rows else 0.0


def _rank_correlations(rows: Rows) -> float:
    """Over the blocks of each input, and of each start of a trained model; the mean of all."""
    places = sorted({(row["seed"], row["input"]) for row in rows})
    each = []
    for place in places:
        some = [row for row in rows if (row["seed"], row["input"]) == place]
        each.append(rank_correlation([r["sigma"] for r in some], [r["ratio"] for r in some]))
    return float(np.mean(each))


def _mean(values: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Mean and its 95 % interval."""
    mean = float(values.mean())
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return mean, (mean - half, mean + half)
