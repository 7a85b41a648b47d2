"""The stages of a study by the phrases of its progress."""

import re


def stage_of(what):
    """`fit inputs`, `held-out inputs` or `eigen-analysis`; another phrase stays as it is."""
    if re.fullmatch(r"reading [\d,]+ texts", what):
        return "fit inputs"
    if re.fullmatch(r"reading [\d,]+ texts, now the held-out ones", what):
        return "held-out inputs"
    return {"computing eigenvalues": "eigen-analysis"}.get(what, what)
