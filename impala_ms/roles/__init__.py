"""What a rank does, a loop in each file."""
