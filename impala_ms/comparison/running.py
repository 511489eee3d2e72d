"""The runs of a comparison, one after another, as a user would start them.

Input: the runs that are missing. Output: their folders, what each printed in a file beside, and how
each ended in ``comparison.json``.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from impala_ms import launch
from impala_ms.comparison import runs
from impala_ms.comparison.plan import Comparison, Outcome
from impala_ms.comparison.runs import Run
from impala_ms.metrics.progress import Display

METRICS = "metrics.csv"
LOOK_S = 1.0  # between two looks at the metrics of the run that goes on
WAKE_S = 0.1  # until a signal to end is noticed
TAIL_BYTES = 8192  # more than a row of metrics.csv has

# What a launcher says of itself to its ranks: these runs are not of it.
_OF_ANOTHER_RUN = ("IMPALA_MS_STARTED", "IMPALA_MS_RUN_DIR", "IMPALA_MS_COMMAND")


def train_command(algorithm: str, ranks: int, options: Sequence[str]) -> list[str]:
    """The command of one run, as a user gives it."""
    chosen = ["--algorithm", algorithm, *options]
    return [sys.executable, "-m", "impala_ms", "train", str(ranks), *chosen]


def run_all(comparison: Comparison, missing: Sequence[Run], display: Display) -> int | None:
    """Make the runs that are missing.

    Returns:
        The signal that ended it before all were made, or None.
    """
    labels = {
        run.folder: group.label
        for group in runs.grouped(comparison.planned())
        for run in group.runs
    }
    with Runner() as runner:
        for number, run in enumerate(missing, 1):
            several = len({setting.env for setting in comparison.settings}) > 1
            what = f"{labels[run.folder]}{f' on {run.env}' if several else ''}, seed {run.seed}"
            display.line(f"run {number} of {len(missing)}: {what}")
            watch = Watch(comparison, run, missing[number:], display)
            outcome = runner.run(comparison, run, watch.look)
            comparison.outcomes[comparison.key(run)] = outcome
            comparison.save()
            if runner.stopped_by is None:
                watch.ended()
            display.line(f"  {_said(outcome, newest_row(run.folder / METRICS))}")
            if runner.stopped_by is not None:
                break
        return runner.stopped_by


def _said(outcome: Outcome, row: Mapping[str, float]) -> str:
    how = "ended by --limit_s" if outcome.state == runs.LIMIT else outcome.state
    more = f": {outcome.message}" if outcome.message else ""
    if not more and "episode_return_mean" in row:
        more = f", return {row['episode_return_mean']:.1f}"
    return f"{how} after {outcome.took_s:.1f} s{more}"


class Runner:
    """Starts runs; a signal ends the current run in order, and is remembered."""

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

    def run(self, comparison: Comparison, run: Run, look: Callable[[], None]) -> Outcome:
        """Make one run; what was left of an earlier try is removed."""
        setting = comparison.setting_of(run)
        shutil.rmtree(run.folder, ignore_errors=True)
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        own = ["--seed", str(run.seed), "--run_dir", str(run.folder)]
        command = train_command(setting.algorithm, setting.ranks, [*setting.options, *own])
        begun = time.monotonic()
        log = run.folder.with_name(f"{run.folder.name}.txt")
        with log.open("wb") as file:
            # A session of its own: Ctrl-C on the terminal reaches this process, which passes it on.
            # What it prints comes through a pipe: it ends in order when this process is killed.
            self._process = subprocess.Popen(
                command,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            copying = threading.Thread(target=_copy, args=(self._process, file), daemon=True)
            copying.start()
            if self.stopped_by is not None:  # meanwhile
                self._interrupt()
            at_limit = self._wait(comparison.limit_s, begun, look)
            copying.join()
        took_s = round(time.monotonic() - begun, 3)
        state, message = self._state(self._process.returncode, at_limit, run, log)
        self._process = None
        return Outcome(state, took_s, message)

    def _wait(self, limit_s: float | None, begun: float, look: Callable[[], None]) -> bool:
        """Wait for the end of the run; whether it was ended by the limit."""
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

    def _state(self, code: int, at_limit: bool, run: Run, log: Path) -> tuple[str, str]:
        """How a run ended, and why if it failed."""
        if code == 0:
            return runs.FINISHED, ""
        failed = runs.read_json(run.folder / "status.json").get("state") == runs.FAILED
        if self.stopped_by is not None and not failed:
            return runs.STOPPED, ""
        if at_limit and not failed:
            return runs.LIMIT, ""
        lines = log.read_text("utf-8", "replace").split("\n")
        lines = [line.strip() for line in lines if line.strip()]
        said = [line for line in lines if line.startswith("failed: ")] or lines or ["no word"]
        return runs.FAILED, f"{said[-1].removeprefix('failed: ')} (exit code {code}, see {log})"


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_RUN}
    path = [str(launch.PACKAGE.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}


def _copy(process: subprocess.Popen[bytes], file: Any) -> None:
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                file.write(line)
                file.flush()


class Watch:
    """Shows the progress of the whole while one run goes on."""

    def __init__(
        self, comparison: Comparison, run: Run, later: Sequence[Run], display: Display
    ) -> None:
        """Look at ``run``; ``later`` are to follow."""
        self._comparison, self._run, self._later = comparison, run, later
        self._display = display
        self._begun = time.monotonic()
        every = comparison.planned()
        still = {other.folder for other in [run, *later]}
        self._total = sum(map(steps_of, every))
        self._done = sum(steps_of(other) for other in every if other.folder not in still)

    def look(self) -> None:
        """Show how far the comparison is while the run goes on."""
        left = forecast_s(self._comparison, [self._run, *self._later])
        elapsed = time.monotonic() - self._begun
        row = newest_row(self._run.folder / METRICS)
        steps = min(row.get("env_steps", 0), steps_of(self._run))
        self._show(row, steps, None if left is None else max(left - elapsed, 0))

    def ended(self) -> None:
        """Show how far it is now that the run has ended: its steps count as made."""
        row = newest_row(self._run.folder / METRICS)
        left = forecast_s(self._comparison, self._later)
        self._show(row, steps_of(self._run), left)

    def _show(self, row: Mapping[str, float], steps: float, left_s: float | None) -> None:
        self._display.progress(
            {
                "env_steps": self._done + steps,
                "total_env_steps": self._total,
                "env_steps_per_s": row.get("env_steps_per_s"),
                "episode_return_mean": row.get("episode_return_mean"),
                "eta_s": left_s,
            }
        )


def steps_of(run: Run) -> int:
    """Env steps that a run is to make."""
    return int(run.settings.get("trainer.total_env_steps") or 0)


def newest_row(file: Path) -> dict[str, float]:
    """What the last whole row of ``metrics.csv`` says; empty before the first."""
    try:
        with file.open("rb") as table:
            names = table.readline().decode().strip().split(",")
            begin = table.tell()
            size = table.seek(0, os.SEEK_END)
            table.seek(max(begin, size - TAIL_BYTES))
            lines = table.read().split(b"\n")[:-1]
        values = lines[-1].decode().split(",") if lines else []
        return {name: float(value) for name, value in zip(names, values, strict=False) if value}
    except (OSError, ValueError):
        return {}


def forecast_s(comparison: Comparison, missing: Sequence[Run]) -> float | None:
    """Seconds that the missing runs will take; None before any has ended.

    A run takes as long as those of its setting did; without any, as its steps take at the speed of
    all others of its environment, or of any.
    """
    finished = [run for run in comparison.planned() if run.state in runs.COUNTED]
    if not finished:
        return None
    took = {run.folder: comparison.outcomes[comparison.key(run)].took_s for run in finished}
    total = 0.0
    for run in missing:
        same = [other for other in finished if other.folder.parent == run.folder.parent]
        alike = [other for other in finished if other.env == run.env] or finished
        if same:
            seconds = statistics.fmean(took[other.folder] for other in same)
        else:
            pace = statistics.median(took[one.folder] / max(steps_of(one), 1) for one in alike)
            seconds = steps_of(run) * pace
        total += seconds if comparison.limit_s is None else min(seconds, comparison.limit_s)
    return total
