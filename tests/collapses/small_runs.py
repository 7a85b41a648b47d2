"""How small the collapse runs of tests are."""

SMALL = {"max_inputs": 6, "max_length": 16, "paths": 2, "bounds": 1}
