"""Single environments in worker processes, for environments with a slow step.

Input: a picklable function that makes one environment. Output: a ``VectorEnvironment`` that returns
the same as ``SyncVectorEnvironment``.

A worker is a new interpreter, never a fork: MPI may be running. It imports only the modules that
its environments need. What the environments return is written to shared memory; a short message
says that it is there.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from impala_ms.cluster.place import ranks_here
from impala_ms.cpus import usable_cores
from impala_ms.envs.errors import MakeError
from impala_ms.envs.spaces import MASK, ObservationLayout, action_layout
from impala_ms.envs.sync import Singles, SinglesEnvironment, StepArrays
from impala_ms.envs.vector import Observation, Rows
from impala_ms.errors import describe, one_line
from impala_ms.imports import find_files

CLOSE_TIMEOUT_S = 5.0
# The path is set before any import: otherwise the current folder would be searched first.
_MAIN = (
    "import sys; sys.path[:] = {path!r}; "
    "from impala_ms.envs.processes import work; work({pipe}, {memory})"
)
_RESET, _STEP, _MAP, _DONE, _FAILED = b"r", b"s", b"m", b"d", b"f"
_ALIGNMENT_BYTES = 64


class WorkerError(RuntimeError):
    """A worker process has ended, or raised an exception that cannot be pickled."""


class _WorkerTraceback(Exception):
    """The traceback of a worker, shown as the cause of its exception."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


