"""The numbers of a comparison: of each run, and of each setting over its seeds.

Input: groups of runs. Output: plain dicts with the columns of ``runs.csv`` and ``table.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from impala_ms.comparison import runs, statistics
from impala_ms.comparison.runs import Group, Run
from impala_ms.comparison.statistics import last

Record = dict[str, Any]

SCORED_BY = "episode_return_mean"
GREEDY_LIMIT_S = 300.0  # what a run without the greedy score counts as, unless said


class Asked(NamedTuple):
    """What the runs of an environment are asked for; None: not that.

    Attributes:
        score: Time and steps until training returns it.
        greedy_score: The same for greedy episodes of its snapshots.
        limit_s: What a run that never had a score counts as. Without it a run counts for ``score``
            as its own time, and for ``greedy_score`` as `GREEDY_LIMIT_S`.
    """

    score: float | None = None
    greedy_score: float | None = None
    limit_s: float | None = None

    @property
    def greedy_limit_s(self) -> float:
        """The limit of the time to the greedy score."""
        return GREEDY_LIMIT_S if self.limit_s is None else self.limit_s


def score_of(env: str, scores: Mapping[str, float]) -> float | None:
    """The score that counts in an environment, by its id or for all."""
    return scores.get(env, scores.get(""))


def of_run(run: Run, label: str, asked: Asked) -> Record:
    """One line of ``runs.csv``; None where a run has no such number."""
    rows = run.rows
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
        "score": asked.score,
        **_at_score(run, asked),
        "greedy_score": asked.greedy_score,
        **_at_greedy_score(run, asked),
        "final_return": last(rows, SCORED_BY),
        **_greedy_return(run),
        "rows_learned_per_step": learned / steps if learned is not None and steps else None,
        "policy_lag": statistics.mean_by_update(rows, "policy_lag_mean"),
        "rss_mb": max(memory, default=None),
        "message": run.message,
        "folder": str(run.folder),
    }


def _at_score(run: Run, asked: Asked) -> Record:
    """When a run first had the score in training, if that was within the limit."""
    row = None if asked.score is None else statistics.first_at(run.rows, asked.score)
    seconds, steps = (row.get("wall_time_s"), row.get("env_steps")) if row else (None, None)
    if asked.limit_s is not None and seconds is not None and seconds > asked.limit_s:
        seconds = steps = None
    return {"time_to_score_s": seconds, "steps_to_score": steps}


def _at_greedy_score(run: Run, asked: Asked) -> Record:
    """When the snapshots of a run first held the greedy score, if that was within the limit."""
    held = None
    if asked.greedy_score is not None:
        held = statistics.first_held(run.snapshots, asked.greedy_score)
    if held is not None and held.wall_time_s > asked.greedy_limit_s:
        held = None
    return {
        "time_to_greedy_score_s": held and held.wall_time_s,
        "steps_to_greedy_score": held and held.env_steps,
    }


def _greedy_return(run: Run) -> Record:
    """Of the last weights; else of the newest evaluation during training, if that was greedy."""
    if run.greedy:
        return {
            "greedy_return": runs.finite(run.greedy.get("return_mean")),
            "greedy_episodes": runs.finite(run.greedy.get("episodes")),
        }
    there = last(run.rows, "eval_return_mean") if run.settings.get("policy.eval_greedy") else None
    episodes = None if there is None else run.settings.get("trainer.eval_episodes")
    return {"greedy_return": there, "greedy_episodes": episodes}


def of_group(group: Group, asked: Asked) -> Record:
    """One line of ``table.csv``: a setting over its seeds; means are made of runs that count."""
    first = group.runs[0]
    records = {run.folder: of_run(run, group.label, asked) for run in group.runs}
    counted = [records[run.folder] for run in group.counted]

    def over(name: str) -> statistics.Summary:
        return statistics.summary([record[name] for record in counted])

    final, greedy = over("final_return"), over("greedy_return")
    cut_short = [run for run in group.counted if run.state not in runs.COUNTED]
    return {
        "environment": first.env,
        "setting": group.label,
        "algorithm": first.algorithm,
        "ranks": first.ranks,
        "seeds": " ".join(str(run.seed) for run in group.counted),
        "n": len(counted),
        "not_counted": "; ".join(map(why_not, [r for r in group.runs if not r.counted])),
        "cut_short": "; ".join(map(how_far, cut_short)),
        "env_steps_per_s": over("env_steps_per_s").median,
        "env_steps_per_s_with_start": over("env_steps_per_s_with_start").median,
        **_to_score(group, records, asked),
        **_to_greedy_score(group, records, asked),
        "final_return_mean": final.mean,
        "final_return_se": final.standard_error,
        "final_return_n": sum(record["final_return"] is not None for record in counted),
        "greedy_return_mean": greedy.mean,
        "greedy_return_se": greedy.standard_error,
        "greedy_episodes": next(filter(None, (one["greedy_episodes"] for one in counted)), None),
        "greedy_return_n": sum(record["greedy_return"] is not None for record in counted),
        "rows_learned_per_step": over("rows_learned_per_step").mean,
        "policy_lag": over("policy_lag").mean,
        "rss_mb": over("rss_mb").mean,
    }


def _to_score(group: Group, records: Mapping[Any, Record], asked: Asked) -> Record:
    """Time and steps to the score over seeds, and who never had it.

    A run that failed counts as the limit; without a limit it has no time.
    """
    fails = runs.FAILED if asked.limit_s is not None else None
    members = [run for run in group.runs if run.counted or run.state == fails]
    if asked.score is None:
        members = []
    ends = [
        records[run.folder]["wall_time_s"] if asked.limit_s is None else asked.limit_s
        for run in members
    ]
    reached = _reached("score", [records[run.folder] for run in members], members, ends)
    return {"score": asked.score, **reached}


def _to_greedy_score(group: Group, records: Mapping[Any, Record], asked: Asked) -> Record:
    """Time and steps to the greedy score over seeds, who never held it, who was not measured."""
    every = [run for run in group.runs if run.counted or run.state == runs.FAILED]
    if asked.greedy_score is None:
        every = []
    members = [run for run in every if run.snapshots or run.state == runs.FAILED]
    ends = [asked.greedy_limit_s] * len(members)
    return {
        "greedy_score": asked.greedy_score,
        **_reached("greedy_score", [records[run.folder] for run in members], members, ends),
        "without_snapshots": all_named([run for run in every if run not in members]),
    }


def _reached(
    name: str, lines: Sequence[Record], members: Sequence[Run], ends: Sequence[float | None]
) -> Record:
    """Time and steps to a score over runs; ``ends``: what one without it counts as, in seconds."""
    totals = [
        run.settings.get("trainer.total_env_steps") or line["env_steps"]
        for run, line in zip(members, lines, strict=True)
    ]
    time = statistics.reached([line[f"time_to_{name}_s"] for line in lines], ends)
    steps = statistics.reached([line[f"steps_to_{name}"] for line in lines], totals)
    return {
        f"time_to_{name}_mean_s": time.mean,
        f"time_to_{name}_median_s": time.median,
        f"steps_to_{name}_mean": steps.mean,
        f"steps_to_{name}_median": steps.median,
        f"{name}_never_reached": all_named([members[number] for number in time.never]),
    }


def named(run: Run) -> str:
    """A run inside its setting."""
    return f"seed {run.seed}" if run.seed is not None else run.folder.name


def all_named(some: Sequence[Run]) -> str:
    """Runs inside their setting, as ``seeds 1, 3``."""
    if len(some) > 1 and all(run.seed is not None for run in some):
        return f"seeds {', '.join(str(run.seed) for run in some)}"
    return ", ".join(map(named, some))


def why_not(run: Run) -> str:
    """A run that does not count, and why."""
    return f"{named(run)}: {run.state}{f', {run.message}' if run.message else ''}"


def how_far(run: Run) -> str:
    """A run that has not ended by itself, and what it came to."""
    steps, total = last(run.rows, "env_steps") or 0, run.settings.get("trainer.total_env_steps")
    of = f" of {total:,}" if total else ""
    return f"{named(run)}: {run.state} after {steps:,.0f}{of} env steps"


def by_environment(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each environment, in the order they came."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.runs[0].env, []).append(group)
    return found
