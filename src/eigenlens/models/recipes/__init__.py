"""How each catalogue package becomes a transformers folder: one file per model with `convert`."""
