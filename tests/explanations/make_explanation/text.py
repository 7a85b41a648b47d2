"""The text that most explanations here are of."""

TEXT = "The capital of France is a large city on the river Seine."
