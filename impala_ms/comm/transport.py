"""What a transport offers: sized byte messages between ranks, and word of ranks that died.

Input: byte buffers with a tag. Output: ``Message`` objects, in place in a buffer kept per peer.
Implementations: ``comm/mpi.py`` (one process a rank) and ``comm/local.py`` (one process in all).
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class RankLostError(RuntimeError):
    """A collective cannot be completed: a rank that takes part in it is gone."""


class Message(NamedTuple):
    """A message that has arrived.

    Attributes:
        peer: Rank that sent it.
        tag: Its kind, as the sender named it.
        data: ``[n]`` uint8 in the buffer kept for that peer: valid until ``release(peer)``.
    """

    peer: int
    tag: int
    data: NDArray[np.uint8]


class Pending(Protocol):
    """A send under way; keeps the buffer alive, which must not change before ``done``."""

    def done(self) -> bool:
        """Whether the receiver has begun to take the message (or is dead)."""


class Transport(Protocol):
    """Messages between ``size`` ranks, seen from ``rank``. Not thread-safe: one thread owns it.

    Attributes:
        concurrent: Whether the other ranks run while this one waits.
    """

    rank: int
    size: int
    concurrent: bool

    def listen(self, peer: int, capacity_bytes: int) -> None:
        """Receive from a peer from now on, one message of at most ``capacity_bytes`` at a time.

        A longer one makes ``poll`` raise ValueError.
        """

    def poll(self) -> list[Message]:
        """Messages that have arrived and are not released, at most one a peer, oldest first."""

    def release(self, peer: int, capacity_bytes: int | None = None) -> None:
        """Be done with the peer's message; its next one may have another size, if given."""

    def send(self, peer: int, tag: int, data: NDArray[Any]) -> Pending:
        """Begin to send; completes only when the receiver takes it, so senders can be held up."""

    def lost(self) -> dict[int, str]:
        """Peers found dead since the last call, and what happened, such as ``was lost``.

        Only peers listened to are watched.
        """

    def replace(self, peer: int, command: list[str]) -> None:
        """Begin to start a process that takes the place of a peer: lost, or no longer listened to.

        It finds its end of the transport by itself. ``listen`` to it afterwards; if it cannot be
        started, it is ``lost``. One that is started after all, when it has been replaced itself,
        gets what was sent to it before that.
        """

    def gather(self, data: NDArray[Any] | None, into: NDArray[Any] | None) -> Pending:
        """Collective: each rank but 0 gives ``data``; rank 0 has them put ``into`` by rank."""

    def broadcast(self, data: NDArray[Any]) -> Pending:
        """Collective: rank 0's ``data`` is put into every other rank's ``data``."""

    def close(self) -> None:
        """Leave in good order. Messages that nobody took are dropped."""

    def abort(self, code: int) -> None:
        """End every rank at once with this exit code."""
