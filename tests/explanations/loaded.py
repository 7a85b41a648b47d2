"""Models of the catalogue, each loaded once for all tests of a process."""

import functools

from tiny import of_catalogue

catalogue = functools.cache(of_catalogue)
