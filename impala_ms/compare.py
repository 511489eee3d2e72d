"""``python -m impala_ms compare``: algorithms and settings side by side.

In: the command line. Out: runs made one by one below a folder, and the report about them. The way
through it: comparison/request (words), plan (which runs), running (making them), results (numbers),
report (what is left).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from impala_ms.comparison import pictures, plan, report, request, running, runs
from impala_ms.comparison.plan import Comparison
from impala_ms.comparison.report import View
from impala_ms.comparison.request import Request, UsageError
from impala_ms.comparison.runs import Run, RunError
from impala_ms.errors import ConfigError
from impala_ms.metrics import progress

LINES_S = 10.0  # between two lines of progress where there is no terminal
COMMAND = "python -m impala_ms compare"


def main(argv: Sequence[str]) -> int:
    """Make a comparison and return the exit code: 1 if a run failed, 2 if nothing was started."""
    progress.open_streams()
    if not argv or not {"-h", "--help"}.isdisjoint(argv):
        sys.stdout.write(request.USAGE)
        return 0 if argv else 2
    command = f"{COMMAND} {shlex.join(argv)}"
    try:
        wanted = request.read(argv)
        if wanted.report:
            return show_again(wanted, command)
        comparison = plan.make(wanted, command)
        comparison.folder.mkdir(parents=True, exist_ok=True)
        with plan.lock(comparison.folder):
            plan.check_current(comparison)
            comparison.save()
            return carry_out(comparison, wanted.band)
    except (UsageError, RunError, ConfigError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except BrokenPipeError:  # its reader has gone; a run that goes on ends in order, as it has too
        progress.ignore_output()
        return 1
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'the output'} cannot be written: {error.strerror}\n")
        return 1
    except KeyboardInterrupt:  # not during a run: before the first or after the last
        sys.stderr.write("stopped\n")
        return 130


def carry_out(comparison: Comparison, band: str) -> int:
    """Make the runs that are missing, then the report; the exit code."""
    display = progress.Display(sys.stdout, interval_s=LINES_S)
    missing = comparison.missing()
    display.line("\n".join(announcement(comparison, missing)))
    stopped_by = running.run_all(comparison, missing, display)
    display.close()
    view = View(
        comparison.scores,
        comparison.greedy_scores,
        comparison.limit_s,
        band,
        comparison.commands,
        comparison.machines,
    )
    members = comparison.read_runs()
    if members:
        show(members, comparison.folder, view)
    failed = [run for run in members if run.message]
    for run in failed:
        sys.stdout.write(f"failed: {comparison.key(run)}: {run.message}\n")
    if stopped_by is not None:
        left = _count(len(comparison.missing()), "run")
        resume = ["-m", "impala_ms", "compare", "--resume", str(comparison.folder)]
        go_on = shlex.join([sys.executable, *resume])
        sys.stdout.write(f"stopped; go on with the {left} left: {go_on}\n")
        return 128 + stopped_by
    return 1 if failed else 0


def announcement(comparison: Comparison, missing: Sequence[Run]) -> list[str]:
    """What is going to be run, and how long it will take."""
    every = comparison.planned()
    groups = runs.grouped(every)
    settings, all_runs = _count(len(groups), "setting"), _count(len(every), "run")
    lines = [f"comparison in {comparison.folder}: {settings}, {all_runs}"]
    for group in groups:
        first = group.runs[0]
        seeds = ", ".join(str(run.seed) for run in group.runs)
        steps = f"{running.steps_of(first):,} env steps"
        lines.append(
            f"  {group.label} on {first.env}, N = {first.ranks}: seeds {seeds}, {steps} each"
        )
    if len(missing) < len(every):
        lines.append(f"{len(every) - len(missing)} of them are there already")
    seconds, limit_s = running.forecast_s(comparison, missing), comparison.limit_s
    todo = f"{_count(len(missing), 'run')} to make"
    if not missing:
        return [*lines, "nothing is left to run"]
    if seconds is not None:
        return [*lines, f"{todo}, about {_duration(seconds)}"]
    most = "" if limit_s is None else f"; {_duration(limit_s * len(missing))} at most"
    return [*lines, f"{todo}; the time is not known before the first has ended{most}"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes == 0:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def show_again(wanted: Request, command: str) -> int:
    """Make the report about runs that are there."""
    members: list[Run] = []
    view = View(wanted.scores, wanted.greedy_scores, wanted.limit_s, wanted.band, [command])
    limits: dict[Path, float | None] = {}
    for folder in wanted.report:
        if (folder / plan.FILE).exists():
            comparison = plan.load(folder)
            limits[folder] = comparison.limit_s
            members += comparison.read_runs()
            view = View(
                {**comparison.scores, **view.scores},
                {**comparison.greedy_scores, **view.greedy_scores},
                limit_of(wanted, limits),
                wanted.band,
                [*view.commands, *comparison.commands],
                list(dict.fromkeys([*view.machines, *comparison.machines])),
            )
        else:
            members += [runs.read(found) for found in runs.find(folder)]
    plan.check_scores(wanted, {run.env for run in members})
    output = wanted.output or wanted.report[0]
    report.check_free(output)
    show(members, output, view)
    return 0


def limit_of(wanted: Request, limits: Mapping[Path, float | None]) -> float | None:
    """The limit under which comparisons are shown together.

    Raises:
        UsageError: If they were made with different ones, and none is given.
    """
    if wanted.limit_s is not None:
        return wanted.limit_s
    if len(set(limits.values())) > 1:
        had = ", ".join(
            f"{folder} with {'none' if limit is None else f'{limit:g}'}"
            for folder, limit in limits.items()
        )
        raise UsageError(f"--limit_s differs, {had}: give the one that is to count")
    return next(iter(limits.values()), None)


def show(members: Sequence[Run], folder: Path, view: View) -> None:
    """Write tables, pictures and page, and print the tables."""
    made = report.sections(members, view)
    folder.mkdir(parents=True, exist_ok=True)
    files = report.write_tables(made, folder)
    drawn = {}
    try:
        drawn = report.write_pictures(made, folder, view)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{pictures.missing(error)}\n")
    except RunError as error:  # the tables are there
        sys.stderr.write(f"no pictures: {error}\n")
    files += [file for some in drawn.values() for file in some]
    files.append(report.write_page(made, drawn, folder, view))
    sys.stdout.write(report.markdown(made))
    sys.stdout.write(f"{', '.join(map(str, files))}\n")
