"""Find values that are not finite, and say where they are.

Input: the fields of an unroll. Output: a phrase for a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT32_MAX = float(np.finfo(np.float32).max)


def non_finite(unroll: Mapping[str, NDArray[Any]]) -> str | None:
    """Find a NaN or an infinity in an unroll.

    Args:
        unroll: Views of one unroll.

    Returns:
        None, or a phrase with the field, the value, the step of the unroll and the environment.
    """
    for name, values in unroll.items():
        if name.startswith(("episode", "wait")):
            continue
        # A sum is not finite if an element is not, and reads the array only once. float64 does not
        # overflow on finite float32 values.
        with np.errstate(invalid="ignore", over="ignore"):
            if values.dtype.kind != "f":
                continue
            if values.dtype.itemsize > 4:  # the network reads float32
                values = np.where(np.abs(values) > FLOAT32_MAX, np.inf, values)
            if np.isfinite(values.sum(dtype=np.float64)):
                continue
        where = np.argwhere(~np.isfinite(values))
        if len(where):
            value = values[tuple(where[0])]
            if name in ("last_action", "last_reward", "core_state"):
                return f"{name} is {value} before an unroll, environment {int(where[0][0])}"
            step, env = (int(i) for i in where[0][:2])
            if name.startswith("observation"):
                step -= len(values) - len(unroll["first"])  # older frames of a stack
            if step < 0:
                return f"{name} is {value} {-step} steps before an unroll, environment {env}"
            return f"{name} is {value} at step {step} of an unroll, environment {env}"
    return None
