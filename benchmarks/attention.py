"""Block-adaptive attention against torch's causal attention: seconds and perplexity.

Beside it stand other ways to choose pairs. Each command is one measurement:

    python benchmarks/attention.py fit
        plans for several budgets, from one calibration document
    python benchmarks/attention.py speed --max-length 8192
        attention of all layers, ours beside torch's, in one run
    python benchmarks/attention.py frontier --max-length 4096
        perplexity of plans and of other selections, on held-out documents
    python benchmarks/attention.py far
        dropped keys estimated by their moments instead of left out
    python benchmarks/attention.py picture
        what `speed` and `frontier` measured, as one picture

SmolLM2-135M on single Wikipedia articles, cut to the length. Results are added to one JSON file
(`--results`).
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import altair as alt
import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import eigenlens as el
from eigenlens.attention import register
from eigenlens.attention.block_selection import dense_mask
from eigenlens.attention.blocks import block_attention, choose_blocks, dense_attention
from eigenlens.captures import AttentionCall, Site
from eigenlens.data.datasets import text
from eigenlens.plans.blocks import (
    BlockPlan,
    BlockSettings,
    Curves,
    allocate,
    loss_gradients,
    measure,
)
from selections import block_means, by_pattern, loki, scale_of, window
from tables import table

RESULTS = Path(tempfile.gettempdir()) / "eigenlens-attention.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "attention_frontier.png"
BUDGETS = (0.15, 0.2, 0.25, 0.28, 0.3, 0.33, 0.35, 0.4, 0.45)
NAME = "benchmark-attention"
app = typer.Typer(add_completion=False)
Length = Annotated[int, typer.Option("--max-length", help="tokens of a document")]


def documents(tokenizer: Any, length: int = 8193) -> Iterator[Tensor]:
    """Wikipedia articles of at least `length` tokens, cut to it, in the order of the data set."""
    for article in text("wikipedia"):
        if len(article) > 4 * length:
            ids = tokenizer(article, return_tensors="pt", verbose=False).input_ids[0]
            if len(ids) >= length:
                yield ids[:length]


def nth(tokenizer: Any, numbers: list[int]) -> dict[int, Tensor]:
    found = {}
    for number, ids in enumerate(documents(tokenizer)):
        if number in numbers:
            found[number] = ids
        if len(found) == len(numbers):
            break
    return found


def use_attention(model: Any, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]) -> None:
    """Let the model attend by `attend(layer, q, k, v) → (B, H, T, E)`."""

    def mechanism(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        assert mask is None, "a plain causal batch comes without a mask"
        return attend(module.layer_idx, q, k, v).transpose(1, 2).contiguous(), None

    register(NAME, mechanism)
    model.set_attn_implementation("sdpa")
    model.set_attn_implementation(NAME)


def loss(model: Any, ids: Tensor, length: int) -> float:
    """Mean negative log-likelihood of a document's first `length + 1` tokens."""
    with torch.no_grad():
        hidden = model.model(ids[None, :length]).last_hidden_state[0]
        parts = zip(hidden.split(1024), ids[1 : length + 1].split(1024))
        return (
            sum(cross_entropy(model.lm_head(h), y, reduction="sum").item() for h, y in parts)
            / length
        )


def by_plan(plan: BlockPlan) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    return lambda layer, q, k, v: block_attention(
        q, k, v, plan.sites[Site("self", layer)], scale_of(q)
    )


def load_results(path: Path) -> dict[str, Any]:
    return (
        json.loads(path.read_text()) if path.exists() else {"plans": {}, "speed": [], "quality": []}
    )


@app.command()
def fit(length: Length = 4096, document: int = 0, results: Path = RESULTS) -> None:
    """One backward pass for the loss's gradients, one forward pass for the curves, one plan for
    each budget.
    """
    loaded = el.load("smollm2")
    model, found = loaded.module.eval(), load_results(results)
    ids = nth(loaded.tokenizer, [document])[document][None, :length]
    begin = time.perf_counter()
    gradients = loss_gradients(model, ids)
    curves: dict[Site, Curves] = {}

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        call = AttentionCall(Site("self", layer), "self", "", q, k, v, scale_of(q), causal=True)
        curves[call.site] = measure(call, BlockSettings(()), gradient=gradients[call.site])
        return dense_attention(q, k, v, scale_of(q))

    use_attention(model, attend)
    with torch.no_grad():
        model.model(ids)
    for budget in BUDGETS:
        found["plans"][str(budget)] = allocate(curves, budget).record()
    results.write_text(json.dumps(found))
    print(f"{time.perf_counter() - begin:.0f} s")
    table([{"budget": b, **record["expected"]} for b, record in found["plans"].items()])


