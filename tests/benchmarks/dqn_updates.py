"""Updates per second of DQN's whole loop on CartPole-v1, beside peers: one run at a time.

    python tests/benchmarks/dqn_updates.py --sb3 PYTHON --xuance PYTHON --rounds 3 --seconds 20

Network 256-256, batches of 64, one process, an update for every 2 steps of an environment. Prints
the median of each, its range, and our ratio to it. ``PYTHON`` is one that has the peer.
"""

import argparse
import csv
import json
import subprocess
import tempfile
from pathlib import Path

import common

PEERS = Path(__file__).with_name("peers")
OURS = "--algorithm dqn --n_step 1 --hidden_sizes [256,256] --batch_size 64 --replay_ratio 32"


def ours(seconds, *options):
    """Updates per second of a run of ours."""
    with tempfile.TemporaryDirectory() as folder:
        steps = "--total_env_steps", 10**9
        limit_s = seconds + 6.0  # start and compilation, which are not counted
        common.train(
            Path(folder) / "ours",
            1,
            *OURS.split(),
            *steps,
            *options,
            limit_s=limit_s,
            pss_every_s=1e9,
        )
        with open(Path(folder) / "ours" / "run" / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))[1:]
    updates, seconds = (
        float(rows[-1][name]) - float(rows[0][name]) for name in ("updates", "wall_time_s")
    )
    return updates / seconds


def peer(python, script, *options):
    """Updates per second that a peer's script prints."""
    command = [python, str(PEERS / script), *map(str, options)]
    done = subprocess.run(
        command, env=common.ENVIRONMENT, capture_output=True, text=True, check=True, timeout=600
    )
    return json.loads(done.stdout.strip().splitlines()[-1])["updates_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sb3", metavar="PYTHON")
    parser.add_argument("--xuance", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    seconds = arguments.seconds
    one, two = (("CartPole-v1", 475, "--limit_s", seconds, "--threads", n) for n in (1, 2))
    work = {
        "impala_ms dqn": lambda: ours(seconds),
        "impala_ms dqn, updates_per_call 1": lambda: ours(seconds, "--updates_per_call", 1),
    }
    if arguments.sb3:
        work["stable-baselines3, 1 thread"] = lambda: peer(arguments.sb3, "sb3_greedy.py", *one)
        work["stable-baselines3, 2 threads"] = lambda: peer(arguments.sb3, "sb3_greedy.py", *two)
    if arguments.xuance:
        options = "--seconds", seconds
        work["XuanCe, MindSpore"] = lambda: peer(arguments.xuance, "xuance_dqn.py", *options)
    found = {name: [] for name in work}
    for _ in range(arguments.rounds):
        for name, measure in work.items():
            found[name].append(measure())
            print(f"{name}: {found[name][-1]:.0f} updates/s", flush=True)
    base = common.median(found["impala_ms dqn"])
    rows = [
        [name, common.spread(values), f"{base / common.median(values):.2f}"]
        for name, values in found.items()
    ]
    print(
        common.markdown(["DQN, CartPole-v1, 256-256, batch 64", "updates/s", "ours / this"], rows)
    )


if __name__ == "__main__":
    main()
