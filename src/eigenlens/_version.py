"""The version of the package."""

__version__ = "0.2.0"
"""The version, such as `0.2.0`; `eigenlens --version` prints it."""
