"""Play episodes with a trained network: ``python evaluate.py RUN_DIR [--episodes 20] [--greedy]``.

Prints the mean return and its standard error. With ``--checkpoint best``, ``--greedy`` and the
run's ``eval_episodes`` it plays the very episodes of the best evaluation during training.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # impala_ms is not installed

from impala_ms import checkpoint, device
from impala_ms.config import Config, ConfigError
from impala_ms.envs.make import MakeError


def main(argv=None):
    """Command line; returns the exit code."""
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
    try:
        returns, path = evaluate(arguments)
    except (ConfigError, MakeError, checkpoint.CheckpointError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
    how = "greedy" if arguments.greedy else "sampled"
    sys.stdout.write(
        f"return {returns.mean():.2f} ± {error:.2f} (mean ± standard error of {len(returns)} "
        f"{how} episodes; lowest {returns.min():.1f}, highest {returns.max():.1f}) of {path}\n"
    )
    return 0


def evaluate(arguments):
    """``(returns [episodes], path of the checkpoint)``."""
    from impala_ms.algorithm.impala import session

    file = arguments.run_dir / "config.json"
    if not file.is_file():
        raise ConfigError(f"{arguments.run_dir} is no run folder: it holds no config.json")
    config = Config.read(file)
    folder = arguments.run_dir / "checkpoints"
    if arguments.checkpoint == "latest":
        path, saved, _ = checkpoint.latest(folder)
    else:
        path = folder / checkpoint.BEST if arguments.checkpoint == "best" else arguments.checkpoint
        saved, _ = checkpoint.load(path)

    device.use("CPU", 1)
    environment = session.make_environment(config, "eval", 1, [0])
    policy = session.make_policy(config, environment.spaces())
    environment.close()
    actor = session.make_actor(config, policy, None, None)
    names = {parameter.name: parameter for parameter in policy.get_parameters()}
    checkpoint.restore(names, saved, path)
    returns = session.evaluate_policy(
        config, actor, episodes=arguments.episodes, greedy=arguments.greedy
    )
    return returns, path


if __name__ == "__main__":
    sys.exit(main())
