"""Atari games with the preprocessing of the paper, played by envpool or by ale-py.

Input: an id such as ``ALE/Pong-v5``, ``Pong-v5`` or ``PongNoFrameskip-v4``, which all mean the
same here. Output: a ``VectorEnvironment`` of single frames ``[E, size, size]`` uint8.

A decision is ``action_repeat`` (4) frames with one action. The observation is, for each pixel, the
larger value of the last two frames, in grey, averaged down to 84x84 (``size``). An episode begins
with 1 to ``noop_max`` frames without action. Frames are stacked by the actor, not here.

Source: Espeholt et al. 2018, arXiv:1802.01561, table G.1; Mnih et al. 2015 (Nature 518), methods.
"""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.envs import external
from impala_ms.envs.errors import MakeError
from impala_ms.envs.packages import installed, pip_install, register
from impala_ms.envs.processes import ProcessVectorEnvironment
from impala_ms.envs.sync import SyncVectorEnvironment
from impala_ms.envs.vector import VectorEnvironment

_log = logging.getLogger(__name__)

ACTION_REPEAT = 4  # frames
SMALLEST, LARGEST = 8, 160  # rows and columns; a screen has 160 columns
MOST_FRAMES = 108_000  # in an episode: 30 minutes at 60 frames a second

# The keys that `kwargs` may have, and their defaults.
OPTIONS: dict[str, Any] = {
    "episodic_life": True,  # a lost life is terminal for the learner; the episode goes on
    "noop_max": 30,  # at most so many frames without action at the start
    "repeat_action_probability": 0.0,  # sticky actions, in each frame
    "full_action_space": False,  # all 18 actions instead of those the game uses
    "fire_reset": False,  # press FIRE once at the start
    "size": 84,  # rows and columns of an observation
}
_VECTORIZATIONS = ("auto", "envpool", "sync", "processes")
_ID = re.compile(r"(ALE/(?P<a>\w+)-v5|(?P<n>\w+)NoFrameskip-v4|(?P<p>[A-Z]\w*)-v5)")


def game_of(id: str) -> str | None:
    """The game of an Atari id, such as ``Pong``; None for other ids.

    ``NAME-v5`` is an Atari id only if gymnasium has no such id and envpool or ale-py has the game.
    """
    match = _ID.fullmatch(id.removeprefix("ale_py:"))
    if match is None:
        return None
    game = match["a"] or match["n"]
    if game is None:
        import gymnasium

        if id in gymnasium.registry:
            return None
        return match["p"] if _in_envpool(match["p"]) or _in_ale(match["p"]) else None
    return game


def make(
    id: str,
    game: str,
    *,
    seeds: Sequence[int],
    vectorization: str,
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
    action_repeat: int | None,
    frame_stack: int,
    env_processes: int,
) -> VectorEnvironment:
    """Make the environments of a game; the arguments are those of ``make_vec``.

    Raises:
        MakeError: If no back end is installed, has the game or takes the arguments.
    """
    if vectorization not in _VECTORIZATIONS:
        raise MakeError(f"{id}: vectorization must be one of {', '.join(_VECTORIZATIONS)}")
    options = _check_options(id, kwargs)
    repeat = ACTION_REPEAT if action_repeat is None else action_repeat
    limit = max_episode_steps or math.ceil(MOST_FRAMES / repeat)
    chosen = {"action_repeat": repeat, "step limit": limit} | options
    said = ", ".join(f"{name} {value}" for name, value in chosen.items())
    _log.info("%s: a game with the preprocessing of Atari: %s", id, said)
    settings: dict[str, Any] = {
        "seeds": seeds,
        "step_limit": limit,
        "frames_per_step": repeat,
        "frame_stack": frame_stack,
        "episodic_life": options.pop("episodic_life"),
    }
    if vectorization == "envpool" or (vectorization == "auto" and _in_envpool(game)):
        fire, size = options.pop("fire_reset"), options.pop("size")
        return external.EnvpoolVectorEnvironment(
            id,
            f"{game}-v5",
            options={
                **options,
                "use_fire_reset": fire,
                "img_height": size,
                "img_width": size,
                "frame_skip": repeat,
                "max_episode_steps": limit,
                "stack_num": 1,
                "episodic_life": False,
            },
            observation_shape=(size, size),
            **settings,
        )
    if not _in_ale(game):
        raise MakeError(_missing(id, game))
    _log.info("%s: played by ale-py", id)
    make_one = partial(AleGame, game, action_repeat=repeat, **options)
    if vectorization == "processes":
        return ProcessVectorEnvironment(id, make_one, processes=env_processes, **settings)
    return SyncVectorEnvironment(id, make_one, **settings)


