"""The statistics of a few calls, as a study would hold them."""

from eigenlens.estimators.estimator import SiteStatistics
from eigenlens.stats import QueryKeyMoments, RowMoments


def statistics_of(*calls, rows=True):
    moments, row_moments = QueryKeyMoments(), RowMoments()
    for call in calls:
        moments.update(call)
        if rows:
            row_moments.update(call)
    first, site = calls[0], calls[0].site
    return SiteStatistics(
        site=site,
        heads=first.heads,
        kv_heads=first.k.shape[1],
        queries=first.q.shape[2],
        keys=first.k.shape[2],
        dimension=first.q.shape[3],
        causal=first.mask_shape.form == "causal",
        rows=row_moments.result()[site] if rows else None,
        moments=moments.result()[site],
    )
