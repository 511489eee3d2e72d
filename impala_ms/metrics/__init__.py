"""The metrics of a run: meters, columns, the files that hold them, and the progress line."""
