"""What a comparison leaves: tables, pictures, and one page with all of it.

Input: runs, and the score and limit they are seen under. Output: ``table.md``, ``table.csv``,
``runs.csv``, ``curves_<env>.png`` and ``.svg``, and ``report.html``, which needs no other file.
"""

from __future__ import annotations

import base64
import html
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_ms.comparison import pictures, results, runs, tables
from impala_ms.comparison.results import Asked, Record
from impala_ms.comparison.runs import Group, Run, RunError

XS = ("env_steps", "wall_time_s")
NAME_CHARACTERS = 26  # in a line of the first column
MANY_SETTINGS = 12  # are shown only when asked for, as those of two algorithms


class View(NamedTuple):
    """What runs are seen under, and where they come from."""

    scores: Mapping[str, float]
    greedy_scores: Mapping[str, float]
    limit_s: float | None
    band: str
    commands: Sequence[str] = ()
    machines: Sequence[str] = ()


class Section(NamedTuple):
    """All of one environment."""

    env: str
    title: str
    groups: list[Group]
    table: list[Record]  # a record a setting
    every: list[Record]  # a record a run
    asked: Asked


def sections(members: Sequence[Run], view: View) -> list[Section]:
    """One for each environment.

    Raises:
        RunError: If there is nothing to show, a seed is there twice, or a column is missing.
    """
    if not members:
        raise RunError("no run has been started: there is nothing to show")
    made = []
    for env, groups in results.by_environment(runs.grouped(members)).items():
        _check_seeds(groups)
        pictures.check([run for group in groups for run in group.runs], (*XS, results.SCORED_BY))
        scores, greedy = view.scores, view.greedy_scores
        asked = Asked(results.score_of(env, scores), results.score_of(env, greedy), view.limit_s)
        made.append(
            Section(
                env=env,
                title=pictures.title_of(_drawn(groups) or groups),
                groups=groups,
                table=[results.of_group(group, asked) for group in groups],
                every=[
                    results.of_run(r, group.label, asked) for group in groups for r in group.runs
                ],
                asked=asked,
            )
        )
    return made


def _check_seeds(groups: Sequence[Group]) -> None:
    for group in groups:
        seen: dict[int, Run] = {}
        for run in group.runs:
            if run.seed in seen:
                raise RunError(
                    f"{seen[run.seed].folder} and {run.folder} are the same setting with the same "
                    "seed: a mean over seeds needs different ones; leave one out"
                )
            if run.seed is not None:
                seen[run.seed] = run


def check_free(folder: Path) -> None:
    """Refuse to write over files that are not of a report.

    Raises:
        RunError: If there are such.
    """
    begins = {
        "table.md": "## ",
        "table.csv": "environment,setting,",
        "runs.csv": "environment,setting,",
        "report.html": _PAGE.partition("{")[0],
    }
    for name, begin in begins.items():
        file = folder / name
        if file.is_file() and not file.read_bytes().startswith(begin.encode()):
            raise RunError(
                f"{file} is there and is not of a report: move it away, or give another --output"
            )


