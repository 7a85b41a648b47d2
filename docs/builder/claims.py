"""The generated parts of a paper's page: its claims, its run, and all papers in one table."""

from collections import Counter
from itertools import groupby
from typing import Any, get_args

from eigenlens.papers.claims import Claim, Verdict

from .cells import cell, counted, interval, table

VERDICTS: tuple[str, ...] = get_args(Verdict)


def claims(result: dict[str, Any]) -> str:
    """The table of claims, and below it what each verdict rests on."""
    made = [Claim(**claim) for claim in result["claims"]]
    rows = [
        (
            str(number),
            cell(one.claim),
            cell(one.published),
            cell(one.measured),
            interval(one.interval),
            one.verdict,
        )
        for number, one in enumerate(made, 1)
    ]
    head = table(("", "claim", "published", "measured", "interval", "verdict"), rows)
    return f"{head}\n\n{_words(made)}"


def _words(made: list[Claim]) -> str:
    """Criterion, note and reason of each claim; claims in a row that share them share a line."""
    lines = []
    for words, group in groupby(enumerate(made, 1), lambda pair: pair[1].words):
        numbers = [number for number, _ in group]
        if words:
            span = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"
            lines.append(f"- **{span}** {' '.join(words.split())}")
    return "\n".join(lines)


def run(record: dict[str, Any]) -> str:
    """How the result was made, in a paragraph."""
    machine, versions = record["machine"], record["versions"]
    engine = (
        f"{machine['workers']} workers of a Dask cluster"
        if machine["engine"] == "dask"
        else f"{machine['threads']} thread{'s' * (machine['threads'] != 1)}"
    )
    words = (
        f"`{record['command']}` took {took(record['seconds'])} with {engine} on"
        f" {machine['cores']} cores of {machine['processor']} ({machine['instructions']}),"
        f" {record['date']}; eigenlens {versions['eigenlens']}, commit"
        f" `{record['commit'][:12]}`, torch {versions['torch']}, transformers"
        f" {versions['transformers']}, Python {versions['python']}; first seed {record['seed']}."
    )
    if record["cut_down"]:
        less = "; ".join(
            f"`{key}` {_setting(short)} instead of {_setting(long)}"
            for key, (short, long) in record["cut_down"].items()
        )
        words += f" It is cut down: {less}. `--thorough` is the long form."
    return words


def took(seconds: float) -> str:
    """A time as one says it.

    >>> took(28.7), took(157), took(5400)
    ('29 seconds', '2.6 minutes', '1.5 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 5000 else f"{seconds / 3600:.1f} hours"


def index(records: dict[str, dict[str, Any]], papers: dict[str, tuple[str, str, str]]) -> str:
    """Every paper with its question and its verdicts; `papers` has title, arXiv number, question.

    Below the table: what is not reproduced or depends, with the reason.
    """
    rows, open_claims = [], []
    for name, (title, number, question) in papers.items():
        result = records[name]["result"]
        count = Counter(claim["verdict"] for claim in result["claims"])
        place = f"[{title}]({name}.md)<br>arXiv {number}<br>`eigenlens reproduce {name}`"
        rows.append((place, question, *(str(count[verdict]) for verdict in VERDICTS)))
        for at, claim in enumerate(result["claims"], 1):
            if claim["verdict"] in ("not reproduced", "depends"):
                reason = claim["reason"] or claim["note"]
                open_claims.append(
                    f"- [{title}]({name}.md), {at}: {claim['claim']} (published"
                    f" {claim['published']}, measured {cell(claim['measured'])}):"
                    f" {claim['verdict']}; {reason}."
                )
    total = totals(records)
    rows.append(("all", "", *(str(total[verdict]) for verdict in VERDICTS)))
    found = table(("paper", "question", *VERDICTS), rows)
    why = "What is not reproduced, or depends on a threshold, and why:"
    return "\n\n".join([found, why, "\n".join(open_claims)] if open_claims else [found])


def totals(records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What all papers come to: `papers.claims`, `papers.reproduced`, … of a marker."""
    count = Counter(
        claim["verdict"] for record in records.values() for claim in record["result"]["claims"]
    )
    by_verdict = {verdict: count[verdict] for verdict in VERDICTS}
    return {
        "number": len(records),
        "claims": sum(count.values()),
        **by_verdict,
        "words": f"{sum(count.values())} claims: {counted(by_verdict)}",
    }


def _setting(value: Any) -> str:
    return cell(value) if isinstance(value, int | float | str | list) else "another value"
