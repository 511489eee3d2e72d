"""Single environments, stepped one after the other in this process.

Input: a function that makes one environment. Output: a ``VectorEnvironment``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from impala_ms.envs import compat4
from impala_ms.envs.spaces import MASK, ActionLayout, ObservationLayout, joined_mask
from impala_ms.envs.vector import LIVES, Observation, Rows, VectorEnvironment, add_location


class StepArrays:
    """What environments return from one step: an array for each field, a row for each environment.

    Attributes:
        observation: ``{path: [E, …]}``.
        reward: ``[E]`` float64.
        terminated: ``[E]`` bool.
        truncated: ``[E]`` bool.
        lives: ``[E]`` int64; 0 if lives are not read.
        mask: ``[E, M]`` bool, the action mask.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take arrays in the order of ``fields``."""
        self.reward, self.terminated, self.truncated, self.lives, self.mask, *observation = (
            arrays.values()
        )
        self.observation = dict(zip(list(arrays)[5:], observation, strict=True))

    @staticmethod
    def fields(
        layout: ObservationLayout, mask_size: int, envs: int
    ) -> dict[str, tuple[tuple[int, ...], DTypeLike]]:
        """``{field: (shape, dtype)}``; the parts of an observation come last, by their paths."""
        return {
            " reward": ((envs,), np.float64),
            " terminated": ((envs,), np.bool_),
            " truncated": ((envs,), np.bool_),
            " lives": ((envs,), np.int64),
            " mask": ((envs, mask_size), np.bool_),
        } | {path: ((envs, *leaf.shape), leaf.dtype) for path, leaf in layout.leaves.items()}


class Singles:
    """Some environments of one kind, stepped one after the other; rows are copied at once.

    So an environment may write all its observations into one array.

    Attributes:
        envs: The environments.
        masked: Whether their infos or observations hold an action mask; None: not known before
            the first reset.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], indices: range, total: int) -> None:
        """Make the environments with these indices, out of ``total``."""
        self.envs = [make_one() for _ in indices]
        self.masked: bool | None = None
        self._id, self._begin, self._total = id, indices.start, total
        self._taken = [0] * len(indices)
        self._steps = 0

    def lay_out(self, layout: ObservationLayout, action: ActionLayout, *, lives: bool) -> None:
        """Set the layouts, which are made from the spaces of these environments.

        The lives in an info are read only if ``lives`` is true.
        """
        self._layout, self._discrete = layout, action.num_actions > 0
        self._mask_size, self._reads_lives = action.mask_size, lives
        if layout.has_mask:
            self.masked = True
        elif not action.mask_size:
            self.masked = False

    def reset(self, seeds: Sequence[int] | None, arrays: StepArrays) -> None:
        """Begin an episode in every environment."""
        for index in range(len(self.envs)):
            self._reset_one(index, None if seeds is None else seeds[index], arrays)

    def step(self, action: NDArray[Any], first: NDArray[np.bool_], arrays: StepArrays) -> None:
        """Step every environment, or reset it where ``first``; every row is written."""
        self._steps += 1
        arrays.reward[:] = 0.0
        arrays.terminated[:] = False
        arrays.truncated[:] = False
        resets, plain = first.tolist(), self._layout.leaves.get("")
        for index in range(len(self.envs)):
            if resets[index]:
                self._reset_one(index, None, arrays)
                continue
            self._taken[index] += 1
            try:
                # As the space samples: a NumPy scalar for Discrete, otherwise an array.
                choice = action[index] if self._discrete else action[index, ...]
                row = self.envs[index].step(choice)
                if not isinstance(row, (tuple, list)) or len(row) != 5:
                    row = compat4.five_values(row)
                observation, paid, terminated, truncated, info = row
                arrays.terminated[index], arrays.truncated[index] = terminated, truncated
                arrays.reward[index] = (
                    paid if not getattr(paid, "shape", ()) else np.reshape(paid, ())
                )
                if plain is not None:
                    arrays.observation[""][index] = plain.check(observation)
                else:
                    self._layout.write(arrays.observation, index, observation)
                if info or self.masked:
                    over = bool(terminated or truncated)
                    self._read_info(index, observation, info, over, arrays)
            except BaseException as error:
                self._explain(error, index, self._taken[index])
                raise

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _reset_one(self, index: int, seed: int | None, arrays: StepArrays) -> None:
        self._taken[index] = 0
        try:
            observation, info = compat4.reset(self.envs[index], seed)
            self._layout.write(arrays.observation, index, observation)
            self._read_info(index, observation, info, False, arrays)
        except BaseException as error:
            self._explain(error, index, None)
            raise

    def _read_info(
        self, index: int, observation: Any, info: Any, over: bool, arrays: StepArrays
    ) -> None:
        if self._reads_lives:
            arrays.lives[index] = info.get(LIVES, 0)
        if not self._mask_size:
            return
        name, holder = ("observation", observation) if self._layout.has_mask else ("info", info)
        mask = holder.get(MASK) if isinstance(holder, Mapping) else None
        if self.masked is None:
            self.masked = mask is not None
        first = f"that of the first reset (environment {self._begin})"
        if mask is not None:
            arrays.mask[index] = joined_mask(mask, self._mask_size)
            if not self.masked:
                raise ValueError(
                    f"the {name} has {MASK!r}, but {first} had none: return it from reset too"
                )
        elif over:
            arrays.mask[index] = True  # nobody acts on a final observation
        elif self.masked:
            raise ValueError(
                f"the {name} has no {MASK!r}, but {first} had one: return it from every reset "
                "and step"
            )

    def _explain(self, error: BaseException, index: int, taken: int | None) -> None:
        add_location(error, self._id, self._begin + index, self._total, taken, self._steps)


