"""Text, token ids, pictures and sound as inputs of models."""
