"""Models by name, from a folder, from the hub or in hand, loaded without running anyone's code."""
