"""What a rank does: one loop a file."""
