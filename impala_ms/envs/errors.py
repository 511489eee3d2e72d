"""What can go wrong while an environment is made, in lines that say what to do."""

from __future__ import annotations


class MakeError(ValueError):
    """An environment cannot be made, or is of a kind that is not supported."""
