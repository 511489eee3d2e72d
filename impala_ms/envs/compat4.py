"""Environments written for the old gym interface: 4 values from ``step``, no seed in ``reset``.

Input: what the environment returns. Output: the same in gymnasium's interface.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from impala_ms.errors import one_line

TRUNCATED = "TimeLimit.truncated"  # key of an old info


def reset(env: Any, seed: int | None) -> tuple[Any, Mapping[str, Any]]:
    """Reset ``env``, whether its interface is the old one or gymnasium's.

    Args:
        env: The environment.
        seed: Seeds the environment's generator; None leaves the generator as it is.

    Returns:
        The first observation of the new episode, and the info: empty if there is nothing to return.
    """
    if _takes_seed(type(env).reset):
        result = env.reset(seed=seed)
    else:
        if seed is not None:
            _seed(env, seed)
        result = env.reset()
    if isinstance(result, (tuple, list)) and len(result) == 2:
        observation, info = result
        if info is None or isinstance(info, Mapping):
            return observation, info or {}
    return result, {}


def five_values(row: Any) -> tuple[Any, ...]:
    """Turn the four values of an old ``step`` into the five of gymnasium.

    The old interface has one flag for every end of an episode. ``info["TimeLimit.truncated"]`` says
    whether the time limit was the reason: then the last state still has a value to bootstrap from.

    Raises:
        ValueError: If there are not four, or if the mark in the info is neither true nor false.
    """
    if not isinstance(row, (tuple, list)) or len(row) != 4:
        raise ValueError(
            f"step returned {one_line(repr(row))}, not the five values observation, reward, "
            "terminated, truncated, info"
        )
    observation, reward, done, info = row
    mark = info.get(TRUNCATED) if isinstance(info, Mapping) else None
    flag = np.asarray(False if mark is None else mark)
    if flag.size != 1 or flag.dtype.kind not in "biuf":
        raise ValueError(f"info[{TRUNCATED!r}] is {one_line(repr(mark))}: it takes true or false")
    truncated = bool(flag.item())
    return observation, reward, bool(done) and not truncated, truncated, info


def put_below_time_limit(env: Any) -> None:
    """Let gymnasium's ``TimeLimit``, if ``env`` has that wrapper, read the old interface too."""
    import gymnasium

    class NewInterface(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return reset(self.env, seed)

        def step(self, action: Any) -> Any:
            row: Any = self.env.step(action)
            return row if len(row) == 5 else five_values(row)

    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            env.env = NewInterface(env.env)
            return
        env = env.env


@functools.lru_cache
def _takes_seed(reset: Callable[..., Any]) -> bool:
    parameters = inspect.signature(reset).parameters.values()
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


def _seed(env: Any, seed: int) -> None:
    """Seed the generator gymnasium keeps for every environment, and call an old ``seed`` method."""
    from gymnasium.utils import seeding

    base = env.unwrapped
    base.np_random = seeding.np_random(seed)[0]
    if callable(getattr(base, "seed", None)):
        base.seed(seed)
