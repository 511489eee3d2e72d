"""One process of a run: its log, its signals, its end. The session does the work of the rank.

Input: the run folder that ``impala_ms.launch`` has made, and the rank from MPI. Output:
``worker_<rank>.txt``, on rank 0 at the end ``status.json``, and the exit code.
"""

import contextlib
import logging
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from impala_ms import config as configuration
from impala_ms import cpus, device, logs
from impala_ms.classes import resolve
from impala_ms.cluster import place
from impala_ms.cluster.topology import Place
from impala_ms.errors import ConfigError, describe, notes_of
from impala_ms.imports import add_import_folder, forget_script
from impala_ms.metrics import progress
from impala_ms.run_dir import abandon, of_this_start, prepare_run_dir, status_file, write_json

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """What a session is given.

    Attributes:
        config: ``Config``.
        run_dir: The run folder.
        rank: Rank of this process; rank 0 learns.
        place: What this rank is; with N = 1 the process also acts as rank 1.
        hub_end, spoke_end: Transports. With N = 1 the process has both, otherwise those of its
            place.
        console: Where rank 0 prints progress.
        started: When the command was given, seconds since the epoch.
        incarnation: How many processes were this rank before.
        stop_requested: Whether the user has stopped the run.
        wall_time_before_s: Seconds that the run had taken before a resume.
    """

    config: Any
    run_dir: Path
    rank: int
    place: Place
    hub_end: Any
    spoke_end: Any
    console: TextIO
    started: float
    incarnation: int = 0
    stop_requested: bool = False
    wall_time_before_s: float = 0.0

    def __post_init__(self):
        """From now on, measure time with the monotonic clock."""
        self.created_s = time.monotonic()
        self.seconds_before = time.time() - self.started

    @property
    def number(self):
        """Number of this rank among those that act, counted from 1."""
        return 1 if self.rank == 0 else self.place.number

    @property
    def checkpoints(self):
        """The folder of the checkpoints."""
        return self.run_dir / "checkpoints"

    def wall_time_s(self):
        """Seconds since the command was given, including those before a resume."""
        return self.wall_time_before_s + self.seconds_before + time.monotonic() - self.created_s

    def request_stop(self, *_):
        """Handle a signal: end in good order."""
        self.stop_requested = True


def main(algorithm=None):
    """Be one rank of a run; this does not return.

    Args:
        algorithm: Name of a folder of ``impala_ms/algorithm``, for a run that this process starts
            itself; None: the options name it.
    """
    forget_script(sys.argv[0])
    replaced = place.take_place(sys.argv)
    rank, size = place.rank(), place.size()
    progress.open_streams()
    stop = []
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.append(True))
    try:
        folder, started = run_folder(algorithm, size)
        console = open_log(folder, rank)
        config = configuration.Config.read(*of_this_start(folder))
        for start in config.folders:
            add_import_folder(Path(start))
    except ConfigError as error:
        sys.exit(str(error))
    here = config.places[rank]
    logs.begin(rank, here.role)
    run = Run(config, folder, rank, here, None, None, console, started, replaced.incarnation)
    if "IMPALA_MS_RUN_DIR" not in os.environ:  # there is no launcher that shows progress
        run.console = progress.Display(console)
    if rank == 0:
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, run.request_stop)
    if stop:  # checked after the new handler is set, so that no signal is lost in between
        run.request_stop()
    try:
        code = be_rank(run, size)
    except BaseException:  # this rank must end: the others would wait for it
        traceback.print_exc()
        code = 1
    if "IMPALA_MS_RUN_DIR" not in os.environ:
        abandon(folder)  # otherwise the launcher does it
    with contextlib.suppress(OSError):  # nobody reads the console
        run.console.close()
    logging.shutdown()
    with contextlib.suppress(OSError):  # the disk is full: the launcher has been told
        sys.stdout.flush()
        sys.stderr.flush()
    # Everything is closed. At a normal exit MindSpore would first import its data pipeline.
    os._exit(code)


