"""Run folders as data: which there are, what was run in each, which belong together.

Input: folders with ``config.json``, ``metrics.csv``, ``status.json`` and ``meta.json``, and what
their weights have played since. Output: a `Run` each, and groups of runs that differ in nothing
but the seed.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from impala_ms import errors, snapshots
from impala_ms.metrics.sinks import read_rows
from impala_ms.run_dir import GREEDY
from impala_ms.snapshots import Played

FINISHED, LIMIT, STOPPED, FAILED = "finished", "limit", "stopped", "failed"
GOES_ON = "has not ended"
COUNTED = (FINISHED, LIMIT)  # states of runs that are what was asked for

# The same setting may have other values here.
_NOT_A_SETTING = (
    *("trainer.seed", "trainer.run_dir", "collect_env.id"),
    "trainer.snapshot_interval_s",  # changes nothing about what is learned
)
# A resume may change these; how classes are named differs between versions.
_LEARNS_THE_SAME = re.compile(
    r"trainer\.(total_env_steps|eval_\w+|log_\w+|checkpoint\w+|tensorboard)|(policy|eval_env)\.\w+"
    r"|\w+\.(type|number)"
)


class RunError(ValueError):
    """Why runs cannot be shown, in one line."""


@dataclass(frozen=True)
class Run:
    """One run, perhaps without rows; ``settings`` has values by path, without the seed."""

    folder: Path
    algorithm: str
    env: str
    ranks: int | None
    seed: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, float | None]] = ()
    columns: Sequence[str] = ()
    state: str = FINISHED
    message: str = ""  # why it failed
    meta: Mapping[str, Any] = field(default_factory=dict)
    greedy: Mapping[str, Any] = field(default_factory=dict)  # as `evaluate --json` prints it
    snapshots: Sequence[Played] = ()  # empty unless every snapshot has played
    label: str = ""  # given by the user
    counted: bool = True  # in means over seeds


class Group(NamedTuple):
    """Runs of one setting, one a seed."""

    label: str
    runs: list[Run]

    @property
    def counted(self) -> list[Run]:
        """The runs that means are made of."""
        return [run for run in self.runs if run.counted]


def find(folder: Path) -> list[Path]:
    """The run folders at or below a folder, in the order of their names, ``seed_2`` before 10.

    Raises:
        RunError: If there are none.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder")
    # Programs of all kinds have a config.json; in a run folder meta.json is beside it.
    of_runs = (file for file in folder.rglob("meta.json") if file.with_name("config.json").exists())
    found = {file.parent for file in (*folder.rglob("metrics.csv"), *of_runs)}
    if not found:
        raise RunError(f"{folder} is not a run folder, and holds none: there is no metrics.csv")
    return sorted(found, key=lambda path: _natural(str(path)))


def _natural(text: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def read(folder: Path, label: str = "") -> Run:
    """A run as its folder shows it.

    Raises:
        RunError: If a file of it cannot be read.
    """
    config, status = read_json(folder / "config.json"), read_json(folder / "status.json")
    meta = read_json(folder / "meta.json")
    rows, columns = _table(folder / "metrics.csv")
    state = str(status.get("state", GOES_ON))
    section = {name: _dict(config.get(name)) for name in ("collect_env_params", "trainer_params")}
    return Run(
        folder=folder,
        algorithm=str(config.get("algorithm", "")),
        env=name_of(section["collect_env_params"].get("id", "")),
        ranks=_ranks(rows, meta),
        seed=finite(section["trainer_params"].get("seed")),
        settings=_settings_of_all(folder, config),
        rows=rows,
        columns=columns,
        state=state,
        message=str(status.get("message") or ""),
        meta=meta,
        greedy=read_json(folder / GREEDY),
        snapshots=_played(folder),
        label=label,
        counted=state != FAILED,
    )


def read_json(file: Path) -> dict[str, Any]:
    """What a file of a run holds; empty if it is not there."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}") from error
    return _dict(data)


def finite(value: Any) -> Any:
    """A number that means can be made of, else None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and math.isfinite(value) else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _table(file: Path) -> tuple[list[dict[str, float | None]], list[str]]:
    """Rows and header of ``metrics.csv``; both empty if it is not there."""
    try:
        rows = [{name: finite(value) for name, value in row.items()} for row in read_rows(file)]
        with file.open(encoding="utf-8") as lines:
            return rows, next(csv.reader(lines), [])
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file} cannot be read: {error}") from error


