"""The options of a command line, whatever they mean.

Input: words such as ``--name value`` and ``--name=value``. Output: names and values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Option(NamedTuple):
    """One option as it was given.

    Attributes:
        word: As it was written, such as ``--batch-size``.
        name: ``batch_size``; empty if the word is not an option.
        value: None if nothing follows.
    """

    word: str
    name: str
    value: str | None


def read_options(argv: Sequence[str]) -> list[Option]:
    """Every option with its value, in their order."""
    options = []
    words = deque(argv)
    while words:
        given = words.popleft()
        if not given.startswith("--"):
            options.append(Option(given, "", None))
            continue
        word, equals, text = given.partition("=")
        value = text if equals else None
        if not equals and words and not words[0].startswith("--"):
            value = words.popleft()
        options.append(Option(word, word[2:].replace("-", "_"), value))
    return options


def last(options: Sequence[Option], name: str) -> str | None:
    """The value that counts, of an option that may be given several times."""
    values = [option.value for option in options if option.name == name]
    return values[-1] if values else None
