"""The eigenvalues of every head's query-key matrix, from the weights alone (arXiv 2402.02098).

    W_QK = W_Q W_Kᵀ,   score of tokens i and j = x_i W_QK x_jᵀ, but for biases and the scale

According to the paper, a mean far from zero with a small variance makes a head look near. The
eigenvalues are computed from the D × D matrix `W_KᵀW_Q`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import nn

from ..anatomy.truncation import projection_norm, quarter_turn
from ..attention.qk import localisation_penalty, spectrum
from ..captures import Head, Site, location_of
from ..errors import EigenlensError
from .constants import Constants
from .finding import Finding, Number
from .pictures import head_map
from .studied_model import StudiedModel

MOST, LEAST = "most concentrated", "least concentrated"
_KEPT = ("mean", "variance", "trace", "trace_of_square", "square", "complex", "penalty")


class QueryKey(Constants):
    """Mean, variance and size of the eigenvalues λ of W_QK over all d = C of them.

    C − D of them are zero.

    `mean = tr W/d`; `variance` is the mean of |λ − mean|²; `concentration = |mean|/√variance`. A
    head that shares its keys with others is computed with those keys. With rotary positions there
    is one matrix `W_Q R W_Kᵀ` per distance: the numbers are those of the weights before the
    rotation, R = I. The gain of the norm before the projections is not included. If a norm follows
    the projections, no such matrix exists; for cross-attention it exists only if both streams have
    the same width.

    It keeps the numbers and the D eigenvalues of each head, which are constants of the model.
    """

    name = "qk"
    title = "Query-key eigenvalues"
    level = "head"
    numbers: ClassVar[Mapping[str, str]] = {
        "concentration": "|mean| of the eigenvalues of W_QK, divided by their standard deviation",
        "mean": "mean eigenvalue of W_QK, tr W/d",
        "variance": "variance of the eigenvalues, mean |λ − mean|²",
        "trace": "tr W_QK",
        "trace_of_square": "tr W_QK²",
        "square": "‖W_QK‖²_F",
        "complex": "share of the D eigenvalues that are not real",
        "penalty": "LocAteR-style penalty ‖W‖²_F − (tr W)²/d",
    }

    @torch.no_grad()
    def begin(self, studied: StudiedModel) -> str:
        reasons = []
        for site in studied.sites:
            try:
                if not self.known(site):
                    self._read(site, studied)
            except EigenlensError as error:
                reasons.append(str(error))
        return "" if self.peaks else (reasons or ["no attention was captured"])[0]

    def _read(self, site: Site, studied: StudiedModel) -> None:
        path = studied.sites[site].name
        module = studied.module.get_submodule(path)
        if norm := projection_norm(module):
            raise EigenlensError(
                f"{path} has a norm after its projections ({norm}), so its heads have no query-key"
                " matrix"
            )
        weights = studied.weights(site)
        w_q = weights.query.double()  # (H, C, D)
        w_k = weights.key.double().repeat_interleave(weights.group, 0)
        if w_q.shape != w_k.shape:
            widths = f"{w_q.shape[1]} and {w_k.shape[1]}"
            raise EigenlensError(
                f"the queries and keys of {path} read streams of different widths ({widths}), so"
                " W_QK is not square"
            )
        found = spectrum(w_q, w_k)
        size = found.eigenvalues.abs().amax(1, keepdim=True)
        off = (found.eigenvalues.imag.abs() > 1e-9 * size).double().mean(1)
        of_heads = (
            found.mean,
            found.variance,
            found.trace,
            found.trace_of_square,
            found.square,
            off,
        )
        self.keep(
            site,
            numbers=torch.stack([*of_heads, localisation_penalty(w_q, w_k)], 1),  # (H, 7)
            eigenvalues=torch.view_as_real(found.eigenvalues),  # (H, D, 2)
            rotary=w_q.new_full((1,), float(_rotary(module, w_q[0].T @ w_q[0]))),
        )

    def found(self) -> Iterator[Number]:
        for site, kept in self.of("numbers"):
            for name in self.numbers:
                for head, row in enumerate(kept.tolist()):
                    of = dict(zip(_KEPT, row))
                    if name != "concentration":
                        yield Number(site.stack, site.layer, head, name, of[name])
                    elif of["variance"] > 0:
                        yield Number(
                            site.stack,
                            site.layer,
                            head,
                            name,
                            abs(of["mean"]) / math.sqrt(of["variance"]),
                        )

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        eigenvalues = dict(self.of("eigenvalues"))
        rows = []
        for which, at in _extremes(finding).items():
            rows += [
                {"which": which, **asdict(at), "real": real, "imaginary": imaginary}
                for real, imaginary in eigenvalues[at.site][at.head].tolist()
            ]
        return {"Eigenvalues of the most and the least concentrated head": rows} if rows else {}

    def sentence(self, finding: Finding) -> str:
        means, of = finding.values("mean"), finding.values("concentration")
        labels = finding.labels
        above = sum(value > 0 for value in means.values())
        message = (
            f"In {above} of {len(means)} heads the mean eigenvalue of the query-key matrix is"
            " positive"
        )
        if len(means) == 1:
            message = (
                "The mean eigenvalue of the only head's query-key matrix is"
                f" {'' if above else 'not '}positive"
            )
        if ends := _extremes(finding):
            (most, least), spread = ends.values(), "standard deviations"
            if most == least:
                message += (
                    f"; in {labels(most)} its size is {of[most]:.3g} {spread} of the eigenvalues"
                )
            else:
                message += (
                    "; relative to the spread of the eigenvalues, its size is largest in"
                    f" {labels(most)} ({of[most]:.3g} {spread}) and "
                )
                message += f"smallest in {labels(least)} ({of[least]:.2g})"
        turned = any(bool(x.any()) for _, x in self.of("rotary"))
        where = " (measured on the weights before rotary positions are applied)" if turned else ""
        return f"{message}{where}."

    @classmethod
    def chart(cls, finding: Finding) -> Any:
        import altair as alt

        maps = head_map(finding)
        rows = [row for table in finding.tables.values() for row in table]
        panels = []
        for which in dict.fromkeys(row["which"] for row in rows):
            some = [row for row in rows if row["which"] == which]
            where = finding.labels(location_of(some[0]))
            points = (
                alt.Chart(alt.Data(values=some))
                .mark_circle(size=28, opacity=0.7, color="#20466e")
                .encode(
                    x=alt.X("real:Q", title="real part"),
                    y=alt.Y("imaginary:Q", title="imaginary part"),
                    tooltip=[
                        alt.Tooltip("real:Q", format=".4g"),
                        alt.Tooltip("imaginary:Q", format=".4g"),
                    ],
                )
            )
            panels.append(
                points.properties(
                    width=210, height=170, title=[f"Eigenvalues of the {which} head,", where]
                )
            )
        return (
            alt.vconcat(maps, alt.hconcat(*panels)).resolve_scale(color="independent")
            if panels
            else maps
        )


def _extremes(finding: Finding) -> dict[str, Head]:
    """Return the most and the least concentrated head."""
    of = finding.of_heads("concentration")
    return (
        {MOST: max(of, key=lambda at: of[at]), LEAST: min(of, key=lambda at: of[at])} if of else {}
    )


def _rotary(module: nn.Module, like: torch.Tensor) -> bool:
    """Return whether rotary positions turn queries and keys."""
    try:
        return quarter_turn(module, like) is not None
    except EigenlensError:  # turned in a way that is not known
        return True