@app.command()
def speed(
    length: Length = 4096,
    document: int = 2,
    budgets: str = "0.25,0.3,0.4",
    repeats: int = 3,
    threads: int = 2,
    cpu_clock: bool = False,
    results: Path = RESULTS,
) -> None:
    """Every layer's attention by torch and by each plan in turn, on the model's own queries and
    keys; medians, summed.

    `--cpu-clock` counts the thread's own time instead of the wall's (with `--threads 1`), for a
    machine that is not idle.
    """
    torch.set_num_threads(threads)
    clock = time.thread_time if cpu_clock else time.perf_counter
    loaded, found = el.load("smollm2"), load_results(results)
    plans = {b: BlockPlan.from_record(found["plans"][b]) for b in budgets.split(",")}
    total = dict.fromkeys(["torch", *plans], 0.0)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        forms: dict[str, Callable[[], Tensor]] = {
            "torch": lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        }
        forms |= {b: lambda plan=plan: by_plan(plan)(layer, q, k, v) for b, plan in plans.items()}  # type: ignore[misc]
        seconds: dict[str, list[float]] = {name: [] for name in forms}
        for _ in range(repeats):
            for name, form in forms.items():
                begin = clock()
                out = form()
                seconds[name].append(clock() - begin)
                if name == "torch":
                    true = out
        for name, measured in seconds.items():
            total[name] += median(measured)
        return true

    use_attention(loaded.module.eval(), attend)
    with torch.no_grad():
        loaded.module.model(nth(loaded.tokenizer, [document])[document][None, :length])
    rows = [
        {
            "length": length,
            "threads": threads,
            "clock": "thread" if cpu_clock else "wall",
            "plan": name,
            "seconds": seconds,
            "faster": total["torch"] / seconds,
        }
        for name, seconds in total.items()
    ]
    keys = ("length", "plan", "threads", "clock")
    found["speed"] = [
        r
        for r in found["speed"]
        if [r[k] for k in keys] not in [[n[k] for k in keys] for n in rows]
    ] + rows
    results.write_text(json.dumps(found))
    table(rows)


@app.command()
def frontier(
    length: Length = 4096,
    held_out: str = "2,4",
    budgets: str = "0.2,0.25,0.3,0.35,0.4",
    shares: str = "0.15,0.3",
    others: str = "window,block means,loki,oracle blocks",
    results: Path = RESULTS,
) -> None:
    """Perplexity on held-out documents, relative to full attention, for plans and for other ways to
    choose pairs.
    """
    loaded, found = el.load("smollm2"), load_results(results)
    model, texts = (
        loaded.module.eval(),
        nth(loaded.tokenizer, [int(d) for d in held_out.split(",")]),
    )
    ways = {
        "window": window,
        "block means": block_means,
        "loki": loki,
        "oracle blocks": lambda s: block_means(s, oracle=True),
    }
    forms: dict[tuple[str, str], Any] = {
        ("plan", b): by_plan(BlockPlan.from_record(found["plans"][b]))
        for b in filter(None, budgets.split(","))
    }
    forms |= {
        (w, s): by_pattern(ways[w](float(s)))
        for w in filter(None, others.split(","))
        for s in shares.split(",")
    }
    for document, ids in texts.items():
        use_attention(model, lambda layer, q, k, v: dense_attention(q, k, v, scale_of(q)))
        full = loss(model, ids, length)
        for (way, share), form in forms.items():
            use_attention(model, form)
            rise = math.exp(loss(model, ids, length) - full) - 1
            row = {
                "length": length,
                "document": document,
                "selection": way,
                "share": share,
                "full": math.exp(full),
                "rise": rise,
            }
            print(row, flush=True)
            same = ("length", "document", "selection", "share")
            found["quality"] = [
                r for r in found["quality"] if any(r[k] != row[k] for k in same)
            ] + [row]
            results.write_text(json.dumps(found))
    table(summary(found, length))


def summary(found: dict[str, Any], length: int) -> list[dict[str, Any]]:
    """Means over documents, with the speed where a fast form was timed at this length."""
    rows: dict[tuple[str, str], list[float]] = {}
    for r in found["quality"]:
        if r["length"] == length:
            rows.setdefault((r["selection"], r["share"]), []).append(r["rise"])
    faster = {r["plan"]: r["faster"] for r in found["speed"] if r["length"] == length}
    return [
        {
            "selection": way,
            "share": share,
            "documents": len(rises),
            "perplexity, %": f"{100 * sum(rises) / len(rises):+.2f}",
            "each": ", ".join(f"{100 * r:+.2f}" for r in rises),
            "times faster": faster.get(share, "") if way == "plan" else "",
        }
        for (way, share), rises in rows.items()
    ]


