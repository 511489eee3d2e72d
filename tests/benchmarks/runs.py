"""Whole runs, ours beside what people use instead: speed, time to solve, start, memory.

    python tests/benchmarks/runs.py cartpole --peers DIR --peers-scripts DIR --json figures.json
    python tests/benchmarks/runs.py table --json figures.json

README.md beside this file says what is measured and how to read it.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import common
from common import median, number, spread

EXAMPLE = common.ROOT / "example" / "impala"
SCORE = 475  # gymnasium's reward_threshold of CartPole-v1
WINDOW_FROM_S = 25.0  # this and the window's end as the peers' runner has them
REPEATED = 4  # frames of Pong an action is repeated for
LEARNED = re.compile(r"\[([\d-]+ [\d:]+),\d+\].*Total num frames: (\d+)\.")
FOREIGN_CORES = 0.2  # more than that of other processes, and the run is worthless
PEERS = {
    "sf": "Sample Factory",
    "rllib": "RLlib",
    "sb3": "stable-baselines3 PPO",
    "puffer": "PufferLib PPO",
}
WORKS = {("sb3", "cartpole-solve"): "ppo-solve"}  # names of the peers' runner that differ


def throughput(arguments, seed, folder, *options, config="cartpole_throughput.yaml"):
    """Steps per second inside the window, and when the same run reached the score."""
    options = ["--config", EXAMPLE / config, "--seed", seed, *options]
    run = common.train(folder, arguments.ranks, *options, limit_s=arguments.seconds)
    until_s = max(30.0, arguments.seconds - 5.0)
    inside = [row for row in run["rows"] if WINDOW_FROM_S < row[0] <= until_s]
    if len(inside) < 2:
        return run | {"value": None}
    (from_s, steps_before, _), (to_s, steps, _) = inside[0], inside[-1]
    return run | {"value": (steps - steps_before) / (to_s - from_s), "window_s": to_s - from_s}


def wide(arguments, seed, folder):
    """The same with the net of Sample Factory's default."""
    return throughput(arguments, seed, folder, "--set", "network.hidden_sizes=[512, 512]")


def solve(arguments, seed, folder):
    """Process start to the score with the shipped setting; then the run ends and is evaluated."""
    # a row each second, as shipped, would round the time up to the second
    options = ["--seed", seed, "--log_interval_s", arguments.log_interval_s]
    run = common.train(folder, arguments.ranks, *options, limit_s=arguments.seconds)
    command = [sys.executable, EXAMPLE / "evaluate.py", folder / "run", "--greedy"]
    done = subprocess.run(
        [*command, "--episodes", "100"],
        cwd=folder,
        env=common.environment(),
        capture_output=True,
        text=True,
    )
    found = re.search(r"^return (\S+) ", done.stdout, re.MULTILINE)
    if not found:
        sys.exit(f"evaluation failed:\n{done.stdout}{done.stderr}")
    return run | {"value": reached(run), "eval": float(found[1])}


def startup(arguments, seed, folder):
    """Process start to the first update; prints what the ranks logged until then."""
    run = common.train(folder, 3, "--seed", seed, limit_s=8.0)
    first_s, lines = run["rows"][0][0], []
    for log in (folder / "run").glob("worker_*.txt"):
        for line in log.read_text(errors="replace").splitlines():
            if found := re.match(r"(.*?)  \[([-\d]+ [:\d]+),(\d+) (rank \d+)", line):
                when = datetime.fromisoformat(f"{found[2]}.{found[3]}").timestamp()
                lines.append((when - run["began"], found[4], found[1][:60]))
    for seconds, rank, text in sorted(lines):
        if seconds < first_s + 0.1:
            print(f"    {seconds:6.2f} s  {rank}  {text}")
    return run | {"value": first_s}


def memory(arguments, seed, folder):
    """Highest PSS of all processes with the shipped setting, from start to end."""
    run = common.train(folder, 3, "--seed", seed, limit_s=arguments.seconds, pss_every_s=0.5)
    return run | {"value": run["pss_mb"]}


def reached(run):
    """Seconds from process start until the mean return was ``SCORE``, or None."""
    return next((s for s, _, mean in run["rows"] if mean is not None and mean >= SCORE), None)


