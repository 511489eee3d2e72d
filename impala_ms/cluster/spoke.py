"""The spoke: it sends unrolls or gradients to its hub, and takes the newest weights.

Input: work from ``roles/acting``, weights from the hub. Output: messages to the hub; for each turn
the newest weights and a free buffer.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from impala_ms.cluster import place
from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.messages import (
    ASK,
    BEAT,
    ERROR,
    HELLO,
    POLL_S,
    STOP,
    STOP_S,
    WEIGHTS,
    WORK,
    encode,
    unpack_weights,
    weights_bytes,
)
from impala_ms.comm.transport import Message, Pending
from impala_ms.errors import RunError
from impala_ms.trajectory import Buffer

REPORT_S = 120.0  # limit for the report of an error: a learner that compiles does not receive
BEATS = 4  # signs of life within heartbeat_s
COUNT_BYTES = 8  # env_steps behind the weights


class Weights(NamedTuple):
    """What the hub gives.

    Attributes:
        version: Number of updates.
        flat: Values, ``[size]``.
        env_steps: Of all ranks that act, so far.
    """

    version: int
    flat: NDArray[np.float32]
    env_steps: int


class Spoke:
    """The end of a rank that works for a hub.

    Args:
        mailbox: The mailbox of this rank.
        hub: The rank of the hub.
        heartbeat_s: The hub leaves out a rank that is silent for so long; None: it never does.
        waits_for_answer: Whether a turn waits for new weights after each piece of work.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        hub: int = 0,
        *,
        heartbeat_s: float | None = None,
        waits_for_answer: bool = False,
    ) -> None:
        self.mailbox, self.transport, self.hub = mailbox, mailbox.transport, hub
        beats = heartbeat_s is not None and self.transport.concurrent
        self._beat_s = heartbeat_s / BEATS if heartbeat_s and beats else None
        self._beat: Pending | None = None
        self._spoke = time.monotonic()  # when it last sent something
        self.stopped = False
        self.waits_for_answer = waits_for_answer
        self._newest: NDArray[np.uint8] | None = None
        self._has_weights = False
        self._pending: deque[tuple[Pending, Buffer | None]] = deque()
        self._free: deque[Buffer] = deque()
        self._size = 0

    def hello(self, spaces: dict[str, Any], step_limit: int | None = None) -> None:
        """Send the spaces of this rank's environments, and their time limit."""
        content = {
            "spaces": spaces,
            "step_limit": step_limit,
            "host": socket.gethostname(),
            "variables": place.variables(),
        }
        self._pending.append((self.transport.send(self.hub, HELLO, encode(content)), None))

    def begin(self, buffers: Iterable[Buffer], weights_size: int) -> None:
        """Prepare to receive weights of that size, and to send work in these buffers."""
        self._size = weights_size
        self._free = deque(buffers)
        self.mailbox.register(self, [self.hub], weights_bytes(weights_size) + COUNT_BYTES)

    def turn(self) -> tuple[Weights | None, Buffer] | None:
        """Wait until the next piece of work can be made.

        Returns:
            ``(weights, buffer)``: the newest weights, or None if there are no new ones, and a free
            buffer for the work; or None after a STOP.
        """
        while not self.drain():
            if ready := self.try_turn():
                return ready
            time.sleep(POLL_S)
        return None

    def try_turn(self) -> tuple[Weights | None, Buffer] | None:
        """Do as ``turn`` without waiting; None if the next piece of work cannot be made yet."""
        if self._may_begin() and (buffer := self.free_buffer()):
            self._has_weights = True
            return self._take_weights(), buffer
        return None

    def send_work(self, buffer: Buffer) -> None:
        """Send a buffer of ``turn``; it becomes free when the hub takes it."""
        self._pending.append((self.transport.send(self.hub, WORK, buffer[0]), buffer))
        self._spoke = time.monotonic()

    def withhold(self, buffer: Buffer) -> None:
        """Send nothing in a buffer of ``turn``, and ask for new weights instead."""
        self._free.append(buffer)
        self.ask()

    def ask(self) -> None:
        """Ask the hub for an answer without sending work."""
        self._pending.append((self.transport.send(self.hub, ASK, encode({})), None))
        self._spoke = time.monotonic()

    def drain(self) -> bool:
        """Read what has arrived; whether the hub has sent STOP."""
        while self.mailbox.pump():
            pass
        return self.stopped

    def send(self, tag: int, data: NDArray[np.uint8], wait: bool = True) -> None:
        """Send another message; with ``wait``, wait until it is taken, for a limited time."""
        pending = self.transport.send(self.hub, tag, data)
        deadline = time.monotonic() + (REPORT_S if tag == ERROR else STOP_S)
        while wait and not pending.done() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def say(self, doing: str) -> None:
        """Tell the hub what this rank does instead of acting, such as ``evaluates``."""
        self.transport.send(self.hub, BEAT, encode({"doing": doing}))

    def _may_begin(self) -> bool:
        waited = self._newest is not None
        return waited or (self._has_weights and not self.waits_for_answer)

    def _take_weights(self) -> Weights | None:
        newest, self._newest = self._newest, None
        return None if newest is None else self._unpacked(newest)

    def _unpacked(self, message: NDArray[np.uint8]) -> Weights:
        version, flat, more = unpack_weights(message, self._size)
        return Weights(version, flat, int(more[0]))

    def free_buffer(self) -> Buffer | None:
        """A buffer that is not being sent; None if there is none."""
        while self._pending and self._pending[0][0].done():
            _, buffer = self._pending.popleft()
            if buffer is not None:
                self._free.append(buffer)
        return self._free.popleft() if self._free else None

    # The mailbox calls these.

    def handle(self, message: Message, now: float) -> bool:
        """Keep the newest weights, or note a STOP."""
        if message.tag == STOP:
            self.stopped = True
        elif message.tag == WEIGHTS:
            self._newest = message.data.copy()
        self.transport.release(self.hub)
        return True

    def lose(self, peer: int, what: str, now: float) -> None:
        """End this rank: the hub is gone. Of another hub than rank 0, rank 0 says that."""
        self.stopped = True
        if peer == 0:
            raise RunError("the learner (rank 0) is gone")

    def tend(self, now: float) -> bool:
        """Send a BEAT if nothing else was sent for a while."""
        if self._beat_s and now > self._spoke + self._beat_s:
            if self._beat is None or self._beat.done():
                self._beat = self.transport.send(self.hub, BEAT, encode({"doing": None}))
            self._spoke = now
        return False
