"""One process after another, each ended in order by a signal or a limit of time.

Input: commands. Output: what each printed, and how it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, BinaryIO, NamedTuple

from impala_ms import launch
from impala_ms.launching.job import death_signal

LOOK_S = 1.0  # between two looks at the process that goes on
WAKE_S = 0.1  # until a signal to end is noticed
COPY_S = 3.0  # limit for the last lines of a process that has ended

# What a launcher says of itself to its ranks: these processes are not of it.
_OF_ANOTHER_RUN = ("IMPALA_MS_STARTED", "IMPALA_MS_RUN_DIR", "IMPALA_MS_COMMAND")


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    at_limit: bool
    took_s: float


class Runner:
    """Runs processes; a signal ends the current one in order, and is remembered."""

    def __init__(self) -> None:
        self.stopped_by: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Runner:
        """Take signals, as far as this thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave signals as they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or number
        self._interrupt()

    def _interrupt(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def run(
        self,
        command: Sequence[str],
        output: BinaryIO,
        errors: BinaryIO | None = None,
        *,
        limit_s: float | None = None,
        look: Callable[[], None],
    ) -> Ended:
        """Run a command to its end.

        Args:
            command: Its words.
            output: What it prints is written here.
            errors: The same of its standard error; None: it goes to ``output`` too.
            limit_s: After so long it is asked to end in order.
            look: Is called about every `LOOK_S` seconds.
        """
        begun = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors is None else errors,
            # Ctrl-C on the terminal goes to its whole session: this process passes it on.
            start_new_session=True,
            preexec_fn=death_signal(signal.SIGTERM),
        )
        copying = Copying(self._process, output)
        copying.start()
        try:
            if self.stopped_by is not None:  # meanwhile
                self._interrupt()
            at_limit = self._wait(limit_s, begun, look)
        finally:  # it ends also where `look` raises
            self._interrupt()
            group, code = self._process.pid, self._process.wait()
            self._process = None
        copying.join(COPY_S)
        if copying.is_alive():  # a process that it has left behind, in its group, can still print
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            copying.join(COPY_S)
        if copying.error is not None:
            raise copying.error
        return Ended(code, at_limit, round(time.monotonic() - begun, 3))

    def _wait(self, limit_s: float | None, begun: float, look: Callable[[], None]) -> bool:
        """Wait for the end of the process; whether it was ended by the limit."""
        at_limit, looked = False, begun
        while self._process is not None:
            try:
                self._process.wait(WAKE_S)
                break
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if limit_s is not None and now - begun >= limit_s and not at_limit:
                at_limit = True
                self._interrupt()
            if now - looked >= LOOK_S:
                looked = now
                look()
        return at_limit


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_RUN}
    path = [str(launch.PACKAGE.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}


class Copying(threading.Thread):
    """Copies what a process prints into a file.

    Attributes:
        error: Why the file could not be written; the process then has nobody to print to, and ends.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: BinaryIO) -> None:
        """Copy into ``output``."""
        super().__init__(name="copying", daemon=True)
        self.error: OSError | None = None
        self._process, self._output = process, output

    def run(self) -> None:
        """Copy line by line until the end."""
        if self._process.stdout is None:
            return
        try:
            with self._process.stdout:
                for line in self._process.stdout:
                    self._output.write(line)
                    self._output.flush()
        except OSError as error:
            self.error = OSError(
                error.errno, error.strerror, str(getattr(self._output, "name", ""))
            )
