"""The mechanisms of the training experiment, made from a trained model's statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import Mechanism
from ...attention.feature_rank import FeatureRank, joint_subspace
from ...attention.interpolated import InterpolatedKeys
from ...attention.linformer import Linformer
from ...attention.mean_only import MeanOnly
from ...attention.nystrom import Nystrom
from ...attention.softmax import Softmax
from ...attention.uniform_keys import UniformKeys
from ...captures import AttentionCall
from ...captures.sites import Site
from ...lab import Config, MaskedBytes, Transformer
from ...names import unknown_name
from ...spectra.centring import normaliser, row_mean, row_scatter
from ...stats import QueryKeyMoments, RowMoments
from .reconstruction import chosen_keys

MECHANISMS = (
    "full",
    "mean only",
    "mean map",
    "interpolated",
    "interpolated by query",
    "uniform keys",
    "linformer",
    "nystrom",
    "feature rank",
)


@dataclass(frozen=True)
class LayerMoments:
    """Moments of one layer: `mean` (H, n) and `covariance` (H, n, n) of score rows.

    Also the second moments (H, d, d) of queries and of keys.

    `map` (H, n, n) is the mean score of every pair of positions, `within` (H, n, n) the covariance
    of rows about the mean of their own query position.
    """

    mean: Tensor
    covariance: Tensor
    map: Tensor
    within: Tensor
    queries: Tensor
    keys: Tensor


@torch.no_grad()
def layer_moments(
    model: Transformer, task: MaskedBytes, batches: int, size: int, seed: int
) -> list[LayerMoments]:
    """The moments of every layer on training inputs, whatever mechanism the layer attends with.

    They are of the scores that the queries and keys of the layer have, not of those that the
    mechanism estimates; so a model that runs with an estimate can be refitted to what it has
    become.
    """
    rows, vectors, maps = RowMoments(), QueryKeyMoments(), MeanMaps()
    with _seen(model, rows, vectors, maps):
        for step in range(batches):
            model(task.batch(size, seed, step).inputs)
    found = []
    pairs, sums = rows.result(), vectors.result()
    for layer in range(model.config.layers):
        site = Site("self", layer)
        mean = row_mean(pairs[site], "centred")
        scatter = row_scatter(pairs[site], "centred", mean)
        covariance = scatter / normaliser(pairs[site].rows, "centred")
        mean_map = maps.sums[site] / maps.inputs[site]  # M: (H, n, n)
        centred = mean_map - mean[:, None]
        within = scatter / pairs[site].rows - centred.transpose(1, 2) @ centred / mean_map.shape[1]
        found.append(
            LayerMoments(
                mean, covariance, mean_map, within, sums[site].query_second, sums[site].key_second
            )
        )
    return found


class MeanMaps:
    """`Σ S` over inputs: the scores of every pair of positions."""

    def __init__(self) -> None:
        self.sums: dict[Site, Tensor] = {}
        self.inputs: dict[Site, int] = {}

    def update(self, call: AttentionCall) -> None:
        site = call.site
        scores = torch.einsum("bhid,bhjd->hij", call.q, call.k).double() * call.scale
        self.sums[site] = self.sums[site] + scores if site in self.sums else scores
        self.inputs[site] = self.inputs.get(site, 0) + len(call.q)


@contextlib.contextmanager
def _seen(model: Transformer, *statistics: Any) -> Iterator[None]:
    """Hand the queries and keys of every mechanism to the statistics."""

    def watch(layer: int) -> Any:
        def see(
            _: nn.Module, given: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]
        ) -> None:
            q, k, v = given
            call = AttentionCall(
                Site("self", layer),
                "self",
                f"blocks.{layer}",
                q,
                k,
                v,
                q.shape[3] ** -0.5,
                causal=options["causal"],
            )
            for statistic in statistics:
                statistic.update(call)

        return see

    hooks = [
        m.register_forward_pre_hook(watch(i), with_kwargs=True)
        for i, m in enumerate(model.mechanisms)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def make_mechanism(
    name: str, share: float, config: Config, found: list[LayerMoments], learned: bool = True
) -> list[Mechanism]:
    """A mechanism for every layer that computes about `share` of full attention's products.

    Of n keys `share·n` are computed (interpolated, uniform, Linformer's projections); Nyström meets
    every landmark twice, as a query and as a key, so it gets half as many; feature rank keeps
    `share·d` of the dimensions of all pairs.
    """
    n, d = config.length, config.head_width
    m = max(1, round(share * n))
    layers = range(config.layers)
    if name == "full":
        return [Softmax() for _ in layers]
    if name == "mean only":
        return [MeanOnly(layer.mean) for layer in found]
    if name == "mean map":
        return [MeanOnly(layer.map) for layer in found]
    if name == "uniform keys":
        return [UniformKeys.of(m) for _ in layers]
    if name == "interpolated":
        return [
            InterpolatedKeys.from_moments(
                x.mean, x.covariance, chosen_keys(x.covariance, m), learned=learned
            )
            for x in found
        ]
    if name == "interpolated by query":
        return [
            InterpolatedKeys.from_moments(
                x.map, x.within, chosen_keys(x.within, m), learned=learned
            )
            for x in found
        ]
    if name == "linformer":
        return [Linformer.of(config.heads, n, m) for _ in layers]
    if name == "nystrom":
        return [Nystrom.of(max(1, m // 2)) for _ in layers]
    if name == "feature rank":
        return [
            FeatureRank.of(
                *joint_subspace(x.queries, x.keys, max(1, round(share * d))), learned=learned
            )
            for x in found
        ]
    raise unknown_name("mechanism", name, MECHANISMS)
