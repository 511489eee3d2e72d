"""Plays episodes with a trained network: ``python -m impala_ms evaluate RUN_DIR [options]``.

Input: a run folder with its settings and checkpoints. Output: the mean return and its standard
error. With ``--checkpoint best``, ``--greedy`` and the run's ``eval_episodes`` it plays the same
episodes as the best evaluation during training.
"""

import argparse
import dataclasses
import os
import sys
import time
import traceback
from pathlib import Path

from impala_ms.classes import resolve
from impala_ms.config import of_run
from impala_ms.errors import ConfigError, describe
from impala_ms.metrics import progress

SHOWN_AFTER_S, SHOWN_EVERY_S = 2.0, 0.2


def main(argv):
    """Play episodes and print their mean return; returns the exit code."""
    arguments = parse(argv)
    try:
        returns, path = evaluate(arguments)
    except BaseException as error:  # of the environment or the network too: also sys.exit()
        return fail(error)
    result = f"{in_words(returns, arguments.greedy)} of {path}"
    try:
        sys.stdout.write(f"{result}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"{result}: cannot be written: {error.strerror}\n")
        progress.ignore_output()
        return 1
    return 0


def parse(argv):
    """The arguments; a mistake in them ends this process."""
    parser = argparse.ArgumentParser(
        prog="python -m impala_ms evaluate",
        usage="%(prog)s RUN_DIR [--episodes N] [--greedy] [--checkpoint FILE]",
        description="Play episodes with a trained network, and print their mean return.",
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
    return arguments


def evaluate(arguments):
    """``(returns [episodes], path of the checkpoint)``."""
    config = of_run(arguments.run_dir)  # a mistake shows before anything heavy is imported

    from impala_ms import checkpoint, device
    from impala_ms.agents.build import (
        evaluate_policy,
        make_actor,
        make_environment,
        make_policy,
    )

    path, saved, state = read_checkpoint(arguments.run_dir, arguments.checkpoint)
    device.use("CPU", 1)
    environment = make_environment(config, "eval", 1, [0])
    policy = make_policy(config, environment.spaces())
    environment.close()
    actor = make_actor(config, policy, None, None)
    parameters = {parameter.name: parameter for parameter in policy.get_parameters()}
    checkpoint.restore(parameters, checkpoint.of_network(saved, state), path)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        config = watched(config, arguments.episodes)
    returns = evaluate_policy(config, actor, episodes=arguments.episodes, greedy=arguments.greedy)
    return returns, path


def read_checkpoint(run_dir, name):
    """``(path, saved parameters, state)`` of the latest or best checkpoint of a run, or of a file.

    Raises:
        CheckpointError: If there is none, or it cannot be read.
    """
    from impala_ms import checkpoint

    folder = run_dir / "checkpoints"
    if name == "latest":
        return checkpoint.latest(folder)
    path = folder / checkpoint.BEST if name == "best" else Path(name)
    if name == "best" and not path.exists():
        raise checkpoint.CheckpointError(
            f"{run_dir} has no best checkpoint: that is kept of the best evaluation during "
            "training, which --eval_interval_updates asks for"
        )
    return path, *checkpoint.load(path)


def fail(error):
    """Say why nothing was played; returns the exit code.

    A message of ours says what to do. What a user's class raises is shown with where it came from.
    """
    if isinstance(error, ConfigError):
        sys.stderr.write(f"{error}\n")
    elif type(error).__module__.startswith("impala_ms."):
        sys.stderr.write(f"{describe(error)}\n")
    else:
        traceback.print_exception(error)
        sys.stderr.write(f"failed: {describe(error)}\n")
    return 1


def in_words(returns, greedy):
    """The mean return, with its standard error if there are several."""
    how = f"{len(returns)} {'greedy' if greedy else 'sampled'}"
    if len(returns) == 1:
        return f"return {returns.mean():.2f} (of {how} episode)"
    error = returns.std(ddof=1) / len(returns) ** 0.5
    return (
        f"return {returns.mean():.2f} ± {error:.2f} (mean ± standard error of {how} episodes; "
        f"lowest {returns.min():.1f}, highest {returns.max():.1f})"
    )


def watched(config, episodes):
    """The configuration with environments that show how many of the episodes have ended."""
    part = config.algorithm_config["eval_environment"]
    make = resolve(part["type"])

    def make_watched(*arguments, **settings):
        return Watched(make(*arguments, **settings), episodes, sys.stderr)

    parts = config.algorithm_config | {"eval_environment": part | {"type": make_watched}}
    return dataclasses.replace(config, algorithm_config=parts)


class Watched:
    """Environments that show on a terminal how many of the episodes have ended.

    Args:
        environment: ``VectorEnvironment``.
        episodes: How many are to be played; every environment plays its share.
        stream: The terminal.
        clock: Seconds; replaced in tests.
    """

    def __init__(self, environment, episodes, stream, clock=time.monotonic):
        envs = environment.num_envs
        self._environment, self._episodes = environment, episodes
        self._left = [(episodes + envs - 1 - env) // envs for env in range(envs)]
        self._stream, self._clock = stream, clock
        self._shown_at = clock() + SHOWN_AFTER_S - SHOWN_EVERY_S

    def __getattr__(self, name):
        """All but ``step`` and ``close`` is that of the environments."""
        return getattr(self._environment, name)

    def step(self, action):
        """Take a step; an environment that has played its share counts no more."""
        result = self._environment.step(action)
        for env in self._environment.finished[0]:
            self._left[env] -= self._left[env] > 0
        now = self._clock()
        if now - self._shown_at >= SHOWN_EVERY_S:
            self._shown_at = now
            self._show(f"{self._episodes - sum(self._left)} of {self._episodes} episodes\r")
        return result

    def close(self):
        """Close the environments, and leave an empty line."""
        self._show("")
        self._environment.close()

    def _show(self, text):
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()