class Measure(NamedTuple):
    """What is measured: a run of ours, and a work of the peers' runner with the result's key."""

    what: str
    ours: Callable
    work: str
    peer_s: float | None  # limit of a peer's run; None: --seconds, as ours
    key: str
    target: str


CARTPOLE = "cartpole"
PIXELS = ("pong-nature", "pong-resnet")
MORE = ("throughput-64", "throughput-512", *PIXELS)
SOLVE = f"process start to a mean return of {SCORE}, s"
START = "process start to first update (peer: to first episode), s"
MEASURES = {
    name: Measure(*fields)
    for name, *fields in (
        (MORE[0], "env steps/s, net 64-64", throughput, CARTPOLE, None, "steps_per_s", "≥ 12 x"),
        (MORE[1], "env steps/s, net 512-512", wide, "cartpole-512", None, "steps_per_s", "≥ 2.5 x"),
        (
            MORE[2],
            "Pong, env steps/s, Nature CNN",
            partial(throughput, config="pong_nature.yaml"),
            "pong",
            None,
            "steps_per_s",
            "≥ 1.3 x",
        ),
        (
            MORE[3],
            "Pong, env steps/s, ResNet",
            partial(throughput, config="pong_resnet.yaml"),
            "pong-resnet",
            None,
            "steps_per_s",
            "≥ 1.5 x",
        ),
        ("solve", SOLVE, solve, "cartpole-solve", 180.0, "reached_s", "median ≤ 10, all ≤ 20"),
        ("startup", START, startup, CARTPOLE, 30.0, "first_episode_s", "≤ 5"),
        ("memory", "memory (PSS), MiB", memory, CARTPOLE, 40.0, "peak_pss_mb", "≤ 800"),
    )
}


def learned_rate(log):
    """Steps/s that Sample Factory's log says it learned from, once ``WINDOW_FROM_S`` are over.

    The peers' runner counts finished episodes. Of Pong with the ResNet few end in minutes.

    Returns:
        0 for a run that ended before, as the runner has it.
    """
    rows = LEARNED.findall(log.read_text(errors="replace"))
    rows = [(datetime.fromisoformat(time).timestamp(), int(frames)) for time, frames in rows]
    inside = [row for row in rows if row[0] - rows[0][0] > WINDOW_FROM_S]
    if len(inside) < 2:
        return 0
    (began, before), (ended, after) = inside[0], inside[-1]
    return (after - before) / REPEATED / (ended - began)


def run_peer(arguments, measure, system, seed):
    """One run of a peer by the peers' own runner; None if that has no such work."""
    seconds = measure.peer_s or arguments.seconds
    scripts, peers = arguments.peers_scripts.absolute(), arguments.peers.absolute()
    command = [sys.executable, scripts / "run.py", peers, system]
    work = WORKS.get((system, measure.work), measure.work)
    command += [work, "--seed", str(seed), "--seconds", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=common.ENVIRONMENT)
    if not done.stdout.strip():
        return None
    result = json.loads(done.stdout.splitlines()[-1])
    value = result[measure.key]
    value = value.get(str(SCORE)) if isinstance(value, dict) else value
    if system == "sf" and measure.work.startswith("pong"):
        value = learned_rate(Path(f"/tmp/{system}-{measure.work}-{seed}.log"))
    return {"rc": result["rc"], "foreign_cores": result["foreign_cores"], "value": value}


def run_all(arguments, name, runs, keep):
    """Ours and the peers in turn; ``runs`` is filled, and kept after each."""
    measure = MEASURES[name]
    seeds = arguments.seeds if name == "solve" else range(1, arguments.repeats + 1)
    for count, seed in enumerate(seeds):
        with_peers = arguments.peers and count < arguments.repeats
        for system in ["ours", *(arguments.against if with_peers else ())]:
            if system == "ours":
                run = measure.ours(arguments, seed, arguments.folder / f"{name}-{seed}")
                run |= {"reached_s": reached(run), "ended_s": run["rows"][-1][0]}
                del run["rows"]
            else:
                run = run_peer(arguments, measure, system, seed)
            if run is not None:
                run["disturbed"] = run["foreign_cores"] > FOREIGN_CORES
                runs.setdefault(system, []).append(run | {"seed": seed})
                keep()
                shown = {k: number(v) for k, v in run.items() if k not in ("began", "disturbed")}
                note = "  DISTURBED" * run["disturbed"]
                line = ", ".join(f"{key} {text}" for key, text in shown.items())
                print(f"{name}  {system:5} seed {seed:2}  {line}{note}", flush=True)


