"""What was measured of the training and of heads, beside what is published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...diagnostics.induction import InductionSettings
from ...display import numbered
from ..claims import Claim, Tables, Verdict
from ..verdicts import judged

P_OFF, A_OFF, A_100 = 0.1, 0.12, (3.8, 4.8)
"""How far p and a may be from what is published.

p by 0.1, and a by the relative width of the range that is given at epoch 100.
"""


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    return (*_curve(tables), *_stages(tables), *_detector(tables), *_models(tables))


def _verdict(holds: bool) -> Verdict:
    return "reproduced" if holds else "not reproduced"


def _curve(tables: Tables) -> list[Claim]:
    made = []
    for row in tables["curve"]:
        epoch, p, a = row["epoch"], row["published p"], row["published a"]
        low, high = A_100 if epoch == 100 else (a * (1 - A_OFF), a * (1 + A_OFF))
        seeds = f"interval: least and largest of {numbered(row['seeds'], 'seed')}"
        made.append(
            Claim(
                f"the share of the true parents at epoch {epoch}",
                f"{p:.3f}",
                row["p"],
                (row["p low"], row["p high"]),
                _verdict(p - P_OFF <= row["p low"] and row["p high"] <= p + P_OFF),
                f"{seeds}; reproduced if all are within {P_OFF:g}",
            )
        )
        made.append(
            Claim(
                f"a at epoch {epoch}",
                f"{a:g}",
                row["a"],
                (row["a low"], row["a high"]),
                _verdict(low <= row["a low"] and row["a high"] <= high),
                f"{seeds}; reproduced if all are in [{low:.3g}, {high:.3g}]",
            )
        )
    runs = tables["runs"]
    latest, dip = (
        max(row["p > .99"] for row in runs),
        min(row["least p after epoch 10"] for row in runs),
    )
    seconds = [row["seconds"] for row in runs]
    other = [row for row in tables["readings"] if row["reading"].startswith("−log")]
    far = max(abs(row["a"] / row["published a"] - 1) for row in other)
    at_3 = next(row for row in other if row["epoch"] == 3)
    return [
        *made,
        judged(
            "the true parents are selected early",
            "p > .99 by epoch 20",
            latest,
            None,
            "the epoch from which on p stays above .99, the latest of all seeds; between epoch 10"
            f" and there p falls to {dip:.3f} once more; reproduced if at most 20",
            at_most=20,
        ),
        judged(
            "a training takes seconds on a CPU",
            "seconds",
            sum(seconds) / len(seconds),
            (min(seconds), max(seconds)),
            f"seconds of one core, {runs[0]['sequences']:,} sequences, interval: least and largest"
            " seed; reproduced if at most 60",
            at_most=60,
        ),
        Claim(
            "the same curve with the loss −log(o + ε), as cross-entropy of an output that sums"
            " to 1",
            "the same figures",
            far,
            None,
            _verdict(far <= A_OFF),
            "largest relative difference of a from the published curve, ε = 1e-6; at epoch 3 a is"
            f" {at_3['a']:.3f} and p {at_3['p']:.3f}; reproduced if at most {A_OFF:g}; the figures"
            " above treat the output as logits",
        ),
    ]


def _stages(tables: Tables) -> list[Claim]:
    runs = tables["runs"]
    first = min(min(row["copies"], row["a"]) - row["p"] for row in runs)
    later = [row["a"] - row["copies"] for row in runs]
    mean = {name: sum(row[name] for row in runs) / len(runs) for name in ("p", "copies", "a")}
    message = (
        f"p {mean['p']:.0f}, copying {mean['copies']:.0f}, a {mean['a']:.0f}, in the mean of"
        f" {numbered(len(runs), 'seed')}"
    )
    apart = tables["stages"]
    c, W, a = (
        min(row[key] for row in apart if row["learns"] == what)
        for what, key in (("c", "p"), ("W", "copies"), ("a", "a"))
    )
    ends = [row for row in apart if row["learns"] == "a"]
    off = max(row["off"] for row in ends)
    others = [row for row in tables["others"] if row["true parents"] != "none"]
    control = next(row for row in tables["others"] if row["true parents"] == "none")
    half = "half way is the first epoch at which a number has made half of its change"
    return [
        judged(
            "all at once: the set of parents is selected first",
            "first of three stages",
            first,
            None,
            "epochs from p half way to the next of copying and a half way, the least of all seeds;"
            f" {message}; {half}; reproduced if above 0",
            at_least=1,
        ),
        judged(
            "all at once: layer 1 becomes a copier before a grows",
            "second and third stage",
            min(later),
            None,
            f"epochs from copying half way to a half way, the least of all seeds; {message};"
            f" {half}; reproduced if above 0",
            at_least=1,
        ),
        Claim(
            "one after the other: c selects the parents, W then copies, a then grows",
            "three stages",
            W,
            None,
            _verdict(c > 0.99 and W > 0.95 and a > 3.8),
            f"the copying weight after its stage, from .901 before; p {c:.4f} after the first, a"
            f" {a:.2f} after the third, the output then {off:.3f} from the true kernel; reproduced"
            " if p > .99, copying > .95, a > 3.8; W at rate"
            f" {next(row['rate'] for row in apart if row['learns'] == 'W'):g}, since its gradient"
            " is proportional to a = .01",
        ),
        judged(
            "the true parents win, whichever they are",
            "p of the true set goes to 1",
            min(row["p of the true"] for row in others),
            None,
            f"least p after the last epoch of {len(others)} sets:"
            f" {'; '.join(row['true parents'] for row in others)}; reproduced if above .99",
            at_least=0.99,
        ),
        judged(
            "control: tokens that do not depend on the past teach nothing",
            "not in the paper",
            abs(control["a"]),
            None,
            "|a| after the last epoch; reproduced if at most .1",
            at_most=0.1,
        ),
    ]


def _detector(tables: Tables) -> list[Claim]:
    rows = {row["head"]: row for row in tables["exact"]}
    perfect, uniform = rows["perfect induction"], rows["uniform, causal"]
    apart = max(
        abs(uniform[name] - value)
        for name, value in rows["uniform, causal, by formula"].items()
        if name != "head"
    )
    return [
        judged(
            "detector: a perfect head",
            "stripe 1.000, prefix 1.000",
            min(perfect["stripe"], perfect["prefix"]),
            None,
            "the smaller of stripe and prefix, block 50 twice; reproduced if at least 1 − 1e-9",
            at_least=1 - 1e-9,
        ),
        Claim(
            "detector: uniform attention",
            "≈ .014",
            uniform["stripe"],
            None,
            _verdict(round(uniform["stripe"], 3) == 0.014 and apart < 1e-9),
            f"stripe, block 50 twice; exactly Σ 1/(t+1) / 51 within {apart:.0e}; reproduced if it"
            " rounds to .014",
        ),
    ]


def _models(tables: Tables) -> list[Claim]:
    least, models = InductionSettings().prefix, {row["model"]: row for row in tables["models"]}
    made = []
    if "smollm2" in models:
        row = models["smollm2"]
        made.append(
            judged(
                "smollm2 has induction heads",
                "clear induction",
                row["induction heads"],
                None,
                f"heads with a prefix score of at least {least:g}, ten times uniform attention; the"
                f" best {row['best']} with {row['largest prefix']:.3f}; reproduced if there is one",
                at_least=1,
            )
        )
    if "minilm" in models:
        row = models["minilm"]
        made.append(
            judged(
                "minilm, an encoder of sentences, has none",
                "not in the paper",
                row["induction heads"],
                None,
                f"heads with a prefix score of at least {least:g}; the largest is"
                f" {row['largest prefix']:.3f}; reproduced if there is none",
                at_most=0,
            )
        )
    once = max(row["largest prefix, once"] for row in models.values())
    message = ", ".join(f"{name} {row['largest prefix, once']:.3f}" for name, row in models.items())
    made.append(
        judged(
            "control: where tokens come only once no head has the stripe",
            "uniform ≈ .014",
            once,
            None,
            f"largest prefix score over the same places of all heads of all models: {message};"
            f" reproduced if at most half of {least:g}",
            at_most=least / 2,
        )
    )
    return [*made, *_composition(tables)]


def _composition(tables: Tables) -> list[Claim]:
    """The claims that induction is made of two heads.

    One tells a token what came before it, the other finds the token by that.
    """
    rows = [row for row in tables["order"] if row["first previous-token layer"] is not None]
    lone = [row for row in tables["order"] if row["first previous-token layer"] is None]
    made = []
    if rows or lone:
        ahead = [row["first induction layer"] - row["first previous-token layer"] for row in rows]
        message = "; ".join(f"{row['model']} {row['stack']} {_layers(row)}" for row in rows)
        made.append(
            Claim(
                "previous-token heads come in layers before induction heads",
                "layer 1 copies, layer 2 compares",
                min(ahead, default=None),
                None,
                _verdict(bool(ahead) and min(ahead) > 0 and not lone),
                "layers from the first previous-token head to the first induction head, the least"
                f" of all stacks with induction; first layers: {message}; reproduced if above 0 in"
                " every one",
            )
        )
    for model in dict.fromkeys(row["model"] for row in tables["ablation"]):
        kept = [row for row in tables["ablation"] if row["model"] == model]
        whole = _prefix(kept, "all heads")[0]
        without, others = (
            _prefix(kept, "without previous-token heads")[0],
            _prefix(kept, "without as many others"),
        )
        gone = next(
            row["ablated"] for row in kept if row["heads"] == "without previous-token heads"
        )
        shares = [value / whole for value in others]
        made.append(
            Claim(
                f"{model}: induction needs the previous-token heads before it",
                "layer 2 reads what layer 1 copied",
                without / whole,
                None,
                _verdict(bool(shares) and without / whole < min(shares)),
                f"share of the induction heads' mean prefix score ({whole:.3f}) that is left"
                f" without the outputs of {gone}; control: without as many other heads of the same"
                f" layers {', '.join(f'{x:.3f}' for x in shares)}; reproduced if less is left than"
                " in every control",
            )
        )
    return made


def _layers(row: dict[str, Any]) -> str:
    return f"L{row['first previous-token layer']} and L{row['first induction layer']}"


def _prefix(rows: Sequence[dict[str, Any]], what: str) -> list[float]:
    return [row["prefix of induction heads"] for row in rows if row["heads"] == what]
