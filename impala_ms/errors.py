"""Errors as lines for people: problems of a configuration, and exceptions of a user's code.

Input: an exception. Output: one line of limited length, which says where the exception came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

OURS = str(Path(__file__).parent)
LONGEST = 300  # characters of another program's text inside a message
# MindSpore adds to a message its C++ calls and the lines of the graph that it compiles.
MINDSPORE_CALLS = re.compile(r"\s-{9,}\s+- C\+\+ Call Stack.*", re.DOTALL)
GRAPH_LINE = re.compile(r"# \d+ In file (\S+?:\d+)")


class ConfigError(ValueError):
    """All problems of a configuration, a line for each in ``problems``."""

    def __init__(self, *problems: str) -> None:
        """Make one message of all problems."""
        self.problems = problems
        head = [f"{len(problems)} problems in the configuration:"] if len(problems) > 1 else []
        super().__init__("\n  ".join([*head, *problems]))


class RunError(RuntimeError):
    """Ends the run; the user reads its text as the reason."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, on Python 3.10 too; its class and text do not change."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        notes = [*getattr(error, "__notes__", ()), note]
        error.__notes__ = notes  # type: ignore[attr-defined]


def one_line(text: object) -> str:
    """Another program's message, or the text of a space, as one line of limited length."""
    line = " ".join(text_of(text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} …"


def text_of(value: object, convert: Callable[[Any], str] = str) -> str:
    """``str`` or ``repr`` of an object, even if its method raises."""
    try:
        return convert(value)
    except BaseException:
        return f"<{type(value).__name__} whose {convert.__name__}() fails>"


def notes_of(error: BaseException) -> list[str]:
    """The notes that ``add_note`` has added."""
    try:
        return [text_of(note) for note in getattr(error, "__notes__", ())]
    except BaseException:  # the class has its own __getattribute__
        return []


def describe(error: BaseException) -> str:
    """An exception in one line: class, text and notes; for our own classes without the class.

    The text of other classes is cut at ``LONGEST``, so that the notes are always seen. If MindSpore
    could not compile a graph, the innermost line of the user's Python code is added.
    """
    text, name = text_of(error), type(error).__name__
    if calls := MINDSPORE_CALLS.search(text):
        text = text[: calls.start()].strip("' \n")
        lines = GRAPH_LINE.findall(calls.group())
        if lines and not lines[-1].startswith(OURS):
            name = f"{name} ({lines[-1]})"
    text = " ".join(text.split())
    if str(type(error).__module__).startswith("impala_ms.") and text:
        line = text  # written for the user: the class is not needed
    elif issubclass(type(error), SystemExit):
        line = f"it called sys.exit({one_line(text_of(error.code, repr))})"
    else:
        line = one_line(f"{name}: {text}" if text else name)
    return " ".join(" ".join([line, *notes_of(error)]).split())
