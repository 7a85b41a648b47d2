"""Attention by plans beside torch's own, and other ways to choose keys: seconds against loss.

Each command is one measurement:

    python benchmarks/attention.py fit --max-length 4096
        the menu of every head from one calibration document, kept for plans of every loss
    python benchmarks/attention.py frontier --max-length 4096
        perplexity and seconds of plans and of other ways to choose keys, on held-out documents
    python benchmarks/attention.py roofline
        GFLOP/s of the kernels, and of a large product of matrices on this machine
    python benchmarks/attention.py vision --image-size 518
        the plan within 1 % of a vision model, which attends both ways
    python benchmarks/attention.py vision-frontier --image-size 1036
        plans of that model from exact to fast: cosine against seconds
    python benchmarks/attention.py picture
        what `frontier` measured, as one picture

SmolLM2-135M (`--model`) on single Wikipedia articles, cut to the length; the articles of at least
8,193 tokens are numbered. Results are kept in one folder (`--results`), one for each model:
`frontier` skips what is there.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import altair as alt
import torch
import typer
from torch import Tensor

import eigenlens as el
from documents import documents, numbers_of
from eigenlens.attention.attend_by_forms import full_attention
from eigenlens.attention.head_forms import HeadForm, LayerForms
from eigenlens.attention.head_keys import keep_keys
from eigenlens.attention.kept_attention import attend_kept
from eigenlens.captures import AttentionCall, Site, replace_attention
from eigenlens.kernels import native
from eigenlens.kernels.kept_keys import KeptKeys
from eigenlens.models.forward import prefill_of
from eigenlens.models.load import Model
from eigenlens.plans.allocation import Allocation, Candidate
from eigenlens.plans.calibration import Calibration, calibrate
from eigenlens.plans.evaluation import ATTENTION, SECONDS, SPARSE_MEASURES
from eigenlens.plans.make_sparse_plan import try_forms
from eigenlens.plans.menu import Tried
from eigenlens.plans.plan_inputs import prepare_plan_inputs
from eigenlens.plans.sparse_plan import SparsePlan
from eigenlens.plans.tasks import Perplexity, task_of
from eigenlens.stats.intervals import t_interval
from selections import PEERS, scale_of, with_exact
from tables import table

RESULTS = Path(tempfile.gettempdir()) / "eigenlens-attention"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "attention_frontier.png"
PLAN, LAST = "plan", LayerForms.last
LOSSES = "0.001,0.002,0.004,0.006"
"""Losses that theory expects; those that are measured are higher."""
app = typer.Typer(add_completion=False)
Length = Annotated[int, typer.Option("--max-length", help="tokens of a document")]
Name = Annotated[str, typer.Option("--model", help="a causal language model")]
Results = Annotated[Path, typer.Option(help="the folder of results")]
Data = Annotated[str, typer.Option(help="pictures: a data set or a folder")]


@dataclass
class Seconds:
    """Where a pass spends its time: torch's attention, choosing keys, attending to them."""

    torch: float = 0.0
    choosing: float = 0.0
    attending: float = 0.0
    total: float = 0.0
    pairs: float = 0.0
    """Pairs that were attended, as a share of full attention's, summed over layers."""
    layers: int = 0


@dataclass(frozen=True)
class Way:
    """A way to attend: `choose(call)` keeps keys, `correct(q, k, v, out)` mends the output."""

    choose: Callable[[AttentionCall], KeptKeys]
    correct: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None


def by_plan(plan: SparsePlan) -> Way:
    return Way(lambda c: keep_keys(c.q, c.k, c.v, plan.forms(c), scale=c.scale))


def by_peer(name: str, value: float) -> Way:
    peer = PEERS[name]
    return Way(lambda c: peer.choose(c.q, c.k, c.v, value), peer.correct)


def timed_pass(model: Model, batch: dict[str, Tensor], way: Way | None) -> tuple[Any, Seconds]:
    """A pass up to the first token; each layer by torch first and then by the way, whose output
    goes on. Without a way, only by torch.
    """
    spent = Seconds()

    def attend(call: AttentionCall) -> Tensor:
        q, k, v, T = call.q, call.k, call.v, call.q.shape[2]
        begin = time.perf_counter()
        out = full_attention(q, k, v, True, call.scale, None)
        spent.torch += time.perf_counter() - begin
        spent.layers += 1
        if way is None:
            return out
        begin = time.perf_counter()
        kept = way.choose(call)
        chosen = time.perf_counter()
        out = attend_kept(q, k, v, kept, call.scale)
        if way.correct is not None:
            out = way.correct(q, k, v, out)
        spent.attending += time.perf_counter() - chosen
        spent.choosing += chosen - begin
        spent.pairs += float(kept.pairs(T).mean()) / (T * T / 2)
        return out

    with torch.no_grad(), replace_attention(model.backbone, attend):
        begin = time.perf_counter()
        output = prefill_of(model)(batch)
        spent.total = time.perf_counter() - begin
    return output, spent


