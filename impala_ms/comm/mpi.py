"""A transport over MPI: one process for each rank, on one host or several.

Input and output are those of ``comm/transport.py``. Only ``Issend`` is used: a small ``Isend``
completes without a receiver, so a sender could run ahead without limit. A dead rank is noticed by
the receive that is posted for it, which needs ``mpirun --with-ft ulfm``; a send to a dead rank may
succeed. ``ANY_SOURCE`` is not used: it fails for all peers when one rank dies.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from impala_ms.comm.transport import Message, RankLostError

logger = logging.getLogger(__name__)

FINALIZE_S = 3.0
SPAWN_S = 30.0  # after this time, a process that MPI has not started is given up


class MPIPending:
    """A send or collective under way."""

    def __init__(self, request: Any, data: Any, under_way: set[Any], *, raises: bool) -> None:
        """Keep ``data`` alive, by a reference in ``under_way``, until ``request`` has completed.

        MPI reads or writes the buffer until then, whether or not anybody tests the request.
        """
        self._request, self._data, self._raises = request, data, raises
        self._under_way = under_way
        under_way.add(self)

    def done(self) -> bool:
        """Whether it has completed; a send to a dead rank counts as completed."""
        if self._request is None:
            return True
        try:
            completed = self._request.Test()
        except MPI.Exception as error:
            if self._raises:
                raise RankLostError(str(error)) from error
            completed = True
        if completed:
            self._request = self._data = None
            self._under_way.discard(self)
        return bool(completed)


class MPIStarting:
    """A process that MPI is starting, in a thread of its own.

    ``MPI_Comm_spawn`` takes about a second, and never returns if the process dies before it calls
    ``MPI_Init``. Other threads can use MPI meanwhile.
    """

    def __init__(self, peer: int, command: list[str]) -> None:
        """Begin to start a process for this peer."""
        self.peer, self.command = peer, command
        self.deadline = time.monotonic() + SPAWN_S
        self.messages: list[tuple[int, NDArray[Any]]] = []  # (tag, data) to send later
        self.address: tuple[Any, int] | None = None  # communicator, rank in it
        self.error: Exception | None = None
        self._comm = MPI.COMM_SELF.Dup()  # a communicator can spawn only one process at a time
        self.thread = threading.Thread(target=self._spawn, name=f"rank {peer}", daemon=True)
        self.thread.start()

    def _spawn(self) -> None:
        try:
            between = self._comm.Spawn(self.command[0], self.command[1:], maxprocs=1)
            between.Set_errhandler(MPI.ERRORS_RETURN)
            self.address = between, 0
        except Exception as error:
            self.error = error


class MPITransport:
    """One rank's end of a communicator (default: all ranks of the job)."""

    concurrent = True

    def __init__(
        self, communicator: Any = None, replacement: tuple[int, int, int] | None = None
    ) -> None:
        """Duplicate the communicator, so that its messages do not mix with those of other code.

        Args:
            communicator: None for all ranks of the job.
            replacement: ``(rank, size, hub)`` in a process that ``replace`` has started. It talks
                only to the hub that has started it, and takes no part in collectives.
        """
        self._comm = (communicator or MPI.COMM_WORLD).Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        # Communicator, and rank in it, of a peer that is not in this communicator.
        self._addresses: dict[int, tuple[Any, int]] = {}
        self._starting: list[MPIStarting] = []  # also those given up: they may still start
        self._awaited: dict[int, MPIStarting] = {}
        if replacement:
            self.rank, self.size, hub = replacement
            self._addresses[hub] = MPI.Comm.Get_parent(), 0
            self._addresses[hub][0].Set_errhandler(MPI.ERRORS_RETURN)
        self._given_up: list[Any] = []  # receives from processes that were replaced
        self._buffers: dict[int, NDArray[np.uint8]] = {}
        self._requests: dict[int, Any] = {}
        self._arrived: dict[int, Message] = {}
        self._lost: dict[int, str] = {}
        self._under_way: set[MPIPending] = set()

    def listen(self, peer: int, capacity_bytes: int) -> None:
        """Post the receive from a peer."""
        self._buffers[peer] = np.empty(capacity_bytes, np.uint8)
        self._post(peer)

    def _post(self, peer: int) -> None:
        if peer in self._awaited:
            return
        comm, rank = self._addresses.get(peer, (self._comm, peer))
        try:
            self._requests[peer] = comm.Irecv(self._buffers[peer], rank, MPI.ANY_TAG)
        except MPI.Exception as error:
            logger.debug("receive from rank %d failed: %s", peer, error)
            self._lose(peer, "was lost")

    def _lose(self, peer: int, what: str) -> None:
        self._requests.pop(peer, None)
        self._buffers.pop(peer, None)
        self._lost[peer] = what

    def poll(self) -> list[Message]:
        """Test the posted receives; messages not released stay."""
        status = MPI.Status()
        for starting in list(self._starting):
            self._look_at(starting)
        for peer, request in list(self._requests.items()):
            try:
                if not request.Test(status):
                    continue
            except MPI.Exception as error:
                if error.Get_error_class() == MPI.ERR_TRUNCATE:
                    del self._requests[peer]
                    raise ValueError(
                        f"rank {peer} sent more than the {self._buffers[peer].size} bytes that "
                        f"rank {self.rank} has room for"
                    ) from error
                logger.debug("receive from rank %d failed: %s", peer, error)
                self._lose(peer, "was lost")
                continue
            del self._requests[peer]
            data = self._buffers[peer][: status.Get_count(MPI.BYTE)]
            self._arrived[peer] = Message(peer, status.Get_tag(), data)
        return list(self._arrived.values())

    def release(self, peer: int, capacity_bytes: int | None = None) -> None:
        """Post the receive for the peer's next message."""
        del self._arrived[peer]
        if capacity_bytes is not None:
            self._buffers[peer] = np.empty(capacity_bytes, np.uint8)
        self._post(peer)

    def send(self, peer: int, tag: int, data: NDArray[Any]) -> MPIPending:
        """Begin a synchronous send; if the peer's process is still starting, send it later."""
        if starting := self._awaited.get(peer):
            starting.messages.append((tag, data))
            return MPIPending(MPI.REQUEST_NULL, data, self._under_way, raises=False)
        comm, rank = self._addresses.get(peer, (self._comm, peer))
        return self._send(comm, rank, tag, data)

    def _send(self, comm: Any, rank: int, tag: int, data: NDArray[Any]) -> MPIPending:
        try:
            request = comm.Issend([data, MPI.BYTE], rank, tag)
        except MPI.Exception:
            request = MPI.REQUEST_NULL  # dead: the receive posted for it will say so
        return MPIPending(request, data, self._under_way, raises=False)

    def lost(self) -> dict[int, str]:
        """Peers whose receive has failed, or that could not be started, since the last call."""
        lost, self._lost = self._lost, {}
        return lost

    def replace(self, peer: int, command: list[str]) -> None:
        """Start a new process for a peer; it inherits mpirun's environment variables."""
        if peer in self._requests:  # MPI may still write to its buffer
            self._given_up.append((self._requests.pop(peer), self._buffers.pop(peer)))
        self._arrived.pop(peer, None)
        self._buffers.pop(peer, None)
        self._awaited[peer] = MPIStarting(peer, command)
        self._starting.append(self._awaited[peer])

    def _look_at(self, starting: MPIStarting) -> None:
        peer = starting.peer
        awaited = self._awaited.get(peer) is starting
        if starting.thread.is_alive():
            if awaited and peer in self._buffers and time.monotonic() > starting.deadline:
                self._lose(peer, f"has not started in {SPAWN_S:g} s")
            return
        self._starting.remove(starting)
        address = starting.address
        if address is not None:
            for tag, data in starting.messages:
                self._send(*address, tag, data)
        if not awaited:
            return
        del self._awaited[peer]
        if address is None:
            self._lose(peer, f"could not be started ({starting.error})")
            return
        self._addresses[peer] = address
        if peer in self._buffers:
            self._post(peer)

    def gather(self, data: NDArray[Any] | None, into: NDArray[Any] | None) -> MPIPending:
        """``Igatherv`` to rank 0, which has no data of its own."""
        if into is not None:
            counts = [0] + [into.nbytes // (self.size - 1)] * (self.size - 1)
            request = self._comm.Igatherv([None, 0, MPI.BYTE], [into, counts, MPI.BYTE])
        else:
            request = self._comm.Igatherv([data, MPI.BYTE], None)
        return MPIPending(request, (data, into), self._under_way, raises=True)

    def broadcast(self, data: NDArray[Any]) -> MPIPending:
        """``Ibcast`` from rank 0."""
        request = self._comm.Ibcast([data, MPI.BYTE])
        return MPIPending(request, data, self._under_way, raises=True)

    def close(self) -> None:
        """Cancel what is still posted and finalize MPI.

        ``MPI_Finalize`` waits for all ranks, perhaps for ever if one died early: after
        ``FINALIZE_S`` an alarm ends the process. (A thread could not do it, since mpi4py holds the
        GIL meanwhile.) While a process is being started, MPI cannot be finalized at all.
        """
        if self._starting:
            self.abort(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, FINALIZE_S)
        for request in (*self._requests.values(), *(given_up for given_up, _ in self._given_up)):
            request.Cancel()
        self._requests.clear()
        MPI.Finalize()
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def abort(self, code: int) -> None:
        """``MPI_Abort`` on all ranks."""
        self._comm.Abort(code)
