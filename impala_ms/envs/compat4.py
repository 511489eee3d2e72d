"""Environments written for the old gym interface: 4 values from ``step``, no seed in ``reset``.

Input: what the environment returned. Output: the same in gymnasium's form.
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
    """Reset ``env`` in whichever of the two forms it has.

    Args:
        env: The environment.
        seed: Seeds the environment's generator; None leaves the generator as it is.

    Returns:
        The first observation of the new episode, and the info, empty in the old form or if None.
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

    The old interface has one flag for both ends of an episode and marks an end by the time
    limit in ``info["TimeLimit.truncated"]``; there the state still has a value to bootstrap from.

    Raises:
        ValueError: If there are not four, or that mark is neither true nor false.
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
    """Let gymnasium's ``TimeLimit``, if there is one around ``env``, read the old form too."""
    import gymnasium

    class NewForm(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return reset(self.env, seed)

        def step(self, action: Any) -> Any:
            row: Any = self.env.step(action)
            return row if len(row) == 5 else five_values(row)

    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            env.env = NewForm(env.env)
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
