"""The processes of one run, from the start of the first to the end of the last.

Input: the command that starts the ranks, and signals. Output: what the ranks print, shown as it
comes, and the exit code of the first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from impala_ms.launching import proc
from impala_ms.launching.mpirun import is_mpich, mpi_environment
from impala_ms.metrics import progress
from impala_ms.run_dir import status_file

# Limits in seconds, after which the processes that are left are killed.
STOP_S = 10.0  # after the first signal
LINGER_S = 10.0  # after rank 0 has written its status
ORPHANED_S = 7.0  # after rank 0 has ended without a status
UNCONNECTED_S = 2.0  # after a rank has ended before all ranks were connected

# When a rank that is not seen, or does not run, counts as ended. The machine may be busy.
START_S = 30.0  # mpirun has started no rank
TOGETHER_S = 5.0  # mpirun has started the first rank, but not all
HALTED_S = 10.0  # a rank is stopped (SIGSTOP) while the others wait to be connected

REPEATED_S = 0.5  # one request to stop may arrive twice: `timeout` signals child and group
UNREAD_S = 1.0  # nobody has read a line for so long: a signal does not wait for a reader

# The variable that tells a rank its number: Open MPI's, MPICH's.
RANK = b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"
# The beginnings of the ten lines that MPICH prints when a rank is killed; they may name another.
MPICH_REPORT = (
    *("=====", "=   PID ", "=   BAD TERM", "=   EXIT CODE", "=   CLEANING", "=   YOU CAN"),
    *("YOUR APPLICATION TERMINATED", "This typically refers", "Please see the FAQ"),
)

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Job:
    """The processes of one run, from the start of the first to the end of the last.

    Attributes:
        ranks: How many ranks there are.
        mpich: Whether MPICH's mpirun has started them.
        connected: Whether all ranks are connected.
        stopped_by: The first signal that asked for an end; None if there was none.
        gone: The rank whose end made the others end; None if there is none.
        halted: Whether that rank has not ended, but was stopped (SIGSTOP).
        said: The last line in which a rank told of a failure.
    """

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
            ranks: How many ranks that are.
            run_dir: The run folder, absolute.
            started: When the user gave the command, in seconds since the epoch.
            display: Where everything that the ranks print is shown.
            hostfile: The hosts of the ranks; None: this host.
        """
        self.ranks = ranks
        self.mpich = ranks > 1 and is_mpich(Path(command[0]))
        self.connected = False
        self.stopped_by: int | None = None
        self.gone: int | None = None
        self.halted = False
        self.said = ""
        self._run_dir = run_dir
        self._elsewhere = hostfile is not None
        self._started_at = time.monotonic()
        self._stopped_at = 0.0
        self._deadline = float("inf")
        self._killed = False
        self._pids: dict[int, int] = {}  # process id by rank, of the ranks that were seen
        self._guessed: set[int] = set()  # ranks whose process does not show its rank
        self._seen_at = 0.0  # when the first rank was seen
        self._halted_at: dict[int, float] = {}  # when a rank was first seen stopped
        self._display: progress.Display | None = display
        self._showing_since: float | None = None  # when the writing of a line began
        self._pending = b""  # the beginning of a line whose end has not arrived
        # Every process of the job has both in its environment, and no other process has.
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
            # Ctrl-C in a terminal goes to its whole session, and mpirun would kill the ranks.
            start_new_session=True,
            # mpirun passes SIGTERM on, and kills the ranks that ignore it.
            preexec_fn=death_signal(signal.SIGTERM if ranks > 1 else signal.SIGKILL),
        )
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._interrupt)  # supervise() reads its number

    def supervise(self) -> int:
        """Wait until nothing of the job is left.

        Returns:
            The exit code of its first process, negative for a signal; 0 if it had to be killed.
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
        """Show lines; a line that is marked as progress is shown as such."""
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
            # The terminal or the reader of the pipe is gone, or does not read: that counts as a
            # hang-up. Python must not fail over its own output at exit either.
            self._display = self._showing_since = None
            progress.ignore_output()
            self._stop(signal.SIGHUP)

    def _interrupt(self, number: int, _: object) -> None:
        since = self._showing_since
        if since is not None and time.monotonic() - since > UNREAD_S and number != signal.SIGCHLD:
            raise InterruptedError  # ends the writing of the line

    def _take_signals(self) -> bool:
        for number in self._signals.recv(4096):
            if number != signal.SIGCHLD:
                self._stop(number)
        return True

    def _take_output(self) -> bool:
        """Show the lines that have arrived; returns whether more may come."""
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
        """At the first signal ask for an end with a checkpoint, at the second end at once."""
        now = time.monotonic()
        if self.stopped_by is None:
            self.stopped_by, self._stopped_at = number, now
            self._deadline = min(self._deadline, now + STOP_S)
            # mpirun passes SIGUSR1 on to all ranks; at SIGINT and SIGTERM it kills them.
            self._process.send_signal(signal.SIGUSR1)
            self.show("stopping: saving what was learned (again to end at once)")
        elif now - self._stopped_at > REPEATED_S:
            self._deadline = now

    def _check_time(self) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            self._killed = True
            self._kill()
        elif status_file(self._run_dir).exists():
            self._deadline = min(self._deadline, now + LINGER_S)
        elif self.ranks > 1 and self.gone is None:
            self.gone = self._first_gone(now)
            if self.gone is not None:
                left_s = ORPHANED_S if self.connected else UNCONNECTED_S
                self._deadline = min(self._deadline, now + left_s)

    def _first_gone(self, now: float) -> int | None:
        """The lowest rank that has ended though the others wait for it; None if there is none.

        All wait for rank 0; and until all are connected, for every rank.
        """
        watched = range(1 if self.connected else self.ranks)
        all_seen = True
        if not self._pids.keys() >= set(watched):
            all_seen = self._look_for_ranks()
            self._seen_at = self._seen_at or (now if self._pids else 0.0)
        late = now > (self._seen_at + TOGETHER_S if self._pids else self._started_at + START_S)
        late &= all_seen and not self._elsewhere  # ranks on other hosts are never seen
        for rank in watched:
            if self.connected and rank in self._guessed:  # the other ranks notice its end
                continue
            seen = self._pids.get(rank)
            state = "" if seen is None else proc.state(seen)
            if not state and (seen is not None or late):
                return rank
            if state != "T" or self.connected:
                self._halted_at.pop(rank, None)
            elif now > self._halted_at.setdefault(rank, now) + HALTED_S:
                self.halted = True
                return rank
        return None

    def _look_for_ranks(self) -> bool:
        """Note which process is which rank; returns whether all ranks that run are seen."""
        members = self._members()
        for pid, environment in reversed(members.items()):  # the oldest last
            if ranked := environment.get(RANK[self.mpich]):
                self._pids[int(ranked)] = pid
        unknown = [pid for pid, environment in members.items() if not environment]
        unknown = [pid for pid in unknown if pid not in (self._process.pid, *self._pids.values())]
        started = [pid for pid in unknown if proc.parent(pid) == self._process.pid]
        missing = [rank for rank in range(self.ranks) if rank not in self._pids]
        if len(started) == len(missing) and not self.connected:
            # mpirun starts ranks in order. A wrong guess does no harm: until all are connected, the
            # end of any rank is the end of all.
            self._pids.update(zip(missing, started, strict=True))
            self._guessed.update(missing)
            return True
        return not unknown and self._process.pid in members and not proc.hides_processes()

    def _members(self) -> dict[int, dict[bytes, bytes]]:
        """Process ids and environments of the processes of this job that live, oldest first.

        Where the system does not show the environment of a process, it is empty here. The process
        then belongs to the job by its session, which is the job's own, or by its parent.
        """
        found: dict[int, dict[bytes, bytes]] = {}
        for pid in sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
            process, variables = proc.look(pid), proc.variables(pid)
            if process is None or process.state in "ZX":
                continue
            if self._marks.issubset(variables):
                found[pid] = dict(variable.partition(b"=")[::2] for variable in variables)
            elif process.session == self._process.pid or process.parent in found:
                found[pid] = {}
        return found

    def _kill(self) -> None:
        """Kill every process of the job, also those that are started meanwhile."""
        give_up = time.monotonic() + 5  # a process that hangs in the kernel cannot be killed
        while (members := self._members()) and time.monotonic() < give_up:
            for pid in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
            self._process.poll()
        if self._process.poll() is None:  # no process is shown, but mpirun knows its ranks
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
            self._process.kill()


def death_signal(number: int) -> Callable[[], None]:
    """Have the kernel signal the new process if the launcher is killed, so that it ends too.

    Returns:
        A function that the new process calls before anything else.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    launcher = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != launcher:  # it was killed before the kernel was asked
            os._exit(1)

    return ask
