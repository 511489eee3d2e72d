"""The numbers of a comparison as tables: CSV for programs, Markdown for people.

Input: the records of `results`. Output: text, and files in the folder of the comparison.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

from impala_ms.comparison.results import Asked, Record


class Column(NamedTuple):
    """A column for people: its head, which fields of a record are in it, and what it means."""

    head: str
    fields: tuple[str, ...]
    form: str = "{}"
    meaning: str = ""


# Where all settings have nothing in it, a column is left out.
COLUMNS = (
    Column("setting", ("setting",)),
    Column("seeds", ("n",)),
    Column(
        "env steps/s",
        ("env_steps_per_s",),
        meaning="median over seeds; without start-up it counts from the first row of metrics.csv.",
    ),
    Column("with start-up", ("env_steps_per_s_with_start",)),
    Column(
        "s to {score}: mean, median",
        ("time_to_score_mean_s", "time_to_score_median_s"),
        "{}, {}",
        "the first row of metrics.csv whose mean of 20 training episodes is at the score.",
    ),
    Column(
        "steps to {score}: mean, median",
        ("steps_to_score_mean", "steps_to_score_median"),
        "{}, {}",
    ),
    Column(
        "s to greedy {greedy_score}: mean, median",
        ("time_to_greedy_score_mean_s", "time_to_greedy_score_median_s"),
        "{}, {}",
        "the weights saved during a run play greedy episodes after it; the time is that of the "
        "first whose mean return is at the score, if the next saved weights are at it too.",
    ),
    Column(
        "steps to greedy {greedy_score}: mean, median",
        ("steps_to_greedy_score_mean", "steps_to_greedy_score_median"),
        "{}, {}",
    ),
    Column(
        "final return",
        ("final_return_mean", "final_return_se"),
        "{} ± {}",
        "mean of a run's last 20 training episodes; mean ± standard error over seeds.",
    ),
    Column(
        "greedy return",
        ("greedy_return_mean", "greedy_return_se"),
        "{} ± {}",
        "the last weights of a run play {greedy_episodes} episodes with the most likely actions; "
        "mean ± standard error over seeds.",
    ),
    Column("rows learned per step", ("rows_learned_per_step",)),
    Column("policy lag (updates)", ("policy_lag",)),
    Column(
        "memory (MiB)",
        ("rss_mb",),
        meaning="the most that the learner's process had, mean over seeds.",
    ),
)


def csv_text(records: Sequence[Record]) -> str:
    """The records with all their fields."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _plain(value) for name, value in record.items()})
    return text.getvalue()


def _plain(value: object) -> object:
    """A float with six digits or more: all of a count of steps, and never as 1e+06."""
    if not isinstance(value, float):
        return value
    return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.1f}".removesuffix(".0")


def cells(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of the table for people."""
    there = _there(records)
    heads = [_fill(column.head, records) for column in there]
    return heads, [[_cell(column, record) for column in there] for record in records]


def meanings(records: Sequence[Record]) -> list[str]:
    """What the columns of the table mean, where their heads do not say it."""
    return [
        f"{_fill(column.head.partition(':')[0], records)}: {_fill(column.meaning, records)}"
        for column in _there(records)
        if column.meaning
    ]


def _there(records: Sequence[Record]) -> list[Column]:
    return [
        column
        for column in COLUMNS
        if any(record[column.fields[0]] is not None for record in records)
    ]


def _fill(text: str, records: Sequence[Record]) -> str:
    """A text with the numbers that the records share put in."""
    names = "score", "greedy_score", "greedy_episodes"
    shared = {
        name: " or ".join(
            dict.fromkeys(f"{record[name]:g}" for record in records if record[name] is not None)
        )
        for name in names
    }
    return text.format(**shared)


def _cell(column: Column, record: Record) -> str:
    values = [record[name] for name in column.fields]
    if values[0] is None or isinstance(values[0], str):
        return values[0] or "-"
    first = number(values[0])
    if column.form.endswith("± {}"):
        digits = len(first.partition(".")[2])
        return first if values[1] is None else f"{first} ± {values[1]:.{digits}f}"  # one seed
    return column.form.format(first, *map(number, values[1:]))


def number(value: float | None) -> str:
    """A number with about four digits that say something; whole ones of type int in full."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1000 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.095 else f"{value:.2g}"


def notes(records: Sequence[Record], asked: Asked) -> list[str]:
    """What the table does not show: who never had a score, what does not count."""
    reached, counts_as = "never reached", "the time of its own end"
    if asked.limit_s is not None:
        reached, counts_as = f"not reached within {asked.limit_s:g} s", "so many seconds"
    never, not_in_time = _who(records, "score_never_reached", "greedy_score_never_reached")
    (unknown,) = _who(records, "without_snapshots")
    lines = []
    if never:
        lines.append(
            f"{asked.score:g} was {reached} by {never}; such a run counts as {counts_as}, and as "
            "all its steps."
        )
    if not_in_time:
        lines.append(
            f"Greedy {asked.greedy_score:g} was not reached by two snapshots in a row within "
            f"{asked.greedy_limit_s:g} s by {not_in_time}; such a run counts as this time, and as "
            "all its steps."
        )
    if unknown:
        lines.append(
            f"No time to greedy {asked.greedy_score:g} is known of {unknown}: the weights were "
            "not saved, or not all were played."
        )
    for record in records:
        setting = record["setting"]
        if record["not_counted"]:
            lines.append(f"{setting}: not counted: {record['not_counted']}.")
        if record["cut_short"]:
            lines.append(f"{setting}: counted as far as they came: {record['cut_short']}.")
        if record["final_return_n"] < record["n"]:
            few = f"{record['final_return_n']} of {record['n']}"
            lines.append(f"{setting}: {few} seeds have a final return; 20 episodes must end.")
        if 0 < record["greedy_return_n"] < record["n"]:
            few = f"{record['greedy_return_n']} of {record['n']}"
            lines.append(f"{setting}: {few} seeds have a greedy return.")
    if alone := [record["setting"] for record in records if record["n"] == 1]:
        lines.append(f"One seed of {', '.join(alone)}: there is no standard error and no band.")
    return lines


def _who(records: Sequence[Record], *fields: str) -> list[str]:
    """For each field the settings that have runs in it, with these runs."""
    return [
        ", ".join(f"{record['setting']} ({record[name]})" for record in records if record[name])
        for name in fields
    ]


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right, aligned for those who read it as text."""
    safe = [[cell.replace("|", "\\|") for cell in line] for line in [heads, *lines]]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(pairs)]
        for pairs in (zip(line, widths, strict=True) for line in safe)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])