def loss_of(batch: dict[str, Tensor], output: Any) -> float:
    """The mean loss of the next token."""
    with torch.no_grad():
        losses, _, seen = Perplexity().observe(batch, output)
    return float(losses.sum() / seen.sum())


def keep_fit(
    path: Path, tried: dict[Site, Tried], known: dict[int, Calibration], about: dict[str, Any]
) -> None:
    """Write the menus of all heads, with the seconds they were costed by."""
    menus = {
        str(site): {**vars(t), "options": [asdict(option) for option in t.options]}
        for site, t in tried.items()
    }
    seconds = {width: json.dumps(c.record()) for width, c in known.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"tried": menus, "calibrations": seconds, **about}, path)


def read_fit(path: Path) -> tuple[Allocation, dict[str, Any]]:
    """The menus of all heads, and what they were fitted on."""
    if not path.exists():
        raise typer.BadParameter(f"there is no fit for this length; run `fit` first ({path.name})")
    found = torch.load(path, weights_only=True)
    tried = {
        Site.parse(key): Tried(**{**menu, "options": [HeadForm(**o) for o in menu["options"]]})
        for key, menu in found.pop("tried").items()
    }
    known = {
        width: Calibration.from_record(json.loads(record))
        for width, record in found.pop("calibrations").items()
    }
    return Allocation(tried, known), found


def within(allocation: Allocation, loss: float, tokens: int) -> Candidate:
    """The fastest plan that theory says to stay within a loss: half its error per token."""
    return next(c for c in allocation.family(60) if c.error <= 2 * tokens * loss)


@app.command()
def fit(
    length: Length = 4096,
    fitted: Annotated[str, typer.Option("--documents", help="numbers of articles")] = "0",
    name: Name = "smollm2",
    results: Results = RESULTS,
) -> None:
    """Try every form at every head: one pass forward and back per document, and one in which forms
    are tried.
    """
    model, begin = el.load(name), time.perf_counter()
    texts = documents(model.tokenizer, numbers_of(fitted))
    batches = [{"input_ids": ids[None, :length]} for ids in texts.values()]
    tried = try_forms(model, batches, lambda *_: None)
    widths = {t.shape[0] for t in tried.values()}
    known = {width: calibrate(width) for width in widths}
    about = {"length": length, "documents": list(texts), "tokens": length * len(texts)}
    keep_fit(results / f"fit-{length}.pt", tried, known, about)
    allocation = Allocation(tried, known)
    print(f"{time.perf_counter() - begin:.0f} s")
    table(
        [
            {
                "expected rise, %": 100 * c.error / (2 * about["tokens"]),
                "share of the pairs": c.share,
                "seconds of attention": c.seconds,
                "times faster": allocation.plain_seconds / c.seconds,
                "dense heads": int((c.chosen == 0).sum()),
            }
            for c in allocation.family()
        ]
    )


def read_points(results: Path) -> dict[str, Any]:
    path = results / "frontier.json"
    return json.loads(path.read_text()) if path.exists() else {"plain": {}, "points": []}


