"""Where the rows of a run go: ``metrics.csv``, TensorBoard, the console of the launcher.

Input: a row for each log interval, a dict by the names of the columns; a missing value is None or
absent. Output: files in the run folder. All sinks have ``write(row)`` and ``close()``.
"""

from __future__ import annotations

import csv
import difflib
import math
import os
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, TextIO

from impala_ms.metrics import progress
from impala_ms.metrics.columns import PROGRESS_KEYS

Row = Mapping[str, Any]


class SinkError(RuntimeError):
    """Metrics cannot be written, or the file that is there does not fit."""


class Sink(Protocol):
    """Takes rows."""

    def write(self, row: Row) -> None:
        """Write one row."""

    def close(self) -> None:
        """Finish; no row is written afterwards."""


class Sinks:
    """Several sinks as one."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        """Write to each of ``sinks`` in this order."""
        self._sinks = list(sinks)

    def write(self, row: Row) -> None:
        """Write the row to every sink."""
        for sink in self._sinks:
            sink.write(row)

    def close(self) -> None:
        """Close every sink, even if one of them fails; then raise the first error."""
        first: Exception | None = None
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first


class CsvSink:
    """A CSV file with a line for each row, which is on the disk at once.

    An existing file is continued. If its last line is incomplete, because the writer was killed,
    that line is removed first. A file that lacks some columns gets them, empty.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Iterable[str]) -> None:
        """Open or create the file.

        Raises:
            SinkError: If the file has unknown columns, or cannot be written.
        """
        self.path = Path(path)
        self.columns = list(columns)
        self._header = ",".join(self.columns) + "\n"
        try:
            self._recover()
            self._file = self._open()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def write(self, row: Row) -> None:
        """Append the row and flush it.

        Raises:
            SinkError: If the row has a key that is not a column, or cannot be written.
        """
        unknown = [key for key in row if key not in self.columns and key not in PROGRESS_KEYS]
        if unknown:
            near = difflib.get_close_matches(unknown[0], self.columns, n=1)
            raise SinkError(
                f"{self.path} has no column {unknown[0]!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
                + " (an algorithm's config.py declares its columns, and an own learner those "
                "in its attribute columns)"
            )
        line = ",".join(_field(name, row.get(name)) for name in self.columns)
        if not self.path.exists():
            raise SinkError(f"{self.path} is gone: it was removed while the run wrote to it")
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def rewind_to(self, updates: int) -> None:
        """Remove the rows after so many updates: a resumed run makes them again."""
        try:
            self._file.close()
            with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
                lines = file.readlines()
            kept = [line for line in lines[1:] if self._updates(line) <= updates]
            if len(kept) < len(lines) - 1:
                self._replace("".join([lines[0], *kept]))
            self._file = self._open()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def _updates(self, line: str) -> float:
        try:
            return float(line.split(",")[self.columns.index("updates")] or 0)
        except (IndexError, ValueError) as error:
            raise SinkError(
                f"{self.path} holds a line that is not a row, {line[:60]!r}: move the file away"
            ) from error

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def _recover(self) -> None:
        """Make the file if there is none; otherwise mend its header and its last line."""
        # Bytes that are not UTF-8 occur only in damaged rows, or in a file of another program.
        content = self.path.read_text("utf-8", "replace") if self.path.exists() else ""
        whole = content[: content.rfind("\n") + 1]
        if not whole and self._header.startswith(content):
            self._replace(self._header)
            return
        header = (whole or content).split("\n", 1)[0]
        if header + "\n" != self._header:
            self._replace(self._with_new_columns(header.split(","), whole))
        elif whole != content:
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def _with_new_columns(self, there: list[str], whole: str) -> str:
        """The content of a file with other columns, rewritten with the columns of this run."""
        unknown = [name for name in there if name not in self.columns]
        if unknown or len(set(there)) < len(there):
            what = f"the unknown column {unknown[0][:40]!r}" if unknown else "a column twice"
            raise SinkError(
                f"{self.path} has {what}: move the file away, or use another run folder "
                "(docs/metrics.md lists the columns)"
            )
        rows = csv.DictReader(whole.splitlines())
        lines = [",".join(row.get(name) or "" for name in self.columns) + "\n" for row in rows]
        return self._header + "".join(lines)

    def _open(self) -> TextIO:
        return self.path.open("a", encoding="utf-8", newline="")

    def _replace(self, content: str) -> None:
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(content, "utf-8")
        beside.replace(self.path)


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, float | None]]:
    """The rows of a ``metrics.csv``: numbers by column, None for an empty field.

    In a run that is still going on, the last line may be incomplete: it is left out.
    """
    text = Path(path).read_text("utf-8")
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [
        {name: float(value) if value else None for name, value in row.items()}
        for row in csv.DictReader(whole)
    ]


