"""Environments as the actors see them: many of one kind, stepped together."""
