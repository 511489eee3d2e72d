"""Every metric a run reports: its name, unit and meaning. This table is the documentation.

Input: nothing. Output: the header of ``metrics.csv`` and the table in the README, which
``python -m impala_ms.metrics.columns --write README.md`` refreshes in place.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# The names and their order are fixed, so that programs can read old and new runs alike; new
# columns go to the end.
COLUMNS: dict[str, tuple[str, str]] = {
    "wall_time_s": ("s", "Time since the command was given, start-up included."),
    "updates": ("updates", "Learner steps made, those skipped not counted."),
    "env_steps": (
        "decisions",
        "Decisions learned from. Rows in which an environment was only reset, and unrolls that "
        "were dropped, are not in it.",
    ),
    "env_frames": ("frames", "Simulator frames learned from: `env_steps` x action repeat."),
    "env_steps_per_s": ("1/s", "Growth of `env_steps` per second since the last row."),
    "updates_per_s": ("1/s", "Growth of `updates` per second since the last row."),
    "episodes": ("episodes", "Training episodes that ended, over all actors."),
    "episode_return_mean": (
        "reward",
        "Mean return of the last 20 training episodes that ended, over all actors. Rewards are "
        "those of the environment, before any clipping. Empty before 20 episodes have ended.",
    ),
    "episode_length_mean": (
        "decisions",
        "Mean length of the same 20 episodes, reset rows not counted.",
    ),
    "policy_lag_mean": (
        "updates",
        "How old the data is: the learner's version when it used an unroll, minus the version of "
        "the weights the unroll was played with. Mean over the unrolls since the last row.",
    ),
    "policy_lag_max": ("updates", "The largest policy lag since the last row."),
    "loss_total": (
        "",
        "Loss that was minimised: policy gradient + baseline_cost x baseline - entropy_cost x "
        "entropy, summed or averaged over valid rows as `loss_reduction` says. Mean over the "
        "updates since the last row. Its size says little; jumps and NaN do.",
    ),
    "loss_policy_gradient": (
        "",
        "Policy gradient term of the total: -log pi(action) x V-trace advantage.",
    ),
    "loss_baseline": (
        "",
        "Baseline term of the total, `baseline_cost` included: half the squared distance between "
        "the value estimate and its V-trace target.",
    ),
    "entropy": (
        "nats",
        "Mean entropy of the policy over valid rows: log(actions) when it acts at random, 0 when "
        "it has no doubt. An early fall to 0 means too little `entropy_cost`.",
    ),
    "rho_mean": (
        "",
        "Mean ratio of the learner's to the actor's probability of the action taken, before "
        "clipping. 1 when the data is on-policy.",
    ),
    "rho_clipped_fraction": (
        "0-1",
        "Share of valid rows whose ratio was above `rho_bar` and was clipped to it.",
    ),
    "gradient_norm": ("", "Global norm of the gradient before it was clipped."),
    "learning_rate": ("", "Learning rate that the last update used."),
    "learner_wait_fraction": (
        "0-1",
        "Share of the time since the last row that the learner waited for unrolls. High: add "
        "actors, or environments per actor.",
    ),
    "actor_wait_fraction": (
        "0-1",
        "Share of their time that actors waited because the learner had not taken their unrolls "
        "yet, mean over actors. High: the learner is the bottleneck.",
    ),
    "rss_mb": ("MiB", "Resident memory of the learner's process. It should not grow for ever."),
    "ranks_alive": ("ranks", "Ranks that take part, the learner included."),
    "env_steps_dropped": (
        "decisions",
        "Decisions received but not learned from since the start: older than `max_policy_lag`, "
        "with a NaN or an infinity, or arriving after the stop. `status.json` counts also what "
        "was waiting to fill a batch when the run ended.",
    ),
    "updates_skipped": (
        "updates",
        "Updates left out since the start because a reward, value or gradient was not finite.",
    ),
    "eval_return_mean": ("reward", "Mean return of the newest evaluation. Empty without one."),
    "eval_version": ("updates", "Version of the weights that evaluation played with."),
    "explained_variance": (
        "<= 1",
        "1 - Var(vs - V) / Var(vs) over the valid rows of a batch: 1 when the baseline predicts "
        "the V-trace targets, 0 when it does no better than a constant. Mean over the updates "
        "since the last row.",
    ),
    "vs_mean": (
        "reward",
        "Mean V-trace target over the valid rows of the batches since the last row.",
    ),
    "loss_entropy": ("", "Entropy term of the total: -`entropy_cost` x entropy."),
}

# A row may carry these for the progress line; they are not written to files.
PROGRESS_KEYS = ("total_env_steps", "eta_s", "actors_expected", "waiting_for")

BEGIN = "<!-- metrics table: begin -->"
END = "<!-- metrics table: end -->"


def markdown_table() -> str:
    """Return the table of all metrics in Markdown, one row each."""
    rows = [f"| `{name}` | {unit} | {text} |" for name, (unit, text) in COLUMNS.items()]
    return "\n".join(["| metric | unit | meaning |", "|---|---|---|", *rows])


def replace_table(text: str) -> str:
    """Return ``text`` with the table between its two markers made new.

    Raises:
        ValueError: If the markers are not there, each once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the table goes between the lines {BEGIN} and {END}: add them")
    return f"{before}{begin}\n{markdown_table()}\n{end}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or write it into files."""
    parser = argparse.ArgumentParser(
        prog="python -m impala_ms.metrics.columns", description="The table of all metrics."
    )
    parser.add_argument(
        "--write", nargs="+", type=Path, metavar="FILE", help="replace the table in these files"
    )
    files = parser.parse_args(argv).write
    if not files:
        sys.stdout.write(markdown_table() + "\n")
        return 0
    for file in files:
        try:
            file.write_text(replace_table(file.read_text("utf-8")), "utf-8")
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{file}: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
