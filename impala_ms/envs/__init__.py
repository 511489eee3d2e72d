"""Environments as the actors see them: several of one kind, stepped together."""
