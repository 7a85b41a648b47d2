"""The sentence of a collapse run, for numbers that are made up."""

import eigenlens as el
from eigenlens.collapses.verdict import sentence
from eigenlens.stats import DepthNumber


def made_up(**ends):
    """A run whose residuals go from 1 to the given ends over two blocks."""
    curves = {}
    for name, end in ends.items():
        places = [
            (0, "input", 1.0),
            (0, "output", end**0.5),
            (1, "input", end**0.5),
            (1, "output", end),
        ]
        shared = {
            "stack": "encoder",
            "tokens": "all",
            "metric": "residual",
            "head": None,
            "low": None,
            "high": None,
            "number": 3,
        }
        curves[name] = [
            vars(DepthNumber(layer=layer, place=place, mean=mean, **shared))
            for layer, place, mean in places
        ]
    empty = {"error": None, "lengths": [], "heads": [], "single": []}
    facts = {"model": {"name": "m"}, "data": {"name": "d"}}
    return el.Collapse(
        {"facts": facts, "curves": curves, "paths": empty, "bounds": {"heads": [], "depth": []}}
    )


def test_the_sentence_names_what_holds_the_tokens_apart():
    skips = sentence(
        made_up(full=0.4, SAN=1e-4, **{"SAN+MLP": 1e-3, "SAN+skip": 0.3, "without norm": 0.35})
    )
    assert "With attention alone the tokens would collapse at block 1 (0.01)" in skips
    assert (
        "Both skips hold the tokens apart: the residual at the end is 0.001 without both skips, 0.3"
        " without the MLPs" in skips
    )
    one = sentence(
        made_up(
            full=0.4,
            SAN=1e-4,
            **{"SAN+MLP": 1e-3, "without attention skip": 2e-3, "without MLP skip": 0.3},
        )
    )
    assert (
        "The attention skip holds the tokens apart: the residual at the end is 0.001 without both"
        " skips, 0.002 without the attention skip" in one
    )
    paper = sentence(made_up(full=0.4, SAN=1e-4, **{"SAN+MLP": 1e-5, "SAN+skip": 0.1}))
    assert "Both skips hold the tokens apart" in paper  # the MLPs matter, too, but less
    mlps = sentence(made_up(full=0.4, SAN=1e-4, **{"SAN+MLP": 0.3, "SAN+skip": 0.01}))
    assert "The MLPs hold the tokens apart" in mlps
    nothing = sentence(made_up(full=0.4, SAN=0.2, **{"SAN+MLP": 0.3}))
    assert (
        "With attention alone 0.2 would be left at the end, which is no collapse" in nothing
        and "No single part" in nothing
    )
    partly = sentence(made_up(full=0.4, **{"without attention skip": 1e-3}))
    assert "No ablation" not in partly and "The attention skip holds the tokens apart" in partly
