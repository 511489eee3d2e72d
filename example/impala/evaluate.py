"""Play episodes with a trained network: ``python evaluate.py RUN_DIR [--episodes 20] [--greedy]``.

Prints the mean return and its standard error. With ``--checkpoint best``, ``--greedy`` and the
run's ``eval_episodes`` it plays the very episodes of the best evaluation during training.
"""

import argparse
import signal
import sys
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # impala_ms is not installed

from impala_ms import checkpoint, device
from impala_ms.config import of_run
from impala_ms.envs.make import MakeError
from impala_ms.errors import ConfigError, describe
from impala_ms.imports import forget_script
from impala_ms.metrics import progress


def main(argv=None):
    """Command line; returns the exit code."""
    progress.open_streams()
    forget_script(__file__)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "run_dir", type=Path, help="folder of a run, with config.json and checkpoints"
    )
    parser.add_argument("--episodes", type=int, default=20, help="number of episodes (default 20)")
    parser.add_argument("--greedy", action="store_true", help="most likely action, not a sample")
    parser.add_argument(
        "--checkpoint", default="latest", help="latest (default), best, or the path of a file"
    )
    arguments = parser.parse_args(argv)
    if arguments.episodes < 1:
        parser.error(f"--episodes is 1 or more, not {arguments.episodes}")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        returns, path = evaluate(arguments)
    except (ConfigError, MakeError, checkpoint.CheckpointError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BaseException as error:  # of the environment or the network: sys.exit() too
        traceback.print_exc()
        sys.stderr.write(f"failed: {describe(error)}\n")
        return 1
    how = f"{len(returns)} {'greedy' if arguments.greedy else 'sampled'}"
    mean = f"return {returns.mean():.2f} (of {how} episode)"
    if len(returns) > 1:
        error = returns.std(ddof=1) / np.sqrt(len(returns))
        mean = (
            f"return {returns.mean():.2f} ± {error:.2f} (mean ± standard error of {how} episodes; "
            f"lowest {returns.min():.1f}, highest {returns.max():.1f})"
        )
    try:
        sys.stdout.write(f"{mean} of {path}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"{mean}: cannot be written: {error.strerror}\n")
        progress.ignore_output()
        return 1
    return 0


def evaluate(arguments):
    """``(returns [episodes], path of the checkpoint)``."""
    from impala_ms.agents import build

    config = of_run(arguments.run_dir)
    folder = arguments.run_dir / "checkpoints"
    if arguments.checkpoint == "latest":
        path, saved, state = checkpoint.latest(folder)
    else:
        path = arguments.checkpoint
        if path == "best":
            path = folder / checkpoint.BEST
            if not path.exists():
                raise checkpoint.CheckpointError(
                    f"{arguments.run_dir} has no best checkpoint: it is of the best evaluation "
                    "during training, which --eval_interval_updates asks for"
                )
        saved, state = checkpoint.load(path)

    device.use("CPU", 1)
    environment = build.make_environment(config, "eval", 1, [0])
    policy = build.make_policy(config, environment.spaces())
    environment.close()
    actor = build.make_actor(config, policy, None, None)
    names = {parameter.name: parameter for parameter in policy.get_parameters()}
    checkpoint.restore(names, checkpoint.of_network(saved, state), path)
    returns = build.evaluate_policy(
        config, actor, episodes=arguments.episodes, greedy=arguments.greedy
    )
    return returns, path


if __name__ == "__main__":
    sys.exit(main())