class SinglesEnvironment(VectorEnvironment):
    """A vector environment made of single environments; their rows come in ``StepArrays``.

    The step limit is applied here, in addition to the environments' own flags.
    """

    def _first_rows(
        self, arrays: StepArrays, masked: bool
    ) -> tuple[Observation, Mapping[str, NDArray[Any]]]:
        info = {LIVES: arrays.lives} | ({MASK: arrays.mask} if masked else {})
        return arrays.observation[""] if self._layout.plain else arrays.observation, info

    def _rows(self, arrays: StepArrays, masked: bool, first: NDArray[np.bool_]) -> Rows:
        observation, info = self._first_rows(arrays, masked)
        truncated = arrays.truncated
        if self.step_limit is not None:
            truncated = truncated | (~first & (self._lengths + 1 >= self.step_limit))
        return observation, arrays.reward, arrays.terminated, truncated, info


class SyncVectorEnvironment(SinglesEnvironment):
    """Single environments stepped one after the other."""

    def __init__(
        self, id: str, make_one: Callable[[], Any], *, seeds: Sequence[int], **settings: Any
    ) -> None:
        """Make one environment for each seed by calling ``make_one``."""
        self._singles = Singles(id, make_one, range(len(seeds)), len(seeds))
        self._envs = self._singles.envs
        super().__init__(
            id,
            observation_space=self._envs[0].observation_space,
            action_space=self._envs[0].action_space,
            seeds=seeds,
            **settings,
        )
        self._singles.lay_out(self._layout, self._action, lives=self._episodic_life)
        self._fields = StepArrays.fields(self._layout, self._action.mask_size, self.num_envs)

    def close(self) -> None:
        """Close every environment."""
        self._singles.close()

    def _reset_all(
        self, seeds: Sequence[int] | None
    ) -> tuple[Observation, Mapping[str, NDArray[Any]]]:
        arrays = self._new_arrays()
        self._singles.reset(seeds, arrays)
        return self._first_rows(arrays, bool(self._singles.masked))

    def _step_all(self, action: NDArray[Any], first: NDArray[np.bool_]) -> Rows:
        arrays = self._new_arrays()
        self._singles.step(action, first, arrays)
        return self._rows(arrays, bool(self._singles.masked), first)

    def _new_arrays(self) -> StepArrays:
        return StepArrays({name: np.zeros(*field) for name, field in self._fields.items()})