class AleGame:
    """A game played by ale-py, with the interface of a gymnasium environment.

    Args:
        game: Name of the game, such as ``Pong``.
        action_repeat: Frames in one step.
        noop_max: Largest number of frames without action at the start of an episode; at least 1 is
            played.
        repeat_action_probability: Probability, in each frame, that the last action is played again.
        full_action_space: Whether there are all 18 actions.
        fire_reset: Whether FIRE is pressed in the last of the frames at the start.
        size: Rows and columns of an observation.
    """

    def __init__(
        self,
        game: str,
        *,
        action_repeat: int,
        noop_max: int,
        repeat_action_probability: float,
        full_action_space: bool,
        fire_reset: bool,
        size: int,
    ) -> None:
        """Load the game."""
        import gymnasium

        ale_py = register("ale-py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each game
        env: Any = gymnasium.make(
            f"ALE/{game}-v5",
            obs_type="grayscale",
            frameskip=1,  # frames are repeated here, and here only
            repeat_action_probability=repeat_action_probability,
            full_action_space=full_action_space,
            max_num_frames_per_episode=0,  # the vector environment counts, in decisions
        )
        self._env = env.unwrapped
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size), np.uint8)
        self.action_space = self._env.action_space
        height, width = self._env.ale.getScreenDims()
        self._shrink_rows = _shrinking(height, size)
        self._shrink_columns = np.ascontiguousarray(_shrinking(width, size).T)
        self._action_repeat, self._noop_max = action_repeat, noop_max
        self._fire_reset = fire_reset
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[NDArray[np.uint8], dict[str, int]]:
        """Begin an episode; a seed decides the game and the number of frames without action."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._env.reset(seed=seed)
        ale = self._env.ale
        fire = int(self._fire_reset)
        for _ in range(self._rng.integers(1, self._noop_max + 1) - fire):
            ale.act(0)
            if ale.game_over():
                ale.reset_game()
        if fire:
            ale.act(1)
        return self._shrink(ale.getScreenGrayscale()), {"lives": ale.lives()}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, int]]:
        """Play an action for ``action_repeat`` frames, or up to the end of the game."""
        ale, reward = self._env.ale, 0.0
        chosen = self._env._action_set[action]
        before = None
        for frame in range(1, self._action_repeat + 1):
            if frame == self._action_repeat and frame > 1:
                before = ale.getScreenGrayscale()
            reward += ale.act(chosen)
            if ale.game_over():
                break
        screen = ale.getScreenGrayscale()
        if before is not None:
            np.maximum(screen, before, out=screen)
        return self._shrink(screen), reward, bool(ale.game_over()), False, {"lives": ale.lives()}

    def close(self) -> None:
        """Free the game."""
        self._env.close()

    def _shrink(self, screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
        # Sums of integers below 2^24 are exact in float32, in whatever order they are added up.
        shrunk: NDArray[np.float32] = (
            self._shrink_rows @ screen.astype(np.float32) @ self._shrink_columns
        )
        shrunk /= screen.size
        return np.rint(shrunk, out=shrunk).astype(np.uint8)


def _shrinking(before: int, after: int) -> NDArray[np.float32]:
    """``[after, before]`` weights that average areas of pixels (area interpolation).

    A pixel has the weight ``after``. If a border cuts it, each side has a part of that weight,
    rounded to an integer.
    """
    edges = np.linspace(0.0, before, after + 1)
    pixel = np.arange(before)
    share = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    weights: NDArray[np.float32] = np.rint(np.maximum(share * after, 0.0)).astype(np.float32)
    return weights


def _check_options(id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    for key in kwargs:
        if key not in OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise MakeError(f"{id} takes the kwargs {', '.join(OPTIONS)}, not {key!r}{meant}")
    options = OPTIONS | dict(kwargs)
    if type(options["noop_max"]) is not int or options["noop_max"] < 1:
        raise MakeError(f"{id}: noop_max must be an int >= 1, not {options['noop_max']!r}")
    if type(options["size"]) is not int or not SMALLEST <= options["size"] <= LARGEST:
        allowed = f"{SMALLEST} to {LARGEST}"
        raise MakeError(f"{id}: size must be an int of {allowed}, not {options['size']!r}")
    sticky = options["repeat_action_probability"]
    if not isinstance(sticky, (int, float)) or not 0 <= sticky <= 1:
        raise MakeError(f"{id}: repeat_action_probability must lie in [0, 1], not {sticky!r}")
    for key in ("episodic_life", "full_action_space", "fire_reset"):
        if not isinstance(options[key], bool):
            raise MakeError(f"{id}: {key} must be true or false, not {options[key]!r}")
    return options


def _in_envpool(game: str) -> bool:
    if not external.knows(f"{game}-v5"):
        return False
    from envpool.registration import registry

    return bool(registry.specs[f"{game}-v5"][0] == "envpool.atari")


def _ale_games() -> list[str]:
    """The games of ale-py; an empty list if it is not installed."""
    if not installed("ale-py"):
        return []
    import gymnasium

    register("ale-py")
    return [spec.name for spec in gymnasium.registry.values() if spec.namespace == "ALE"]


def _in_ale(game: str) -> bool:
    return game in _ale_games()


def _missing(id: str, game: str) -> str:
    """Why no back end can play the game, and what to do."""
    games = _ale_games()
    if not games:
        wanted = " or ".join(f"`{pip_install(name)}`" for name in ("envpool", "ale-py"))
        here = "ale-py is not installed" + ("" if installed("envpool") else ", nor is envpool")
        return f"{id} is an Atari game, but {here}: {wanted}"
    near = difflib.get_close_matches(game, games, n=3, cutoff=0.5)
    return f"{id}: there is no ROM of a game {game!r}" + (
        f"; near it are {', '.join(near)}" if near else ""
    )
