"""The scores of induction heads by their definitions, pair by pair."""

NAMES = ("stripe", "prefix", "duplicate", "previous")


def by_loop(A, ids, n, first):
    """The definitions, pair by pair: A (T, T), ids (T,), the tokens of the probe from `first`
    on.
    """
    T = len(ids)
    sums, counts = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0)
    for i in range(first, T):
        if i > first:
            sums["previous"] += float(A[i, i - 1])
            counts["previous"] += 1
        if i >= first + n - 1:
            sums["stripe"] += float(A[i, i - n + 1])
            counts["stripe"] += 1
        if i < first + n:
            continue
        for name in ("prefix", "duplicate"):
            counts[name] += 1
        for j in range(first, i):
            if ids[j] == ids[i]:
                sums["duplicate"] += float(A[i, j])
                sums["prefix"] += float(A[i, j + 1])
    return {name: sums[name] / counts[name] for name in NAMES}
