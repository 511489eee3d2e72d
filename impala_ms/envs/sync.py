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
from impala_ms.envs.vector import LIVES, Observation, Rows, VectorEnvironment, add_place


class Columns:
    """What environments return of one step, one array a field; each writes into its own row.

    Attributes:
        observation: ``{path: [E, …]}``.
        reward: ``[E]`` float64.
        terminated: ``[E]`` bool.
        truncated: ``[E]`` bool.
        lives: ``[E]`` int64; 0 where nobody asks.
        mask: ``[E, M]`` bool, the action mask.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take arrays as ``fields`` lists them."""
        self.reward, self.terminated, self.truncated, self.lives, self.mask, *observation = (
            arrays.values()
        )
        self.observation = dict(zip(list(arrays)[5:], observation, strict=True))

    @staticmethod
    def fields(
        layout: ObservationLayout, mask_size: int, envs: int
    ) -> dict[str, tuple[tuple[int, ...], DTypeLike]]:
        """``{field: (shape, dtype)}``, the parts of an observation last, by their paths."""
        return {
            " reward": ((envs,), np.float64),
            " terminated": ((envs,), np.bool_),
            " truncated": ((envs,), np.bool_),
            " lives": ((envs,), np.int64),
            " mask": ((envs, mask_size), np.bool_),
        } | {path: ((envs, *leaf.shape), leaf.dtype) for path, leaf in layout.leaves.items()}


class Singles:
    """Some environments of one kind; their rows go into columns as they come.

    Observations are copied at once, so that an environment may write all of them into one array.

    Attributes:
        envs: The environments.
        masked: Whether their infos or observations hold an action mask; None before a reset.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], indices: range, total: int) -> None:
        """Make environments ``indices`` of ``total``."""
        self.envs = [make_one() for _ in indices]
        self.masked: bool | None = None
        self._id, self._begin, self._total = id, indices.start, total
        self._taken = [0] * len(indices)
        self._steps = 0

    def lay_out(self, layout: ObservationLayout, action: ActionLayout, *, lives: bool) -> None:
        """Say how observations and actions look, which the environments themselves told.

        Only with ``lives`` those of an info are read.
        """
        self._layout, self._discrete = layout, action.num_actions > 0
        self._mask_size, self._reads_lives = action.mask_size, lives
        if layout.has_mask:
            self.masked = True
        elif not action.mask_size:
            self.masked = False

    def reset(self, seeds: Sequence[int] | None, columns: Columns) -> None:
        """Begin an episode everywhere."""
        for index in range(len(self.envs)):
            self._reset_one(index, None if seeds is None else seeds[index], columns)

    def step(self, action: NDArray[Any], first: NDArray[np.bool_], columns: Columns) -> None:
        """Step every environment, or reset it where ``first``; all columns are written."""
        self._steps += 1
        columns.reward[:] = 0.0
        columns.terminated[:] = False
        columns.truncated[:] = False
        resets, plain = first.tolist(), self._layout.leaves.get("")
        for index in range(len(self.envs)):
            if resets[index]:
                self._reset_one(index, None, columns)
                continue
            self._taken[index] += 1
            try:
                # As the space samples: a NumPy number of Discrete, else an array, also of shape ().
                choice = action[index] if self._discrete else action[index, ...]
                row = self.envs[index].step(choice)
                if not isinstance(row, (tuple, list)) or len(row) != 5:
                    row = compat4.five_values(row)
                observation, paid, terminated, truncated, info = row
                columns.terminated[index], columns.truncated[index] = terminated, truncated
                columns.reward[index] = (
                    paid if not getattr(paid, "shape", ()) else np.reshape(paid, ())
                )
                if plain is not None:
                    columns.observation[""][index] = plain.check(observation)
                else:
                    self._layout.write(columns.observation, index, observation)
                if info or self.masked:
                    over = bool(terminated or truncated)
                    self._read_info(index, observation, info, over, columns)
            except BaseException as error:
                self._explain(error, index, self._taken[index])
                raise

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _reset_one(self, index: int, seed: int | None, columns: Columns) -> None:
        self._taken[index] = 0
        try:
            observation, info = compat4.reset(self.envs[index], seed)
            self._layout.write(columns.observation, index, observation)
            self._read_info(index, observation, info, False, columns)
        except BaseException as error:
            self._explain(error, index, None)
            raise

    def _read_info(
        self, index: int, observation: Any, info: Any, over: bool, columns: Columns
    ) -> None:
        if self._reads_lives:
            columns.lives[index] = info.get(LIVES, 0)
        if not self._mask_size:
            return
        place, holder = ("observation", observation) if self._layout.has_mask else ("info", info)
        mask = holder.get(MASK) if isinstance(holder, Mapping) else None
        if self.masked is None:
            self.masked = mask is not None
        first = f"that of the first reset (environment {self._begin})"
        if mask is not None:
            columns.mask[index] = joined_mask(mask, self._mask_size)
            if not self.masked:
                raise ValueError(
                    f"the {place} has {MASK!r}, but {first} had none: return it from reset too"
                )
        elif over:
            columns.mask[index] = True  # nobody acts on a final observation
        elif self.masked:
            raise ValueError(
                f"the {place} has no {MASK!r}, but {first} had one: return it from every reset "
                "and step"
            )

    def _explain(self, error: BaseException, index: int, taken: int | None) -> None:
        add_place(error, self._id, self._begin + index, self._total, taken, self._steps)


class ColumnEnvironment(VectorEnvironment):
    """A vector environment whose rows come in ``Columns``.

    The step limit is kept here, over the environments' own flags.
    """

    def _first_rows(
        self, columns: Columns, masked: bool
    ) -> tuple[Observation, Mapping[str, NDArray[Any]]]:
        info = {LIVES: columns.lives} | ({MASK: columns.mask} if masked else {})
        return columns.observation[""] if self._layout.plain else columns.observation, info

    def _rows(self, columns: Columns, masked: bool, first: NDArray[np.bool_]) -> Rows:
        observation, info = self._first_rows(columns, masked)
        truncated = columns.truncated
        if self.step_limit is not None:
            truncated = truncated | (~first & (self._lengths + 1 >= self.step_limit))
        return observation, columns.reward, columns.terminated, truncated, info


class SyncVectorEnvironment(ColumnEnvironment):
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
        self._fields = Columns.fields(self._layout, self._action.mask_size, self.num_envs)

    def close(self) -> None:
        """Close every environment."""
        self._singles.close()

    def _reset_all(
        self, seeds: Sequence[int] | None
    ) -> tuple[Observation, Mapping[str, NDArray[Any]]]:
        columns = self._new_columns()
        self._singles.reset(seeds, columns)
        return self._first_rows(columns, bool(self._singles.masked))

    def _step_all(self, action: NDArray[Any], first: NDArray[np.bool_]) -> Rows:
        columns = self._new_columns()
        self._singles.step(action, first, columns)
        return self._rows(columns, bool(self._singles.masked), first)

    def _new_columns(self) -> Columns:
        return Columns({name: np.zeros(*field) for name, field in self._fields.items()})
