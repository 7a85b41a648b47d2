"""Engines, checkpoints and progress."""
