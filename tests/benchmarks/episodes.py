"""What many short episodes cost: mean length 10 beside endless ones, same net and batch.

python tests/benchmarks/episodes.py [--repeats 3] [--seconds 45]

A reset row is one of every 11 rows and is not counted as a step, so 0.91 is the most there can be.
"""

import argparse
import tempfile
from pathlib import Path

import common

CONFIG = common.ROOT / "example" / "impala" / "cartpole_throughput.yaml"
WARM_UP_S = 15.0


def steps_per_s(name, folder, seconds):
    """Of one run, from ``WARM_UP_S`` on."""
    options = ["--config", CONFIG, "--env", f"tests.benchmarks.length_envs:{name}-v0"]
    run = common.train(folder, 2, *options, limit_s=seconds)
    rows = [row for row in run["rows"] if row[0] > WARM_UP_S]
    return (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs (default 3)")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each run (default 45)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="impala_ms_benchmark_"))
    rates = {"Endless": [], "Short": []}
    for repeat in range(arguments.repeats):
        for name, values in rates.items():
            values.append(steps_per_s(name, folder / f"{name}-{repeat}", arguments.seconds))
            print(f"{name} {values[-1]:,.0f} steps/s", flush=True)
    short, endless = (common.median(rates[name]) for name in ("Short", "Endless"))
    rows = [[name, common.spread(values)] for name, values in rates.items()]
    print(common.markdown(["episodes", "env steps/s"], rows))
    print(f"\nRatio of medians: {short / endless:.2f}. {common.machine()}")


if __name__ == "__main__":
    main()
