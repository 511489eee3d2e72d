"""Snapshots: weights saved every few seconds of a run, and what episodes played with them return.

Input: the learner's flat weights. Output: ``snapshots/update_<n>.npz``, which NumPy reads, and
beside them the table of their greedy episodes, ``greedy.csv``, or of sampled ones, ``sampled.csv``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from impala_ms.errors import RunError

FOLDER = "snapshots"
# Always the same name: what a killed process left behind is written over by the next.
UNFINISHED = ".unfinished.npz"
HEADER = "wall_time_s,env_steps,updates,return_mean,return_stderr,episodes"


class Taken(NamedTuple):
    """When a snapshot was taken."""

    wall_time_s: float
    env_steps: int
    updates: int


class Played(NamedTuple):
    """A line of the table: a snapshot, and what its episodes returned."""

    wall_time_s: float
    env_steps: int
    updates: int
    return_mean: float
    return_stderr: float | None  # None for a single episode
    episodes: int


def save(run_dir: Path, flat: NDArray[np.float32], taken: Taken) -> Path:
    """Write a snapshot beside its name, then rename it; one of this update is kept as it is.

    Raises:
        RunError: If it cannot be written.
    """
    folder = run_dir / FOLDER
    path = folder / f"update_{taken.updates:09d}.npz"
    try:
        folder.mkdir(exist_ok=True)
        if not path.exists():
            np.savez(folder / UNFINISHED, weights=flat, **taken._asdict())
            (folder / UNFINISHED).replace(path)
    except OSError as error:
        raise RunError(f"cannot write the snapshot {path}: {error.strerror}") from error
    return path


def load(path: Path) -> tuple[NDArray[np.float32], Taken]:
    """The flat weights of a snapshot, and when it was taken.

    Raises:
        RunError: If it is missing or damaged.
    """
    try:
        with np.load(path) as saved:
            taken = Taken(*(saved[name].item() for name in Taken._fields))
            return saved["weights"], taken
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise RunError(f"cannot read the snapshot {path} (missing or damaged): {error}") from error


def listing(run_dir: Path) -> list[Path]:
    """The snapshots of a run, the oldest first."""
    found = (run_dir / FOLDER).glob("update_*.npz")
    return sorted((p for p in found if re.fullmatch(r"update_\d+", p.stem)), key=updates_of)


def updates_of(path: Path) -> int:
    """After how many updates a snapshot was taken."""
    return int(path.stem.removeprefix("update_"))


def rewind_to(run_dir: Path, updates: int) -> None:
    """Remove snapshots taken after ``updates`` updates, which a resumed run makes again.

    Raises:
        RunError: If that cannot be done.
    """
    try:
        for greedy in (True, False):
            rows = read_table(run_dir, greedy)
            if any(row.updates > updates for row in rows):
                write_table(run_dir, greedy, [row for row in rows if row.updates <= updates])
        for path in listing(run_dir):
            if updates_of(path) > updates:
                path.unlink()
    except OSError as error:
        raise RunError(f"cannot remove later snapshots: {error}") from error


def table(run_dir: Path, greedy: bool) -> Path:
    """Where the returns of a run's snapshots stand."""
    return run_dir / FOLDER / ("greedy.csv" if greedy else "sampled.csv")


def read_table(run_dir: Path, greedy: bool) -> list[Played]:
    """The returns of a run's snapshots, the oldest first; empty if none was played.

    Raises:
        RunError: If the table cannot be read.
    """
    file = table(run_dir, greedy)
    try:
        header, *lines = file.read_text("utf-8").splitlines() or [HEADER]
        if header != HEADER:
            raise ValueError(f"its first line is not {HEADER}")
        return [_read(line) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {file}: {error}") from error


def _read(line: str) -> Played:
    seconds, steps, updates, mean, error, episodes = line.split(",")
    spread = float(error) if error else None
    return Played(float(seconds), int(steps), int(updates), float(mean), spread, int(episodes))


def write_table(run_dir: Path, greedy: bool, rows: Sequence[Played]) -> None:
    """Write the returns of a run's snapshots, the oldest first; whole or not at all."""
    ordered = sorted(rows, key=lambda row: row.updates)
    lines = [",".join("" if value is None else str(value) for value in row) for row in ordered]
    file = table(run_dir, greedy)
    beside = file.with_suffix(".tmp")
    beside.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    beside.replace(file)


def unplayed(run_dir: Path, greedy: bool, episodes: int) -> list[Path]:
    """The snapshots of a run that have not played so many episodes yet, the oldest first."""
    played = {row.updates for row in read_table(run_dir, greedy) if row.episodes == episodes}
    return [path for path in listing(run_dir) if updates_of(path) not in played]
