"""Starts the ranks of a run, shows what they report, stops them, and says how it ended.

Input: the command line of start_standalone.sh. Output: a run folder whose ``config.json`` the ranks
read, the processes, and an exit code, taken from the ``status.json`` that rank 0 writes last.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from impala_ms import config
from impala_ms.conclusion import conclusion, nothing_left, shown
from impala_ms.envs import ids
from impala_ms.envs.errors import MakeError
from impala_ms.job import Job
from impala_ms.metrics import progress
from impala_ms.mpirun import check_room, notices, rank_command

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "example" / "impala"

USAGE = """\
Usage: bash start_standalone.sh SCRIPT N [--hostfile FILE] [options]

  SCRIPT           the training script, looked up as given, then in example/impala
  N                number of processes: 1 learner (rank 0) and N - 1 actors; 1 = all in one, no MPI
  --hostfile FILE  hosts for the processes, a line each: NAME slots=COUNT; this one first

Ctrl-C stops the run with a last checkpoint, a second Ctrl-C at once.
"""


def main(argv: Sequence[str]) -> int:
    """Run ``SCRIPT N [options]`` and return the exit code: 2 if it could not be started."""
    progress.open_streams()
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(USAGE + "\n" + config.help_text(_algorithm(argv[0])))
        return 0
    if not argv:
        sys.stderr.write(USAGE + "\n--help lists the options.\n")
        return 2
    # Until there is something to stop, a signal ends this process and says nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    started = os.environ.get("IMPALA_MS_STARTED") or repr(time.time())
    display = progress.Display(sys.stdout)
    try:
        here = current_folder()
        script = find_script(argv[0])
        ranks = parse_ranks(argv[1:2])
        hostfile, options = take_hostfile(argv[2:])
        verbose = "--verbose" in options
        options = [word for word in options if word != "--verbose"]
        settings = config.load(_algorithm(argv[0]), options, ranks)
        check_ids(settings)
        command = rank_command(script, ranks, hostfile)
        check_room(ranks)
        if settings.resume is not None and (nothing := nothing_left(settings)):
            say_first(display, "\n".join(nothing))
            return 0
        run_dir = config.prepare_run_dir(
            settings, started=datetime.fromtimestamp(float(started)).astimezone()
        )
        begun = f"starting {ranks} process{'es' * (ranks > 1)}"
        said = settings.describe() if verbose else settings.summary()
        more = "" if verbose else "; --verbose shows all settings"
        say_first(display, f"{said}\nrun folder: {shown(run_dir)}{more}\n{begun}")
    except config.ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2

    problems = link_logs(run_dir, here, ranks)
    job = Job(command, ranks, run_dir, started, display, hostfile)
    for problem in problems + (notices(hostfile) if ranks > 1 else []):
        job.show(problem)
    returncode = job.supervise()
    took_s = time.time() - float(started)
    code, lines = conclusion(run_dir, returncode, job, argv, took_s)
    job.show("\n".join(lines))
    return code


def check_ids(settings: config.Config) -> None:
    """Refuse an environment that is not there, before anything is made for the run.

    Raises:
        config.ConfigError: With the ids that are near.
    """
    for kind in ("collect", "eval"):
        if settings.algorithm_config[f"{kind}_environment"]["type"].endswith(":make_vec"):
            try:
                ids.check(getattr(settings, f"{kind}_env_params")["id"])
            except MakeError as error:
                raise config.ConfigError(str(error)) from error


def current_folder() -> Path:
    """Where the command was given.

    Raises:
        config.ConfigError: If it was removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise config.ConfigError("the current folder was removed: go to another") from error


def say_first(display: progress.Display, text: str) -> None:
    """Show the first lines of all.

    Raises:
        config.ConfigError: If nobody takes them.
    """
    try:
        display.line(text)
    except OSError as error:
        progress.ignore_output()
        raise config.ConfigError(
            f"what is printed cannot be written ({error.strerror}): nothing was started"
        ) from error


def find_script(name: str) -> Path:
    """The script as given, or the one of that name in example/impala.

    Raises:
        config.ConfigError: If neither is there.
    """
    for path in (Path(name), EXAMPLES / name):
        if path.is_file():
            return path.resolve()
    raise config.ConfigError(f"no script {name!r}, neither in {Path.cwd()} nor in {EXAMPLES}")


def parse_ranks(given: Sequence[str]) -> int:
    """N as a number, from the arguments after the script.

    Raises:
        config.ConfigError: If it is missing or no whole number of 1 or more.
    """
    if given and re.fullmatch("0*[1-9][0-9]{0,5}", given[0]):
        return int(given[0])
    what = f"not {given[0][:40]!r}" if given else "but nothing follows the script"
    raise config.ConfigError(
        f"N, the number of processes, is a whole number of 1 or more, {what}: "
        "bash start_standalone.sh train.py 4 starts 1 learner and 3 actors"
    )


def take_hostfile(options: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of ``--hostfile``, absolute, or None; and the other options.

    Raises:
        config.ConfigError: If there is no such file.
    """
    words, files = list(options), []
    while given := [word for word in words if word.partition("=")[0] == "--hostfile"]:
        at = words.index(given[0])
        _, equals, name = words.pop(at).partition("=")
        files.append(name if equals else words.pop(at) if at < len(words) else "")
    if not files:
        return None, words
    file = Path(files[-1]).absolute()
    if not file.is_file():
        raise config.ConfigError(
            f"--hostfile {files[-1]}: there is no such file; it holds a line for each host, such "
            "as: node1 slots=4"
        )
    return file, words


def _algorithm(script: str) -> str:
    """The algorithm of a script is the one its folder is named after."""
    try:
        name = find_script(script).parent.name
    except config.ConfigError:
        name = ""
    here = ROOT / "impala_ms" / "algorithm" / name / "config.py"
    return name if name and here.is_file() else "impala"


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
