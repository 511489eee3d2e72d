"""Training that takes no time: ``fake_train.py ALGORITHM N [options]`` writes a made-up run.

``fake_train.py evaluate RUN_DIR [options]`` has it play: a run with seed s returns 100 s.

What it does is said by FAKE_TRAIN, words such as ``fail:2 stop:3 slow``: the run with seed 2
fails, that with seed 3 has its parent interrupted, and every run goes on until it is interrupted.
``killed:2`` kills the run of seed 2. ``deaf:2`` has the evaluation of seed 2 fail, ``break:3`` has
that of seed 3 interrupt its parent;
``chatty:1`` prints other lines too, ``mute:1`` prints no result, and ``leaves:1`` leaves a process.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
todo = os.environ.get("FAKE_TRAIN", "").split()


def train(algorithm, ranks, options):
    """Write a run; returns the exit code."""
    stopped = []
    signal.signal(signal.SIGINT, lambda *_: stopped.append(True))
    from tests.made_up_runs import make_run, make_snapshots

    given = dict(zip(options[::2], options[1::2], strict=True))
    seed, folder = int(given["--seed"]), Path(given["--run_dir"])
    say(folder)
    if f"killed:{seed}" in todo:
        sys.stdout.write("10/600K steps\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
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
    if "--snapshot_interval_s" in given:
        make_snapshots(folder, [2.0, 4.0, 6.0])
    if f"stop:{seed}" in todo:
        os.kill(os.getppid(), signal.SIGINT)
    while slow and not stopped:
        time.sleep(0.02)
    return code


def evaluate(folder, options):
    """Print what the last weights return, or give the snapshots half of it, then all."""
    say(f"{folder} {' '.join(options)}")
    seed = int(folder.name.removeprefix("seed_"))
    mean, episodes = 100.0 * seed, int(options[options.index("--episodes") + 1])
    sys.stderr.write("a warning\n")
    chatty = f"chatty:{seed}" in todo
    if f"deaf:{seed}" in todo:
        sys.exit("failed: the sound card is gone")
    if f"leaves:{seed}" in todo:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path("left.txt").write_text(str(left.pid))
    if f"mute:{seed}" in todo:
        sys.stdout.write("{}\n[1]\nhello\n")
        return 0
    if f"break:{seed}" in todo:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    if "--json" in options:
        sys.stdout.write("hello\n" * chatty)
        sys.stdout.write(json.dumps({"return_mean": mean, "episodes": episodes}))
        sys.stdout.write("\nclosing {window}\n" * chatty)
    else:
        from tests.made_up_runs import play_snapshots

        play_snapshots(folder, [mean / 2, mean, mean], episodes)
    return 0


def say(what):
    with Path("started.txt").open("a") as file:
        file.write(f"{what}\n")


if sys.argv[1] == "evaluate":
    sys.exit(evaluate(Path(sys.argv[2]), sys.argv[3:]))
sys.exit(train(*sys.argv[1:3], sys.argv[3:]))