class ProcessVectorEnvironment(SinglesEnvironment):
    """Environments divided among worker processes; each worker steps its share one by one.

    Args:
        id: The id as the user gave it.
        make_one: Makes one environment; it is pickled.
        seeds: One for each environment.
        processes: Number of workers; 0: one for each core of this rank, at least 2.
        settings: Arguments of ``VectorEnvironment``.

    Raises:
        MakeError: If ``make_one`` cannot be pickled.
    """

    def __init__(
        self,
        id: str,
        make_one: Callable[[], Any],
        *,
        seeds: Sequence[int],
        processes: int = 0,
        **settings: Any,
    ) -> None:
        """Start the workers, which make the environments."""
        envs = len(seeds)
        count = min(processes or max(2, _cores()), envs)
        ends = [envs * (i + 1) // count for i in range(count)]
        shares = [slice(envs * i // count, end) for i, end in enumerate(ends)]
        try:
            maker = pickle.dumps(make_one)
        except Exception as error:  # any class: pickling runs code of the user
            raise MakeError(
                f"{id} cannot be sent to worker processes: {one_line(error)}. Its class and "
                "arguments must be importable from a module: give module:ID, or set vectorization "
                "to sync"
            ) from error
        self._memory = _shared_memory()
        self._workers: list[_Worker] = []
        try:
            for share in shares:
                self._workers.append(_Worker(id, maker, share, envs, self._memory))
            answers = [worker.answer() for worker in self._workers]
            observation_space, action_space = pickle.loads(answers[0])
            super().__init__(
                id,
                observation_space=observation_space,
                action_space=action_space,
                seeds=seeds,
                **settings,
            )
            arrays = _map(self._memory, _fields(self._layout, self._action.mask_size, envs))
            self._ask([_MAP + pickle.dumps(self._episodic_life)] * count)
        except BaseException:
            self.close()
            raise
        self._first = arrays.pop(" first")
        self._arrays = StepArrays(arrays)
        self._masked = False

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers; the environments are closed."""
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in self._workers:
            worker.end(deadline)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
        self._workers = []

    def _reset_all(
        self, seeds: Sequence[int] | None
    ) -> tuple[Observation, Mapping[str, NDArray[Any]]]:
        parts = [None if seeds is None else seeds[worker.share] for worker in self._workers]
        masked = self._ask([_RESET + pickle.dumps(part) for part in parts])
        masks = [pickle.loads(answer) for answer in masked]
        self._masked = masks[0]
        if all(masks) != any(masks):
            other = self._workers[masks.index(not self._masked)].share.start
            has, not_ = (0, other) if self._masked else (other, 0)
            raise ValueError(
                f"{self.id}: the info of the first reset of environment {has} has {MASK!r}, that "
                f"of environment {not_} has none: return it from reset in all of them"
            )
        return self._first_rows(self._arrays, self._masked)

    def _step_all(self, action: NDArray[Any], first: NDArray[np.bool_]) -> Rows:
        self._first[:] = first
        self._ask([_STEP + pickle.dumps(action[worker.share], 5) for worker in self._workers])
        return self._rows(self._arrays, self._masked, first)

    def _ask(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send each worker its message and return the answers; a failure ends all workers."""
        if not self._workers:
            raise WorkerError(f"{self.id}: the worker processes have ended")
        try:
            for worker, message in zip(self._workers, messages, strict=True):
                worker.tell(message)
            answers: dict[_Worker, bytes] = {}
            waiting = {worker.pipe: worker for worker in self._workers}
            while waiting:  # in any order: a failure must be seen while another worker hangs
                for pipe in wait(list(waiting)):
                    worker = waiting.pop(pipe)  # type: ignore[call-overload]
                    answers[worker] = worker.answer()
            return [answers[worker] for worker in self._workers]
        except BaseException:
            for worker in self._workers:
                worker.process.kill()
            self.close()
            raise


class _Worker:
    """A worker process, seen from the process that started it.

    Attributes:
        share: Which environments it has.
        process: Its ``subprocess.Popen``.
        pipe: The connection to it.
    """

    def __init__(self, id: str, maker: bytes, share: slice, envs: int, memory: int) -> None:
        self.share = share
        self._name = f"{id}: the worker of environments {share.start} to {share.stop - 1}"
        self.pipe, theirs = Pipe()
        # A worker is not a rank of the job, even if its environments import MPI.
        of_mpi = ("OMPI_", "PMIX_", "PRTE_", "PMI_")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(of_mpi)}
        environ.setdefault("OMP_NUM_THREADS", "1")
        environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        with theirs:
            path = [str(entry) for entry in sys.path]
            program = _MAIN.format(path=path, pipe=theirs.fileno(), memory=memory)
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                env=environ,
                start_new_session=True,  # signals to the process group are for the ranks
            )
        self.tell(pickle.dumps((id, share.start, share.stop, envs, os.getpid())))
        self.tell(maker)

    def tell(self, message: bytes) -> None:
        """Send a message; if the worker has ended, ``answer`` will say so."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def answer(self) -> bytes:
        """Wait for the answer to a message; an exception of the worker is raised here."""
        try:
            answer = self.pipe.recv_bytes()
        except (EOFError, OSError):
            code = self.process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise WorkerError(f"{self._name} {how}") from None
        if answer[:1] == _FAILED:
            error, text = pickle.loads(answer[1:])
            raise error from _WorkerTraceback(f"{self._name}:\n{text}")
        return answer[1:]

    def hang_up(self) -> None:
        """Close the connection, which ends the worker."""
        self.pipe.close()

    def end(self, deadline: float) -> None:
        """Wait until the worker has ended; kill it after the deadline."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def work(pipe: int, memory: int) -> None:
    """Be a worker: make the environments, do what is asked, end when the connection is closed.

    Args:
        pipe: File descriptor of the connection to the process that started this worker.
        memory: File descriptor of the shared memory.
    """
    connection = Connection(pipe)
    find_files()
    singles: Singles | None = None
    try:
        id, start, stop, envs, parent = pickle.loads(connection.recv_bytes())
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
        share = slice(start, stop)
        singles = Singles(id, pickle.loads(connection.recv_bytes()), range(start, stop), envs)
        one = singles.envs[0]
        spaces = one.observation_space, one.action_space
        connection.send_bytes(_DONE + pickle.dumps(spaces))
        lives = pickle.loads(connection.recv_bytes()[1:])
        action = action_layout(id, one.action_space)
        layout = ObservationLayout(id, one.observation_space, action.mask_size)
        singles.lay_out(layout, action, lives=lives)
        arrays = _map(memory, _fields(layout, action.mask_size, envs))
        arrays = {name: array[share] for name, array in arrays.items()}
        first, rows = arrays.pop(" first"), StepArrays(arrays)
        connection.send_bytes(_DONE)
        while True:
            message = connection.recv_bytes()
            argument = pickle.loads(message[1:])
            if message[:1] == _RESET:
                singles.reset(argument, rows)
            else:
                singles.step(argument, first, rows)
            connection.send_bytes(_DONE + pickle.dumps(singles.masked))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the connection is closed
    except BaseException as error:  # SystemExit too: the actor must know the reason
        with contextlib.suppress(OSError):
            connection.send_bytes(_FAILED + _pickled(error))
    finally:
        if singles is not None:
            singles.close()


def _watch(parent: int) -> None:
    """End this process when its parent is gone, even while a step never returns."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _pickled(error: BaseException) -> bytes:
    """An exception and its traceback; a ``WorkerError`` if the exception cannot be pickled."""
    text = traceback.format_exc()
    try:
        message = pickle.dumps((error, text))
        str(pickle.loads(message)[0])
    except Exception:
        message = pickle.dumps((WorkerError(describe(error)), text))
    return message


def _fields(
    layout: ObservationLayout, mask_size: int, envs: int
) -> dict[str, tuple[tuple[int, ...], DTypeLike]]:
    """The arrays in the shared memory: those of a step, and which environments reset."""
    return StepArrays.fields(layout, mask_size, envs) | {" first": ((envs,), np.bool_)}


def _map(
    memory: int, fields: Mapping[str, tuple[tuple[int, ...], DTypeLike]]
) -> dict[str, NDArray[Any]]:
    """The fields as arrays in the shared memory, which is enlarged if it is too small."""
    offsets, end = {}, 0
    for name, (shape, dtype) in fields.items():
        offsets[name] = end
        size = math.prod(shape) * np.dtype(dtype).itemsize
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    if os.fstat(memory).st_size < end:
        os.ftruncate(memory, end)
    buffer = mmap.mmap(memory, end)
    return {
        name: np.ndarray(shape, dtype, buffer, offsets[name])
        for name, (shape, dtype) in fields.items()
    }


def _shared_memory() -> int:
    """File descriptor of memory without a name; it is freed with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("impala_ms", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _cores() -> int:
    """Cores of this machine for each of its ranks."""
    _, ranks = ranks_here() or (0, 1)
    return usable_cores() // ranks
