"""How messages show values and counts, and the name that may have been meant.

Input: values and names of a configuration. Output: texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def ranks_in_words(roles: Mapping[str, int]) -> str:
    """``1 learner + 3 actors``."""
    return " + ".join(count(number, role) for role, number in roles.items())


def closest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that is similar to the given one, if there is one."""
    import difflib  # only to report a mistake

    return next(iter(difflib.get_close_matches(name, list(allowed), n=1)), None)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """What may have been meant, or all that is allowed."""
    allowed = list(allowed)
    if near := closest(name, allowed):
        return f"did you mean {near}?"
    return f"allowed: {', '.join(allowed)}"
