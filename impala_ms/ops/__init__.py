"""Pure functions on tensors: V-trace, losses, policy distributions."""
