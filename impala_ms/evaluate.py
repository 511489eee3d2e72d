"""Plays episodes with a trained network: ``python -m impala_ms evaluate RUN_DIR [options]``.

Input: a run folder with its settings and checkpoints, or snapshots. Output: the mean return and its
standard error; of snapshots a table. With ``--checkpoint best``, ``--greedy`` and the run's
``eval_episodes`` it plays the same episodes as the best evaluation during training.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from impala_ms.config import of_run
from impala_ms.errors import ConfigError, RunError, describe
from impala_ms.metrics import progress

SHOWN_AFTER_S, SHOWN_EVERY_S = 2.0, 0.2


def main(argv):
    """Play episodes and print what they returned; returns the exit code."""
    arguments = parse(argv)
    try:
        with result_alone():
            play = play_snapshots if arguments.snapshots else play_checkpoint
            result = play(arguments)
    except BaseException as error:  # of the environment or the network too: also sys.exit()
        return fail(error)
    try:
        sys.stdout.write(f"{result}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"{result}: cannot be written: {error.strerror}\n")
        progress.ignore_output()
        return 1
    return 0


@contextlib.contextmanager
def result_alone():
    """Send what the user's classes print to standard error: the result alone is printed.

    pygame, for one, greets on standard output when it is imported.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # nobody reads standard error
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def parse(argv):
    """The arguments; a mistake in them ends this process."""
    parser = argparse.ArgumentParser(
        prog="python -m impala_ms evaluate",
        usage="%(prog)s RUN_DIR [--episodes N] [--greedy] [--checkpoint FILE] [--json] "
        "[--snapshots]",
        description="Play episodes with a trained network, and print their mean return.",
    )
    add = parser.add_argument
    add("run_dir", type=Path, help="folder of a run, with config.json and checkpoints")
    add("--episodes", type=int, default=20, help="number of episodes (default 20)")
    add("--greedy", action="store_true", help="most likely action, not a sample")
    add("--checkpoint", help="latest (default), best, or the path of a file")
    add("--json", action="store_true", help="print the result as JSON, with all returns")
    add(
        "--snapshots",
        action="store_true",
        help="play every snapshot that has not been played yet (trainer.snapshot_interval_s); "
        "the returns are written beside them, to greedy.csv or sampled.csv",
    )
    arguments = parser.parse_args(argv)
    if arguments.episodes < 1:
        parser.error(f"--episodes is 1 or more, not {arguments.episodes}")
    for option in ("checkpoint", "json"):
        if arguments.snapshots and getattr(arguments, option):
            parser.error(f"--{option} is for one checkpoint, not for --snapshots: leave it out")
    return arguments


def play_checkpoint(arguments):
    """Play episodes with a checkpoint; what is to be printed."""
    config = of_run(arguments.run_dir)  # a mistake shows before anything heavy is imported

    from impala_ms import checkpoint, seeds

    path, saved, state = read_checkpoint(arguments.run_dir, arguments.checkpoint or "latest")
    player = Player(config, arguments.episodes, arguments.greedy)
    checkpoint.restore(player.parameters(), checkpoint.of_network(saved, state), path)
    returns = player.play("", seeds.FOR_EVALUATION)
    if not arguments.json:
        return f"{in_words(returns, player.greedy)} of {path}"
    return json.dumps(
        {
            "episodes": len(returns),
            "greedy": player.greedy,
            "return_mean": returns.mean(),
            "return_stderr": standard_error(returns),
            "returns": returns.tolist(),
            "checkpoint": str(path),
        }
    )


