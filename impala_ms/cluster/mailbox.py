"""The only reader of a rank's messages: it gives each to the hub or the spoke for that sender.

Input: messages and lost ranks from ``comm``. Output: calls of the registered ends. A rank may be
hub and spoke at once: then both ends share one mailbox, which one thread reads.
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
        """Deal with a message and release it; False, with nothing changed, to hold it."""

    def lose(self, peer: int, what: str, now: float) -> None:
        """Note that a peer is dead."""

    def tend(self, now: float) -> bool:
        """Do what is due after the messages; whether there was anything."""


class Mailbox:
    """The messages of one rank.

    Args:
        transport: This rank's end of the transport.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.error: Exception | None = None  # the exception that ended the thread
        self._end_of: dict[int, End] = {}  # by peer
        self._ends: list[End] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def register(self, end: End, peers: Iterable[int], capacity_bytes: int) -> None:
        """Give this end the messages of these peers, each of at most ``capacity_bytes``."""
        for peer in peers:
            self._end_of[peer] = end
            self.transport.listen(peer, capacity_bytes)
        if end not in self._ends:
            self._ends.append(end)

    def pump(self) -> bool:
        """Pass on what has arrived; whether there was anything to do."""
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
        """Read in a thread of its own from now on; only it uses the transport until ``stop``."""
        self._thread = threading.Thread(target=self._run, name="mailbox", daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Read here, if there is no thread or an exception has ended it."""
        if self._thread is None or self.error is not None:
            self.pump()

    def stop(self) -> None:
        """End the thread; from now on the caller reads again."""
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