@app.command()
def far(
    length: Length = 2048,
    document: int = 4,
    budget: str = "0.25",
    step: int = 3,
    results: Path = RESULTS,
) -> None:
    """Error of every head's output when the dropped keys of a query block are left out, or replaced
    by one summary of them.

    mean: `N exp(q·k̄)` of mass with value `v̄`. Gaussian: `N exp(q·k̄ + qᵀΣq/2)` with value `v̄ + C
    q`, exact for normal keys.
    """
    loaded, found = el.load("smollm2"), load_results(results)
    plan = BlockPlan.from_record(found["plans"][budget])
    errors: dict[str, list[float]] = {"dropped": [], "mean": [], "Gaussian": []}

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        true = dense_attention(q, k, v, scale_of(q))
        if layer % step:
            return true
        settings = plan.sites[Site("self", layer)]
        settings = replace(settings, thresholds=tuple(max(t, 1e-4) for t in settings.thresholds))
        shape = (1, k.shape[1], length // settings.query_block, length // settings.key_block)
        keep = dense_mask(choose_blocks(q, k, settings, scale_of(q)), shape, settings)[0]
        causal, R = torch.ones(length, length, dtype=torch.bool).tril(), q.shape[1] // k.shape[1]
        for h in range(q.shape[1]):
            x, y, z, kept = q[0, h] * scale_of(q), k[0, h // R], v[0, h // R], keep[h // R]
            scores = (x @ y.T).masked_fill_(~kept, -torch.inf)
            mass, out = scores.logsumexp(1), torch.softmax(scores, 1) @ z
            outs = {"dropped": out, "mean": out.clone(), "Gaussian": out.clone()}
            for begin in range(settings.query_block, length, settings.query_block):
                rows, left = (
                    slice(begin, begin + settings.query_block),
                    causal[begin] & ~kept[begin],
                )
                if not (number := int(left.sum())):
                    continue
                centre, value = y[left].mean(0), z[left].mean(0)
                spread = y[left] - centre
                log = math.log(number) + x[rows] @ centre
                curve = (x[rows] @ (spread.T @ spread / number) * x[rows]).sum(1).clamp_max(16) / 2
                tilt = x[rows] @ ((z[left] - value).T @ spread / number).T
                for name, l, o in (
                    ("mean", log, value.expand_as(tilt)),
                    ("Gaussian", log + curve, value + tilt),
                ):
                    outs[name][rows] = torch.lerp(
                        out[rows], o, torch.sigmoid(l - mass[rows])[:, None]
                    )
            for name, o in outs.items():
                errors[name].append(float((o - true[0, h]).norm() / true[0, h].norm()))
        return true

    use_attention(loaded.module.eval(), attend)
    with torch.no_grad():
        loaded.module.model(nth(loaded.tokenizer, [document])[document][None, :length])
    table(
        [
            {
                "far field": name,
                "mean error": sum(e) / len(e),
                "median": median(e),
                "heads it helps": f"{sum(a < b for a, b in zip(e, errors['dropped']))} of {len(e)}",
            }
            for name, e in errors.items()
        ]
    )


@app.command()
def picture(results: Path = RESULTS, output: Path = PICTURE) -> None:
    """Perplexity against the share of causal attention's work, one line for each selection, one
    panel for each length.
    """
    found = load_results(results)
    lengths = sorted({r["length"] for r in found["quality"]})
    points = [
        {
            "tokens": n,
            "selection": r["selection"],
            "share": float(r["share"]),
            "rise": float(r["perplexity, %"]),
        }
        for n in lengths
        for r in summary(found, n)
    ]
    chart = (
        alt.Chart(alt.Data(values=points))
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "share:Q", title="share of causal pairs (plan: selection included, at fitting)"
            ),
            y=alt.Y("rise:Q", title="perplexity above full attention, %"),
            color=alt.Color("selection:N"),
        )
        .properties(width=360, height=260)
        .facet(column=alt.Column("tokens:O"))
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    chart.save(output, scale_factor=2)
    print(output)
    for n in lengths:
        table(summary(found, n))


if __name__ == "__main__":
    app()