class TensorBoardSink:
    """Scalars for TensorBoard, by ``env_steps``, in the groups train, loss, speed and eval.

    A thread of its own imports tensorboardX at the first row and writes the events, so that neither
    the start nor the learner waits for it. tensorboardX's event writer is used directly:
    ``SummaryWriter`` has threads of its own, in which an error such as a full disk would be lost.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        columns: Iterable[str],
        resumed_at: int | None = None,
    ) -> None:
        """Write events into ``directory``.

        Args:
            directory: Where the event file is made, at the first row.
            columns: The columns to write.
            resumed_at: ``env_steps`` of the checkpoint from which a resumed run goes on;
                TensorBoard then drops what was written after it.
        """
        self.directory, self.columns = Path(directory), list(columns)
        self._resumed_at = resumed_at
        self._queue: queue.SimpleQueue[tuple[float, Row] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def write(self, row: Row) -> None:
        """Hand the row to the writing thread.

        Raises:
            SinkError: If an earlier row could not be written.
        """
        self._raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)
            self._thread.start()
        self._queue.put((time.time(), dict(row)))

    def close(self) -> None:
        """Write the remaining rows and close the file."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise _cannot_write(self.directory, error) from error

    def _run(self) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.proto.summary_pb2 import Summary

            self.directory.mkdir(parents=True, exist_ok=True)
            # With the process id in its name, a run that is resumed at once makes another file.
            events = EventsWriter(str(self.directory / "events"), f".{os.getpid()}")
            if self._resumed_at is not None:
                start = SessionLog(status=SessionLog.START)
                events.write_event(Event(step=self._resumed_at + 1, session_log=start))
            while (item := self._queue.get()) is not None:
                wall_time, row = item
                pairs = _scalars(row, self.columns)
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in pairs]
                step = int(row["env_steps"])
                events.write_event(
                    Event(wall_time=wall_time, step=step, summary=Summary(value=values))
                )
                events.flush()
            events.close()
        except Exception as error:
            self._error = error


class ConsoleSink:
    """Prints rows as lines of ``progress.encode``, which the launcher shows."""

    def __init__(self, stream: TextIO) -> None:
        """Print to ``stream``."""
        self._stream = stream

    def write(self, row: Row) -> None:
        """Print the row as one line."""
        try:
            self._stream.write(progress.encode(row) + "\n")
            self._stream.flush()
        except OSError as error:
            raise _cannot_write("the console (has the launcher gone?)", error) from error

    def close(self) -> None:
        """Do nothing: the stream is the caller's."""


_SPEED = {
    "wall_time_s",
    "env_steps_per_s",
    "updates_per_s",
    "learner_wait_fraction",
    "actor_wait_fraction",
    "rss_mb",
    "ranks_alive",
}


def _scalars(row: Row, columns: Iterable[str]) -> list[tuple[str, float]]:
    """The tags and values of a row in TensorBoard."""
    return [
        (f"{_group(name)}/{name}", float(row[name]))
        for name in columns
        if not _empty(row.get(name))
    ]


def _group(name: str) -> str:
    prefix = name.partition("_")[0]
    if prefix in ("loss", "eval"):
        return prefix
    return "speed" if name in _SPEED else "train"


def _empty(value: Any) -> bool:
    return value is None or math.isnan(value)


def _field(name: str, value: Any) -> str:
    """One field of a CSV line."""
    if _empty(value):
        return ""
    if name == "wall_time_s":
        return f"{value:.3f}"
    return str(int(value)) if isinstance(value, Integral) else f"{value:.6g}"


def _cannot_write(where: str | os.PathLike[str], error: Exception) -> SinkError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return SinkError(f"cannot write metrics to {os.fspath(where)}: {reason}")
