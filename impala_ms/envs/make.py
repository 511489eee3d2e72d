"""Make vector environments from an id.

Input: the environment section of the configuration. Output: a ``VectorEnvironment`` for an actor.
"""

from __future__ import annotations

import copy
import difflib
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_ms.envs import atari, compat4, external
from impala_ms.envs.errors import MakeError
from impala_ms.envs.packages import installed, missing, pip_install, register
from impala_ms.envs.processes import ProcessVectorEnvironment
from impala_ms.envs.sync import SyncVectorEnvironment
from impala_ms.envs.vector import VectorEnvironment
from impala_ms.errors import add_note, one_line
from impala_ms.imports import import_file, import_named

__all__ = ["MakeError", "VectorEnvironment", "frames_per_step", "make_vec"]

_log = logging.getLogger(__name__)

VECTORIZATIONS = ("auto", "vector_entry_point", "sync", "processes", "envpool")
# Packages that register ids with these prefixes when they are imported.
PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale-py"}


def make_vec(
    id: str,
    *,
    num_envs: int,
    seeds: Sequence[int],
    vectorization: str = "auto",
    kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    action_repeat: int | None = None,
    frame_stack: int = 1,
    env_processes: int = 0,
    scale_actions: bool = True,
) -> VectorEnvironment:
    """Make ``num_envs`` environments that are stepped together.

    Args:
        id: A gymnasium id, or ``module:ID`` or ``file.py:ID``: the module is imported first, so
            that it can register the id. The module is searched in the current directory first,
            then on ``PYTHONPATH``; a file is given by its path. An Atari game (``ALE/Pong-v5``,
            ``Pong-v5`` or ``PongNoFrameskip-v4``) has the preprocessing of ``atari``.
        num_envs: Number of environments.
        seeds: One seed per environment, used at the first reset only; later episodes continue with
            the same generator. A ``vector_entry_point`` environment uses the first seed alone.
        vectorization: ``"vector_entry_point"`` (all environments in one vectorised program, for
            ids that have one), ``"sync"`` (one after the other), ``"processes"`` (in worker
            processes, for a slow step), ``"envpool"``, or ``"auto"``. ``auto`` takes envpool for an
            Atari game; for others ``vector_entry_point`` if the id has it, else ``"sync"``, and
            envpool if gymnasium does not have the environment.
        kwargs: Passed to the environment's constructor, or to envpool; for a game see
            ``atari.OPTIONS``.
        max_episode_steps: Steps after which an episode is truncated; None keeps the id's own limit.
        action_repeat: Frames that the environment plays in one step. A game repeats actions so
            often; for other environments the number is only counted with. None: 4 for a game, else
            1.
        frame_stack: Number of newest frames in one observation of the policy; the actor stacks
            them.
        env_processes: Number of worker processes; 0: one for each core of this rank, at least 2.
        scale_actions: Whether the policy's numbers from -1 to 1 are mapped to the range between
            finite bounds of a Box of actions, see ``VectorEnvironment.step``; otherwise they are
            only clipped to the bounds.

    Returns:
        The environments, not reset yet.

    Raises:
        MakeError: If the id is unknown, its module cannot be found, the arguments do not fit it,
            or its spaces are not supported.
    """
    if num_envs < 1 or len(seeds) != num_envs:
        raise ValueError(f"{num_envs} environments need as many seeds, got {len(seeds)}")
    if vectorization not in VECTORIZATIONS:
        allowed = ", ".join(VECTORIZATIONS)
        raise MakeError(f"vectorization must be one of {allowed}, not {vectorization!r}")
    game = atari.game_of(id)
    if game is not None:
        return atari.make(
            id,
            game,
            seeds=seeds,
            vectorization=vectorization,
            kwargs=kwargs or {},
            max_episode_steps=max_episode_steps,
            action_repeat=action_repeat,
            frame_stack=frame_stack,
            env_processes=env_processes,
        )
    settings: dict[str, Any] = {
        "seeds": seeds,
        "frames_per_step": action_repeat or 1,
        "frame_stack": frame_stack,
        "scale_actions": scale_actions,
    }
    options = dict(kwargs or {}) | {"max_episode_steps": max_episode_steps}
    if vectorization == "envpool":
        return external.EnvpoolVectorEnvironment(id, id, options=options, **settings)

    spec = find_spec(id, pools_too=vectorization == "auto")
    if spec is None:
        return external.EnvpoolVectorEnvironment(id, id, options=options, **settings)

    import gymnasium

    if max_episode_steps is not None:
        spec.max_episode_steps = max_episode_steps
    spec.kwargs.update(kwargs or {})
    settings["step_limit"] = spec.max_episode_steps
    has_program = spec.vector_entry_point is not None and not spec.additional_wrappers
    if vectorization == "vector_entry_point" and not has_program:
        raise MakeError(f"{id} has no usable vector_entry_point: set vectorization to auto or sync")
    try:
        if has_program and vectorization in ("auto", "vector_entry_point"):
            return _vector_entry(id, spec, num_envs, settings)
        # The vector environment keeps the step limit and checks the spaces. The wrappers that
        # gymnasium has for that cannot read the old 4 values of step. But wrappers that come with
        # the id may need the limit.
        if not spec.additional_wrappers:
            spec.max_episode_steps = None
        spec.order_enforce = False
        spec.disable_env_checker = True
        module = id.rpartition(":")[0]
        make_one = functools.partial(_make_one, module, spec)
        if vectorization == "processes":
            return ProcessVectorEnvironment(id, make_one, processes=env_processes, **settings)
        return SyncVectorEnvironment(id, make_one, **settings)
    except MakeError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        if vectorization == "auto" and external.knows(id):
            _log.info("%s: taken from envpool, since gymnasium says: %s", id, one_line(error))
            return external.EnvpoolVectorEnvironment(id, id, options=options, **settings)
        if isinstance(error, ModuleNotFoundError) and not missing(error):
            add_note(error, f"while making {id} with {spec.kwargs or 'no arguments'}")
            raise
        cause = f" ({one_line(error.__cause__)})" if error.__cause__ else ""
        what = missing(error) or f"cannot be made: {one_line(error)}{cause}"
        raise MakeError(f"{id} {what}") from error
    except (gymnasium.error.Error, TypeError) as error:
        raise MakeError(f"{id} cannot be made: {one_line(error)}") from error
    except Exception as error:
        if hint := missing(error):
            raise MakeError(f"{id} {hint}") from error
        add_note(error, f"while making {id} with {spec.kwargs or 'no arguments'}")
        raise