@app.command()
def frontier(
    length: Length = 4096,
    held_out: str = "1-8",
    losses: Annotated[str, typer.Option(help="losses that plans are expected to have")] = LOSSES,
    others: Annotated[str, typer.Option(help="other ways: names, or all")] = "all",
    values: Annotated[str, typer.Option(help="values of the others' knob; default: theirs")] = "",
    model_name: Name = "smollm2",
    last: Annotated[
        int, typer.Option(help="last queries of a plan that attend to every key")
    ] = LAST,
    results: Results = RESULTS,
) -> None:
    """Perplexity and seconds of plans and of other ways to choose keys, on held-out documents.

    In each pass every layer attends by torch and then by the way, so both meet the same noise of
    the machine. The pass end to end is what is left without the seconds of the other.
    """
    model, found = el.load(model_name), read_points(results)
    points: dict[tuple[str, float], Callable[[], Way]] = {}
    if wanted := [float(x) for x in filter(None, losses.split(","))]:
        allocation, about = read_fit(results / f"fit-{length}.pt")
        for loss in wanted:
            plan = allocation.plan(within(allocation, loss, about["tokens"]), length)
            name = PLAN if last == LAST else f"{PLAN}, {last} exact queries"
            points[name, loss] = partial(by_plan, with_exact(plan, last))
    for name in PEERS if others == "all" else filter(None, others.split(",")):
        for value in [float(x) for x in filter(None, values.split(","))] or PEERS[name].values:
            points[name, value] = lambda name=name, value=value: by_peer(name, value)  # type: ignore[misc]
    done = {(p["length"], p["document"], p["selection"], p["knob"]) for p in found["points"]}
    results.mkdir(parents=True, exist_ok=True)
    for document, ids in documents(model.tokenizer, numbers_of(held_out)).items():
        batch, key = {"input_ids": ids[None, :length]}, f"{length}/{document}"
        if key not in found["plain"]:
            found["plain"][key] = loss_of(batch, timed_pass(model, batch, None)[0])
        for (name, knob), way in points.items():
            if (length, document, name, knob) in done:
                continue
            output, spent = timed_pass(model, batch, way())
            point = {
                "length": length,
                "document": document,
                "selection": name,
                "knob": knob,
                "rise": math.expm1(loss_of(batch, output) - found["plain"][key]),
                "share": spent.pairs / spent.layers,
                **{part: getattr(spent, part) for part in ("torch", "choosing", "attending")},
                "total": spent.total,
            }
            print(json.dumps(point), flush=True)
            found["points"].append(point)
            (results / "frontier.json").write_text(json.dumps(found, indent=1))
    table(summary(found, length))


