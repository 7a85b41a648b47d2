"""An explanation whose numbers are known, for tests that draw and print."""

from eigenlens.explanations import Explanation

FRACTIONS = [0.0, 0.5, 1.0]


def handmade(
    tokens=("[CLS]", "the", "cat", " sat", "[SEP]"), grid=None, picture=None, position=None
):
    """Three methods on a few tokens: one without signs, one with, and chance.

    The first and last token are special.
    """
    number = len(tokens)
    front = 0 if grid is None else number - grid[0] * grid[1]
    special = (
        [i in (0, number - 1) for i in range(number)]
        if grid is None
        else [i < front for i in range(number)]
    )
    rising = [float(i) for i in range(number)]
    scores = {
        "relevance": rising,
        "gradient × input": [x if i % 2 else -x for i, x in enumerate(rising)],
        "random": [0.5] * number,
    }
    deletion = [
        {
            "method": name,
            "order": order,
            "fractions": FRACTIONS,
            "scores": values,
            "auc": (values[0] + 2 * values[1] + values[2]) / 4,
        }
        for name, first, last in (
            ("relevance", 0.2, 0.7),
            ("gradient × input", 0.3, 0.6),
            ("random", 0.5, 0.5),
        )
        for order, values in (("positive", [0.8, first, 0.1]), ("negative", [0.8, last, 0.1]))
    ]
    facts = {
        "model": {"name": "mini", "kind": "encoder", "fingerprint": "f00d"},
        "data": "the cat sat",
        "against": "a dog",
        "length": number,
        "inputs": 1,
        "score": 0.8,
        "grid": grid,
        "picture": picture,
        "notes": [],
        "versions": {"eigenlens": "0"},
        "target": {
            "kind": "similarity",
            "label": "similarity to 'a dog'",
            "unit": "cosine",
            "position": position,
        },
    }
    return Explanation(facts, list(tokens), special, scores, deletion)
