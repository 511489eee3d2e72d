"""Environments written for the old gym interface: 4 values from ``step``, no seed in ``reset``.

Input: what the environment returned. Output: the same in gymnasium's form.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from impala_ms.errors import one_line


def reset(env: Any, seed: int | None) -> tuple[Any, dict[str, Any]]:
    """Reset ``env`` in whichever of the two forms it has.

    Args:
        env: The environment.
        seed: Seeds the environment's generator; None leaves the generator as it is.

    Returns:
        The first observation of the new episode, and the info, empty in the old form.
    """
    if _takes_seed(type(env).reset):
        result = env.reset(seed=seed)
    else:
        if seed is not None:
            _seed(env, seed)
        result = env.reset()
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    return result, {}


def five_values(row: Any) -> tuple[Any, ...]:
    """Turn the four values of an old ``step`` into the five of gymnasium.

    The old interface has one flag for both ends of an episode and marks an end by the time
    limit in ``info["TimeLimit.truncated"]``; there the state still has a value to bootstrap from.

    Raises:
        ValueError: If there are not four.
    """
    if not isinstance(row, (tuple, list)) or len(row) != 4:
        raise ValueError(
            f"step returned {one_line(repr(row))}, not the five values observation, reward, "
            "terminated, truncated, info"
        )
    observation, reward, done, info = row
    truncated = bool(info.get("TimeLimit.truncated", False))
    return observation, reward, bool(done) and not truncated, truncated, info


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