def run_folder(algorithm, size):
    """``(folder, started)`` from the launcher, or of a run that is started by hand (N = 1)."""
    if folder := os.environ.get("IMPALA_MS_RUN_DIR"):
        return Path(folder), float(os.environ.get("IMPALA_MS_STARTED") or time.time())
    if size > 1:
        raise ConfigError(f"{size} ranks are started by: bash start_standalone.sh train.py {size}")
    started = time.time()
    config = configuration.load(algorithm, sys.argv[1:], 1)
    when = datetime.fromtimestamp(started).astimezone()
    return prepare_run_dir(config, started=when), started


def open_log(folder, rank):
    """Send all output of this process to its log; return the former standard output."""
    console = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="replace")
    file = folder / f"worker_{rank}.txt"
    try:
        log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)
    return console


def be_rank(run, size):
    """Run the session of this rank.

    Returns:
        The exit code: 0, or 1 after an error.
    """
    config, rank = run.config, run.rank
    session, failure = None, None
    transport = None
    try:
        threads = threads_of(config, rank)
        device.set_thread_limits(threads)
        transport = connect(run, size)
        alone = size == 1  # the actor is in this process, too, and computes on the CPU
        target = "CPU" if rank or alone else device.choose(config.learner_params["device"])
        device.use(target, threads)
        logger.info("device %s, %d compute threads", target, threads)
        if rank == 0:
            run.console.write(f"{progress.CONNECTED}\n")
        session = resolve(config.algorithm_config["session"]["type"])(run)
        session.run()
    except BaseException as error:  # SystemExit of a user's code too: the others would wait
        failure = explain(error)
    all_answered = True
    if session is not None:
        try:
            if failure and rank:
                session.report(failure)
            all_answered = session.close()
        except BaseException as error:
            failure = failure or explain(error)
            all_answered = rank > 0  # others may not know yet that the run ends
    if rank == 0:
        # When status.json is there, the launcher ends processes that hang, such as environments.
        unwritten = write_status(run, session, failure)
        failure = failure or unwritten
        if failure and (unwritten or "IMPALA_MS_RUN_DIR" not in os.environ):
            # there is no launcher to say so, or it cannot read the status
            with contextlib.suppress(OSError):  # nobody reads the console
                run.console.write(f"failed: {failure}\n")
    if session is not None:
        session.release()
    code = 1 if failure else 0
    if transport is not None:
        if all_answered:
            transport.close()
        else:
            transport.abort(code)
    return code


def threads_of(config, rank):
    """Compute threads of a rank: the learner gets the cores that the actors of its host leave."""
    actor_threads = config.trainer_params["actor_threads"]
    if rank:
        return actor_threads
    _, ranks = place.ranks_here() or (0, 1 + config.actors)
    left = cpus.usable_cores() - (ranks - 1) * actor_threads
    return config.learner_params["threads"] or max(1, left)


def connect(run, size):
    """Give the run its ends of a transport; return the end that must be closed."""
    if size == 1:
        from impala_ms.comm.local import LocalTransport

        run.hub_end, run.spoke_end = LocalTransport.connect(2)
        return run.hub_end
    from impala_ms.comm.mpi import MPITransport

    replaced = (run.rank, size, run.place.spoke_of[0]) if run.incarnation else None
    transport = MPITransport(replacement=replaced)
    if run.place.hub_of:
        run.hub_end = transport
    if run.place.spoke_of:
        run.spoke_end = transport
    return transport


def explain(error):
    """Log an exception with its traceback; return its text in one line."""
    try:
        logger.error("this rank failed", exc_info=error)
    except BaseException:  # the class of the exception prevents it
        logger.error("this rank failed, and its exception cannot be shown")
    if sys.version_info < (3, 11):  # tracebacks do not show notes
        sys.stdout.writelines(f"{note}\n" for note in notes_of(error))
    return describe(error)


def write_status(run, session, failure):
    """Write ``status.json``, from which the launcher takes the exit code.

    Returns:
        None, or why it could not be written.
    """
    state = "failed" if failure else "stopped" if run.stop_requested else "finished"
    status = {
        "state": state,
        "exit_code": 1 if failure else 0,
        "message": failure or "",
        **(session.summary() if session is not None else {}),
    }
    path = status_file(run.run_dir)
    try:
        write_json(path, status)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return None
