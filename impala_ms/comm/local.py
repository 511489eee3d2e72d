"""A transport inside one process: no MPI, one rank after the other in the same thread.

Input and output as in ``comm/transport.py``. Messages are handed over by reference, so a buffer
that is sent must not change before the send is done, as with any transport.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from impala_ms.comm.transport import Message


class LocalPending:
    """A send that is done when the receiver has released the message."""

    def __init__(self, message: Message) -> None:
        """Begin to send."""
        self.message, self.released = message, False

    def done(self) -> bool:
        """Whether the receiver has released the message."""
        return self.released


class LocalTransport:
    """One rank's end; ``connect`` makes all ends of a group at once."""

    concurrent = False

    def __init__(self, rank: int, inboxes: list[deque[LocalPending]]) -> None:
        """Take messages from the inbox of that rank, put them into those of the others."""
        self.rank = rank
        self.size = len(inboxes)
        self._inboxes = inboxes
        self._capacity: dict[int, int] = {}

    @classmethod
    def connect(cls, size: int) -> list[LocalTransport]:
        """``size`` connected ends, rank 0 first."""
        inboxes: list[deque[LocalPending]] = [deque() for _ in range(size)]
        return [cls(rank, inboxes) for rank in range(size)]

    def listen(self, peer: int, capacity_bytes: int) -> None:
        """Receive from a peer from now on."""
        self._capacity[peer] = capacity_bytes

    def poll(self) -> list[Message]:
        """The first waiting message of each peer."""
        first: dict[int, Message] = {}
        for message in (pending.message for pending in self._inboxes[self.rank]):
            capacity = self._capacity.get(message.peer)
            if capacity is None or message.peer in first:
                continue
            if message.data.size > capacity:
                raise ValueError(
                    f"rank {message.peer} sent {message.data.size} bytes, rank {self.rank} has "
                    f"room for {capacity}"
                )
            first[message.peer] = message
        return list(first.values())

    def release(self, peer: int, capacity_bytes: int | None = None) -> None:
        """Be done with the peer's first message."""
        if capacity_bytes is not None:
            self._capacity[peer] = capacity_bytes
        inbox = self._inboxes[self.rank]
        first = next(pending for pending in inbox if pending.message.peer == peer)
        inbox.remove(first)
        first.released = True

    def send(self, peer: int, tag: int, data: NDArray[Any]) -> LocalPending:
        """Queue a message at the peer."""
        pending = LocalPending(Message(self.rank, tag, np.frombuffer(data, np.uint8)))
        self._inboxes[peer].append(pending)
        return pending

    def lost(self) -> dict[int, str]:
        """Nobody dies alone in one process."""
        return {}

    def replace(self, peer: int, command: list[str]) -> NoReturn:
        """There is one process."""
        raise NotImplementedError("a single process has no others that could be replaced")

    def gather(self, data: NDArray[Any] | None, into: NDArray[Any] | None) -> NoReturn:
        """Collectives need ranks that run at the same time."""
        raise NotImplementedError("a single process takes turns and needs no collectives")

    def broadcast(self, data: NDArray[Any]) -> NoReturn:
        """Collectives need ranks that run at the same time."""
        raise NotImplementedError("a single process takes turns and needs no collectives")

    def close(self) -> None:
        """Nothing to leave."""

    def abort(self, code: int) -> NoReturn:
        """End the process."""
        raise SystemExit(code)
