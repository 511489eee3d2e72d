"""A replay at a rank of its own: workers send it unrolls, and pull batches from it.

Input: unrolls of workers. Output: to a worker that asks, a batch, or that it must play first. The
messages are those of ``cluster/hub`` and ``cluster/spoke``, with a batch in the place of weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.cluster.hub import Hub
from impala_ms.cluster.messages import POLL_S, WEIGHTS
from impala_ms.cluster.spoke import Spoke
from impala_ms.comm.transport import Pending
from impala_ms.trajectory import Batch, Layout

PLAY = np.zeros(1, np.uint8)  # the answer when no batch is due; it is shorter than any batch


class StoreHub(Hub):
    """The hub of the store: it answers each question with a batch, if one is due.

    Attributes:
        draw: Set before work is taken: gives the bytes of a batch, or None if none is due.
    """

    draw: Callable[[], NDArray[np.uint8] | None]

    def __init__(self, *arguments: Any, **limits: Any) -> None:
        super().__init__(*arguments, **limits)
        self._answers: dict[int, Pending] = {}

    def tend(self, now: float) -> bool:
        """Do as ``Hub.tend``, then answer those that have asked."""
        super().tend(now)
        if self._stopping or self.intake is None:
            return False
        asked = self._owed & self.roster.alive
        self._owed -= asked
        for peer in sorted(asked):
            if peer in self._answers:  # it was taken: its memory is given back
                self._answers[peer].done()
            drawn = self.draw()
            answer = PLAY if drawn is None else drawn
            self._answers[peer] = self.transport.send(peer, WEIGHTS, answer)
        return bool(asked)

    def _greet(self, peer: int, about: dict[str, Any]) -> None:
        """Do as ``Hub``; but a worker gets nothing before it asks."""
        super()._greet(peer, about)
        self._owed.discard(peer)


class StoreSpoke(Spoke):
    """The spoke of a worker under the store, whose answers are not weights."""

    def take_answer(self) -> NDArray[np.uint8] | None:
        """The newest answer, or None."""
        newest, self._newest = self._newest, None
        return newest


class PulledReplay:
    """The store, as one of its workers sees it: has the methods of a replay that a worker needs.

    While the worker makes a gradient, the next batch is under way.

    Args:
        spoke: Begun.
        layout: Of a batch; see ``batch_layout``.
        drain: Reads what has arrived from any rank; whether the run ends.
    """

    def __init__(self, spoke: StoreSpoke, layout: Layout, drain: Callable[[], bool]) -> None:
        self.spoke, self.layout, self.drain = spoke, layout, drain
        self._asked = False
        self._pulled: Batch | None = None
        self._described: Batch = {}

    def example(self) -> Batch:
        """A batch of zeros, to compile with."""
        return split(self.layout.empty()[1])[0]

    def is_due(self) -> bool:
        """Wait for the answer of the store: whether there is a batch, or the worker must play."""
        self._ask()
        while self._pulled is None:
            if self.drain():
                return False
            if (answer := self.spoke.take_answer()) is None:
                time.sleep(POLL_S)
                continue
            self._asked = False
            if answer.size == PLAY.size:
                return False
            self._pulled, self._described = split(self.layout.views(answer))
        return True

    def _ask(self) -> None:
        if not self._asked and self._pulled is None:
            self._asked = True
            self.spoke.ask()

    def take(self, timeout_s: float) -> Batch | None:
        """The batch that ``is_due`` has found; the next one is asked for."""
        pulled, self._pulled = self._pulled, None
        self._ask()
        return pulled

    def give_back(self, batch: Batch) -> None:
        """Nothing: all rows are drawn alike."""

    def add(self, unroll: Mapping[str, NDArray[Any]]) -> None:
        """Send an unroll to the store; wait until there is a free buffer for it."""
        while not (buffer := self.spoke.free_buffer()):
            if self.drain():
                return
            time.sleep(POLL_S)
        for name, values in unroll.items():
            buffer[1][name][...] = values
        self.spoke.send_work(buffer)

    def columns(self) -> dict[str, float]:
        """The columns that describe the batch taken last."""
        return {name: float(value) for name, value in self._described.items()}


DESCRIBED = "described/"  # begins the names of columns in a message


def batch_layout(example: Batch, columns: Iterable[str]) -> Layout:
    """The layout of a message with such a batch and such columns."""
    fields = {name: (values.shape, values.dtype) for name, values in example.items()}
    number = (), np.dtype(np.float32)
    return Layout(fields | described(dict.fromkeys(columns, number)))


def described(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns by their names in a message."""
    return {f"{DESCRIBED}{name}": value for name, value in columns.items()}


def split(fields: Batch) -> tuple[Batch, Batch]:
    """``(batch, columns)`` in a message."""
    batch = {name: value for name, value in fields.items() if not name.startswith(DESCRIBED)}
    rest = fields.keys() - batch.keys()
    return batch, {name.removeprefix(DESCRIBED): fields[name] for name in rest}
