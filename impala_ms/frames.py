"""Stacks of the newest frames: the actor makes them for its policy, the learner makes them again.

Input: frames, and where episodes begin. Output: stacks, or the row numbers of the frames in each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def push_frame(
    stack: NDArray[Any], frame: NDArray[Any], first: NDArray[np.bool_], out: NDArray[Any]
) -> None:
    """Add a frame to the stacks; a new episode fills its stack with its first frame.

    Args:
        stack: ``[E, k, ...]``, oldest frame first; may be ``out``.
        frame: ``[E, ...]``.
        first: ``[E]``, whether an episode begins with the frame.
        out: ``[E, k, ...]``, overwritten.
    """
    out[:, :-1] = stack[:, 1:]
    out[:, -1] = frame
    if first.any():
        out[first] = frame[first, None]


def frame_rows(first: NDArray[np.bool_], frame_stack: int) -> NDArray[np.int32]:
    """Which frames of a batch make the stacks that ``push_frame`` made for the policy.

    Args:
        first: ``[S, T+1, E]``, whether an episode begins at the row.
        frame_stack: k.

    Returns:
        ``[S, T+1, E, k]``: row numbers in the frames ``[S, T+k, E, ...]`` when these are reshaped
        to ``[S * (T+k) * E, ...]``, the oldest frame of each stack first.
    """
    unrolls, rows, envs = first.shape
    row = np.arange(rows)[:, None, None]
    oldest = oldest_frames(first, frame_stack)[..., None]
    frames = np.maximum(row + np.arange(frame_stack), oldest)
    unroll = np.arange(unrolls)[:, None, None, None] * (rows + frame_stack - 1)
    numbers: NDArray[Any] = (unroll + frames) * envs + np.arange(envs)[:, None]
    return numbers.astype(np.int32)


def oldest_frames(first: NDArray[np.bool_], frame_stack: int) -> NDArray[np.int64]:
    """The oldest frame that the stack of each row may hold: the first of its episode.

    Args:
        first: ``[..., T+1, E]``, whether an episode begins at the row.
        frame_stack: k.

    Returns:
        ``[..., T+1, E]``: row numbers in the frames ``[T+k, E, ...]``; 0 if the episode began
        before the unroll.
    """
    rows = np.arange(first.shape[-2])[:, None] + frame_stack - 1
    oldest: NDArray[np.int64] = np.maximum.accumulate(np.where(first, rows, 0), -2)
    return oldest
