"""How a solved attention block groups tokens: by the rows of its learned map.

With `Z[a,k,l,b]`, token t of an input gets `Σ_u x_tᵀ K(x_u)` from the tokens u, where `K(x)[a,b] =
Σ_kl x_k x_l Z[a,k,l,b]`. So the token's own part is its row `x_tᵀ Z_(a)` of the map, where Z_(a) is
Z unfolded to (d, d·d·c): tokens with the same row get the same in every input. With `Z_(a) = U S
Vᵀ` the rows are `x_tᵀ U S` up to a rotation, d numbers or fewer, and no head has to be singled out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...display import html_view, numbered, percent
from ...errors import EigenlensError
from .problem import ConvexBlock, GatedAttention, LinearAttention


def directions(block: ConvexBlock, Z: Tensor, share: float = 1e-9) -> Tensor:
    """`U S` of Z unfolded along the query's index, (d, r).

    `X @ directions` are the tokens' rows of the learned map.
    """
    d, c = _attention(block).d, block.c
    unfolded = Z.view(-1, d, d, d, c).movedim(1, 0).reshape(d, -1)  # (d, P·d·d·c)
    U, S, _ = torch.linalg.svd(unfolded, full_matrices=False)
    kept = share * S.max() < S
    return U[:, kept] * S[kept]


def contributions(block: ConvexBlock, Z: Tensor) -> Tensor:
    """What token t gets from token u, (n, t, u, c); summed over u it is the output of the block.

    Holds n·s·c·(d + s) numbers.
    """
    d, c, X = _attention(block).d, block.c, block.X
    pairs = (X[..., :, None] * X[..., None, :]).flatten(2)  # (n, s, d²)
    total = X.new_zeros(block.n, block.s, block.s, c)
    for p, one in enumerate(Z):
        sent = pairs @ one.view(d, d, d, c).permute(1, 2, 0, 3).reshape(d * d, d * c)  # K(x_u)
        got = torch.einsum("nta,nuab->ntub", X, sent.view(block.n, block.s, d, c))
        total += got * block.mask(p)[..., None] if isinstance(block, GatedAttention) else got
    return total


def _attention(block: ConvexBlock) -> ConvexBlock:
    if not isinstance(block, LinearAttention | GatedAttention):
        raise EigenlensError(
            f"clusters need an attention block; {block.name} mixes tokens by position"
        )
    return block


def k_means(points: Tensor, k: int, seed: int = 0, starts: int = 4, most: int = 100) -> Tensor:
    """Centres (k, r) of points (N, r), by Lloyd's steps.

    The best of `starts` spread-out starts is taken.
    """
    if not 1 <= k <= len(points):
        raise EigenlensError(f"{numbered(len(points), 'point')} cannot make {k} clusters")
    source = torch.Generator().manual_seed(seed)
    best, found = torch.inf, points[:k]
    for _ in range(starts):
        centres = _spread(points, k, source)
        for _ in range(most):
            label = nearest(points, centres)
            sums = torch.zeros_like(centres).index_add(0, label, points)
            count = label.bincount(minlength=k)[:, None]
            # a cluster that lost all its points stays
            new = torch.where(count > 0, sums / count.clamp(min=1), centres)
            if torch.equal(new, centres):
                break
            centres = new
        cost = float((points - centres[nearest(points, centres)]).square().sum())
        if cost < best:
            best, found = cost, centres
    return found


def _spread(points: Tensor, k: int, source: torch.Generator) -> Tensor:
    """k of the points, each drawn with a probability by its squared distance to those before."""
    chosen = [int(torch.randint(len(points), (1,), generator=source))]
    away = torch.full((len(points),), torch.inf, dtype=torch.float64)
    while len(chosen) < k:
        away = away.minimum((points - points[chosen[-1]]).square().sum(1).double().cpu())
        weights = away if float(away.sum()) > 0 else torch.ones_like(away)
        chosen.append(int(torch.multinomial(weights, 1, generator=source)))
    return points[chosen]


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Which of the centres is nearest to each point, (N, r) and (k, r) → (N,)."""
    return ((centres**2).sum(1) - 2 * points @ centres.T).argmin(1)


