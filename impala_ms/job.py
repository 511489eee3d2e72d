"""The processes of one run, from the first to be started to the last to be gone.

Input: the command that starts the ranks, and signals. Output: what the ranks print, shown as it
comes, and the exit code of the first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_ms import config
from impala_ms.metrics import progress
from impala_ms.mpirun import is_mpich, mpi_environment

STOP_S = 10.0  # from the first signal to the end of the last process
LINGER_S = 10.0  # what the other ranks have once rank 0 has written its status
ORPHANED_S = 7.0  # what the other ranks have once rank 0 is gone without a status
START_S = 30.0  # until mpirun has started a rank, however busy the machine is
TOGETHER_S = 5.0  # from its first rank to its last
HALTED_S = 10.0  # that a rank may be stopped (SIGSTOP) while the others wait to be connected
UNCONNECTED_S = 2.0  # what the others have if one is gone before all are connected
REPEATED_S = 0.5  # the same request to stop may arrive twice: `timeout` signals child and group
UNREAD_S = 1.0  # that a line has waited for somebody to read it

# Where the ranks are told their number: by Open MPI, by MPICH.
RANK = b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"
# What MPICH says of ranks that were killed, in ten lines that do not name them rightly.
MPICH_REPORT = (
    *("=====", "=   PID ", "=   BAD TERM", "=   EXIT CODE", "=   CLEANING", "=   YOU CAN"),
    *("YOUR APPLICATION TERMINATED", "This typically refers", "Please see the FAQ"),
)

PR_SET_PDEATHSIG = 1  # linux/prctl.h


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
        elif config.status_file(self._run_dir).exists():
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