def _played(folder: Path) -> list[Played]:
    """What the snapshots of a run returned, if every one has played as many episodes."""
    try:
        rows = snapshots.read_table(folder, greedy=True)
        if len({row.episodes for row in rows}) != 1:
            return []
        return [] if snapshots.unplayed(folder, True, rows[0].episodes) else rows
    except errors.RunError as error:
        raise RunError(str(error)) from error


def _ranks(rows: Sequence[Mapping[str, float | None]], meta: Mapping[str, Any]) -> int | None:
    """N: as many ranks as ever took part; before the first row, what the command says."""
    most = max((int(row.get("ranks_alive") or 0) for row in rows), default=0)
    if most:
        return most
    words = [str(word) for word in meta.get("argv", [])[1:3]]
    return next((int(word) for word in words if word.isdigit()), None)


def name_of(env: Any) -> str:
    """An environment's id for people: several joined, a file without its folder."""
    if isinstance(env, list):
        return " + ".join(map(name_of, env))
    module, colon, name = str(env).rpartition(":")
    return f"{Path(module).name}{colon}{name}"


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path, as ``learner.lr``, of what ``config.json`` holds; without the seed."""
    found = {}
    for section, values in config.items():
        if section.endswith("_params"):
            for key, value in _dict(values).items():
                found[f"{section.removesuffix('_params')}.{key}"] = value
    for part, values in _dict(config.get("algorithm_config")).items():
        for key, value in _dict(values).items():
            if key != "params":
                found[f"{part}.{key}"] = value
    left_out = {*_NOT_A_SETTING, *config.get("following", ())}
    return {path: value for path, value in found.items() if path not in left_out}


def _settings_of_all(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path; what a resume has changed has all its values, as ``0.002 then 0.001``."""
    now = settings_of(config)
    before = [settings_of(earlier) for earlier in _before(folder, config)]
    for path in now:
        values = dict.fromkeys(shown(one[path]) for one in [*before, now] if path in one)
        if len(values) > 1 and not _LEARNS_THE_SAME.fullmatch(path):
            now[path] = " then ".join(values)
    return now


def _before(folder: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configurations before each resume, the oldest first; that of a fork's source too."""
    files = sorted(folder.glob("config.[0-9]*.json"), key=lambda file: _natural(file.name))
    found = [read_json(file) for file in files]
    source = next(iter([*found, config])).get("fork_of")
    return found if source is None else [read_json(Path(source) / "config.json"), *found]


def differing(runs: Iterable[Run]) -> list[str]:
    """Paths whose values differ among these runs; a path that a run does not have differs too."""
    runs = list(runs)
    paths = dict.fromkeys(path for run in runs for path in run.settings)
    values = {path: [run.settings.get(path) for run in runs] for path in paths}
    return [path for path, there in values.items() if any(value != there[0] for value in there)]


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs with seeds put together, each group with a label that tells it from the others.

    The label is the user's, else the algorithm, N and the settings in which runs of the same
    algorithm differ, as far as there are several.
    """
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        settings = json.dumps(run.settings, sort_keys=True, default=str)
        same = (run.label,) if run.label else ("", run.algorithm, run.env, run.ranks, settings)
        found.setdefault(same, []).append(run)
    return [
        Group(members[0].label or _label(members[0], runs), members) for members in found.values()
    ]


def _label(run: Run, runs: Sequence[Run]) -> str:
    """What tells the setting of this run from the others."""
    if not run.algorithm:
        return run.folder.name
    others = [other for other in runs if other.env == run.env and not other.label]
    alike = [other for other in others if other.algorithm == run.algorithm]
    words = [run.algorithm]
    if len({other.ranks for other in others}) > 1:
        words.append(f"N={run.ranks}")
    keys = [path.rpartition(".")[2] for path in run.settings]
    for path in differing(alike):
        key = path.rpartition(".")[2]
        words.append(f"{key if keys.count(key) == 1 else path}={shown(run.settings.get(path))}")
    return " ".join(words)


def shown(value: Any) -> str:
    """A value of a setting as a user writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return name_of(text) if ":" in text else text
