"""What collapse runs are of."""

import pytest


@pytest.fixture(scope="session")
def world(bert, text):
    """A model and a text, to be read."""
    return bert, text
