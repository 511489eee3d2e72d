"""The numbers of a comparison: of each run, and of each setting over its seeds.

Input: groups of runs. Output: plain dicts with the columns of ``runs.csv`` and ``table.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from impala_ms.comparison import runs, statistics
from impala_ms.comparison.runs import Group, Run
from impala_ms.comparison.statistics import last

Record = dict[str, Any]

SCORED_BY = "episode_return_mean"


def score_of(env: str, scores: Mapping[str, float]) -> float | None:
    """The score that counts in an environment, by its id or for all."""
    return scores.get(env, scores.get(""))


def of_run(run: Run, label: str, score: float | None) -> Record:
    """One line of ``runs.csv``; None where a run has no such number."""
    rows = run.rows
    at_score = None if score is None else statistics.first_at(rows, score)
    without, whole = statistics.speed(rows)
    steps, learned = last(rows, "env_steps"), last(rows, "rows_learned")
    memory = [value for row in rows if (value := row.get("rss_mb")) is not None]
    return {
        "environment": run.env,
        "setting": label,
        "algorithm": run.algorithm,
        "ranks": run.ranks,
        "seed": run.seed,
        "state": run.state,
        "counted": run.counted,
        "env_steps": steps,
        "wall_time_s": last(rows, "wall_time_s"),
        "env_steps_per_s": without,
        "env_steps_per_s_with_start": whole,
        "score": score,
        "time_to_score_s": at_score and at_score.get("wall_time_s"),
        "steps_to_score": at_score and at_score.get("env_steps"),
        "final_return": last(rows, SCORED_BY),
        "greedy_return": last(rows, "eval_return_mean"),
        "rows_learned_per_step": learned / steps if learned is not None and steps else None,
        "policy_lag": statistics.mean_by_update(rows, "policy_lag_mean"),
        "rss_mb": max(memory, default=None),
        "message": run.message,
        "folder": str(run.folder),
    }


def of_group(group: Group, score: float | None, limit_s: float | None) -> Record:
    """One line of ``table.csv``: a setting over its seeds.

    Args:
        group: The runs. Means are made of those that count.
        score: What time and steps are asked for; None: nothing.
        limit_s: What a run that never had the score counts as; None: its own time. A run that
            failed counts as the limit too; without a limit it has no time.
    """
    first = group.runs[0]
    records = {run.folder: of_run(run, group.label, score) for run in group.runs}
    counted = [records[run.folder] for run in group.counted]

    def over(name: str) -> statistics.Summary:
        return statistics.summary([record[name] for record in counted])

    final, greedy = over("final_return"), over("greedy_return")
    return {
        "environment": first.env,
        "setting": group.label,
        "algorithm": first.algorithm,
        "ranks": first.ranks,
        "seeds": " ".join(str(run.seed) for run in group.counted),
        "n": len(counted),
        "not_counted": "; ".join(map(why_not, [r for r in group.runs if not r.counted])),
        "env_steps_per_s": over("env_steps_per_s").median,
        "env_steps_per_s_with_start": over("env_steps_per_s_with_start").median,
        **_to_score(group, records, score, limit_s),
        "final_return_mean": final.mean,
        "final_return_se": final.standard_error,
        "final_return_n": sum(record["final_return"] is not None for record in counted),
        "greedy_return_mean": greedy.mean,
        "greedy_return_se": greedy.standard_error,
        "rows_learned_per_step": over("rows_learned_per_step").mean,
        "policy_lag": over("policy_lag").mean,
        "rss_mb": over("rss_mb").mean,
    }


def _to_score(
    group: Group, records: Mapping[Any, Record], score: float | None, limit_s: float | None
) -> Record:
    """Time and steps to the score over seeds, and who never had it."""
    asked: list[Run] = []
    if score is not None:
        fails = runs.FAILED if limit_s is not None else None
        asked = [run for run in group.runs if run.counted or run.state == fails]
    lines = [records[run.folder] for run in asked]
    ends = [limit_s if limit_s is not None else line["wall_time_s"] for line in lines]
    totals = [
        run.settings.get("trainer.total_env_steps") or line["env_steps"]
        for run, line in zip(asked, lines, strict=True)
    ]
    time = statistics.reached([line["time_to_score_s"] for line in lines], ends)
    steps = statistics.reached([line["steps_to_score"] for line in lines], totals)
    return {
        "score": score,
        "time_to_score_mean_s": time.mean,
        "time_to_score_median_s": time.median,
        "steps_to_score_mean": steps.mean,
        "steps_to_score_median": steps.median,
        "never_reached": ", ".join(named(asked[number]) for number in time.never),
    }


def named(run: Run) -> str:
    """A run inside its setting."""
    return f"seed {run.seed}" if run.seed is not None else run.folder.name


def why_not(run: Run) -> str:
    """A run that does not count, and why."""
    return f"{named(run)}: {run.state}{f', {run.message}' if run.message else ''}"


def by_environment(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each environment, in the order they came."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.runs[0].env, []).append(group)
    return found
