"""The only reader of a rank's messages: each goes to the hub or the spoke that knows its sender.

Input: messages and losses from ``comm``. Output: calls of the ends that are registered. A rank may
be a hub and a spoke at once; its ends share one mailbox, and one thread reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Protocol

from impala_ms.cluster.messages import POLL_S
from impala_ms.comm.transport import Message, Transport


class End(Protocol):
    """A hub or a spoke, as the mailbox sees it."""

    def handle(self, message: Message, now: float) -> bool:
        """Deal with a message and release it; False, with nothing done, to have it held."""

    def lose(self, peer: int, what: str, now: float) -> None:
        """A peer was found dead."""

    def tend(self, now: float) -> bool:
        """Do what is due after the messages; whether anything was done."""


class Mailbox:
    """The messages of one rank.

    Args:
        transport: This rank's end of it.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.error: Exception | None = None  # what ended the thread
        self._end_of: dict[int, End] = {}  # by peer
        self._ends: list[End] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def register(self, end: End, peers: Iterable[int], capacity_bytes: int) -> None:
        """Give this end what these peers send, each at most ``capacity_bytes`` at a time."""
        for peer in peers:
            self._end_of[peer] = end
            self.transport.listen(peer, capacity_bytes)
        if end not in self._ends:
            self._ends.append(end)

    def pump(self) -> bool:
        """Hand out what has arrived; whether anything was done."""
        now = time.monotonic()
        busy = False
        for message in self.transport.poll():
            busy |= self._end_of[message.peer].handle(message, now)
        for peer, what in self.transport.lost().items():
            self._end_of[peer].lose(peer, what, now)
        for end in self._ends:
            busy |= end.tend(now)
        return busy

    def start(self) -> None:
        """Have a thread of its own read from now on; it owns the transport until ``stop``."""
        self._thread = threading.Thread(target=self._run, name="mailbox", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the caller reads again."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self.pump():
                    time.sleep(POLL_S)
        except Exception as error:
            self.error = error
