"""The runs of a comparison, one after another, as a user would make them.

Input: the runs that are missing. Output: their folders, what each printed in a file beside, and how
each ended in ``comparison.json``. After each run its weights play greedy episodes, with nothing
beside them: ``greedy.json`` and ``snapshots/greedy.csv`` in its folder.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from impala_ms.comparison import runs
from impala_ms.comparison.plan import Comparison, Outcome
from impala_ms.comparison.process import Ended, Runner
from impala_ms.comparison.runs import Run, RunError
from impala_ms.metrics.progress import Display
from impala_ms.run_dir import GREEDY, in_use, write_json

METRICS = "metrics.csv"
TAIL_BYTES = 8192  # more than a row of metrics.csv has
SNAPSHOT_INTERVAL_S = 2  # where a greedy score is asked for
END_S = 30.0  # limit for the end of an earlier try that goes on

Look = Callable[[], None]


def train_command(algorithm: str, ranks: int, options: Sequence[str]) -> list[str]:
    """The command of one run, as a user gives it."""
    chosen = ["--algorithm", algorithm, *options]
    return [sys.executable, "-m", "impala_ms", "train", str(ranks), *chosen]


def evaluate_command(folder: Path, episodes: int, options: Sequence[str]) -> list[str]:
    """The command that has weights of a run play."""
    how = ["--greedy", "--episodes", str(episodes), *options]
    return [sys.executable, "-m", "impala_ms", "evaluate", str(folder), *how]


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
            outcome = make(comparison, run, runner, watch)
            if runner.stopped_by is None:
                watch.ended()
            display.line(f"  {_said(outcome, run)}")
            if runner.stopped_by is not None:
                break
        return runner.stopped_by


def make(comparison: Comparison, run: Run, runner: Runner, watch: Watch) -> Outcome:
    """Train a run unless it is there, then have its weights play as far as they have not."""
    key = comparison.key(run)
    if comparison.to_train(run):
        comparison.outcomes[key] = train(comparison, run, runner, watch.training)
        comparison.save()
    outcome = comparison.outcomes[key]
    if outcome.state in runs.COUNTED and runner.stopped_by is None:
        comparison.outcomes[key] = outcome = play(comparison, run, outcome, runner, watch.playing)
        comparison.save()
    return outcome


def train(comparison: Comparison, run: Run, runner: Runner, look: Look) -> Outcome:
    """Make one run; what was left of an earlier try is removed."""
    setting = comparison.setting_of(run)
    await_end(run.folder, runner)
    if runner.stopped_by is not None:
        return Outcome(runs.STOPPED, 0.0)
    shutil.rmtree(run.folder, ignore_errors=True)
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    own = ["--seed", str(run.seed), "--run_dir", str(run.folder)]
    if comparison.greedy_score_of(run) is not None:
        own += ["--snapshot_interval_s", str(SNAPSHOT_INTERVAL_S)]
    command = train_command(setting.algorithm, setting.ranks, [*setting.options, *own])
    with log_of(run).open("wb") as log:
        ended = runner.run(command, log, limit_s=comparison.limit_s, look=look)
    state, message = _state(ended, runner.stopped_by is not None, run)
    return Outcome(state, ended.took_s, message)


def await_end(folder: Path, runner: Runner) -> None:
    """Wait for an earlier try in a folder: it may end in order when its comparison was killed.

    Raises:
        RunError: If it goes on.
    """
    deadline = time.monotonic() + END_S
    while (holder := in_use(folder)) and runner.stopped_by is None:
        if time.monotonic() > deadline:
            raise RunError(
                f"{folder} is in use by a run that has not ended ({holder}): stop it, then go on "
                "by --resume"
            )
        time.sleep(0.1)


def _state(ended: Ended, stopped: bool, run: Run) -> tuple[str, str]:
    """How a run ended, and why if it failed."""
    if ended.code == 0:
        return runs.FINISHED, ""
    failed = runs.read_json(run.folder / "status.json").get("state") == runs.FAILED
    if stopped and not failed:
        return runs.STOPPED, ""
    if ended.at_limit and not failed:
        return runs.LIMIT, ""
    said = _why(ended, log_of(run).read_text("utf-8", "replace"))
    return runs.FAILED, f"{said} (exit code {ended.code}, see {log_of(run)})"


def _why(ended: Ended, text: str) -> str:
    """Why a process failed: by a signal, else as the last line says that it printed."""
    if ended.code < 0:
        return f"it was killed by signal {-ended.code}"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    said = [line for line in lines if line.startswith("failed: ")] or lines or ["no word"]
    return said[-1].removeprefix("failed: ")


def play(comparison: Comparison, run: Run, outcome: Outcome, runner: Runner, look: Look) -> Outcome:
    """Have the weights of a run play greedy episodes; its outcome with what went wrong."""
    begun, problem = time.monotonic(), ""
    if comparison.last_to_play(run):
        printed, problem = _evaluate(comparison, run, ["--json"], runner, look)
        problem = problem or _keep(run, printed)
    if comparison.snapshots_to_play(run) and not problem:
        _, problem = _evaluate(comparison, run, ["--snapshots"], runner, look)
    if runner.stopped_by is not None:
        return outcome
    played_s = round(time.monotonic() - begun, 3)
    return replace(outcome, message=problem, played_s=played_s)


def _evaluate(
    comparison: Comparison, run: Run, options: Sequence[str], runner: Runner, look: Look
) -> tuple[str, str]:
    """What an evaluation printed, and why it failed."""
    command = evaluate_command(run.folder, comparison.greedy_episodes, options)
    output = io.BytesIO()
    with log_of(run).open("a+b") as log:
        begin = log.tell()
        ended = runner.run(command, output, log, look=look)
        log.seek(begin)
        said = log.read().decode("utf-8", "replace")
    if ended.code == 0:
        return output.getvalue().decode("utf-8", "replace"), ""
    return "", f"its evaluation failed: {_why(ended, said)} (see {log_of(run)})"


def _keep(run: Run, printed: str) -> str:
    """Write what an evaluation returned into the folder of its run; why that cannot be.

    The environment may have printed lines of its own.
    """
    for line in reversed(printed.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "return_mean" in found:
                write_json(run.folder / GREEDY, found)
                return ""
    return f"its evaluation failed: it printed no result (see {log_of(run)})"


def log_of(run: Run) -> Path:
    """The file beside a run's folder that holds what it printed."""
    return run.folder.with_name(f"{run.folder.name}.txt")


