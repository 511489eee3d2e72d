"""A learner of transitions: target networks, several updates in one call, errors of rows.

Input: batches of ``replay/transitions``. Output: new weights, statistics, and the error of each
row, from which the replay makes priorities. A subclass has the loss, as ``agents/q_learning``.
"""

import mindspore as ms
from mindspore import ops

from impala_ms.agents.learner import GradientLearner
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops.vtrace import as_tensor

FIELDS = ("action", "returns", "discounts", "weights")


class TransitionLearner(GradientLearner):
    """A loss of n-step transitions, with a target network that becomes a copy now and then.

    A subclass has ``loss``, whose last number is the TD errors ``[B]``.

    Args:
        policy: A Cell whose weights are learned; its ``twin()`` is another one of the same kind.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.

    Source:
        Mnih et al. 2015, Nature 518, algorithm 1.
    """

    gives_errors = True

    def __init__(self, policy, params, total_env_steps):
        """Make the target network."""
        super().__init__(policy, params, total_env_steps)
        self.period, self.error_clip = params["target_period"], params["error_clip"]
        self.updates_per_call = params.get("updates_per_call", 1)
        self.target_rate = params.get("target_rate", 1.0)
        self.updates = ms.Parameter(ms.Tensor(0, ms.int32), name="updates", requires_grad=False)
        self.target, self.pairs = target_of(policy.twin(), policy, "target")
        self.take_over()

    def take_over(self):
        """Let the target networks begin with the weights, too."""
        for target, source in self.pairs:
            target.set_data(ms.Tensor(source.asnumpy().copy()))

    def target_weights(self):
        """The weights of the target networks, for a worker that is told when to copy them."""
        return FlatWeights([target for target, _ in self.pairs])

    def follow(self):
        """Count an update; now and then the target networks become copies, or move nearer."""
        ops.assign(self.updates, self.updates + 1)
        if self.updates % self.period == 0:
            for target, source in self.pairs:
                moved = source
                if self.target_rate < 1.0:
                    moved = target + self.target_rate * (source - target)
                ops.assign(target, moved)

    def td_loss(self, taken, bootstrap, returns, discounts, weights):
        """The weighted loss of TD errors.

        Args:
            taken: ``[B]`` values of the actions taken.
            bootstrap: ``[B]`` values of the observations n steps later.
            returns: ``[B]`` float32, sums of up to n discounted rewards.
            discounts: ``[B]`` float32, factors of ``bootstrap``.
            weights: ``[B]`` float32, importance weights.

        Returns:
            ``(loss, mean value, mean target, mean size of the errors, errors [B])``.
        """
        targets = ops.stop_gradient(returns + discounts * bootstrap)
        errors = targets - taken
        loss = (weights * clipped_square(errors, self.error_clip)).mean()
        return loss, taken.mean(), targets.mean(), ops.abs(errors).mean(), errors

    def construct(self, lr, new, *tensors):
        """Make ``updates_per_call`` updates.

        Args:
            lr: Scalar float32.
            new: Not used.
            *tensors: Those of ``tensors``.

        Returns:
            The results of ``make_update``, one after the other.
        """
        each = len(tensors) // self.updates_per_call
        made = ()
        for update in range(self.updates_per_call):
            made += (self.make_update(lr, tensors[update * each : (update + 1) * each]),)
        return ops.concat(made)

    def make_update(self, lr, tensors):
        """Make one update; if loss or gradient is not finite, the weights do not change.

        Args:
            lr: Scalar float32.
            tensors: Those of one part of a batch, with B rows.

        Returns:
            ``[K + 2 + B]`` float32: statistics, norm of the gradient, whether it was applied, then
            absolute TD errors.
        """
        gradients, norm, numbers = self.clipped_gradient(self.arguments(tensors))
        finite = ops.isfinite(norm + numbers[0])
        if finite:
            ops.assign(self.optimizer.learning_rate, lr)
            self.optimizer(gradients)
            self.follow()
        described = ops.stack((*numbers[:-1], norm, finite.astype(ms.float32)))
        return ops.concat((described, ops.abs(numbers[-1])))

    def tensors(self, batch):
        """The parts of a batch as tensors that may share its memory, each for ``arguments``."""
        names = [name for name in (*FIELDS, "next_action_mask") if name in batch]
        whole = [*self.prepared(batch, ""), *self.prepared(batch, "next_")]
        whole += [batch[name] for name in names]
        rows = len(batch["returns"]) // self.updates_per_call
        starts = range(0, rows * self.updates_per_call, rows)
        parts = [array[start : start + rows] for start in starts for array in whole]
        return [ms.Tensor.from_numpy(array) for array in parts]

    def prepared(self, batch, prefix):
        """The parts of the observations as the policy wants them."""
        arrays = [batch[name] for name in batch if name.startswith(f"{prefix}observation")]
        if not self.stacks:
            return self.policy.prepare(arrays)
        (stacks,) = arrays
        (frames,) = self.policy.prepare([stacks.reshape((-1, *stacks.shape[2:]))])
        return [frames.reshape((*stacks.shape[:2], *frames.shape[1:]))]

    def arguments(self, tensors):
        """The arguments of ``loss``, from the result of ``tensors``."""
        parts = self.parts or 1
        before, after = tensors[:parts], tensors[parts : 2 * parts]
        if not self.parts:
            before, after = before[0], after[0]
        rest = tensors[2 * parts :]
        mask = rest[4] if len(rest) > 4 else None
        return (before, after, *rest[:4], mask)


def target_of(twin, cell, name):
    """Make of another cell of the same kind its target network, which is not trained.

    Returns:
        ``(twin, pairs)``: pairs of parameters, ``(target, source)``.
    """
    for parameter in twin.get_parameters():
        parameter.name = f"{name}.{parameter.name}"
        parameter.requires_grad = False
    return twin, tuple(zip(twin.get_parameters(), cell.get_parameters(), strict=True))


def clipped_square(errors, limit):
    """Half the square of errors whose derivative is clipped to ``limit``; None does not clip.

    Source:
        Mnih et al. 2015, methods, "Training algorithm" (the clipped error term).
    """
    errors = as_tensor(errors)
    if limit is None:
        return 0.5 * ops.square(errors)
    size = ops.abs(errors)
    inside = ops.minimum(size, ms.Tensor(limit, ms.float32))
    return inside * (size - 0.5 * inside)
