"""A transport inside one process: no MPI, the ranks take turns in one thread.

Input and output are those of ``comm/transport.py``. A message is passed by reference: its buffer
must not change before the send is done, as with any transport.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from impala_ms.comm.transport import Message


class LocalPending:
    """A send under way; it is done when the receiver releases the message."""

    def __init__(self, message: Message) -> None:
        """Begin to send."""
        self.message, self.released = message, False

    def done(self) -> bool:
        """Whether the receiver has released the message."""
        return self.released


class LocalTransport:
    """One rank's end; ``connect`` makes the ends of all ranks."""

    concurrent = False

    def __init__(self, rank: int, inboxes: list[deque[LocalPending]]) -> None:
        """Receive from this rank's inbox and send into the inboxes of the others."""
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
        """Remove the peer's first message."""
        if capacity_bytes is not None:
            self._capacity[peer] = capacity_bytes
        inbox = self._inboxes[self.rank]
        first = next(pending for pending in inbox if pending.message.peer == peer)
        inbox.remove(first)
        first.released = True

    def send(self, peer: int, tag: int, data: NDArray[Any]) -> LocalPending:
        """Put a message into the peer's inbox."""
        pending = LocalPending(Message(self.rank, tag, np.frombuffer(data, np.uint8)))
        self._inboxes[peer].append(pending)
        return pending

    def lost(self) -> dict[int, str]:
        """Always empty: the ranks are one process."""
        return {}

    def replace(self, peer: int, command: list[str]) -> NoReturn:
        """Not possible: the ranks are one process."""
        raise NotImplementedError("there is only one process, so none can be replaced")

    def gather(self, data: NDArray[Any] | None, into: NDArray[Any] | None) -> NoReturn:
        """Not possible: a collective needs ranks that run at the same time."""
        raise NotImplementedError("the ranks of one process take turns: there are no collectives")

    def broadcast(self, data: NDArray[Any]) -> NoReturn:
        """Not possible: a collective needs ranks that run at the same time."""
        raise NotImplementedError("the ranks of one process take turns: there are no collectives")

    def close(self) -> None:
        """Nothing to close."""

    def abort(self, code: int) -> NoReturn:
        """End the process."""
        raise SystemExit(code)
