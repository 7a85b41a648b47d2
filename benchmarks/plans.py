"""What a user gets from a plan within a loss, by the public functions.

    python benchmarks/plans.py use --max-lengths 4096,8192
        what plans predict, and what they lose and save on documents that they have not seen
    python benchmarks/plans.py coverage --max-length 4096
        how often a document loses no more than its plan predicts for a single document
    python benchmarks/plans.py needle --max-lengths 2048,4096,8192
        whether the planned model still finds what stands far back in the text

SmolLM2-135M (`--model`) on single Wikipedia articles of at least 8,193 tokens, which are numbered.
Plans are made from some articles and measured on others. Each command has `--quick`: tiny sizes
that show that it runs, and figures that mean nothing. Plans are kept in one folder (`--results`)
and used again.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import eigenlens as el
from documents import articles
from eigenlens.models.load import Model
from eigenlens.plans.evaluation import ATTENTION, SECONDS
from eigenlens.plans.loss_search import LossMeter
from eigenlens.plans.sparse_plan import SparsePlan
from selections import with_exact
from tables import table

RESULTS = Path(tempfile.gettempdir()) / "eigenlens-plans"
ARTICLES = 28
"""Articles that a plan is made from."""
QUICK = 640
NAMES = ("Alder", "Birch", "Cedar", "Hazel", "Juniper", "Maple", "Poplar", "Rowan", "Willow")
STRING, SHOWN = 24, 8
"""Tokens of a random string, and how many of them are shown again before the model goes on."""
DEPTHS = ("first third", "middle third", "last third")
app = typer.Typer(add_completion=False)
Quick = Annotated[bool, typer.Option("--quick", help="tiny sizes, to see that it runs")]
Results = Annotated[Path, typer.Option(help="the folder of plans and results")]
Name = Annotated[str, typer.Option("--model", help="a language model")]
Loss = Annotated[str, typer.Option(help="the loss a plan may have: 1%, 0.008")]


def folder_of(model: Model, first: int, number: int, results: Path) -> Path:
    """A folder with the articles from `first` on, one file each."""
    folder = results / f"articles-{first}-{first + number - 1}"
    if not folder.exists():
        folder.mkdir(parents=True)
        some = islice(articles(model.tokenizer), first, first + number)
        for at, (text, _) in enumerate(some, first):
            (folder / f"{at:04}.txt").write_text(text)
    return folder


def plan_of(
    model: Model, loss: str, length: int, documents: int, results: Path, turn: int = 0
) -> tuple[el.Plan, float | None]:
    """The plan of the `turn`-th articles, and the seconds it took; opened if it was made before."""
    share = loss.replace("%", "-percent")
    folder = results / f"plan-{model.name}-{length}-{share}-{documents}-{turn}"
    if (folder / "plan.json").exists():
        return el.Plan.open(folder), None
    begin = time.perf_counter()
    data = folder_of(model, turn * ARTICLES, ARTICLES, results)
    study = el.study(model, data, max_inputs=16, only="rows", seed=turn)
    made = el.plan(
        study,
        loss=loss,
        max_length=length,
        max_inputs=documents,
        model=model,
        output_dir=folder,
    )
    return made, time.perf_counter() - begin


def percent(x: float | None) -> str:
    return "" if x is None else f"{100 * x:.2f}"


@app.command()
def use(
    lengths: Annotated[str, typer.Option("--max-lengths", help="tokens")] = "4096,8192",
    losses: Annotated[str, typer.Option(help="losses")] = "1%,0.8%,0.5%",
    documents: Annotated[int, typer.Option(help="to choose on, check on, evaluate on")] = 8,
    results: Results = RESULTS,
    name: Name = "smollm2",
    quick: Quick = False,
) -> None:
    """A study, a plan within a loss, and its evaluation on articles that the plan has not seen."""
    if quick:
        lengths, losses, documents = str(QUICK), "5%", 2
    model = el.load(name)
    unseen = folder_of(model, ARTICLES, max(documents, 10), results)  # ten files are ten documents
    rows = []
    for length in (int(n) for n in lengths.split(",")):
        for loss in losses.split(","):
            plan, seconds = plan_of(model, loss, length, documents, results)
            found = plan.stored["search"]
            row: dict[str, Any] = {"tokens": length, "loss": loss}
            if not found["pays"]:
                rows.append({**row, **no_plan(found)})
                continue
            evaluation = el.evaluate(model, unseen, plan=plan, max_inputs=documents)
            measured = {r["measure"]: r for r in evaluation.summary}
            rise = next(r for r in evaluation.summary if r["low"] is not None)
            faster = {
                name: measured[name]["plain"] / measured[name]["planned"]
                for name in (ATTENTION, SECONDS)
            }
            low, high = found["predicted"]["interval"]
            rows.append(
                {
                    **row,
                    "predicted rise, %": percent(found["predicted"]["rise"]),
                    "95 %": f"{percent(low)} … {percent(high)}",
                    "of a document at most, %": percent(found["single"]),
                    "checked, %": percent(found["checked"]["rise"]),
                    "on other articles, %": percent(rise["planned"]),
                    "95 % of it": f"{percent(rise['low'])} … {percent(rise['high'])}",
                    "attention, times faster": f"{faster[ATTENTION]:.2f}",
                    "end to end": f"{faster[SECONDS]:.2f}",
                    "made in, s": "" if seconds is None else f"{seconds:.0f}",
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    columns = dict.fromkeys(name for row in rows for name in row)
    table([{name: row.get(name, "") for name in columns} for row in rows])


def no_plan(found: dict[str, Any]) -> dict[str, Any]:
    """What a plan says of itself when it does not pay."""
    pays_from = found.get("pays_from")
    why = "no plan pays" + (f", from {pays_from} tokens on one would" if pays_from else "")
    return {"predicted rise, %": why}


@app.command()
def coverage(
    length: Annotated[int, typer.Option("--max-length", help="tokens")] = 4096,
    loss: Loss = "1%",
    plans: Annotated[int, typer.Option(help="how many, each from articles of its own")] = 4,
    documents: Annotated[int, typer.Option(help="to choose on, and to check on")] = 8,
    fresh: Annotated[int, typer.Option(help="articles that no plan has seen")] = 10,
    results: Results = RESULTS,
    name: Name = "smollm2",
    quick: Quick = False,
) -> None:
    """How often the rise of a document stays within what its plan predicts for a single document.

    Every plan is made from articles of its own; all are measured on the same articles, which none
    of them has seen.
    """
    if quick:
        length, loss, plans, documents, fresh = QUICK, "5%", 1, 2, 2
    model = el.load(name)
    first = plans * ARTICLES
    some = islice(articles(model.tokenizer), first, first + fresh)
    batches = [{"input_ids": ids[None, :length]} for _, ids in some]
    meter = LossMeter(model, batches, lambda _: None)
    rows, inside, total = [], 0, 0
    for turn in range(plans):
        plan, _ = plan_of(model, loss, length, documents, results, turn)
        found = plan.stored["search"]
        if not found["pays"] or plan.sparse is None:
            rows.append({"plan": turn, **no_plan(found)})
            continue
        bound, each = found["single"], meter.measure(plan.sparse).each
        covered = sum(rise <= bound for rise in each)
        inside, total = inside + covered, total + len(each)
        rows.append(
            {
                "plan": turn,
                "predicted rise, %": percent(found["predicted"]["rise"]),
                "of a document at most, %": percent(bound),
                "measured, %": percent(sum(each) / len(each)),
                "least … most, %": f"{percent(min(each))} … {percent(max(each))}",
                "covered": f"{covered} of {len(each)}",
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    columns = dict.fromkeys(name for row in rows for name in row)
    table([{name: row.get(name, "") for name in columns} for row in rows])
    print(f"{inside} of {total} documents lose no more than their plan predicts")


@app.command()
def needle(
    lengths: Annotated[str, typer.Option("--max-lengths", help="tokens")] = "2048,4096,8192",
    loss: Loss = "1%",
    trials: Annotated[int, typer.Option(help="texts of each length")] = 12,
    documents: Annotated[int, typer.Option(help="that the plan is chosen on")] = 8,
    lasts: Annotated[str, typer.Option("--last", help="numbers of exact queries")] = "0,64",
    results: Results = RESULTS,
    name: Name = "smollm2",
    quick: Quick = False,
) -> None:
    """Whether the planned model finds what stands far back, beside the plain model.

    `code`: a sentence with a number of seven digits stands somewhere in an article, and the end
    asks for it; right if the greedy answer begins with the number. `copy`: a string of random
    tokens stands there, and the end shows its first ones again; the share of the others that are
    the likeliest next token. Texts end anywhere within a block of queries, and one plan, made for
    the longest texts, serves all: with each number of last queries that attend to every key.
    """
    if quick:
        lengths, loss, trials, documents = str(QUICK), "5%", 1, 2
    model = el.load(name)
    sizes = [int(n) for n in lengths.split(",")]
    plan, _ = plan_of(model, loss, max(sizes), documents, results)
    if not plan.stored["search"]["pays"]:
        print(no_plan(plan.stored["search"])["predicted rise, %"], "(the planned model is plain)")
    sparse = plan.sparse or SparsePlan({}, 0)
    planned = {n: with_exact(sparse, int(n)) for n in lasts.split(",")}
    draw = random.Random(0)
    some = [ids for _, ids in islice(articles(model.tokenizer), ARTICLES, ARTICLES + trials)]
    found: list[dict[str, Any]] = []
    for size in sizes:
        for trial in range(trials):
            total = size - draw.randrange(128)
            depth = (trial + draw.random()) / trials
            for task in (code, copy):
                case = task(model, some[trial], total, depth, draw)
                row = {
                    "task": task.__name__,
                    "tokens": size,
                    "depth": DEPTHS[int(3 * depth)],
                    "plain": case.score(model),
                }
                for last, some_exact in planned.items():
                    with el.replace_attention(model.backbone, some_exact.attend):
                        row[f"{last} exact"] = case.score(model)
                print(json.dumps(row), flush=True)
                found.append(row)
    results.mkdir(parents=True, exist_ok=True)
    (results / "needle.json").write_text(json.dumps(found, indent=1))
    table(accuracies(found))


def accuracies(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means by task, length and depth, and over all depths."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in found:
        for depth in (row["depth"], "all"):
            groups.setdefault((row["task"], row["tokens"], depth), []).append(row)
    return [
        {
            "task": task,
            "tokens": tokens,
            "depth": depth,
            "texts": len(some),
            **{
                name: sum(row[name] for row in some) / len(some)
                for name in some[0]
                if name not in {"task", "tokens", "depth"}
            },
        }
        for (task, tokens, depth), some in sorted(groups.items())
    ]


class Code:
    """A prompt whose right answer begins with a number."""

    def __init__(self, ids: Tensor, answer: str, tokenizer: Any) -> None:
        self.ids, self.answer, self.tokenizer = ids, answer, tokenizer

    def score(self, model: Model) -> float:
        """1 if the greedy answer begins with the number."""
        new = len(self.tokenizer(f" {self.answer}").input_ids) + 1
        with torch.no_grad():
            out = model.module.generate(
                self.ids[None],
                attention_mask=torch.ones_like(self.ids[None]),
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=self.tokenizer.eos_token_id,
            )
        said = self.tokenizer.decode(out[0, len(self.ids) :])
        return float(said.strip().startswith(self.answer))


class Copy:
    """A text that ends with a random string that stood in it before."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def score(self, model: Model) -> float:
        """The share of the string's last tokens that are the likeliest next token."""
        asked = STRING - SHOWN
        with torch.no_grad():
            logits = model.module(self.ids[None], use_cache=False, logits_to_keep=asked + 1).logits[
                0, :-1
            ]
        return float((logits.argmax(-1) == self.ids[-asked:]).float().mean())