def frames_per_step(id: str, action_repeat: int | None) -> int:
    """Simulator frames in one step, known before the environment is made: see ``make_vec``."""
    if action_repeat is not None:
        return action_repeat
    return atari.ACTION_REPEAT if atari.game_of(id) is not None else 1


def _make_one(module: str, spec: Any) -> Any:
    """Make one environment of a spec; in a worker process its module must be imported first."""
    import gymnasium

    if module:
        _import(spec.id, module)
    env: Any = gymnasium.make(spec)
    compat4.put_below_time_limit(env)
    return env


def find_spec(id: str, pools_too: bool) -> Any:
    """A copy of the registered spec of ``id``; the module that the id names is imported first.

    None if gymnasium does not have the id, envpool has it, and ``pools_too`` is true.
    """
    import gymnasium

    module, _, name = id.rpartition(":")
    if module:
        _import(id, module)
    package = next((package for start, package in PACKAGES.items() if name.startswith(start)), None)
    if package and name not in gymnasium.registry and installed(package):
        register(package)
    try:
        return copy.deepcopy(gymnasium.spec(name))
    except gymnasium.error.Error as error:
        if pools_too and external.knows(id):
            return None
        if package and not installed(package):
            raise MakeError(
                f"{id} needs {package}, which is not installed: {pip_install(package)}"
            ) from error
        near = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.5)
        known = f"; near it are {', '.join(near)}" if near else ""
        raise MakeError(
            f"there is no environment {name!r}"
            + (f", also after importing {module!r}" if module else "")
            + f"{known}. An environment of your own is given as module:ID or file.py:ID, where "
            "importing the module registers the id (gymnasium.register)"
            + ("." if installed("envpool") else f"; games need {pip_install('envpool')}")
        ) from error


def _import(id: str, module: str) -> None:
    try:
        if module.endswith(".py"):
            file = Path(module).resolve()
            if not file.is_file():
                raise MakeError(f"there is no file {file}, which the environment {id!r} names")
            import_file(file)
        else:
            import_named(module)
    except ModuleNotFoundError as error:
        if hint := missing(error):
            raise MakeError(f"{id} {hint}") from error
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            add_note(error, f"while importing the module of {id}")
            raise
        raise MakeError(
            f"the module {module!r} of the environment {id!r} is neither in the current directory "
            f"({Path.cwd()}) nor on PYTHONPATH nor installed"
        ) from error


def _vector_entry(id: str, spec: Any, num_envs: int, settings: dict[str, Any]) -> VectorEnvironment:
    import gymnasium

    envs = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point")
    autoreset = envs.metadata.get("autoreset_mode")
    if autoreset != gymnasium.vector.AutoresetMode.NEXT_STEP:
        envs.close()
        raise MakeError(
            f"the vector_entry_point of {id} resets by {autoreset}, but only NEXT_STEP is "
            "supported: set vectorization to sync"
        )
    _log.info("%s: stepped by its own vectorised version, which takes only the first seed", id)
    return external.GymnasiumVectorEnvironment(id, envs, **settings)
