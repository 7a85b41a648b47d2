"""Row statistics and estimates written out from single scores, as the oracle of the row
estimators.
"""

import numpy as np

from eigenlens.estimators.estimator import MatrixModel, SiteStatistics
from eigenlens.stats import RowMoments
from stats.calls import dense_rows

M = 3


def statistics(c, **extra):
    moments = RowMoments()
    moments.update(c)
    sums = moments.result()[c.site]
    T, S, D = c.q.shape[2], c.k.shape[2], c.q.shape[3]
    return SiteStatistics(
        c.site,
        c.heads,
        c.k.shape[1],
        T,
        S,
        D,
        c.mask_shape.form == "causal",
        rows=sums,
        **extra,
    )


def dense_model(c, group):
    """Mean by head, covariance of the rows of each group where both keys are valid, positive part.

    From single scores.
    """
    means, scatters, counts = [], [], []
    for head in range(c.heads):
        s, v = (x.double().numpy() for x in dense_rows(c, head))
        mean = (s * v).sum(0) / v.sum(0).clip(1)
        z = (s - mean) * v
        means.append(mean), scatters.append(z.T @ z), counts.append(v.T @ v)
    found = []
    for g in range(0, c.heads, group):
        C = sum(scatters[g : g + group]) / sum(counts[g : g + group]).clip(1)
        values, vectors = np.linalg.eigh((C + C.T) / 2)
        found += [(vectors * values.clip(0)) @ vectors.T] * group
    return np.array(means), np.array(found)


def dense(c, mean, conditional):
    """All estimated scores: `conditional(head, mean, row, seen) -> ŝ`, row by row.

    Computed ones are put in.
    """
    B, H, T, _ = c.q.shape
    truth, valid = c.scores(fill=0.0).numpy(), c.valid().expand(B, H, T, c.k.shape[2]).numpy()
    found = np.zeros_like(truth)
    for b, h, i in np.ndindex(B, H, T):
        found[b, h, i] = conditional(
            h, mean[h, i] if mean.ndim == 3 else mean[h], truth[b, h, i], valid[b, h, i]
        )
    return found * valid, valid


def lmmse(c, keys, mean, covariance, ridge=1e-4):
    def conditional(h, mu, row, valid):
        S, C = keys[h], covariance[h]
        A = [j for j in S if valid[j]]
        noise = ridge * np.trace(C[np.ix_(S, S)]) / len(S)
        found = mu + C[:, A] @ np.linalg.solve(
            C[np.ix_(A, A)] + noise * np.eye(len(A)), (row - mu)[A]
        )
        found[A] = row[A]
        return found

    return dense(c, mean, conditional)


def same(scores, expected, valid):
    assert np.abs(np.where(valid, scores.numpy(), 0) - expected).max() < 1e-9


def row_oracle(c):
    """As `dense_model`, from the call's true scores: their own test is elsewhere."""
    B, H, T, S = c.scores().shape
    s, v = c.scores(fill=0.0).numpy(), c.valid().expand(B, H, T, S).double().numpy()
    mean = s.sum((0, 2)) / v.sum((0, 2)).clip(1)
    z = (s - mean[:, None]) * v
    C = np.einsum("bhij,bhik->hjk", z, z) / np.einsum("bhij,bhik->hjk", v, v).clip(1)
    values, vectors = np.linalg.eigh(C)
    return mean, np.einsum("hja,ha,hka->hjk", vectors, values.clip(0), vectors)


def by_query(c):
    """The matrix statistics that a mean by query needs."""
    s = c.scores(fill=0.0)
    empty = s.new_zeros(4, 1, 9, 9)
    return MatrixModel(
        c.valid()[0, 0], s.mean(0), s.var(0, unbiased=False), empty, empty[:, :, 0, 0]
    )
