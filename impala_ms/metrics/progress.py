"""The progress of a run on the terminal.

Input: rows of metrics that the learner prints, a line for each. Output: one line that the launcher
rewrites in place, or plain lines if there is no terminal.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Row = Mapping[str, Any]

# Ordinary output does not begin a line with this control character.
MARKER = "\x1eprogress "

# Rank 0 prints this line when all ranks are connected: from then on it notices a lost rank.
CONNECTED = MARKER + '{"connected": true}'

_WAIT_LINES = 10  # intervals between two plain lines that say what the learner waits for
_WAITS = 0.2  # a role that waits more than this share of its time is not the bottleneck


def encode(row: Row) -> str:
    """The row as one line for programs, without the newline."""
    return MARKER + json.dumps({key: _plain(value) for key, value in row.items()})


def decode(line: str) -> dict[str, Any] | None:
    """The row from which ``encode`` made ``line``; None for any other line."""
    if not line.startswith(MARKER):
        return None
    try:
        row = json.loads(line[len(MARKER) :])
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def format_line(row: Row, *, width: int | None = None) -> str:
    """The row as one line for people.

    Args:
        row: Metrics, and keys of ``columns.PROGRESS_KEYS``; missing ones are left out.
        width: Largest number of characters; fields are dropped from the right until they fit.
    """
    fields = [field for field in _fields(row) if field]
    line = "  ".join(fields)
    while width is not None and len(line) > width and len(fields) > 1:
        fields.pop()
        line = "  ".join(fields)
    return line if width is None else line[:width]


def open_streams() -> None:
    """Make sure that a process can print.

    A process that was started without streams (``>&-``) gets empty ones. Otherwise the first files
    that it opens would get their numbers, and the output would go into these files. Characters
    that the console does not know are replaced.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the file gets the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error escapes them by default
        sys.stdout.reconfigure(errors="replace")


def ignore_output() -> None:
    """Avoid an error at the end of Python if nobody reads standard output any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """Shows progress and other output on one stream.

    On a terminal the progress is one line at the bottom, rewritten in place, with the other lines
    above it. Elsewhere progress is printed as plain lines, at most one per second; the first and
    the last are always printed.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show on ``stream``.

        Args:
            stream: Where to write, a terminal or not.
            interval_s: Shortest time between two plain lines.
            clock: Seconds; replaced in tests.
        """
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._interval_s = interval_s
        self._clock = clock
        self._line = ""
        self._held_back: Row | None = None
        self._printed_at = -math.inf

    def progress(self, row: Row) -> None:
        """Show the newest progress."""
        if self._live:
            self._line = format_line(row, width=self._width())
            self._write(f"\r{self._line}\x1b[K")
            return
        self._held_back = row
        now = self._clock()
        interval_s = self._interval_s * (_WAIT_LINES if row.get("waiting_for") else 1)
        if now - self._printed_at >= interval_s:
            self._printed_at = now
            self._print_held_back()

    def write(self, text: str) -> None:
        """Show lines that ranks print; a line made by ``encode`` is progress."""
        for line in text.removesuffix("\n").split("\n"):
            if line == CONNECTED:
                continue
            row = decode(line)
            if row is None:
                self.line(line)
            else:
                self.progress(row)

    def flush(self) -> None:
        """Do nothing: only progress is held back, and ``close`` prints it."""

    def line(self, text: str) -> None:
        """Show other output: one or more complete lines."""
        text = text.rstrip("\n")
        if self._line:
            self._write(f"\r\x1b[K{text}\n{self._line}")
        else:
            self._write(f"{text}\n")

    def close(self) -> None:
        """Print the last progress as an ordinary line."""
        if self._line:
            self._line = ""
            self._write("\n")
        self._print_held_back()

    def _print_held_back(self) -> None:
        row, self._held_back = self._held_back, None
        if row is not None:
            self._write(format_line(row) + "\n")

    def _width(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        # A line that fills the last column wraps on some terminals; 0 means the size is unknown.
        return (columns or 80) - 1

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _fields(row: Row) -> list[str]:
    """The fields of the line, the most important first; a field may be empty."""
    lag, loss = row.get("policy_lag_mean"), row.get("loss_total")
    returned, rate = row.get("episode_return_mean"), row.get("env_steps_per_s")
    alive, expected = row.get("ranks_alive"), row.get("actors_expected")
    acting = (alive or 0) - row.get("servers", 1)
    left, evaluated = row.get("eta_s"), row.get("eval_return_mean")
    return [
        _steps(row.get("env_steps"), row.get("total_env_steps")),
        f"waiting for {row['waiting_for']}" if row.get("waiting_for") else "",
        "" if rate is None else f"{_short(rate)}/s",
        "" if returned is None else f"return {returned:.1f}",
        "" if evaluated is None else f"eval {evaluated:.1f}",
        "" if lag is None else f"lag {lag:.1f}",
        "" if left is None else f"{_duration(left)} left",
        "" if loss is None else f"loss {loss:.4g}",
        "" if alive is None or not expected else f"{acting}/{expected} actors",
        # In one process learner and actor take turns: neither waits for the other.
        ""
        if expected == 0 or row.get("waiting_for")
        else _bottleneck(row.get("learner_wait_fraction"), row.get("actor_wait_fraction")),
    ]


def _steps(done: float | None, total: float | None) -> str:
    if done is None:
        return ""
    if not total:
        return f"{_short(done)} steps"
    return f"{_short(done)}/{_short(total)} steps ({min(100, 100 * done / total):.0f}%)"


def _short(number: float) -> str:
    """A number with three digits: 950, 12.3K, 1.50M."""
    for suffix in ("", "K", "M", "G"):
        if abs(number) < 999.5 or suffix == "G":
            break
        number /= 1000
    digits = 0 if not suffix or abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f}{suffix}"


def _duration(seconds: float) -> str:
    """A time as 0:42, 12:05 or 3:07:00."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _bottleneck(learner_wait: float | None, actor_wait: float | None) -> str:
    """The bottleneck, from the shares of time that learner and actors wait."""
    if learner_wait is None and actor_wait is None:
        return ""
    learner, actor = learner_wait or 0.0, actor_wait or 0.0
    if max(learner, actor) < _WAITS:
        return "balanced"
    return "waiting for actors" if learner >= actor else "waiting for learner"


def _plain(value: Any) -> Any:
    """A value for JSON: NumPy scalars become Python's, values that are not finite become null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
