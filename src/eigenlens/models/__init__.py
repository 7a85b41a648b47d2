"""Models from the catalogue, a folder, the hub or memory, loaded without running foreign code."""
