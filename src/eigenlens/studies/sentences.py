"""What depth and comparisons say, in sentences made from their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..display import numbered

if TYPE_CHECKING:
    from .depth import Depth


def depth_sentence(depth: Depth) -> str:
    """Where the tokens of each stack begin and end, and where their rank is least; nothing where
    none were seen.
    """
    parts = []
    for stack in depth.stacks:
        rank, cosine = depth.curve("effective_rank", stack), depth.curve("cosine", stack)
        if not rank or not cosine:
            continue
        least = min(rank, key=lambda point: point["mean"])
        where = f" of the {stack}" if len(depth.stacks) > 1 else ""
        blocks = numbered(rank[-1]["depth"], "block")
        parts.append(
            f"The effective rank of the tokens{where} goes from {rank[0]['mean']:.1f} to"
            f" {rank[-1]['mean']:.1f} over {blocks}, with its least, {least['mean']:.1f}, at depth"
            f" {least['depth']}; their mean cosine goes from {cosine[0]['mean']:.2f} to"
            f" {cosine[-1]['mean']:.2f}."
        )
    return " ".join(parts)


def comparison_sentence(record: dict[str, Any]) -> str:
    """Do two studies share their spaces, and does either hold the variance of the other?

    `record` is that of a `Pair`.
    """
    times = record["overlap"] / record["chance"]
    near = "about what chance gives" if times < 1.5 else f"{times:.1f} times chance"
    text = (
        f"{record['left']} and {record['right']}: their {record['level']}s share"
        f" {record['overlap']:.2f} of the leading {record['rank']} directions, {near}"
        f" ({record['chance']:.3f}); the best partner of each shares {record['best_partner']:.2f}"
    )
    if record["captured_right_by_left"] is not None:
        text += (
            f". The spaces of the first hold {record['captured_right_by_left']:.0%} of what the"
            " second's own hold of its variance, those of the second"
            f" {record['captured_left_by_right']:.0%} of the first's"
        )
    return text + "."
