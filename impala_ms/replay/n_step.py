"""n-step returns inside an unroll, over ends of episodes and reset rows.

Input: rewards and ends of an unroll. Output: for each row its return, the number of its steps, and
the discount of the value that it is continued with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class NStep(NamedTuple):
    """What the rows of an unroll are learned from.

    Attributes:
        returns: ``[T, E]`` float32, sums of discounted rewards.
        steps: ``[T, E]`` int32: row t is continued with the value of observation[t + steps]. 0: a
            reset row, which is not learned from.
        discounts: ``[T, E]`` float32, factor of that value; 0 after a termination.
    """

    returns: NDArray[np.float32]
    steps: NDArray[np.int32]
    discounts: NDArray[np.float32]


def n_step(
    reward: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    first: NDArray[np.bool_],
    n: int,
    gamma: float,
) -> NStep:
    """Sum up to n rewards, but none beyond the end of the episode or of the unroll.

    Args:
        reward: ``[T, E]``, clipped and scaled.
        terminated: ``[T, E]``.
        first: ``[T+1, E]``; row t is a reset row where ``first[t + 1]``.
        n: Number of steps, 1 or more.
        gamma: Discount of one step.
    """
    rows, reset = len(reward), first[1:]
    ends = np.empty(reward.shape, np.int32)  # the row of the observation that ends the sum
    end: NDArray[Any] = np.full(reward.shape[1:], rows, np.int32)
    for row in reversed(range(rows)):
        ends[row] = end = np.where(terminated[row], row + 1, end)
        end = np.where(reset[row], row, end)
    row_numbers = np.arange(rows, dtype=np.int32)[:, None]
    steps = np.where(reset, 0, np.minimum(ends - row_numbers, n)).astype(np.int32)
    returns = np.zeros(reward.shape)
    for step in range(min(n, rows)):
        counted = steps[: rows - step] > step
        returns[: rows - step] += np.where(counted, gamma**step * reward[step:], 0.0)
    last = np.take_along_axis(terminated, np.maximum(row_numbers + steps - 1, 0), 0)
    discounts = np.where(last | reset, 0.0, gamma**steps)
    return NStep(returns.astype(np.float32), steps, discounts.astype(np.float32))
