"""The columns of ``metrics.csv``: name, unit and meaning of each, also for the documentation.

Input: nothing. Output: the header of ``metrics.csv``. An algorithm's ``config.py`` names its own
columns in ``columns``, and a learner of your own in its attribute ``columns``.
"""

from __future__ import annotations

Columns = dict[str, tuple[str, str]]  # unit and meaning by name

COMMON: Columns = {
    "wall_time_s": ("s", "Time since the command was given, start-up included."),
    "updates": ("updates", "Learner steps. Skipped ones do not count."),
    "env_steps": (
        "decisions",
        "Decisions learned from, each counted once. Reset rows, in which an environment was only "
        "reset, and dropped decisions do not count.",
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
        "Mean length of the same 20 episodes. Reset rows do not count.",
    ),
    "policy_lag_mean": (
        "updates",
        "How old the data is: the version of the weights when an unroll, or its gradient, was "
        "used, minus the version of the weights that played it or, in Gorila, that made the "
        "gradient. Mean since the last row.",
    ),
    "policy_lag_max": ("updates", "The largest policy lag since the last row."),
    "loss_total": (
        "",
        "Loss that was minimised, summed or averaged over valid rows as `loss_reduction` says. "
        "Mean over the updates since the last row. Its size says little; jumps and NaN say more.",
    ),
    "gradient_norm": ("", "Global norm of the gradient before it was clipped."),
    "learning_rate": ("", "Learning rate that the last update used."),
    "learner_wait_fraction": (
        "0-1",
        "Share of the time since the last row that rank 0 waited for unrolls or gradients. High: "
        "add actors, or environments per actor.",
    ),
    "actor_wait_fraction": (
        "0-1",
        "Share of time that actors waited, mean over actors: for a free buffer, or for weights "
        "(A3C, synchronous runs). High in an asynchronous run: rank 0 is the bottleneck.",
    ),
    "rss_mb": ("MiB", "Resident memory of the learner's process. It should not grow for ever."),
    "ranks_alive": ("ranks", "Ranks that take part, including the learner or the servers."),
    "env_steps_dropped": (
        "decisions",
        "Decisions that arrived since the start and were not learned from: older than "
        "`max_policy_lag`, with a NaN or an infinity, or after the stop. Decisions that were "
        "waiting for a full batch when the run ended are counted in `status.json`, and in this "
        "column after a resume.",
    ),
    "updates_skipped": (
        "updates",
        "Updates left out since the start because a reward, value or gradient was not finite.",
    ),
    "eval_return_mean": ("reward", "Mean return of the newest evaluation. Empty without one."),
    "eval_version": ("updates", "Version of the weights that evaluation played with."),
    "rows_learned": (
        "decisions",
        "Decisions learned from since the start; a replayed decision counts again.",
    ),
}

# Columns of agents with a policy and a baseline.
ACTOR_CRITIC: Columns = {
    "loss_policy_gradient": (
        "",
        "Policy gradient term of the total: -log pi(action) x advantage.",
    ),
    "loss_baseline": (
        "",
        "Baseline term of the total, `baseline_cost` included: half the squared distance between "
        "the value estimate V and its target `vs`.",
    ),
    "loss_entropy": ("", "Entropy term of the total: -`entropy_cost` x entropy."),
    "entropy": (
        "nats",
        "Mean entropy of the policy over valid rows: log(number of actions) when it acts at "
        "random, 0 when it is certain. An early fall to 0 means that `entropy_cost` is too small.",
    ),
    "vs_mean": (
        "reward",
        "Mean target `vs` of the baseline, over the valid rows of the batches since the last row: "
        "V-trace's under IMPALA, n-step returns under A3C.",
    ),
    "explained_variance": (
        "<= 1",
        "1 - Var(vs - V) / Var(vs) over the valid rows of a batch: 1 when the baseline predicts "
        "its targets, 0 when it does no better than a constant. Mean over the updates since the "
        "last row.",
    ),
}

# Of systems whose workers compute gradients.
GRADIENTS_DROPPED: Columns = {
    "gradients_dropped": (
        "gradients",
        "Gradients received since the last row but not applied: older than `max_policy_lag`, or of "
        "an unroll with a NaN or an infinity.",
    ),
}

# Of agents that learn the values of actions, from a replay.
REPLAY: Columns = {
    "episode_return_all_mean": (
        "reward",
        "Mean return of the last 20 training episodes of all environments. `episode_return_mean` "
        "is of those that explore least, where they explore differently.",
    ),
    "value_mean": (
        "reward",
        "Mean value of the actions taken, over the batches since the last row.",
    ),
    "target_mean": ("reward", "Mean of what these values are moved to: return and bootstrap."),
    "td_error_mean": ("reward", "Mean distance between the two."),
    "replay_rows": ("decisions", "Decisions in the replay that can be drawn."),
    "replay_age_mean": (
        "updates",
        "How much older the weights behind a decision that was learned from are than those behind "
        "the newest one in the replay. Mean since the last row.",
    ),
}

Q_LEARNING: Columns = REPLAY | {
    "epsilon": ("0-1", "Probability of a random action, mean over the environments of actor 1."),
}

# These columns come first, in this order, in old runs and in new ones.
FIRST = (
    "wall_time_s updates env_steps env_frames env_steps_per_s updates_per_s episodes "
    "episode_return_mean episode_length_mean policy_lag_mean policy_lag_max loss_total "
    "loss_policy_gradient loss_baseline entropy rho_mean rho_clipped_fraction gradient_norm "
    "learning_rate learner_wait_fraction actor_wait_fraction rss_mb ranks_alive "
    "env_steps_dropped updates_skipped eval_return_mean eval_version"
).split()

# A row may have these keys for the progress line; they are not written to files.
PROGRESS_KEYS = ("total_env_steps", "eta_s", "actors_expected", "servers", "waiting_for")


def together(*groups: Columns) -> Columns:
    """Join several groups with the common columns, in the order of the file."""
    every = {name: column for group in (COMMON, *groups) for name, column in group.items()}
    return {name: every[name] for name in [*FIRST, *every] if name in every}


def markdown_table(columns: Columns) -> str:
    """A table in Markdown with a row for each metric."""
    rows = [f"| `{name}` | {unit} | {text} |" for name, (unit, text) in columns.items()]
    return "\n".join(["| metric | unit | meaning |", "|---|---|---|", *rows])