def _said(outcome: Outcome, run: Run) -> str:
    """A line about a run that has ended."""
    how = "ended by --limit_s" if outcome.state == runs.LIMIT else outcome.state
    words = [f"{how} after {outcome.took_s:.1f} s"]
    returned = newest_row(run.folder / METRICS).get("episode_return_mean")
    greedy = runs.finite(runs.read_json(run.folder / GREEDY).get("return_mean"))
    if returned is not None and outcome.state != runs.FAILED:
        words.append(f"return {returned:.1f}")
    if greedy is not None:
        words.append(f"greedy return {greedy:.1f}")
    return ", ".join(words) + (f": {outcome.message}" if outcome.message else "")


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

    def training(self) -> None:
        """Show how far the comparison is while the run goes on."""
        row = newest_row(self._run.folder / METRICS)
        self._show(row, min(row.get("env_steps", 0), steps_of(self._run)), self._left_s())

    def playing(self) -> None:
        """Show that the run's weights play."""
        self._show({"waiting_for": "greedy episodes"}, steps_of(self._run), self._left_s())

    def _left_s(self) -> float | None:
        left = forecast_s(self._comparison, [self._run, *self._later])
        elapsed = time.monotonic() - self._begun
        return None if left is None else max(left - elapsed, 0)

    def ended(self) -> None:
        """Show how far it is now that the run has ended: its steps count as made."""
        row = newest_row(self._run.folder / METRICS)
        left = forecast_s(self._comparison, self._later)
        self._show(row, steps_of(self._run), left)

    def _show(self, row: Mapping[str, Any], steps: float, left_s: float | None) -> None:
        self._display.progress(
            {
                "env_steps": self._done + steps,
                "total_env_steps": self._total,
                "env_steps_per_s": row.get("env_steps_per_s"),
                "episode_return_mean": row.get("episode_return_mean"),
                "waiting_for": row.get("waiting_for"),
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
    all others of its environment, or of any. Playing takes as long as it did in the mean.
    """
    finished = [run for run in comparison.planned() if run.state in runs.COUNTED]
    if not finished:
        return None
    outcomes = [comparison.outcomes[comparison.key(run)] for run in finished]
    took = {run.folder: one.took_s for run, one in zip(finished, outcomes, strict=True)}
    played = [one.played_s for one in outcomes if one.played_s]
    total = len(missing) * statistics.fmean(played) if played else 0.0
    for run in missing:
        if not comparison.to_train(run):  # only its weights are still to play
            continue
        same = [other for other in finished if other.folder.parent == run.folder.parent]
        alike = [other for other in finished if other.env == run.env] or finished
        if same:
            seconds = statistics.fmean(took[other.folder] for other in same)
        else:
            pace = statistics.median(took[one.folder] / max(steps_of(one), 1) for one in alike)
            seconds = steps_of(run) * pace
        total += seconds if comparison.limit_s is None else min(seconds, comparison.limit_s)
    return total
