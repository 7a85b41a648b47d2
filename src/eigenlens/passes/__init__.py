"""A model over shards of inputs, into mergeable states."""
