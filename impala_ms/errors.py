"""Errors in lines for people: what is wrong with a configuration, and exceptions of a user's code.

Input: an exception. Output: one line of bearable length, with where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

OURS = str(Path(__file__).parent)
LONGEST = 300  # characters of a foreign text inside a message
# What MindSpore puts under a message: its own calls, and the lines of a graph that is compiled.
MINDSPORE_CALLS = re.compile(r"\s-{9,}\s+- C\+\+ Call Stack.*", re.DOTALL)
GRAPH_LINE = re.compile(r"# \d+ In file (\S+?:\d+)")


class ConfigError(ValueError):
    """What is wrong with a configuration, one line each (``problems``)."""

    def __init__(self, *problems: str) -> None:
        """Make one message of all problems."""
        self.problems = problems
        head = [f"{len(problems)} problems in the configuration:"] if len(problems) > 1 else []
        super().__init__("\n  ".join([*head, *problems]))


class RunError(RuntimeError):
    """Ends the run; its text is the reason that the user is told."""


def add_note(error: BaseException, note: str) -> None:
    """Say where ``error`` came from without changing what it is, on Python 3.10 too."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        notes = [*getattr(error, "__notes__", ()), note]
        error.__notes__ = notes  # type: ignore[attr-defined]


def one_line(text: object) -> str:
    """A foreign message, or the text of a space, on one line of bearable length."""
    line = " ".join(text_of(text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} …"


def text_of(value: object, convert: Callable[[Any], str] = str) -> str:
    """``str`` or ``repr`` of an object whose own method for it may raise."""
    try:
        return convert(value)
    except BaseException:
        return f"<{type(value).__name__} whose {convert.__name__}() fails>"


def notes_of(error: BaseException) -> list[str]:
    """What ``add_note`` has added."""
    try:
        return [text_of(note) for note in getattr(error, "__notes__", ())]
    except BaseException:  # its __getattribute__ is its own
        return []


def describe(error: BaseException) -> str:
    """An exception in one line: class, text and notes; only the text where the class is ours.

    The text is cut at ``LONGEST`` if it is foreign, so that the notes are always seen. Of a graph
    that MindSpore could not compile the innermost line of Python is given, if it is not ours.
    """
    text, name = text_of(error), type(error).__name__
    if calls := MINDSPORE_CALLS.search(text):
        text = text[: calls.start()].strip("' \n")
        places = GRAPH_LINE.findall(calls.group())
        if places and not places[-1].startswith(OURS):
            name = f"{name} ({places[-1]})"
    text = " ".join(text.split())
    if str(type(error).__module__).startswith("impala_ms.") and text:
        line = text  # written for the user: the class adds nothing
    elif issubclass(type(error), SystemExit):
        line = f"it called sys.exit({one_line(text_of(error.code, repr))})"
    else:
        line = one_line(f"{name}: {text}" if text else name)
    return " ".join(" ".join([line, *notes_of(error)]).split())
