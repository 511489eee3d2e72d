"""The progress of a run on the terminal.

Input: rows of metrics from the learner, one line each. Output: the one live line that the
launcher shows, or plain lines where there is no terminal.
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

# A control character that no ordinary output begins a line with.
MARKER = "\x1eprogress "

# Rank 0 prints this line once all ranks are connected: from then on it is told of one that is gone.
CONNECTED = MARKER + '{"connected": true}'

_WAIT_LINES = 10  # times the interval, between two plain lines that say what is waited for
_WAITS = 0.2  # a role that waits for more than this share of its time has a bottleneck elsewhere


def encode(row: Row) -> str:
    """Return the row as one machine-readable line, without the newline."""
    return MARKER + json.dumps({key: _plain(value) for key, value in row.items()})


def decode(line: str) -> dict[str, Any] | None:
    """Return the row that ``encode`` made ``line`` from, or None for any other line."""
    if not line.startswith(MARKER):
        return None
    try:
        row = json.loads(line[len(MARKER) :])
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def format_line(row: Row, *, width: int | None = None) -> str:
    """Return the row for people, on one line.

    Args:
        row: Metrics of ``columns.COLUMNS`` and ``columns.PROGRESS_KEYS``; absent ones are left out.
        width: Characters there is room for; fields are dropped from the right until they fit.
    """
    fields = [field for field in _fields(row) if field]
    line = "  ".join(fields)
    while width is not None and len(line) > width and len(fields) > 1:
        fields.pop()
        line = "  ".join(fields)
    return line if width is None else line[:width]


def open_streams() -> None:
    """Have a process print whatever its streams are.

    Started without them (``>&-``) it gets empty ones: else the first files it opens would take
    their numbers, and what is printed would go there. Characters that a console does not know are
    replaced.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # Python has standard error escape them
        sys.stdout.reconfigure(errors="replace")


def ignore_output() -> None:
    """Have Python not trip at its end over standard output that nobody takes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """Shows progress and other output on one stream.

    On a terminal the progress is one line at the bottom, rewritten in place, and other lines are
    put above it. Elsewhere progress is printed as plain lines, at most one per second; the first
    and the last are always there.
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
            stream: Where to write; whether it is a terminal is asked of it.
            interval_s: Least time between two plain lines.
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
        """Show lines as ranks print them: where one is marked as such, progress."""
        for line in text.removesuffix("\n").split("\n"):
            if line == CONNECTED:
                continue
            row = decode(line)
            if row is None:
                self.line(line)
            else:
                self.progress(row)

    def flush(self) -> None:
        """Nothing is held back but progress."""

    def line(self, text: str) -> None:
        """Show other output: one or more whole lines."""
        text = text.rstrip("\n")
        if self._line:
            self._write(f"\r\x1b[K{text}\n{self._line}")
        else:
            self._write(f"{text}\n")

    def close(self) -> None:
        """Leave the last progress as an ordinary line."""
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
    """The parts of the line, the most important first; empty where there is nothing to say."""
    lag, loss = row.get("policy_lag_mean"), row.get("loss_total")
    returned, rate = row.get("episode_return_mean"), row.get("env_steps_per_s")
    alive, expected = row.get("ranks_alive"), row.get("actors_expected")
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
        "" if alive is None or not expected else f"{alive - 1}/{expected} actors",
        # In one process nobody waits: the two take turns.
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
    """A number in three digits: 950, 12.3K, 1.50M."""
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
    """Who is waited for, from the shares of their time that the two roles wait."""
    if learner_wait is None and actor_wait is None:
        return ""
    learner, actor = learner_wait or 0.0, actor_wait or 0.0
    if max(learner, actor) < _WAITS:
        return "balanced"
    return "waiting for actors" if learner >= actor else "waiting for learner"


def _plain(value: Any) -> Any:
    """A value JSON has: NumPy scalars become Python's, what is not finite becomes null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