def write_tables(made: Sequence[Section], folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.csv`` and ``runs.csv``."""
    contents = {
        "table.md": markdown(made),
        "table.csv": tables.csv_text([record for one in made for record in one.table]),
        "runs.csv": tables.csv_text([record for one in made for record in one.every]),
    }
    for name, text in contents.items():
        _write(folder / name, text)
    return [folder / name for name in contents]


def _write(file: Path, text: str) -> None:
    """Write a text; a byte of a folder's name that is not UTF-8 becomes a question mark."""
    file.write_text(text, encoding="utf-8", errors="replace")


def markdown(made: Sequence[Section]) -> str:
    """The tables of all environments."""
    parts = []
    for one in made:
        parts += [f"## {one.title}", tables.markdown(*tables.cells(one.table))]
        parts += [f"- {note}" for note in tables.notes(one.table, one.asked)]
    meanings = dict.fromkeys(line for one in made for line in tables.meanings(one.table))
    return "\n\n".join([*parts, *meanings]) + "\n"


def write_pictures(made: Sequence[Section], folder: Path, view: View) -> dict[str, list[Path]]:
    """Draw return by steps and by seconds of each environment; the files, by environment.

    Raises:
        ModuleNotFoundError: Without matplotlib.
        RunError: If it cannot be drawn.
    """
    written = {}
    for one in made:
        groups = _drawn(one.groups)
        if not groups:
            continue
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", one.env).strip("-.") or "runs"
        files = [folder / f"curves_{name}.{kind}" for kind in ("png", "svg")]
        score = one.asked.score
        references = {} if score is None else {score: f"{score:g}"}
        picture = pictures.Picture(
            xs=XS,
            ys=(results.SCORED_BY,),
            title=one.title,
            band=view.band,
            references=references,
            across=True,
        )
        pictures.draw(groups, picture, files)
        written[one.env] = files
    return written


def _drawn(groups: Sequence[Group]) -> list[Group]:
    """The groups without the runs that do not count."""
    return [Group(group.label, group.counted) for group in groups if group.counted]


def write_page(
    made: Sequence[Section], drawn: Mapping[str, Sequence[Path]], folder: Path, view: View
) -> Path:
    """Write ``report.html``; pictures that were not drawn are left out."""
    envs = ", ".join(one.env for one in made)
    body = [f"<h1>Comparison on {_text(envs)}</h1>"]
    for one in made:
        body += _section(one, drawn.get(one.env, ()))
    body += ["<h2>How it was made</h2>", *_origin(made, view)]
    page = _PAGE.format(title=_text(f"Comparison on {envs}"), style=_STYLE, body="\n".join(body))
    file = folder / "report.html"
    _write(file, page)
    return file


def _section(one: Section, files: Sequence[Path]) -> list[str]:
    """Table, notes, picture, settings and runs of one environment."""
    parts = [f"<h2>{_text(one.title)}</h2>", _table(*tables.cells(one.table))]
    parts += [f'<p class="note">{_text(note)}</p>' for note in tables.notes(one.table, one.asked)]
    for file in files:
        if file.suffix == ".svg":
            data = base64.b64encode(file.read_bytes()).decode()
            alt = f"Return by env steps and by seconds: {one.title}"
            parts.append(f'<img alt="{_text(alt)}" src="data:image/svg+xml;base64,{data}">')
    parts += [f'<p class="note">{_text(meaning)}</p>' for meaning in tables.meanings(one.table)]
    if settings := _settings(one.groups):
        parts.append(f"<h3>Settings that differ</h3>{settings}")
    parts.append(f"<details><summary>All {len(one.every)} runs</summary>{_runs(one)}</details>")
    return parts


def _settings(groups: Sequence[Group]) -> str:
    """A line for each setting that differs between the groups."""
    firsts = [group.runs[0] for group in groups]
    lines = [
        [path, *(runs.shown(run.settings[path]) if path in run.settings else "-" for run in firsts)]
        for path in runs.differing(firsts)
    ]
    if not lines:
        return ""
    whole = [["", *(group.label for group in groups)], *lines]
    if len(groups) > len(lines):
        whole = [list(column) for column in zip(*whole, strict=True)]
    table = _table(whole[0], whole[1:])
    if len(lines) <= MANY_SETTINGS:
        return table
    return f"<details><summary>{len(lines)} settings</summary>{table}</details>"


def _runs(one: Section) -> str:
    names = {
        "setting": "setting",
        "seed": "seed",
        "state": "state",
        "env_steps": "env steps",
        "wall_time_s": "seconds",
        "env_steps_per_s": "env steps/s",
        "time_to_score_s": "s to the score",
        "steps_to_score": "steps to the score",
        "time_to_greedy_score_s": "s to the greedy score",
        "steps_to_greedy_score": "steps to the greedy score",
        "final_return": "final return",
        "greedy_return": "greedy return",
        "policy_lag": "policy lag",
        "rss_mb": "MiB",
        "message": "why it failed",
    }
    there = [name for name in names if any(record[name] not in (None, "") for record in one.every)]
    lines = [
        [
            value if isinstance(value := record[name], str) else tables.number(value)
            for name in there
        ]
        for record in one.every
    ]
    return _table([names[name] for name in there], lines)


def _origin(made: Sequence[Section], view: View) -> list[str]:
    """Commands, versions and machine."""
    members = [run for one in made for group in one.groups for run in group.runs]
    parts = [f"<pre>{_text(command)}</pre>" for command in view.commands]
    facts = {
        "machine": " and ".join(view.machines),
        "command of the first run": shlex.join(map(str, members[0].meta.get("argv", []))),
        "host": ", ".join(_distinct(members, "host")),
        "cores that runs could use": ", ".join(_distinct(members, "cpus")),
        "commit": ", ".join(_distinct(members, "git_commit")),
        "first run started": min(_distinct(members, "started"), default=""),
        "last run started": max(_distinct(members, "started"), default=""),
    }
    versions: dict[str, dict[str, None]] = {}
    for run in members:
        for name, version in (run.meta.get("versions") or {}).items():
            versions.setdefault(name, {})[str(version)] = None
    facts |= {name: " and ".join(there) for name, there in versions.items()}
    lines = [[name, value] for name, value in facts.items() if value]
    return [*parts, _table(["", ""], lines, plain=True)]


def _distinct(members: Sequence[Run], name: str) -> list[str]:
    there = [str(run.meta[name]) for run in members if run.meta.get(name) is not None]
    return list(dict.fromkeys(there))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], plain: bool = False) -> str:
    # Names wrap, but those that are short stay on one line.
    longest = max((len(line[0]) for line in lines), default=0)
    head = f'<th style="min-width: {min(longest, NAME_CHARACTERS)}ch">{_text(heads[0])}</th>'
    head += "".join(f"<th>{_text(cell)}</th>" for cell in heads[1:])
    rows = "\n".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in lines)
    kind = ' class="plain"' if plain else ""
    thead = "" if plain else f"<thead><tr>{head}</tr></thead>"
    return f'<div class="wide"><table{kind}>{thead}<tbody>\n{rows}\n</tbody></table></div>'


