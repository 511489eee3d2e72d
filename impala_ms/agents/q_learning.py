"""Q-learning: the loss of n-step transitions, and a target network.

Input: batches of ``replay/transitions``. Output: new weights, statistics, and the error of each
row, from which the replay makes priorities.
"""

import mindspore as ms
from mindspore import ops

from impala_ms.agents.learner import GradientLearner
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops.vtrace import as_tensor

FIELDS = ("action", "returns", "discounts", "weights")


class QLearner(GradientLearner):
    """DQN, with double Q-learning and importance weights where they are asked for.

    Args:
        policy: ``QNetwork``, or another Cell ``[N, ...] -> [N, A]``, whose weights are learned;
            its ``twin()`` is another one of the same kind.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.

    Source:
        Mnih et al. 2015, Nature 518, algorithm 1; van Hasselt et al. 2016, arXiv:1509.06461,
        equation 4 (double).
    """

    gives_errors = True
    statistics = ("loss_total", "value_mean", "target_mean", "td_error_mean")

    def __init__(self, policy, params, total_env_steps):
        """Make the target network."""
        super().__init__(policy, params, total_env_steps)
        self.double, self.period = params["double"], params["target_period"]
        self.error_clip, self.updates_per_call = params["error_clip"], params["updates_per_call"]
        self.target = policy.twin()
        for parameter in self.target.get_parameters():
            parameter.name = f"target.{parameter.name}"
            parameter.requires_grad = False
        self.target_weights = FlatWeights(self.target.get_parameters())
        self.updates = ms.Parameter(ms.Tensor(0, ms.int32), name="updates", requires_grad=False)
        self.pairs = tuple(
            zip(self.target_weights.parameters, self.weights.parameters, strict=True)
        )
        self.take_over()

    def take_over(self):
        """Let the target network begin with the weights, too."""
        for target, source in self.pairs:
            target.set_data(ms.Tensor(source.asnumpy().copy()))

    def loss(
        self, observation, next_observation, action, returns, discounts, weights, next_mask=None
    ):
        """Loss of a batch.

        Args:
            observation: ``[B, ...]`` as the policy's ``prepare`` returns it; a tuple of these if
                it is structured.
            next_observation: The same, n steps later.
            action: ``[B]`` int32.
            returns: ``[B]`` float32, sums of up to n discounted rewards.
            discounts: ``[B]`` float32, factor of the value of ``next_observation``.
            weights: ``[B]`` float32, importance weights.
            next_mask: ``[B, M]`` bool, the allowed actions at ``next_observation``; or None.

        Returns:
            ``(loss, numbers)``: a scalar, and a tuple of the ``statistics`` and the TD errors
            ``[B]``.
        """
        taken = of_action(self.policy(observation), action)
        bootstrap = self.bootstrap(next_observation, next_mask)
        targets = ops.stop_gradient(returns + discounts * bootstrap)
        errors = targets - taken
        loss = (weights * clipped_square(errors, self.error_clip)).mean()
        numbers = (loss, taken.mean(), targets.mean(), ops.abs(errors).mean(), errors)
        return loss, numbers

    def bootstrap(self, observation, mask):
        """The value of an observation by the target network, ``[B]``."""
        values = self.target(observation)
        chosen = self.policy(observation) if self.double else values
        return best_value(values, chosen, mask, self.distribution)

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
            ops.assign(self.updates, self.updates + 1)
            if self.updates % self.period == 0:
                for target, source in self.pairs:
                    ops.assign(target, source)
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


def of_action(values, action):
    """The value of one action in each row: ``[B, A]``, ``[B]`` -> ``[B]``."""
    action = ops.expand_dims(as_tensor(action, ms.int32), -1)
    return ops.squeeze(ops.gather_elements(as_tensor(values), 1, action), -1)


def best_value(values, chosen, mask, distribution):
    """The value of the best allowed action.

    Args:
        values: ``[B, A]`` float32, of the target network.
        chosen: ``[B, A]`` float32, by which the best action is chosen.
        mask: ``[B, M]`` bool, the allowed actions; or None.
        distribution: Of the actions; it applies the mask.

    Returns:
        ``[B]`` float32; 0 where no action is allowed.
    """
    values, chosen = as_tensor(values), as_tensor(chosen)
    if mask is None:
        return of_action(values, ops.argmax(chosen, -1))
    mask = as_tensor(mask, ms.bool_)
    best = of_action(values, ops.argmax(distribution.mask(chosen, mask), -1))
    return ops.where(mask.any(-1), best, ops.zeros_like(best))


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
