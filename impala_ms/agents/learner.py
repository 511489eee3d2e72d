"""The learner: one compiled step from a batch of unrolls to new weights.

Input: batches of ``trajectory``, filled by the hub. Output: new weights and the statistics of the
step. A subclass has the loss, as in ``agents/actor_critic``.
"""

import math
from typing import ClassVar

import mindspore as ms
import numpy as np
from mindspore import ops

from impala_ms import compat
from impala_ms.agents.checks import check_statistics
from impala_ms.agents.optimizer import make_optimizer
from impala_ms.agents.saved import Saved
from impala_ms.frames import frame_rows
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops.gradients import clipped

INPUTS = ("action", "reward", "terminated", "first", "behaviour_logits")
BEFORE = ("last_action", "last_reward", "core_state")  # fields with values before row 0


class GradientLearner(Saved, compat.Learner):
    """A loss, its gradient clipped by the global norm, and an optimiser, as one compiled graph.

    A subclass has ``loss``, and in ``statistics`` the names of the numbers that it returns.

    Args:
        policy: Network whose weights are learned, made by ``make_policy``.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.
        **options: ``learner.options``; for a learner of your own.

    Attributes:
        statistics: Names of the numbers that ``loss`` returns, the loss first.
        columns: Columns of ``metrics.csv`` that only this learner has,
            ``{name: (unit, meaning)}``.
    """

    statistics = ("loss_total",)
    gives_errors = False  # whether its step also gives the TD error of each row
    updates_per_call = 1  # so many equal parts of a batch are learned from, one after the other
    columns: ClassVar[dict] = {}

    def __init__(self, policy, params, total_env_steps):
        """Make the optimiser; nothing is compiled yet."""
        super().__init__()
        self.policy = policy
        self.distribution = policy.distribution
        self.total_env_steps = total_env_steps
        self.lr, self.lr_schedule = params["lr"], params["lr_schedule"]
        self.max_grad_norm = params["max_grad_norm"] or math.inf
        self.optimizer = make_optimizer(policy.trainable_params(), params)
        self.weights = FlatWeights(policy.get_parameters())
        self.policy_inputs = policy.inputs
        self.before = tuple(name for name in BEFORE if name in self.policy_inputs)
        self.parts = policy.parts  # number of parts of a structured observation, or 0
        self.stacks = policy.frame_stack > 1
        self.counts_observations = getattr(policy, "normalizer", None) is not None
        self._gradient = ms.value_and_grad(self.loss, None, self.optimizer.parameters, has_aux=True)
        self.set_train()

    def loss(
        self, observation, action, reward, terminated, first, behaviour_logits, before=(), mask=None
    ):
        """Loss of a batch and the numbers that describe it.

        Args:
            observation: ``[S, T+1, E, ...]`` as the policy's ``prepare`` returns it; a tuple of
                these if the observation is structured.
            action: ``[S, T, E, ...]`` int32 or float32.
            reward: ``[S, T, E]`` float32, raw.
            terminated: ``[S, T, E]`` bool.
            first: ``[S, T+1, E]`` bool.
            behaviour_logits: ``[S, T, E, A]`` float32.
            before: ``[S, E, ...]`` each, the policy's inputs at row 0 (``self.before``).
            mask: ``[S, T, E, M]`` bool, the allowed actions; or None.

        Returns:
            ``(loss, statistics)``: scalar float32 and a tuple of scalars.
        """
        raise NotImplementedError

    def clipped_gradient(self, arguments):
        """The gradient of a batch, clipped by its global norm over all weights.

        Args:
            arguments: The arguments of ``loss``.

        Returns:
            ``(gradients, norm before clipping, statistics)``: a tuple with a tensor for each
            trainable parameter, a scalar, a tuple of scalars.
        """
        (_, statistics), gradients = self._gradient(*arguments)
        return *clipped(gradients, self.max_grad_norm), statistics

    def construct(self, lr, new, *tensors):
        """Make one update; if loss or gradient is not finite, the weights do not change.

        Args:
            lr: Scalar float32.
            new: ``[S]`` float32, 1 for an unroll that is learned from for the first time, else 0.
            *tensors: Those of ``tensors``. They are not tuples: MindSpore takes a tuple of tensors
                for a constant and would compile again for each batch.

        Returns:
            ``[K + 2]`` float32: statistics, norm of the gradient, whether it was applied.
        """
        arguments = self.arguments(tensors)
        gradients, norm, statistics = self.clipped_gradient(arguments)
        finite = ops.isfinite(norm + statistics[0])
        if finite:
            ops.assign(self.optimizer.learning_rate, lr)
            self.optimizer(gradients)
            if self.counts_observations:
                first = arguments[4]
                # the last row is also the first row of the next unroll, and counted there
                weight = ops.ones_like(first[:, 1:].astype(ms.float32))
                weight = new.reshape((-1, 1, 1)) * weight
                weight = ops.concat((weight, 0.0 * weight[:, :1]), 1).reshape((-1,))
                self.policy.count_observations(rows_of(arguments[0]), weight)
        return ops.stack((*statistics, norm, finite.astype(ms.float32)))

    def learning_rate(self, env_steps):
        """The learning rate after so many environment steps."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * max(0.0, 1.0 - env_steps / self.total_env_steps)

    def learn(self, experience, env_steps=0):
        """Update the weights from a batch.

        Args:
            experience: ``{field: [S, ...]}``, contiguous; it must not change before this returns.
                A field ``new`` is 0 for unrolls that were learned from before: these are not
                counted again in the statistics of observations.
            env_steps: Environment steps learned from so far, for the schedule.

        Returns:
            ``{name: float}`` with ``statistics``, ``gradient_norm`` and ``learning_rate``, means
            over the updates that were applied; and ``applied``, how many of ``updates_per_call``
            these are: the others had a loss or gradient that was not finite. A learner of
            transitions also gives ``errors``, ``[B]``.
        """
        lr = self.learning_rate(env_steps)
        values = self(*self.scalars(lr, experience), *self.tensors(experience)).asnumpy()
        values = values.reshape(self.updates_per_call, -1)
        names = (*self.statistics, "gradient_norm")
        rows = len(experience["returns"]) // len(values) if self.gives_errors else 0
        check_statistics(self, values.shape[1] - rows - 2)
        applied = values[:, len(names)] > 0.0
        means = values[applied if applied.any() else ~applied, : len(names)].mean(0)
        found = dict(zip(names, means.tolist(), strict=True))
        found |= {"applied": int(applied.sum()), "learning_rate": lr}
        return found | {"errors": values[:, len(names) + 1 :].ravel()} if rows else found

    def scalars(self, lr, batch):
        """The first arguments of ``construct``: learning rate, and which unrolls are new."""
        new = batch.get("new")
        if new is None:
            new = np.ones(len(next(iter(batch.values()))), np.float32)
        return ms.Tensor(lr, ms.float32), ms.Tensor.from_numpy(new)

    def tensors(self, batch):
        """The batch as tensors that may share its memory, in the order for ``arguments``."""
        arrays = [batch[name] for name in batch if name.startswith("observation")]
        rows = arrays[0].shape[:3]
        arrays = self.policy.prepare([array.reshape(-1, *array.shape[3:]) for array in arrays])
        arrays = [array.reshape(*rows, *array.shape[1:]) for array in arrays]
        if self.stacks:
            arrays.append(frame_rows(batch["first"], self.policy.frame_stack))
        arrays += [batch[name] for name in (*INPUTS, *self.before)]
        if "action_mask" in batch:
            arrays.append(batch["action_mask"])
        return [ms.Tensor.from_numpy(array) for array in arrays]

    def arguments(self, tensors):
        """The arguments of ``loss``, from the result of ``tensors``."""
        begin = self.parts or 1
        observation = tensors[:begin] if self.parts else tensors[0]
        if self.stacks:
            observation, begin = stacked(*tensors[:2]), 2
        end = begin + len(INPUTS)
        before = tensors[end : end + len(self.before)]
        mask = tensors[end + len(self.before)] if len(tensors) > end + len(self.before) else None
        return (observation, *tensors[begin:end], before, mask)

    def warm_up(self, batch):
        """Compile for batches of this shape; the weights do not change."""
        self.compile(*self.scalars(self.lr, batch), *self.tensors(batch))


def rows_of(observation):
    """Reshape ``[S, T+1, E, ...]``, or a tuple of these, to rows ``[S (T+1) E, ...]``."""
    if not isinstance(observation, tuple):
        return observation.reshape((-1, *observation.shape[3:]))
    rows = ()
    for part in observation:
        rows += (part.reshape((-1, *part.shape[3:])),)
    return rows


def stacked(frames, rows):
    """Make stacks of frames, ``[S, T+1, E, k, ...]``.

    Args:
        frames: ``[S, T+k, E, ...]``.
        rows: ``[S, T+1, E, k]``, from ``frame_rows``.
    """
    frame = frames.shape[3:]
    stacks = ops.gather(frames.reshape((-1, math.prod(frame))), rows.reshape(-1), 0)
    return stacks.reshape((*rows.shape, *frame))
