"""How messages show values and counts, and the name that may have been meant.

Input: values and names of a configuration. Output: texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from impala_ms.classes import reference


def count(number: int, noun: str) -> str:
    """``1 actor``, ``2 actors``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def show(value: Any) -> str:
    """A value as the user would write it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return reference(value) if callable(value) else str(value)


def nearest(name: str, allowed: Iterable[str], prefix: str = "") -> str:
    """The allowed name that is nearest to the given one, or all that are allowed."""
    import difflib  # only to report a mistake

    allowed = list(allowed)
    near = ["env"] if (name, prefix) == ("id", "--") else []
    near = near or difflib.get_close_matches(name, allowed, n=1)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    if prefix == "--":
        return "--help lists all"
    return f"allowed: {', '.join(prefix + name for name in allowed)}"
