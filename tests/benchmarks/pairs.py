"""Two kinds of runs of ours in turn, and the ratio of their speeds.

python tests/benchmarks/pairs.py episodes [--repeats 3] [--seconds 45]
python tests/benchmarks/pairs.py faults

episodes: episodes of mean length 10 beside endless ones, same net and batch. A reset row is one of
every 11 rows and is not counted as a step, so 0.91 is the most there can be.
faults: with fault tolerance, as always, beside an MPI started without it, no heartbeats and no
restarts. Nothing fails meanwhile.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import common

CONFIG = common.ROOT / "example" / "impala" / "cartpole_throughput.yaml"
WARM_UP_S = 15.0
NEVER_S = 1_000_000
WITHOUT = """\
#!/usr/bin/env bash
# mpirun without --with-ft ulfm
given=("$@")
for at in "${!given[@]}"; do
    [[ ${given[at]} == --with-ft ]] && unset "given[at]" "given[at + 1]"
done
exec MPIRUN "${given[@]}"
"""


def episodes(folder):
    """``{name: (options, environment variables)}``, the second to be compared with the first."""
    return {
        name: (["--env", f"tests.benchmarks.length_envs:{name}-v0"], {})
        for name in ("Endless", "Short")
    }


def faults(folder):
    """As ``episodes``."""
    mpirun = folder / "mpirun"
    mpirun.write_text(WITHOUT.replace("MPIRUN", str(Path(sys.prefix, "bin", "mpirun"))))
    mpirun.chmod(0o755)
    options = ["--restart_actors", "false", "--heartbeat_s", NEVER_S]
    return {"off": (options, {"IMPALA_MS_MPIRUN": str(mpirun)}), "on": ([], {})}


def steps_per_s(folder, seconds, options, variables):
    """Of one run, from ``WARM_UP_S`` on."""
    options = ["--config", CONFIG, *options]
    run = common.train(folder, 2, *options, limit_s=seconds, **variables)
    rows = [row for row in run["rows"] if row[0] > WARM_UP_S]
    return (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    pairs = {"episodes": episodes, "faults": faults}
    parser.add_argument("what", choices=pairs)
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs (default 3)")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each run (default 45)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="impala_ms_benchmark_"))
    kinds = pairs[arguments.what](folder)
    rates = {name: [] for name in kinds}
    for repeat in range(arguments.repeats):
        for name in sorted(kinds, reverse=repeat % 2):  # neither is always the first
            run = folder / f"{name}-{repeat}"
            rates[name].append(steps_per_s(run, arguments.seconds, *kinds[name]))
            print(f"{name} {rates[name][-1]:,.0f} steps/s", flush=True)
    first, second = (common.median(rates[name]) for name in kinds)
    rows = [[name, common.spread(values)] for name, values in rates.items()]
    print(common.markdown([arguments.what, "env steps/s"], rows))
    print(f"\nRatio of medians: {second / first:.3f}. {common.machine()}")


if __name__ == "__main__":
    main()
