"""What can go wrong while an environment is made, in lines that say what to do.

Input: what failed. Output: exceptions and phrases for them.
"""

from __future__ import annotations

_LONGEST = 300  # characters of a foreign text inside a message


class MakeError(ValueError):
    """An environment cannot be made, or is of a kind that is not supported."""


def add_note(error: BaseException, note: str) -> None:
    """Say where ``error`` came from without changing what it is, on Python 3.10 too."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        notes = [*getattr(error, "__notes__", ()), note]
        error.__notes__ = notes  # type: ignore[attr-defined]


def one_line(text: object) -> str:
    """A foreign message, or the text of a space, on one line of bearable length."""
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
