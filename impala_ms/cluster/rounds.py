"""Hub and spoke of synchronous rounds: weights by broadcast, work by gather, with all ranks.

Input and output are those of ``cluster/hub`` and ``cluster/spoke``. All work is made with the
newest weights, and equal seeds give equal weights. A round waits for the slowest rank, and a lost
rank ends the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from impala_ms.cluster.hub import Hub, Intake
from impala_ms.cluster.messages import POLL_S, STOP_S, STOP_VERSION, pack_weights
from impala_ms.cluster.roster import ALIVE
from impala_ms.cluster.spoke import Spoke, Weights
from impala_ms.comm.transport import Pending, RankLostError
from impala_ms.errors import RunError
from impala_ms.trajectory import Batch, Buffer

logger = logging.getLogger(__name__)

NAMED_S = 1.0  # time to find out which rank is lost


class RoundsHub(Hub):
    """The hub of synchronous rounds; it has no thread: ``take`` reads the messages."""

    _round: Pending | None = None  # the gather that is under way
    _together = False  # whether all ranks are between two rounds
    _gathered: NDArray[np.uint8]

    def begin(self, intake: Intake, weights_size: int) -> None:
        """Make the buffer for the work of one round."""
        super().begin(intake, weights_size)
        spokes = len(self.roster.members)
        shape = spokes, intake.store.unrolls // spokes, intake.layout.nbytes
        self._gathered = np.zeros(shape, np.uint8)
        self._together = True

    def publish(self, version: int, flat: NDArray[np.float32], env_steps: int = 0) -> None:
        """Keep these weights for the broadcast of the next round."""
        self._next = pack_weights(version, flat, [env_steps])

    def start(self) -> None:
        """Do nothing: there is no thread."""

    def take(self, timeout_s: float) -> Batch | None:
        """Broadcast the weights, then gather the work of all, in the order of ranks.

        Returns:
            The batch, or None if the round has not ended after ``timeout_s``: call again.

        Raises:
            RunError: If a rank is lost.
        """
        if self._round is None:
            self._together = False
            self._finish(self.transport.broadcast(self._next))
            self._round = self.transport.gather(None, self._gathered)
        if not self._finish(self._round, timeout_s):
            return None
        self._round, self._together = None, True
        for peer, works in zip(self.roster.members, self._gathered, strict=True):
            self.roster.hear(peer, time.monotonic())
            for data in works:
                self.take_work(peer, data)
        return super().take(0.0)

    def stop(self) -> bool:
        """End the rounds, then do as ``Hub.stop``."""
        self._stopping = True
        if self._together and self.roster.of(ALIVE) == set(self.roster.members):
            flat = np.zeros(self._weights_size, np.float32)
            self._finish(self.transport.broadcast(pack_weights(STOP_VERSION, flat, [0])), STOP_S)
        return super().stop()

    def _finish(self, pending: Pending, timeout_s: float = float("inf")) -> bool:
        """Wait for a collective and read messages meanwhile; whether it has completed in time."""
        deadline, failure = time.monotonic() + timeout_s, None
        while True:
            try:
                if failure is None and pending.done():
                    return True
            except RankLostError as error:
                failure, deadline = error, time.monotonic() + NAMED_S
            if time.monotonic() > deadline:
                if failure is not None and not self._stopping:
                    raise RunError(f"synchronous round: {failure}") from failure
                return False
            if not self.mailbox.pump():
                time.sleep(POLL_S)


class RoundsSpoke(Spoke):
    """The spoke of synchronous rounds: in each round it sends all its buffers."""

    def begin(self, buffers: Iterable[Buffer], weights_size: int) -> None:
        """Be ready for rounds with a piece of work for each buffer."""
        super().begin(buffers, weights_size)
        self._buffers = list(self._free)
        self._done = 0  # pieces of work made in this round
        self._over = False
        self._message = pack_weights(0, np.zeros(weights_size, np.float32), [0])

    def turn(self) -> tuple[Weights | None, Buffer] | None:
        """Do as ``Spoke.turn``; the first turn of a round waits for new weights."""
        if self.drain():
            return None
        if self._done:
            return None, self._buffers[self._done]
        if not self._over and self._finish(self.transport.broadcast(self._message)):
            weights = self._unpacked(self._message)
            if weights.version != STOP_VERSION:
                return weights, self._buffers[0]
        while not self.drain():  # the hub ends the run by a STOP
            time.sleep(POLL_S)
        return None

    def send_work(self, buffer: Buffer) -> None:
        """Note a piece of work; with the last one of a round, send all and wait for the gather."""
        self._done += 1
        if self._done == len(self._buffers):
            self._done = 0
            works = np.concatenate([data for data, _ in self._buffers])
            self._finish(self.transport.gather(works, None))

    def _finish(self, pending: Pending) -> bool:
        """Wait for a collective; False if the run ends instead: by a STOP, or by a lost rank."""
        try:
            while not pending.done():
                if self.drain():
                    return False
                time.sleep(POLL_S)
        except RankLostError:
            logger.warning("a rank is gone: this one stops with the run")
            self._over = True
            return False
        return True