def purity(label: Tensor, classes: Tensor) -> float:
    """The share of tokens whose class is the commonest of their cluster; both (N,)."""
    table = torch.zeros(
        int(label.max()) + 1, int(classes.max()) + 1, dtype=torch.long, device=label.device
    )
    table.index_put_((label, classes), torch.ones_like(label), accumulate=True)
    return float(table.max(1).values.sum()) / len(label)


@dataclass(frozen=True, eq=False)
class Clusters:
    """Tokens in k clusters by their rows.

    `label` (n, s), `centres` (k, r) in the space of `directions` (d, r).

    `flow` (k, k): of what the tokens of a cluster get (by norm), the share that comes from the
    tokens of each; a row sums to 1. `tokens` (k): how many tokens each has.
    """

    label: Tensor
    centres: Tensor
    directions: Tensor
    flow: Tensor
    tokens: Tensor

    def assign(self, X: Tensor) -> Tensor:
        """The clusters of other tokens, (…, d) → (…)."""
        rows = (X @ self.directions).reshape(-1, self.directions.shape[1])
        return nearest(rows, self.centres).view(X.shape[:-1])

    def rows(self) -> list[dict[str, Any]]:
        """One row per pair of clusters: what one gets from the other, and that one's size."""
        share = self.tokens / self.tokens.sum()
        k = len(self.tokens)
        return [
            {
                "cluster": p,
                "tokens": int(self.tokens[p]),
                "from": q,
                "share": float(self.flow[p, q]),
                "of tokens": float(share[q]),
            }
            for p in range(k)
            for q in range(k)
        ]

    @property
    def sentence(self) -> str:
        share = self.tokens / self.tokens.sum()
        own = float((self.flow.diagonal() * share).sum())
        most = int((self.flow * share[:, None]).sum(0).argmax())
        return (
            f"{numbered(int(self.tokens.sum()), 'token')} in"
            f" {numbered(len(self.tokens), 'cluster')}: a token gets {percent(own)} from its own"
            f" cluster; the most comes from cluster {most},"
            f" {percent(float((self.flow[:, most] * share).sum()))}"
            f" from {percent(float(share[most]))} of the tokens."
        )

    def plot(self) -> Any:
        """Who gets how much from whom (an altair chart)."""
        import altair as alt

        base = alt.Chart(alt.Data(values=self.rows())).encode(
            x=alt.X("from:O", title="from cluster", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("cluster:O", title="cluster"),
        )
        cells = base.mark_rect().encode(
            color=alt.Color("share:Q", scale=alt.Scale(scheme="blues"), title="share")
        )
        return cells.properties(
            width=alt.Step(28),
            height=alt.Step(28),
            title="What clusters get from each other",
        )

    def _repr_html_(self) -> str:
        return html_view("Clusters of tokens", self.sentence, self.plot(), self.rows())


def token_clusters(block: ConvexBlock, Z: Tensor, k: int, seed: int = 0) -> Clusters:
    """Tokens of the block's inputs in k clusters, by their rows of the learned map.

    Also what goes from cluster to cluster.
    """
    along = directions(block, Z)
    if not along.shape[1]:
        raise EigenlensError("Z is 0, so that every token has the same row; solve with a smaller β")
    rows = (block.X @ along).flatten(0, 1)
    centres = k_means(rows, k, seed)
    label = nearest(rows, centres).view(block.n, block.s)
    hot = torch.nn.functional.one_hot(label, k).to(block.X)  # (n, s, k)
    moved = torch.einsum("ntp,ntu,nuq->pq", hot, contributions(block, Z).norm(dim=3), hot)
    flow = moved / moved.sum(1, keepdim=True).clamp(min=torch.finfo(moved.dtype).tiny)
    return Clusters(label, centres, along, flow, hot.sum((0, 1)))
