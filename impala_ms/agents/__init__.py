"""What acts and what learns: networks, actors, learners."""
