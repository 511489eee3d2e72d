"""The weights that synchronous training ends with, as one hash per seed.

    python tests/benchmarks/fingerprint.py [--root CLONE] [--seeds 1 2 3] [-- options of train.py]

A change that is not to alter what is learned gives the same hashes before and after it, on one
machine and with one version of MindSpore.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import common

RANKS, ROWS, UPDATES = 3, 10 * 32, 200  # ROWS: env steps of an update, fewer by reset rows


def main():
    """Print ``seed hash updates`` of each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=common.ROOT, help="of the code to be run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("options", nargs="*", help="of train.py, after --")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        sys.stdout.write(
            f"{seed} {fingerprint(arguments.root.resolve(), seed, *arguments.options)}\n"
        )
        sys.stdout.flush()


def fingerprint(root, seed, *options):
    """``hash updates`` of the last checkpoint of a run with that seed."""
    given = ["--synchronous", "true", "--num_envs", "16", "--batch_size", "32"]
    given += [
        "--total_env_steps",
        str(ROWS * UPDATES),
        "--tensorboard",
        "false",
        "--seed",
        str(seed),
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = ["bash", root / "start_standalone.sh", "train.py", str(RANKS)]
        subprocess.run(
            [*command, "--run_dir", "run", *given, *options],
            cwd=folder,
            env=common.environment() | {"PYTHONPATH": ""},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        from impala_ms import checkpoint

        path, parameters, _ = checkpoint.latest(Path(folder, "run", "checkpoints"))
    content = hashlib.sha256()
    for name in sorted(parameters):
        content.update(name.encode() + parameters[name].tobytes())
    return f"{content.hexdigest()[:16]} {path.stem}"


if __name__ == "__main__":
    main()