def _cell(text: str) -> str:
    """A cell whose text may go on in the next line inside a long name, not inside a number."""
    kind = ' class="long"' if len(text) > NAME_CHARACTERS else ""
    inside = re.sub(r"([=:/])(?=\w)", r"\1<wbr>", _text(text).replace("± ", "±&nbsp;"))
    return f"<td{kind}>{inside}</td>"


def _text(text: object) -> str:
    return html.escape(str(text))


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: #1c1c1c;
  background: #fff; max-width: 1280px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1.05rem; }
.wide { overflow-x: auto; font-size: .88rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .32rem .5rem; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #555; font-weight: 600; vertical-align: bottom; }
td { border-bottom: 1px solid #e4e4e4; }
th:first-child, td:first-child, .plain td { text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; padding-left: 0; }
.long { overflow-wrap: anywhere; min-width: 9rem; }
tbody tr:hover td { background: #f5f8fb; }
.note { color: #555; font-size: .9rem; margin: .15rem 0; overflow-wrap: anywhere; }
img { display: block; width: 100%; height: auto; margin: 1rem 0; }
pre { background: #f4f4f4; padding: .6rem .9rem; white-space: pre-wrap; word-break: break-word; }
summary { cursor: pointer; }
@media (max-width: 1000px) { .wide { font-size: .78rem; } th, td { padding: .3rem .3rem; } }
@media print { details > * { display: block; } body { max-width: none; } }
"""
