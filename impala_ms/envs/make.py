"""Vector environments by id.

Input: the environment section of the configuration. Output: a ``VectorEnvironment`` for an actor.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from impala_ms.envs.vector import (
    MakeError,
    NativeVectorEnvironment,
    SyncVectorEnvironment,
    VectorEnvironment,
    add_note,
)

__all__ = ["MakeError", "VectorEnvironment", "episode_seeds", "make_vec"]

VECTORIZATIONS = ("auto", "vector_entry_point", "sync")


def make_vec(
    id: str,
    *,
    num_envs: int,
    seeds: Sequence[int],
    vectorization: str = "auto",
    kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    action_repeat: int = 1,
    frame_stack: int = 1,
) -> VectorEnvironment:
    """Make ``num_envs`` environments that are stepped together.

    Args:
        id: A gymnasium id, or ``module:ID``: the module is imported first, so that it can
            register the id. It may lie in the current directory or on ``PYTHONPATH``.
        num_envs: Number of environments.
        seeds: One seed per environment, used at the first reset only; later episodes go on from
            the same generator. A ``vector_entry_point`` environment uses the first seed alone.
        vectorization: ``"vector_entry_point"`` (all environments in one vectorised program, for
            ids that have one), ``"sync"`` (one after the other), or ``"auto"``: the first where
            the id has it, else the second.
        kwargs: Passed to the environment's constructor.
        max_episode_steps: Steps after which an episode is truncated; None keeps the id's own limit.
        action_repeat: Frames the environment plays for one step, for counting only.

    Returns:
        The environments, not reset yet.

    Raises:
        MakeError: If the id is unknown, its module cannot be found, the arguments do not fit it,
            or its spaces are not supported.
    """
    if num_envs < 1 or len(seeds) != num_envs:
        raise ValueError(f"{num_envs} environments need as many seeds, got {len(seeds)}")
    if vectorization not in VECTORIZATIONS:
        raise MakeError(f"vectorization {vectorization!r} is none of {', '.join(VECTORIZATIONS)}")

    import gymnasium

    spec = _find_spec(id)
    if max_episode_steps is not None:
        spec.max_episode_steps = max_episode_steps
    spec.kwargs.update(kwargs or {})
    limits: dict[str, Any] = {
        "step_limit": spec.max_episode_steps,
        "frames_per_step": action_repeat,
    }
    native = spec.vector_entry_point is not None and not spec.additional_wrappers
    if vectorization == "vector_entry_point" and not native:
        raise MakeError(f"{id} has no usable vector_entry_point: set vectorization to auto or sync")
    try:
        if native and vectorization != "sync":
            return _native(id, spec, num_envs, seeds, limits)
        # The step limit is kept by the vector environment and the spaces are checked by it; what
        # gymnasium would put around the environment cannot read the old 4 values of step.
        spec.max_episode_steps = None
        spec.order_enforce = False
        spec.disable_env_checker = True
        return SyncVectorEnvironment(id, lambda: gymnasium.make(spec), seeds=seeds, **limits)
    except MakeError:
        raise
    except (gymnasium.error.Error, TypeError) as error:
        raise MakeError(f"{id} cannot be made: {error}") from error
    except Exception as error:
        add_note(error, f"while making {id} with {spec.kwargs or 'no arguments'}")
        raise


def episode_seeds(seed: int, epoch: int, rank: int, incarnation: int, num_envs: int) -> list[int]:
    """Seeds for the environments of one actor.

    Each is the first 32 bits of ``SeedSequence((seed, epoch, rank, incarnation, index))``: another
    seed of the run, another epoch (the run was resumed), rank, incarnation (the actor was
    replaced) or environment is another stream, and the same five numbers are the same stream.

    Returns:
        ``num_envs`` integers in [0, 2**32).
    """
    return [
        int(np.random.SeedSequence((seed, epoch, rank, incarnation, index)).generate_state(1)[0])
        for index in range(num_envs)
    ]


def _find_spec(id: str) -> Any:
    """A copy of the registered spec of ``id``, after importing the module it names."""
    import gymnasium

    module, _, name = id.rpartition(":")
    if module:
        _import(id, module)
    try:
        return copy.deepcopy(gymnasium.spec(name))
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.5)
        known = f"; near it are {', '.join(near)}" if near else ""
        raise MakeError(
            f"there is no environment {name!r}"
            + (f", also after importing {module!r}" if module else "")
            + f"{known}. An environment of your own is given as module:ID, where importing the "
            "module registers the id (gymnasium.register)."
        ) from error


def _import(id: str, module: str) -> None:
    # A script's own folder is searched, the current directory is not.
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            add_note(error, f"while importing the module of {id}")
            raise
        raise MakeError(
            f"the module {module!r} of the environment {id!r} is neither in the current directory "
            f"({here}) nor on PYTHONPATH nor installed"
        ) from error


def _native(
    id: str, spec: Any, num_envs: int, seeds: Sequence[int], limits: dict[str, Any]
) -> VectorEnvironment:
    import gymnasium

    envs = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point")
    autoreset = envs.metadata.get("autoreset_mode")
    if autoreset != gymnasium.vector.AutoresetMode.NEXT_STEP:
        envs.close()
        raise MakeError(
            f"the vector_entry_point of {id} resets by {autoreset}, but only NEXT_STEP is "
            "supported: set vectorization to sync"
        )
    return NativeVectorEnvironment(id, envs, seeds=seeds, **limits)