def play_snapshots(arguments):
    """Play episodes with each snapshot that has not played them yet; what is to be printed."""
    run_dir, greedy, episodes = arguments.run_dir, arguments.greedy, arguments.episodes
    config = of_run(run_dir)

    from impala_ms import seeds, snapshots

    if not snapshots.listing(run_dir):
        raise RunError(
            f"{run_dir} has no snapshots: training saves them with --snapshot_interval_s 2"
        )
    missing = snapshots.unplayed(run_dir, greedy, episodes)
    player = Player(config, episodes, greedy) if missing else None
    rows = {row.updates: row for row in snapshots.read_table(run_dir, greedy)}
    for number, path in enumerate(missing, 1):
        flat, taken = snapshots.load(path)
        player.take(flat, path)
        returns = player.play(f"snapshot {number} of {len(missing)}: ", seeds.FOR_SNAPSHOTS)
        played = float(returns.mean()), standard_error(returns), episodes
        rows[taken.updates] = snapshots.Played(*taken, *played)
        snapshots.write_table(run_dir, greedy, rows.values())
    last = rows[max(rows)]
    return (
        f"{len(missing)} of {len(rows)} snapshots played, {episodes} "
        f"{'greedy' if greedy else 'sampled'} episodes each; the last returned "
        f"{last.return_mean:.2f}: {snapshots.table(run_dir, greedy)}"
    )


class Player:
    """The policy of a run, playing in its evaluation environment.

    Args:
        config: ``Config`` of the run.
        episodes: How many it plays each time.
        greedy: Whether it takes the most likely action instead of a sample.
    """

    def __init__(self, config, episodes, greedy):
        from impala_ms import device
        from impala_ms.agents import build

        device.use("CPU", 1)
        environment = build.make_environment(config, "eval", 1, [0])
        policy = build.make_policy(config, environment.spaces())
        environment.close()
        self.actor = build.make_actor(config, policy, None, None)
        self.evaluate_policy = build.evaluate_policy
        self.config, self.episodes = config, episodes
        self.greedy = greedy or not self.actor.samples

    def parameters(self):
        """``{name: Parameter}`` of the network."""
        return {one.name: one for one in self.actor.weights.parameters}

    def take(self, flat, path):
        """Use the weights of a snapshot.

        Raises:
            RunError: If they are of another network.
        """
        try:
            self.actor.weights.write(flat)
        except ValueError as error:
            raise RunError(f"the snapshot {path} is of another network: {error}") from error

    def play(self, what, number):
        """Play episodes; their returns.

        Args:
            what: Is shown on a terminal, before how many of the episodes have ended.
            number: Whose random numbers are used, of ``seeds``.
        """
        shown = Shown(f"{what}{{}} of {self.episodes} episodes", sys.stderr)
        try:
            return self.evaluate_policy(
                self.config,
                self.actor,
                episodes=self.episodes,
                greedy=self.greedy,
                ended=shown.ended,
                number=number,
            )
        finally:
            shown.clear()


class Shown:
    """A line on a terminal that says how many episodes have ended; elsewhere nothing.

    Args:
        text: With ``{}`` where the number stands.
        stream: Perhaps a terminal.
        clock: Seconds; replaced in tests.
    """

    def __init__(self, text, stream, clock=time.monotonic):
        self._text, self._stream, self._clock = text, stream, clock
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_at = clock() + SHOWN_AFTER_S - SHOWN_EVERY_S

    def ended(self, episodes):
        """Show that so many have ended, if a part of a second has gone by."""
        now = self._clock()
        if self._live and now - self._shown_at >= SHOWN_EVERY_S:
            self._shown_at = now
            self._show(f"{self._text.format(episodes)}\r")

    def clear(self):
        """Leave an empty line."""
        if self._live:
            self._show("")

    def _show(self, text):
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()


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
    return (
        f"return {returns.mean():.2f} ± {standard_error(returns):.2f} "
        f"(mean ± standard error of {how} episodes; "
        f"lowest {returns.min():.1f}, highest {returns.max():.1f})"
    )


def standard_error(returns):
    """Of their mean; None for a single one."""
    return float(returns.std(ddof=1) / len(returns) ** 0.5) if len(returns) > 1 else None
