"""Read the description of a space, which consists of JSON values.

Input: a description of ``VectorEnvironment.spaces()``. Output: its parts, their shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def leaves(space: Mapping[str, Any], path: str = "") -> dict[str, Mapping[str, Any]]:
    """The parts of an observation space as ``{path: description}``.

    Args:
        space: A description of ``VectorEnvironment.spaces()``.
        path: Keys and indices that lead to it, joined by ``/``.
    """
    inner = space.get("spaces")
    if inner is None:
        return {path: space}
    pairs = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    found: dict[str, Mapping[str, Any]] = {}
    for key, part in pairs:
        found |= leaves(part, f"{path}/{key}" if path else str(key))
    return found


def leaf_array(leaf: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """``(shape, dtype)`` of the arrays of a part of an observation space."""
    if leaf["type"] == "Discrete":
        return (), np.dtype(np.int64)
    if leaf["type"] == "MultiDiscrete":
        return np.shape(leaf["nvec"]), np.dtype(np.int64)
    if leaf["type"] == "MultiBinary":
        return tuple(np.atleast_1d(leaf["n"]).tolist()), np.dtype(np.int8)
    return tuple(leaf["shape"]), np.dtype(leaf["dtype"])
