"""``python -m impala_ms curves``: the metrics of runs as a picture, mean and band over seeds.

In: run folders, or folders of runs. Out: a picture, one panel for each metric, by env steps and by
seconds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from impala_ms.comparison import pictures, runs
from impala_ms.comparison.runs import Run, RunError
from impala_ms.comparison.statistics import BANDS
from impala_ms.errors import ConfigError
from impala_ms.metrics import progress

METRICS = ("episode_return_mean", "entropy", "explained_variance", "env_steps_per_s")
ABOUT = """\
Draw the metrics of runs: the mean over seeds as a line, its spread as a band.

Runs that differ in nothing but the seed are one line, and so are runs with the same LABEL. A
folder of runs stands for every run below it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    progress.open_streams()
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        found = [run for word in arguments.runs for run in read(word)]
        # A folder that is given twice, or by a folder above it too, is one run.
        members = list({(run.label, run.folder.resolve()): run for run in found}.values())
        groups = runs.grouped(members)
        picture = pictures.Picture(
            xs=arguments.x,
            ys=arguments.metrics,
            title=arguments.title or pictures.title_of(groups),
            band=arguments.band,
            references=dict(map(reference, arguments.reference)),
            across=len(arguments.metrics) == 1,
        )
        pictures.draw(groups, picture, [arguments.output])
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{pictures.missing(error)}\n")
        return 1
    except (OSError, RunError, ConfigError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{arguments.output}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m impala_ms curves",
        description=ABOUT,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="[LABEL=]DIR", help="folders of runs")
    add(
        "--output",
        type=Path,
        default=Path("curves.png"),
        help="picture, a .png, .svg or .pdf (default curves.png)",
    )
    add(
        "--metrics",
        nargs="+",
        default=METRICS,
        metavar="METRIC",
        help="columns of metrics.csv, a panel each",
    )
    add(
        "--x",
        nargs="+",
        default=("env_steps", "wall_time_s"),
        metavar="COLUMN",
        help="columns of the horizontal axis, a row of panels each",
    )
    add(
        "--band",
        choices=BANDS,
        default="se",
        help="around the mean: standard error (default), or lowest to highest",
    )
    add(
        "--reference",
        nargs="+",
        default=(),
        metavar="[NAME=]VALUE",
        help="horizontal lines in the panel of the return",
    )
    add("--title", default="", help="title; without it environment, N and number of seeds")
    return parser


def read(word: str) -> list[Run]:
    """The runs of ``[LABEL=]DIR``; a folder may have a ``=`` in its own name.

    Raises:
        RunError: If there are none.
    """
    parts = word.split("=")
    splits = [("=".join(parts[:at]), Path("=".join(parts[at:]))) for at in range(len(parts))]
    label, folder = next((split for split in splits if split[1].exists()), splits[-1])
    return [runs.read(found, label) for found in runs.find(folder)]


def reference(text: str) -> tuple[float, str]:
    """Value and name of a line, from ``475`` or ``solved=475``.

    Raises:
        RunError: If it is not a number.
    """
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RunError(f"--reference {text}: it takes a number, or NAME=NUMBER")
    return value, name