def table(results):
    """Markdown of all that was measured."""
    lines = []
    for key, systems in results["runs"].items():
        name, _, seeds = key.partition(" ")
        measure, ours = MEASURES[name], systems.get("ours", [])
        where = f", {seeds}" if seeds else ""
        where += f", 1 + {ours[0]['ranks'] - 1} ranks" if ours else ""
        for peer in [p for p in PEERS if p in systems] or [None]:
            theirs = systems.get(peer, [])
            high, low = median(values(ours)), median(values(theirs))
            if name not in MORE:
                high, low = low, high
            known = high and low and float("inf") not in (high, low)
            ratio = f"**{high / low:.3g} x**" if known else "-"
            shown = f"{PEERS[peer]} {figure(theirs)}" if peer else "-"
            lines.append([measure.what + where, shown, figure(ours), ratio, measure.target])
        if name == "solve":
            what = f"100 greedy episodes of the final checkpoint{where}"
            lines.append([what, "-", spread(values(ours, "eval")), "-", "all ≥ 450"])
        if name == MORE[0]:
            what = f"the same runs: to a mean return of {SCORE}, s"
            lines.append([what, "-", spread(values(ours, "reached_s")), "-", "≤ 30"])
    header = ["what", "peer", "ours", "ratio", "to reach"]
    note = (
        f"Median (lowest to highest); ratio of medians, above 1: ours is better. {results['on']}."
    )
    return f"{common.markdown(header, lines)}\n\n{note}"


def values(runs, key="value"):
    """One number of each run."""
    return [run[key] for run in runs]


def figure(runs):
    """Median and range, and how many of the runs were disturbed."""
    count = sum(values(runs, "disturbed"))
    return spread(values(runs)) + (f", {count} of {len(runs)} disturbed" if count else "")


def main():
    groups = {"throughput": MORE[:2], "pong": PIXELS}
    groups["cartpole"] = [name for name in MEASURES if name not in PIXELS]
    names = [*MEASURES, *groups, "table"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("what", choices=names, metavar="what", help=", ".join(names))
    add("--json", type=Path, help="file that keeps the results, those of other measures too")
    add("--peers", type=Path, help="folder with the peers' environments (default: no peers)")
    add("--peers-scripts", type=Path, help="folder with their run.py")
    add("--against", nargs="+", choices=PEERS, default=["sf"], help="default sf")
    add("--repeats", type=int, default=3, help="runs of each; of peers also in solve (default 3)")
    add("--seeds", default="1-10", help="of solve, FIRST-LAST (default 1-10)")
    add("--ranks", type=int, default=2, help="of throughput and solve (default 2)")
    add("--seconds", type=float, default=90.0, help="longest run of ours (default 90)")
    add("--log_interval_s", type=float, default=0.2, help="resolution of solve (default 0.2)")
    arguments = parser.parse_args()
    if arguments.peers and not arguments.peers_scripts:
        parser.error("--peers needs --peers-scripts, the folder with their run.py")
    results = {"runs": {}}
    if arguments.json and arguments.json.is_file():
        results = json.loads(arguments.json.read_text())
    if arguments.what != "table":
        which = f"solve seeds {arguments.seeds}"
        first, last = map(int, arguments.seeds.split("-"))
        arguments.seeds = range(first, last + 1)
        arguments.folder = Path(tempfile.mkdtemp(prefix="impala_ms_benchmark_"))
        print(f"run folders and output: {arguments.folder}", flush=True)
        results["on"] = common.machine()

        def keep():
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1) + "\n")

        for name in groups.get(arguments.what, [arguments.what]):
            runs = results["runs"][which if name == "solve" else name] = {}
            run_all(arguments, name, runs, keep)
    print(table(results))


if __name__ == "__main__":
    main()
