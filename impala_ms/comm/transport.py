"""The interface of a transport: messages of bytes between ranks, and which ranks are lost.

Input: byte buffers with a tag. Output: ``Message`` objects, in a buffer that is kept for each peer.
Implementations: ``comm/mpi.py`` (a process for each rank), ``comm/local.py`` (one process for all).
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class RankLostError(RuntimeError):
    """A collective cannot be completed, because one of its ranks is lost."""


class Message(NamedTuple):
    """A message that has arrived.

    Attributes:
        peer: Rank that sent it.
        tag: Its kind; the sender chooses the number.
        data: ``[n]`` uint8 in the buffer of that peer, valid until ``release(peer)``.
    """

    peer: int
    tag: int
    data: NDArray[np.uint8]


class Pending(Protocol):
    """A send under way. It keeps the buffer alive, which must not change before ``done``."""

    def done(self) -> bool:
        """Whether the receiver has begun to take the message (or is dead)."""


class Transport(Protocol):
    """Messages between ``size`` ranks, seen from ``rank``. Not thread-safe: one thread uses it.

    Attributes:
        concurrent: Whether the other ranks run while this one waits.
    """

    rank: int
    size: int
    concurrent: bool

    def listen(self, peer: int, capacity_bytes: int) -> None:
        """Receive from a peer from now on, one message of at most ``capacity_bytes`` at a time.

        A longer message makes ``poll`` raise ValueError.
        """

    def poll(self) -> list[Message]:
        """Messages that have arrived and are not released, at most one per peer, oldest first."""

    def release(self, peer: int, capacity_bytes: int | None = None) -> None:
        """Give back the peer's message; ``capacity_bytes`` sets the limit of the next ones."""

    def send(self, peer: int, tag: int, data: NDArray[Any]) -> Pending:
        """Begin to send. It completes only when the receiver takes it: this holds up the sender."""

    def lost(self) -> dict[int, str]:
        """Peers found dead since the last call, and what happened, such as ``was lost``.

        Only peers that this rank listens to are watched.
        """

    def replace(self, peer: int, command: list[str]) -> None:
        """Begin to start a new process for a peer that is lost or no longer wanted.

        The new process connects by itself. ``listen`` to it afterwards; if it cannot be started,
        it is ``lost``. If it starts after it was replaced itself, it gets the messages that were
        sent to it before that.
        """

    def gather(self, data: NDArray[Any] | None, into: NDArray[Any] | None) -> Pending:
        """Collective: every rank but 0 gives ``data``; rank 0 gets all in ``into``, by rank."""

    def broadcast(self, data: NDArray[Any]) -> Pending:
        """Collective: rank 0's ``data`` is copied into every other rank's ``data``."""

    def close(self) -> None:
        """Leave in good order. Messages that nobody has taken are dropped."""

    def abort(self, code: int) -> None:
        """End every rank at once with this exit code."""
