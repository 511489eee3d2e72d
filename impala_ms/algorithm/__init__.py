"""The algorithms: one folder each, with the same file names."""
