"""Starts a run: ``python -m impala_ms train [SCRIPT] N [options]``.

Input: the command line, also that of start_standalone.sh. Output: a run folder whose
``config.json`` the ranks read, the processes, what they print, and an exit code.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from impala_ms import config
from impala_ms.configuration import algorithms
from impala_ms.configuration.command_line import last, read_options
from impala_ms.configuration.help_text import help_text
from impala_ms.envs import ids
from impala_ms.envs.errors import MakeError
from impala_ms.errors import ConfigError
from impala_ms.launching.conclusion import command, conclusion, nothing_left, shown
from impala_ms.launching.job import Job
from impala_ms.launching.mpirun import check_room, notices, rank_command, take_hostfile
from impala_ms.metrics import progress
from impala_ms.run_dir import prepare_run_dir

PACKAGE = Path(__file__).resolve().parent
EXAMPLES = PACKAGE.parent / "example"  # a folder for each algorithm; only in a clone

USAGE = """\
Usage: bash start_standalone.sh SCRIPT N [--hostfile FILE] [options]
       python -m impala_ms train [SCRIPT] N [--hostfile FILE] [options]

  SCRIPT           the training script, such as train.py: a path, or a file in the folder of the
                   algorithm in example; without one the ranks run the package's own
  N                number of processes; 1 = all in one, without MPI
  --hostfile FILE  hosts for the processes, a line each: NAME slots=COUNT; this host comes first

Ctrl-C stops the run with a last checkpoint; a second Ctrl-C stops it at once.
"""
HELP = {"-h", "--help", "--help=all"}


class Order(NamedTuple):
    """What the command line asks for.

    Attributes:
        name: The script as it was given; None: the package's own.
        ranks: N.
        hostfile: The hosts of the ranks; None: this host.
        verbose: Whether to show all settings.
        settings: The configuration.
        command: What starts all ranks.
    """

    name: str | None
    ranks: int
    hostfile: Path | None
    verbose: bool
    settings: config.Config
    command: list[str]


def main(argv: Sequence[str]) -> int:
    """Run ``[SCRIPT] N [options]``; returns the exit code, 2 if it could not be started."""
    if not HELP.isdisjoint(argv):
        return show_help(argv)
    if not argv:
        sys.stderr.write(USAGE + "\n--help lists the options.\n")
        return 2
    started = os.environ.get("IMPALA_MS_STARTED") or repr(time.time())
    display = progress.Display(sys.stdout)
    try:
        here = current_folder()
        order = read(argv)
        if nothing := nothing_left(order.settings):
            say_first(display, "\n".join(nothing))
            return 0
        when = datetime.fromtimestamp(float(started)).astimezone()
        run_dir = prepare_run_dir(order.settings, started=when)
        say_first(display, opening(order, run_dir))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2

    problems = link_logs(run_dir, here, order.ranks)
    job = Job(order.command, order.ranks, run_dir, started, display, order.hostfile)
    for problem in problems + (notices(order.hostfile) if order.ranks > 1 else []):
        job.show(problem)
    returncode = job.supervise()
    took_s = time.time() - float(started)
    code, lines = conclusion(run_dir, returncode, job, once_more(order), took_s)
    job.show("\n".join(lines))
    return code


def read(argv: Sequence[str]) -> Order:
    """Read and check the command line; nothing is made yet.

    Raises:
        ConfigError: With what is wrong.
    """
    name, words = split_script(argv)
    script = find_script(name, words)
    ranks = parse_ranks(words[:1])
    hostfile, options = take_hostfile(words[1:])
    others = [word for word in options if word != "--verbose"]
    settings = config.load(algorithm_of(script), others, ranks)
    check_ids(settings)
    command = rank_command(script, ranks, hostfile)
    check_room(ranks)
    return Order(name, ranks, hostfile, "--verbose" in options, settings, command)


def opening(order: Order, run_dir: Path) -> str:
    """The lines that are shown before the first process is started."""
    said = order.settings.describe() if order.verbose else order.settings.summary()
    more = "" if order.verbose else "; --verbose shows all settings"
    begun = f"starting {order.ranks} process{'es' * (order.ranks > 1)}"
    return f"{said}\nrun folder: {shown(run_dir)}{more}\n{begun}"


def once_more(order: Order) -> list[str]:
    """What starts as many ranks again: the script if one was given, N, hosts."""
    script = [] if order.name is None else [order.name]
    hosts = [] if order.hostfile is None else ["--hostfile", shown(order.hostfile)]
    return [*script, str(order.ranks), *hosts]


def show_help(argv: Sequence[str]) -> int:
    """Print how to start a run, and the options of the algorithm that would be taken."""
    algorithm = None
    with contextlib.suppress(ConfigError):  # a script that is not there
        algorithm = algorithm_of(find_script(*split_script(argv)))
    try:
        text = help_text(algorithm, argv)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{USAGE}\n{text}")
    return 0


def split_script(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The script as it was given, or None if the first word is N or an option; and the rest."""
    if re.fullmatch(r"-.*|[\d.]*", argv[0]):
        return None, list(argv)
    return argv[0], list(argv[1:])


