"""Environments for the tests of this folder; importing this registers them."""

import os
import signal

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.fakes import CountingEnv


class SpacesEnv(CountingEnv):
    """CountingEnv with other spaces. It returns ``observe(step)``; ``taken`` holds the actions."""

    def __init__(self, observation_space=None, action_space=None, observe=None, **kwargs):
        super().__init__(**kwargs)
        self.observation_space = observation_space or self.observation_space
        self.action_space = action_space or self.action_space
        self._observe = observe
        self.taken = []

    def step(self, action):
        self.taken.append(action)
        return super().step(action)

    def _observation(self):
        return self._observe(self._step) if self._observe else super()._observation()


STRUCTURED = spaces.Dict(
    [
        ("z", spaces.Box(0, 255, (2, 3), np.uint8)),
        ("mission", spaces.Text(9)),
        ("a", spaces.Discrete(5, start=2)),
        (
            "inner",
            spaces.Tuple(
                [
                    spaces.Text(3),
                    spaces.Box(-1, 1, (), np.float64),
                    spaces.Dict(x=spaces.MultiBinary(3), y=spaces.MultiDiscrete([2, 9])),
                ]
            ),
        ),
    ]
)


def observe_structured(step):
    """An observation that holds the step; its keys are not in the order of the space."""
    return {
        "inner": ("hm", np.float64(step / 8), {"y": np.array([0, step]), "x": np.ones(3, np.int8)}),
        "a": np.int64(2 + step),
        "mission": "go there",
        "z": np.full((2, 3), 100 + step, np.uint8),
    }


class StructuredEnv(SpacesEnv):
    def __init__(self, **kwargs):
        super().__init__(STRUCTURED, observe=observe_structured, **kwargs)


class MaskedEnv(SpacesEnv):
    """Action ``step % n`` is not allowed.

    The mask is in ``mask_in``: the info or the observation. At the end of an episode no action is
    allowed, or with ``at_the_end="missing"`` there is no mask. The info has no mask at step
    ``forgets_at`` of an episode; with ``only_for``, only in the environment with that seed.
    """

    def __init__(
        self,
        action_space=None,
        mask_in="info",
        at_the_end="all",
        forgets_at=None,
        only_for=None,
        size=None,
    ):
        action_space = action_space or spaces.Discrete(3)
        super().__init__(action_space=action_space)
        nvec = getattr(action_space, "nvec", None)
        self._sizes = [action_space.n] if nvec is None else nvec.tolist()
        self._mask_in, self._at_the_end, self._forgets_at = mask_in, at_the_end, forgets_at
        self._size, self._only_for = size, only_for
        if mask_in == "observation":
            mask = spaces.MultiBinary(int(size or sum(self._sizes)))
            self.observation_space = spaces.Dict(count=self.observation_space, action_mask=mask)

    def _mask(self, over):
        parts = [np.arange(n) != self._step % n for n in self._sizes]
        parts = [part & (not over) for part in parts]
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _with_mask(self, observation, over):
        mask = self._mask(over)
        if self._mask_in == "observation":
            return {"action_mask": np.concatenate([mask]).astype(np.int8), "count": observation}, {}
        forgets = self._step == self._forgets_at and self._only_for in (None, self._seed)
        if forgets or (over and self._at_the_end == "missing"):
            return observation, {}
        return observation, {"action_mask": np.ones(self._size) if self._size else mask}

    def reset(self, *, seed=None, options=None):
        self._seed = seed
        observation, _ = super().reset(seed=seed)
        return self._with_mask(observation, False)

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        observation, info = self._with_mask(observation, terminated)
        return observation, reward, terminated, truncated, info


class InfoEnv(SpacesEnv):
    """Returns ``info`` from every step, and ``reset_info`` from reset."""

    def __init__(self, info=None, reset_info=None, **kwargs):
        super().__init__(**kwargs)
        self._info, self._reset_info = info, reset_info

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self._reset_info

    def step(self, action):
        return *super().step(action)[:4], self._info


class LivesEnv(CountingEnv):
    """Episodes of 6 steps with 3 lives, which are lost at the steps 2, 4 and 5."""

    def __init__(self):
        super().__init__(lengths=(6,))

    def _info(self):
        return {"lives": [3, 3, 2, 2, 1, 0, 0][self._step]}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self._info()

    def step(self, action):
        return *super().step(action)[:4], self._info()


class OldCountingEnv(CountingEnv):
    """CountingEnv with the interface of the old gym."""

    def reset(self):
        return super().reset()[0]

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class PickyEnv(SpacesEnv):
    """Refuses an action of another type than the space samples; keeps it and writes into it."""

    def step(self, action):
        sampled = self.action_space.sample()
        if type(action) is not type(sampled) or action.dtype != sampled.dtype:
            raise TypeError(f"{action!r} is not like {sampled!r}")
        if not self.action_space.contains(action) or any(action is old for old in self.taken):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if isinstance(action, np.ndarray):
            action[...] = 1
        return super().step(action)


class DyingEnv(CountingEnv):
    """In the third step the process is killed, raises, exits, or never returns, as ``how`` says.

    ``others`` says it for environments with another seed than 0.
    """

    def __init__(self, how, others=None):
        super().__init__(lengths=(100,))
        self._how, self._others = how, others

    def reset(self, *, seed=None, options=None):
        if seed and self._others:
            self._how = self._others
        return super().reset(seed=seed)

    def step(self, action):
        if self._step == 2:
            if self._how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self._how == "exits":
                os._exit(3)
            elif self._how == "raises":
                raise Unpicklable("no good")
            while self._how == "hangs":
                pass
        return super().step(action)


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


gymnasium.register("SpacesFake-v0", SpacesEnv)
gymnasium.register("Structured-v0", StructuredEnv)
gymnasium.register("Masked-v0", MaskedEnv)
gymnasium.register("Picky-v0", PickyEnv)
for name, entry_point in (("Timed-v0", CountingEnv), ("OldTimed-v0", OldCountingEnv)):
    gymnasium.register(
        name,
        entry_point,
        max_episode_steps=5,
        kwargs={"lengths": (99,)},
        additional_wrappers=(
            gymnasium.wrappers.TimeAwareObservation.wrapper_spec(flatten=True, normalize_time=True),
        ),
    )
gymnasium.register("Info-v0", InfoEnv)
gymnasium.register("Lives-v0", LivesEnv)
gymnasium.register("Dying-v0", DyingEnv)
