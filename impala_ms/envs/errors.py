"""The error that says why an environment cannot be made, and what to do."""

from __future__ import annotations


class MakeError(ValueError):
    """An environment cannot be made, or is of a kind that is not supported."""
