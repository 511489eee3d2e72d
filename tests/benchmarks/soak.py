"""A run in which an actor is killed every so often: ``python tests/benchmarks/soak.py``.

Prints how fast it was outside the restarts beside the same run undisturbed, how long a restart
took, whether memory or the time of an update grew, and whether the counters add up.
"""

import argparse
import fcntl
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import ROOT, machine, markdown, number, spread

sys.path.insert(0, str(ROOT))
from tests.runs.run import FOR_EVER, Run

BEGIN_S = 10.0  # of the run, not counted: compiling, first episodes


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0, help="of the disturbed run")
    parser.add_argument("--quiet-seconds", type=float, default=120.0, help="of the undisturbed")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of who is killed")
    parser.add_argument("options", nargs="*", help="for train.py, after --")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    sys.stdout.write(f"{folder}\n")
    options = [*FOR_EVER, "--log_interval_s", "1", *arguments.options]
    quiet = Run(folder, arguments.ranks, *options, name="quiet", PYTHONPATH=str(ROOT))
    finish(quiet, arguments.quiet_seconds, [])
    soak = Run(folder, arguments.ranks, *options, name="soak", PYTHONPATH=str(ROOT))
    kills = finish(soak, arguments.seconds, victims(arguments))
    report(quiet, soak, kills, arguments)


def victims(arguments):
    """``(seconds since training began, rank)`` of each kill."""
    draw, times = random.Random(arguments.seed), int(arguments.seconds / arguments.every)
    return [(k * arguments.every, draw.randrange(1, arguments.ranks)) for k in range(1, times)]


def finish(run, seconds, kills):
    """Have it run so long, kill, and stop it as a user would; returns the kills that were made."""
    made = []
    fcntl.fcntl(run.process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)  # nobody reads until the end
    run.until_training()
    began = time.monotonic()
    for when, rank in [*kills, (seconds, None)]:
        try:
            run.process.wait(max(0.0, began + when - time.monotonic()))
        except subprocess.TimeoutExpired:  # it goes on
            if rank in run.ranks():
                run.kill(rank)
                made.append((when, rank))
    code, took_s = run.stop(signal.SIGINT)
    sys.stdout.write(f"{run.run_dir.name}: exit code {code}, stopped in {took_s:.1f} s\n")
    return made


def report(quiet, soak, kills, arguments):
    """Print the table."""
    log, status, rows = soak.log(0), soak.json("status.json"), soak.rows()
    back = [float(s) for s in re.findall(r"takes part again, ([\d.]+) s after", log)]
    whole = settled(rows, arguments.ranks)
    rates = [row["env_steps_per_s"] for row in whole]
    usual = [row["env_steps_per_s"] for row in settled(quiet.rows(), arguments.ranks)]
    late = rows[len(rows) // 2 :]
    memory = slope([row["wall_time_s"] for row in late], [row["rss_mb"] for row in late])
    speed = slope([r["wall_time_s"] for r in whole], [r["updates_per_s"] for r in whole])
    updates = [row["updates"] for row in rows]
    ratio = statistics.median(rates) / statistics.median(usual)
    lost = log.count("was lost after")
    per_hour = 3600 * speed / statistics.mean(row["updates_per_s"] for row in whole)
    grow = updates == sorted(updates) and updates[-1] == status["updates"]
    steps = f"{status['env_steps']:,} + {status['env_steps_dropped']:,}"
    tracebacks = sum(soak.log(rank).count("Traceback") for rank in range(arguments.ranks))
    table = [
        ["kills, losses noticed, actors back", f"{len(kills)}, {lost}, {len(back)}"],
        ["from the loss to the first unroll of the new process, s", spread(back)],
        ["env steps/s, all actors alive", number(statistics.median(rates))],
        ["the same, undisturbed", number(statistics.median(usual))],
        ["ratio", f"{ratio:.2f}"],
        ["learner's memory, second half, MiB/min", f"{60 * memory:+.2f}"],
        ["updates/s, change per hour", f"{per_hour:+.1%}"],
        ["updates never fall, and end with those of status.json", grow],
        ["env steps learned + dropped", steps],
        ["tracebacks in the logs", tracebacks],
    ]
    heading = ["", f"{arguments.seconds:g} s, a kill every {arguments.every:g} s"]
    sys.stdout.write(f"{markdown(heading, table)}\n\n{machine()}\n")


def settled(rows, ranks):
    """Rows between two others in which every rank was alive, after the beginning."""
    return [
        row
        for before, row, after in zip(rows, rows[1:], rows[2:], strict=False)
        if row["wall_time_s"] > BEGIN_S
        and before["ranks_alive"] == row["ranks_alive"] == after["ranks_alive"] == ranks
        and row["env_steps_per_s"]
    ]


def slope(x, y):
    """Of the line through the points, per unit of x."""
    return float(np.polyfit(np.asarray(x), np.asarray(y), 1)[0])


if __name__ == "__main__":
    main()
