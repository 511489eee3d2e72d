"""The messages between a hub and its spokes, and how they are packed.

spoke    HELLO (spaces)  ->  hub        once; a hub needs no environment
hub      WEIGHTS         ->  spoke      only the newest, at most one under way per spoke
spoke    WORK            ->  hub        an unroll or a gradient; held if there is no room
spoke 1  EVALUATION      ->  hub        returns, and the weights that played them
spoke    ERROR           ->  hub        an exception on that rank; ends the run
spoke    ASK             ->  hub        for new weights, when there is no work to be sent
spoke    BEAT            ->  hub        a sign of life when there was nothing else to send
hub      STOP            ->  spoke  BYE ->  hub
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.errors import RunError

HELLO, WEIGHTS, WORK, EVALUATION, ERROR, STOP, BYE, BEAT, ASK, BEGIN, STATE = range(1, 12)

VERSION_BYTES = 8  # the version as int64, before the weights
STOP_VERSION = -1  # version in the broadcast that ends synchronous rounds
SMALL_BYTES = 1 << 18  # limit of a text message, or of the returns of an evaluation
POLL_S = 0.0003  # between two looks for messages
STOP_S = 5.0  # limit for a message at the end of a run


def encode(content: dict[str, Any]) -> NDArray[np.uint8]:
    """A message that holds a dict of JSON values.

    Raises:
        RunError: If it is larger than the buffers for such messages.
    """
    text = json.dumps(content).encode()
    if len(text) > SMALL_BYTES:
        raise RunError(
            f"{', '.join(content)}: {len(text):,} bytes to be sent, but {SMALL_BYTES:,} are "
            "allowed; are the spaces of the environment listed number by number?"
        )
    return np.frombuffer(text, np.uint8)


def decode(data: NDArray[np.uint8]) -> dict[str, Any]:
    """The dict in a message made by ``encode``."""
    content: dict[str, Any] = json.loads(data.tobytes())
    return content


def weights_bytes(size: int) -> int:
    """Length of a message of so many weights, without further numbers."""
    return VERSION_BYTES + 4 * size


def pack_weights(
    version: int, flat: NDArray[np.float32], more: Sequence[float] = ()
) -> NDArray[np.uint8]:
    """A message: the version, float32 weights, then further float64 numbers."""
    parts = (np.array([version], np.int64), flat, np.asarray(more, np.float64))
    return np.concatenate([part.view(np.uint8) for part in parts])


def unpack_weights(
    data: NDArray[np.uint8], size: int
) -> tuple[int, NDArray[np.float32], NDArray[np.float64]]:
    """``(version, weights [size], further numbers)`` of a message.

    Raises:
        ValueError: If it is not a message of so many weights.
    """
    end = weights_bytes(size)
    if len(data) < end or (len(data) - end) % 8:
        raise ValueError(
            f"weights came in {len(data):,} bytes, but {size:,}, as the network of this rank has, "
            f"are {end:,}: the network must be the same on every rank"
        )
    version = int(data[:VERSION_BYTES].view(np.int64)[0])
    return version, data[VERSION_BYTES:end].view(np.float32), np.frombuffer(data[end:].tobytes())
