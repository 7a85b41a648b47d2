"""Every run of a paper that these tests make anyway is held to the contract of claims."""

import pytest

from eigenlens.papers.paper import Paper
from papers.contract import check_claims


@pytest.fixture(scope="session", autouse=True)
def claims_keep_their_contract():
    run = Paper.__call__

    def checked(self, *args, **options):
        done = run(self, *args, **options)
        check_claims(done)
        return done

    patch = pytest.MonkeyPatch()
    patch.setattr(Paper, "__call__", checked)
    yield
    patch.undo()
