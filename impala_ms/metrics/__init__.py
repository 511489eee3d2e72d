"""What a run reports: meters, the files they are written to, and the progress line."""
