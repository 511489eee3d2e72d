"""Training that takes no time: ``fake_train.py ALGORITHM N [options]`` writes a made-up run.

What it does is said by FAKE_TRAIN, words such as ``fail:2 stop:3 slow``: the run with seed 2
fails, that with seed 3 has its parent interrupted, and every run goes on until it is interrupted.
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.made_up_runs import make_run

algorithm, ranks, *options = sys.argv[1:]
given = dict(zip(options[::2], options[1::2], strict=True))
seed, folder = int(given["--seed"]), Path(given["--run_dir"])
todo = os.environ.get("FAKE_TRAIN", "").split()
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(True))

with Path("started.txt").open("a") as file:
    file.write(f"{folder}\n")
if f"early:{seed}" in todo:
    sys.exit("no room for temporary files")
state, message, code = "finished", "", 0
if f"fail:{seed}" in todo:
    state, message, code = "failed", "the environment raised ValueError", 1
    sys.stdout.write(f"failed: {message}\n")
slow = "slow" in todo or f"stop:{seed}" in todo
if slow:
    state, code = "stopped", 130
make_run(
    folder,
    [None, 20.0 * seed, 40.0 * seed],
    seed=seed,
    algorithm=algorithm,
    ranks=int(ranks),
    env=given.get("--env", "CartPole-v1"),
    state=state,
    message=message,
)
if f"stop:{seed}" in todo:
    os.kill(os.getppid(), signal.SIGINT)
while slow and not stopped:
    time.sleep(0.02)
sys.exit(code)
