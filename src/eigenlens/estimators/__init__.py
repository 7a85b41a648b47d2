"""All scores from a part of the work: which pairs to compute, and how to estimate the others."""
