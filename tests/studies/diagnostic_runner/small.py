"""How small the studies here are, and their records as JSON."""

import json

SMALL = {"max_length": 16, "max_inputs": 24, "batch_size": 5, "rank": 4}


def finite(record):
    """JSON refuses NaN and infinity."""
    return json.loads(json.dumps(record, allow_nan=False))
