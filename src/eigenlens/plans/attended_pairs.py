"""Sums over attended pairs of inputs that a study was fitted on, for `joint-fitted`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..captures import AttentionCall, Site
from ..estimators.estimator import SiteStatistics
from ..estimators.fitted import pair_sums
from ..estimators.pair_sums import PairSums
from ..run.progress import Progress, silent
from .held_out import HeldOut, documents_first

INPUTS = 64
CHECKED = 4
"""Every so many documents, one says how much the pairs are trusted."""


def with_attended_pairs(
    known: dict[Site, SiteStatistics], held: HeldOut, progress: Progress = silent
) -> dict[Site, SiteStatistics]:
    """The statistics with `pairs`: sums over most of the documents, and over the others.

    From 64 inputs of the documents that the study was fitted on, of as many documents as there are.
    """
    rows = documents_first(held.inputs, held.taken(len(held.inputs.buckets), fit=True)[0])[:INPUTS]
    _, document = np.unique(held.inputs.documents[rows], return_inverse=True)
    if document.max() < CHECKED:  # too few documents: their inputs stand apart
        document = np.arange(len(rows))
    checked = document % CHECKED == CHECKED - 1
    parts = [{site: pair_sums(one) for site, one in known.items()} for _ in range(2)]
    done = 0
    for chosen, part in ((~checked, parts[0]), (checked, parts[1])):

        def add(call: AttentionCall, part: dict[Site, PairSums] = part) -> None:
            if call.site in part:
                part[call.site].add(call)

        some = rows[chosen]
        for i in range(0, len(some), held.together):
            batch = held.inputs.make(some[i : i + held.together])
            held.run_batch(batch, add)
            done += held.size(batch)
            progress(
                f"fitting projections on {held.inputs.facts.count(len(rows))}", done, len(rows)
            )
    return {
        site: replace(one, pairs=(parts[0][site], parts[1][site])) for site, one in known.items()
    }