def code(model: Model, text: Tensor, total: int, depth: float, draw: random.Random) -> Code:
    """An article with a number hidden at a depth, and a question at the end."""
    name, number = draw.choice(NAMES), str(draw.randrange(10**6, 10**7))
    tokens = model.tokenizer

    def ids(words: str) -> Tensor:
        return torch.tensor(tokens(words).input_ids)

    asked = f"\n\nWhat is the special code of {name}? The special code of {name} is"
    hidden, question = ids(f"\nThe special code of {name} is {number}.\n"), ids(asked)
    return Code(hide(text, hidden, question, total, depth), number, tokens)


def copy(model: Model, text: Tensor, total: int, depth: float, draw: random.Random) -> Copy:
    """An article with a random string at a depth, and the string again at the end."""
    vocabulary = len(model.tokenizer)
    string = torch.tensor([draw.randrange(vocabulary // 20, vocabulary) for _ in range(STRING)])
    return Copy(hide(text, string, string, total, depth))


def hide(text: Tensor, hidden: Tensor, end: Tensor, total: int, depth: float) -> Tensor:
    """The first tokens of a text with others at a depth and at the end, `total` together."""
    around = text[: total - len(hidden) - len(end)]
    at = int(depth * len(around))
    return torch.cat([around[:at], hidden, around[at:], end])


if __name__ == "__main__":
    app()
