"""The spoke of a worker under several servers, each with a range of the weights, and a store.

Input: weights of each server, gradients from ``roles/gradients``. Output: to each server its range
of a gradient; for each turn the newest weights of all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.cluster.messages import BYE, POLL_S
from impala_ms.cluster.spoke import Spoke, Weights
from impala_ms.trajectory import Buffer, Layout

DIVIDED = "gradient"  # the field of which each server gets its range


class Spokes:
    """Behaves as a ``Spoke`` whose hub has all weights.

    Args:
        spokes: A ``Spoke`` for each server, in the order of their ranges, with one mailbox.
        store: The one under the store, or None.
    """

    def __init__(self, spokes: Sequence[Spoke], store: Spoke | None = None) -> None:
        self.spokes, self.store = spokes, store
        self._all = [*spokes, *([] if store is None else [store])]
        self.transport, self.mailbox = spokes[0].transport, spokes[0].mailbox
        self._layouts: Sequence[Layout] = ()
        self._free: deque[Buffer] = deque()
        self._parts: dict[Spoke, tuple[Weights, Buffer]] = {}  # of the present turn

    def hello(self, spaces: dict[str, Any], step_limit: int | None = None) -> None:
        """Send the spaces of this rank's environments, and their time limit."""
        for spoke in self._all:
            spoke.hello(spaces, step_limit)

    def divide(self, layouts: Sequence[Layout]) -> None:
        """Set the layout of the messages to each server."""
        self._layouts = layouts

    def begin(self, buffers: Iterable[Buffer], weights_size: int) -> None:
        """Prepare to receive weights, and to send work in these buffers, which hold the whole."""
        self._free = deque(buffers)
        self._flat = np.empty(weights_size, np.float32)
        for spoke, layout in zip(self.spokes, self._layouts, strict=True):
            (size,), _ = layout.fields[DIVIDED]
            if len(self.spokes) == 1:  # it also has weights that are not trained
                size = weights_size
            spoke.begin([layout.empty() for _ in self._free], size)

    def turn(self) -> tuple[Weights | None, Buffer] | None:
        """Wait for the answers of all servers, then do as ``Spoke.turn``."""
        self._parts = {}
        while not self.drain():
            for spoke in self.spokes:
                if spoke not in self._parts and (ready := spoke.try_turn()):
                    weights, buffer = ready
                    if weights is None:
                        raise RuntimeError("a server has answered without weights")
                    self._parts[spoke] = weights, buffer
            if len(self._parts) == len(self.spokes):
                return self._together(), self._free[0]
            time.sleep(POLL_S)
        return None

    def _together(self) -> Weights:
        """The weights of all, with the version of the first server."""
        parts = [self._parts[spoke][0] for spoke in self.spokes]
        np.concatenate([part.flat for part in parts], out=self._flat)
        return Weights(parts[0].version, self._flat, parts[0].env_steps)

    def send_work(self, buffer: Buffer) -> None:
        """Send each server its range of the gradient, with the version of its own weights.

        If a number in it is not finite, all servers get that, so that none applies a part.
        """
        _, whole = buffer
        gradient, begin = whole[DIVIDED], 0
        if not np.isfinite(gradient).all():
            gradient[...] = np.nan
        for spoke in self.spokes:
            weights, part = self._parts[spoke]
            _, fields = part
            for name, values in fields.items():
                if name != DIVIDED:
                    values[...] = whole[name]
            end = begin + fields[DIVIDED].size
            fields[DIVIDED][...] = gradient[begin:end]
            fields["behaviour_version"][...] = weights.version
            spoke.send_work(part)
            begin = end

    def withhold(self, buffer: Buffer) -> None:
        """Send nothing, and ask all servers for new weights."""
        for spoke in self.spokes:
            spoke.withhold(self._parts[spoke][1])

    def drain(self) -> bool:
        """Read what has arrived; whether a server or the store has sent STOP."""
        return any([spoke.drain() for spoke in self._all])

    def send(self, tag: int, data: NDArray[np.uint8], wait: bool = True) -> None:
        """Send another message to the first server; a BYE goes to all."""
        for spoke in self._all if tag == BYE else self._all[:1]:
            spoke.send(tag, data, wait)

    def say(self, doing: str) -> None:
        """Tell the first server what this rank does instead of acting."""
        self.spokes[0].say(doing)
