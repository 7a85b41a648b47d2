"""What holds of every claim of every paper."""

from eigenlens.papers.claims import REASONS


def check_claims(done):
    """Every claim has something published and a criterion, every failure says why."""
    for claim in done.claims:
        where = f"{done.paper}: {claim.claim}"
        assert claim.criterion, f"{where} has no criterion"
        published = claim.published.strip()
        assert published not in ("", "–", "-") and "not in the paper" not in published, (
            f"{where} has nothing published, so it is a measured table and no claim"
        )
        if claim.verdict == "not reproduced":
            assert claim.reason.startswith(REASONS), f"{where} fails without a reason"
        else:
            assert not claim.reason, f"{where} has a reason, though it does not fail"
        if claim.verdict == "out of reach":
            assert claim.criterion.startswith("not judged: it needs "), where
    names = [claim.claim for claim in done.claims]
    assert len(set(names)) == len(names), f"{done.paper} has two claims of one name"
