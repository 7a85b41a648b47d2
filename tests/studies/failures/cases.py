"""Studies that something fails in: of small shards, so that there is much to fail."""

FINE = {"max_length": 8, "batch_size": 2, "shard_size": 2, "depth_every": 3, "diagnostics_every": 2}
CASES = {
    "gram": ("bert", {"max_inputs": 60, "rank": 16}),
    "sketch": ("bert", {"max_inputs": 110, "rank": 2, "batch_size": 8, "shard_size": 4}),
    "padded": ("bert", {"max_inputs": 24, "rank": 4, "max_length": 16, "padding": True}),
    "before rope": ("llama", {"max_inputs": 40, "rank": 8, "before_rope": True}),
}