def find_script(name: str | None, words: Sequence[str]) -> Path:
    """The script that every rank runs.

    Args:
        name: As it was given; None: the package's own.
        words: What follows it on the command line. ``--algorithm`` there says in which folder of
            example to look.

    Raises:
        ConfigError: If there is no such script.
    """
    own = PACKAGE / "train.py"
    if name is None:
        return own
    examples = EXAMPLES / (last(read_options(words), "algorithm") or algorithms.DEFAULT)
    for path in (Path(name), examples / name):
        if path.is_file():
            return path.resolve()
    if name == own.name:
        return own
    raise ConfigError(f"there is no script {name!r}, neither in {Path.cwd()} nor {examples}")


def algorithm_of(script: Path) -> str | None:
    """The algorithm that the folder of a script is named after; None if there is none."""
    name = script.parent.name
    return name if name in algorithms.names() else None


def parse_ranks(given: Sequence[str]) -> int:
    """N as a number, from the word that stands in its place.

    Raises:
        ConfigError: If it is missing, or not a whole number of 1 or more.
    """
    if given and re.fullmatch("0*[1-9][0-9]{0,5}", given[0]):
        return int(given[0])
    what = f"not {given[0][:40]!r}" if given else "and it is missing"
    raise ConfigError(
        f"N, the number of processes, is a whole number of 1 or more, {what}: "
        f"{command('train', 'train.py', '4')} starts 4"
    )


def check_ids(settings: config.Config) -> None:
    """Refuse an environment that is not there, before anything is made for the run.

    Raises:
        ConfigError: With the ids that are near.
    """
    for kind in ("collect", "eval"):
        if settings.algorithm_config[f"{kind}_environment"]["type"].endswith(":make_vec"):
            try:
                ids.check(getattr(settings, f"{kind}_env_params")["id"])
            except MakeError as error:
                raise ConfigError(str(error)) from error


def current_folder() -> Path:
    """Where the command was given.

    Raises:
        ConfigError: If it was removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the current folder was removed: go to another") from error


def say_first(display: progress.Display, text: str) -> None:
    """Show the first lines of all.

    Raises:
        ConfigError: If nobody takes them.
    """
    try:
        display.line(text)
    except OSError as error:
        progress.ignore_output()
        raise ConfigError(
            f"what is printed cannot be written ({error.strerror}): nothing was started"
        ) from error


def link_logs(run_dir: Path, folder: Path, ranks: int) -> list[str]:
    """Point ``worker_<rank>.txt`` in a folder at those of this run; only such links are replaced.

    Returns:
        One line for each file that stood in the way, or for a folder that cannot be written.
    """
    if folder.samefile(run_dir):
        return []
    problems = []
    try:
        for link in folder.glob("worker_*.txt"):
            number = link.stem.removeprefix("worker_")
            if link.is_symlink() and number.isdigit() and link.readlink().name == link.name:
                link.unlink()
        for rank in range(ranks):
            link, log = folder / f"worker_{rank}.txt", run_dir / f"worker_{rank}.txt"
            if link.exists() or link.is_symlink():
                problems.append(f"{link.name} is a file of yours and stays; see {shown(log)}")
            else:
                link.symlink_to(log)
    except OSError as error:
        problems.append(f"no links to the logs in {folder}: {error.strerror}")
    return problems
