"""Run a model over shards of inputs and collect mergeable states."""