def summary(found: dict[str, Any], length: int) -> list[dict[str, Any]]:
    """Means over documents; the seconds of each way beside torch's in the same passes."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for p in found["points"]:
        if p["length"] == length:
            groups.setdefault((p["selection"], p["knob"]), []).append(p)
    rows = []
    for (name, knob), some in sorted(groups.items(), key=lambda item: item[0]):
        sums = {k: sum(p[k] for p in some) for k in ("torch", "choosing", "attending", "total")}
        counted = name not in PEERS or PEERS[name].counts_choice
        ours = sums["attending"] + counted * sums["choosing"]
        rest = sums["total"] - sums["torch"] - sums["attending"] - sums["choosing"]
        mean, low, high = t_interval([p["rise"] for p in some])
        rows.append(
            {
                "selection": name if counted else f"{name} (choice not counted)",
                "knob": f"{knob:g}",
                "documents": len(some),
                "share of the pairs": sum(p["share"] for p in some) / len(some),
                "perplexity, %": 100 * mean,
                "95 %": ""
                if low is None or high is None
                else f"{100 * low:.2f} … {100 * high:.2f}",
                "most, %": 100 * max(p["rise"] for p in some),
                "choosing, % of the time": 100 * sums["choosing"] / ours if counted else 0.0,
                "times faster": sums["torch"] / ours,
                "end to end": (rest + sums["torch"]) / (rest + ours),
            }
        )
    return rows


def seconds_of(work: Callable[[], Any], repeats: int) -> float:
    """The median of a few runs, after one to warm up."""
    found = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return median(found[1:])


@app.command()
def roofline(lengths: str = "1024,2048,4096,8192", repeats: int = 3, size: int = 4096) -> None:
    """GFLOP/s of attention, at four operations per pair and coordinate, beside those of a large
    product of matrices in float32. Heads as in SmolLM2: nine for queries, three for keys, width 64.
    """
    draw = torch.Generator().manual_seed(0)
    H, G, D = 9, 3, 64
    x = torch.randn(size, size, generator=draw)
    rows: list[tuple[str, int, float, float]] = []

    def measure(name: str, tokens: int, operations: float, work: Callable[[], Tensor]) -> None:
        rows.append((name, tokens, seconds_of(work, repeats), operations))

    measure("product of matrices", size, 2.0 * size**3, lambda: x @ x)
    for T in (int(n) for n in lengths.split(",")):
        q, k, v = (torch.randn(1, n, T, D, generator=draw) for n in (H, G, G))
        scale, all_keys = scale_of(q), k.repeat_interleave(H // G, 1).transpose(2, 3)
        few = q[:, :, : min(512, T)]
        pairs = {"full": T * T, "causal": T * (T + 1) / 2}
        measure(
            f"product of {few.shape[2]} queries and all keys",
            T,
            2.0 * H * D * few.shape[2] * T,
            partial(torch.matmul, few, all_keys),
        )
        for name, number in pairs.items():
            work = partial(full_attention, q, k, v, name == "causal", scale, None)
            measure(f"torch, {name}", T, 4.0 * H * D * number, work)
        if not native.serves(q, k, v):
            continue
        for name, kept in native_forms(q, k, v, draw).items():
            work = partial(attend_kept, q, k, v, kept, scale, None, "native")
            measure(f"native, {name}", T, 4.0 * D * float(kept.pairs(T).sum()), work)
    best = max(work / took for _, _, took, work in rows)
    table(
        [
            {
                "kernel": name,
                "tokens": T,
                "ms": 1e3 * took,
                "GFLOP/s": work / took / 1e9,
                "of the best, %": 100 * work / took / best,
            }
            for name, T, took, work in rows
        ]
    )


def native_forms(q: Tensor, k: Tensor, v: Tensor, draw: torch.Generator) -> dict[str, KeptKeys]:
    """What the native kernel is measured on: all keys, a random quarter, a window."""
    H, T, scale = q.shape[1], q.shape[2], scale_of(q)
    found = {}
    for name, causal in (("causal, dense", True), ("full, dense", False)):
        found[name] = keep_keys(q, k, v, LayerForms((HeadForm(),) * H, causal), scale=scale)
    for near, name in ((256, "causal, window of 256"), (64, "causal, a quarter gathered")):
        forms = LayerForms((HeadForm("window", window=near),) * H, last=0)
        found[name] = keep_keys(q, k, v, forms, scale=scale)
    kept = found["causal, a quarter gathered"]
    mask = torch.rand(*kept.counts.shape, T, generator=draw) < 0.25
    mask &= torch.arange(T) < kept.ranges[..., :1]
    kept.counts = mask.sum(3).to(torch.int32)
    order = mask.to(torch.uint8).argsort(dim=3, descending=True, stable=True)
    kept.keys = order.to(torch.int32).contiguous()
    return found


@app.command()
def vision(
    size: Annotated[int, typer.Option("--image-size", help="pixels of a side")] = 518,
    loss: float = 0.01,
    pictures: Annotated[int, typer.Option(help="pictures to choose on, and to check on")] = 8,
    name: Annotated[str, typer.Option("--model")] = "dinov2-small",
    data: Data = "skimage",
    results: Results = RESULTS,
) -> None:
    """The plan of a vision model within a loss of `1 − cosine` of its embedding (the first token).

    Chosen, checked and evaluated on different photographs.
    """
    tokens = (size // 14) ** 2 + 1
    with tempfile.TemporaryDirectory() as place:
        studied = el.study(name, data, place, max_inputs=6, only="moments")
        made = el.plan(studied, loss=loss, max_length=tokens, max_inputs=pictures)
        print(made.sentence)
        evaluated = el.evaluate(name, plan=made, max_inputs=pictures)
    print(evaluated.sentence)
    rows = {row["measure"]: row for row in evaluated.rows()}
    attention, seconds = rows[ATTENTION], rows[SECONDS]
    row = {
        "model": name,
        "pixels": size,
        "tokens": tokens,
        "loss": loss,
        "cosine": rows["cosine of the embeddings"]["planned"],
        "least cosine": rows["least cosine"]["planned"],
        "share": rows[SPARSE_MEASURES["work"]]["planned"],
        "torch's attention, s": attention["plain"],
        "times faster": attention["plain"] / attention["planned"],
        "end to end": seconds["plain"] / seconds["planned"],
        "checked": made.stored["search"].get("checked"),
    }
    path = results / f"vision-{Path(data).name}-{size}-{loss}.json"
    results.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, indent=1))
    table([{key: value for key, value in row.items() if key != "checked"}])


@app.command()
def vision_frontier(
    size: Annotated[int, typer.Option("--image-size", help="pixels of a side")] = 1036,
    number: Annotated[int, typer.Option("--pictures", help="as for `vision`")] = 8,
    plans: Annotated[int, typer.Option(help="how many, from exact to fast, at most")] = 10,
    name: Annotated[str, typer.Option("--model")] = "dinov2-small",
    data: Data = "skimage",
    results: Results = RESULTS,
) -> None:
    """Plans of a vision model from exact to fast, on the pictures that `vision` chooses and checks
    on; none of them was fitted on. The fit is kept for the next time.

    Here nobody chooses: the plans are those that theory holds for the best of their seconds. In
    each pass every layer attends by torch first and then by the plan.
    """
    model = el.load(name)
    with tempfile.TemporaryDirectory() as place:
        found = prepare_plan_inputs(
            model, (data,), (size // 14) ** 2 + 1, number, 0, True, Path(place)
        )
        batches = {
            part: [found.inputs.make(rows[i : i + 1]) for i in range(len(rows))]
            for part, rows in found.rows.items()
        }
    path = results / f"vision-fit-{name}-{Path(data).name}-{size}-{number}.pt"
    if not path.exists():
        tried = try_forms(model, batches["fit"], lambda *_: None)
        known = {t.shape[0]: calibrate(t.shape[0]) for t in tried.values()}
        keep_fit(path, tried, known, {"pictures": len(batches["fit"])})
    allocation, _ = read_fit(path)
    others = [*batches["choose"], *batches["check"]]
    with torch.no_grad():
        plain = [prefill_of(model)(batch) for batch in others]
    task = task_of(model, plain[0])
    rows = []
    for candidate in reversed(allocation.family(plans)):
        plan, spent, measured = allocation.plan(candidate, found.inputs.length), Seconds(), None
        for batch, before in zip(others, plain, strict=True):
            after = both_ways_pass(model, batch, plan, spent)
            measured = measured or task.fresh()
            measured.add(task.observe(batch, before), task.observe(batch, after))
        assert measured is not None
        mean, low, high = t_interval(measured.rises)
        rest = spent.total - spent.torch - spent.attending
        rows.append(
            {
                "pictures": len(others),
                "share": candidate.share,
                "cosine": 1 - mean,
                "95 %": "" if low is None or high is None else f"{1 - high:.4f} … {1 - low:.4f}",
                "least cosine": 1 - max(measured.rises),
                "times faster": spent.torch / spent.attending,
                "end to end": (rest + spent.torch) / (rest + spent.attending),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    table(rows)


def both_ways_pass(model: Model, batch: dict[str, Tensor], plan: SparsePlan, spent: Seconds) -> Any:
    """A pass in which each layer attends by torch and then by a plan, whose output goes on."""

    def attend(call: AttentionCall) -> Tensor | None:
        begin = time.perf_counter()
        full_attention(call.q, call.k, call.v, False, call.scale, None)
        middle = time.perf_counter()
        out = plan.attend(call)
        spent.torch += middle - begin
        spent.attending += time.perf_counter() - middle
        return out

    with torch.no_grad(), replace_attention(model.backbone, attend):
        begin = time.perf_counter()
        output = prefill_of(model)(batch)
        spent.total += time.perf_counter() - begin
    return output


@app.command()
def picture(results: Results = RESULTS, output: Path = PICTURE) -> None:
    """How many times faster than torch's attention against the perplexity, one line for each
    selection, one panel for each length with other ways.
    """
    found = read_points(results)
    lengths = sorted({p["length"] for p in found["points"] if p["selection"] != PLAN})
    if not lengths:
        raise SystemExit(
            "no other ways were measured: leave `--others` of `frontier` at its default"
        )
    panels = alt.hconcat(*(panel(summary(found, n), n) for n in lengths))
    output.parent.mkdir(parents=True, exist_ok=True)
    panels.save(output, scale_factor=2)
    print(output.name)
    for n in lengths:
        table(summary(found, n))


def panel(rows: list[dict[str, Any]], tokens: int) -> alt.Chart:
    """The selections of one length that were measured on every document and lose something: the
    axis is logarithmic.
    """
    documents = max(row["documents"] for row in rows)
    points = [
        {
            "selection": row["selection"],
            "knob": float(row["knob"]),
            "faster": row["times faster"],
            "rise": row["perplexity, %"],
        }
        for row in rows
        if row["documents"] == documents and row["perplexity, %"] > 0
    ]
    return (
        alt.Chart(alt.Data(values=points))
        .mark_line(point=alt.OverlayMarkDef(size=60))
        .encode(
            x=alt.X(
                "faster:Q",
                title="times faster than torch's causal attention, choice included",
                scale=alt.Scale(zero=False),
            ),
            y=alt.Y(
                "rise:Q",
                title="perplexity above full attention, % (logarithmic)",
                scale=alt.Scale(type="log", nice=False),
            ),
            order="knob:Q",
            color=alt.Color("selection:N", title=None),
            strokeWidth=alt.condition(
                f"indexof(datum.selection, '{PLAN}') == 0", alt.value(4), alt.value(2)
            ),
        )
        .properties(
            width=480, height=340, title=f"{tokens:,} tokens, mean of {documents} held-out articles"
        )
    )


if __name__ == "__main__":
    app()
