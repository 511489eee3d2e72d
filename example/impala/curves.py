"""Draw the metrics of runs: ``python curves.py [LABEL=]RUN_DIR … --output curves.png``.

One panel a metric, one line a run; runs with the same label have the same colour, as several seeds
of one setting do. Columns of metrics.csv are explained in the README.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # impala_ms is not installed

from impala_ms.launch import ROOT
from impala_ms.metrics import progress
from impala_ms.metrics.columns import COLUMNS
from impala_ms.metrics.sinks import read_rows

METRICS = ("episode_return_mean", "entropy", "explained_variance", "env_steps_per_s")


def main(argv=None):
    """Command line; returns the exit code."""
    progress.open_streams()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]RUN_DIR", help="folders of runs")
    parser.add_argument("--output", type=Path, default=Path("curves.png"), help="picture to write")
    parser.add_argument(
        "--metrics", nargs="+", default=METRICS, metavar="METRIC", help="one panel each"
    )
    parser.add_argument("--x", default="env_steps", help="env_steps (default) or wall_time_s")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args(argv)
    unknown = [name for name in (*arguments.metrics, arguments.x) if name not in COLUMNS]
    if unknown:
        parser.error(f"{unknown[0]} is no column of metrics.csv: {', '.join(COLUMNS)}")
    try:
        draw(arguments)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"{error.name} is missing: {sys.executable} -m pip install "
            f"-c {ROOT / 'constraints.txt'} matplotlib\n"
        )
        return 1
    sys.stdout.write(f"{arguments.output}\n")
    return 0


def draw(arguments):
    """Write the picture."""
    os.environ["MPLBACKEND"] = "agg"  # needs no display, and a notebook may have set another
    from matplotlib import pyplot

    runs = [read(run) for run in arguments.runs]
    metrics = arguments.metrics
    figure, panels = pyplot.subplots(
        1, len(metrics), figsize=(4.6 * len(metrics), 3.6), squeeze=False, layout="constrained"
    )
    labels = list(dict.fromkeys(label for label, _ in runs))
    for panel, metric in zip(panels[0], metrics, strict=True):
        for number, (label, rows) in enumerate(runs):
            points = [(row[arguments.x], row[metric]) for row in rows if row[metric] is not None]
            first = label not in [earlier for earlier, _ in runs[:number]]
            panel.plot(
                *zip(*points, strict=True) if points else ([], []),
                color=f"C{labels.index(label)}",
                linewidth=1.2,
                label=label if first else None,
            )
        panel.set_title(metric)
        panel.set_xlabel(f"{arguments.x} ({COLUMNS[arguments.x][0]})")
        panel.set_ylabel(COLUMNS[metric][0])
        panel.grid(alpha=0.3)
        panel.ticklabel_format(axis="x", scilimits=(-3, 5))
    panels[0][0].legend()
    figure.suptitle(arguments.title)
    figure.savefig(arguments.output, dpi=110)
    pyplot.close(figure)


def read(run):
    """``(label, rows)`` of ``[LABEL=]RUN_DIR``: one dict a row, None where a field is empty."""
    label, _, folder = run.rpartition("=")
    folder = Path(folder)
    file = folder / "metrics.csv"
    if not file.is_file():
        raise ValueError(f"{folder} is no run folder: it holds no metrics.csv")
    return label or folder.name, read_rows(file)


if __name__ == "__main__":
    sys.exit(main())
