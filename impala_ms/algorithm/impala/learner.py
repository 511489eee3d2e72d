"""Learn: one compiled step from a batch of unrolls to new weights.

Input: batches of ``trajectory``, assembled by ``trainer``. Output: new weights and the numbers
of the step. The mathematics is in ``ops/losses.py`` and ``ops/vtrace.py``.
"""

import math

import mindspore as ms
from mindspore import nn, ops

from impala_ms import compat
from impala_ms.algorithm.impala.checks import check_outputs
from impala_ms.algorithm.impala.network import time_major
from impala_ms.nets.rmsprop import RMSProp
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops import losses
from impala_ms.ops.vtrace import clip_ratios
from impala_ms.trajectory import stack_places

INPUTS = ("action", "reward", "terminated", "first", "behaviour_logits")
STATISTICS = (
    "loss_total",
    "loss_policy_gradient",
    "loss_baseline",
    "loss_entropy",
    "entropy",
    "rho_mean",
    "rho_clipped_fraction",
    "gradient_norm",
    "vs_mean",
    "explained_variance",
)


class IMPALALearner(compat.Learner):
    """The update of section 4 of the paper as one compiled graph.

    Args:
        policy: Network whose weights are learned.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.
    """

    def __init__(self, policy, params, total_env_steps):
        """Make the optimiser; nothing is compiled yet."""
        super().__init__()
        self.policy = policy
        self.distribution = policy.distribution
        self.total_env_steps = total_env_steps
        self.lr, self.lr_schedule = params["lr"], params["lr_schedule"]
        self.gamma = params["gamma"]
        self.correction = params["correction"]
        self.epsilon = params["epsilon"] if self.correction == "epsilon" else None
        self.rho_bar, self.c_bar = params["rho_bar"], params["c_bar"]
        self.pg_rho_bar, self.lambda_ = params["pg_rho_bar"], params["lambda_"]
        self.baseline_cost, self.entropy_cost = params["baseline_cost"], params["entropy_cost"]
        self.mean = params["loss_reduction"] == "mean"
        self.reward_clip, self.reward_scale = params["reward_clip"], params["reward_scale"]
        self.max_grad_norm = params["max_grad_norm"] or math.inf
        self.optimizer = make_optimizer(policy.trainable_params(), params)
        self.weights = FlatWeights(policy.get_parameters())
        # what the policy and its distribution ask for beside INPUTS
        before = ("last_action", "last_reward", "core_state")
        self.policy_inputs = policy.inputs
        self.state_size = int(policy.state_size)
        self.counts_observations = getattr(policy, "normalizer", None) is not None
        self.extra = tuple(name for name in before if name in self.policy_inputs)
        self.parts = 0  # of a structured observation
        self.stacks = False  # whether an observation is a stack of frames
        self._gradient = ms.value_and_grad(self.loss, None, self.optimizer.parameters, has_aux=True)
        self.set_train()

    def loss(
        self, observation, action, reward, terminated, first, behaviour_logits, before=(), mask=None
    ):
        """Total loss of a batch and the numbers that describe it.

        Args:
            observation: ``[S, T+1, E, ...]`` as the policy's ``prepare`` returns it; a tuple of
                these if the observation is structured.
            action: ``[S, T, E, ...]`` int32 or float32.
            reward: ``[S, T, E]`` float32, raw.
            terminated: ``[S, T, E]`` bool.
            first: ``[S, T+1, E]`` bool.
            behaviour_logits: ``[S, T, E, A]`` float32.
            before: ``[S, E, ...]`` each, the policy's inputs of row 0 (``extra``, in that order).
            mask: ``[S, T, E, M]`` bool, actions allowed; or None.

        Returns:
            ``(loss, statistics)``: scalar float32 and a tuple of scalars, in the order of
            ``STATISTICS`` without ``gradient_norm``.
        """
        logits, values = self.forward(observation, action, reward, first, before)
        action, reward = time_major(action), time_major(reward)
        terminated, first = time_major(terminated), time_major(first)
        behaviour_logits = time_major(behaviour_logits)

        logits, bootstrap_value, values = logits[:-1], values[-1], values[:-1]
        if mask is not None:
            logits = self.distribution.mask(logits, time_major(mask))
        reset = first[1:]
        valid = 1.0 - reset.astype(ms.float32)
        rows_used = ops.maximum(valid.sum(), ms.Tensor(1.0, ms.float32))
        log_probs = self.distribution.log_prob(logits, action)
        log_rhos = ops.stop_gradient(
            log_probs - self.distribution.log_prob(behaviour_logits, action)
        )
        vs, advantages = losses.targets(
            self.correction,
            log_rhos,
            reset,
            self.gamma * (1.0 - terminated.astype(ms.float32)),
            self.reward_scale * losses.clip_rewards(reward, self.reward_clip),
            values,
            bootstrap_value,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
            pg_rho_bar=self.pg_rho_bar,
            lambda_=self.lambda_,
        )
        scale = 1.0 / rows_used if self.mean else ms.Tensor(1.0, ms.float32)
        entropies = self.distribution.entropy(logits)
        policy_gradient = scale * losses.policy_gradient_loss(log_probs, advantages, self.epsilon)
        baseline = scale * self.baseline_cost * losses.baseline_loss(values, vs, valid)
        entropy = scale * self.entropy_cost * losses.entropy_loss(entropies, valid)
        total = policy_gradient + baseline + entropy

        rhos = clip_ratios(log_rhos, None) * valid
        clip_at = math.inf if self.rho_bar is None else self.rho_bar
        clipped = (rhos > clip_at).astype(ms.float32).sum() / rows_used
        vs_mean = (vs * valid).sum() / rows_used
        variance = (ops.square(vs - vs_mean) * valid).sum()
        errors = vs - values
        errors_mean = (errors * valid).sum() / rows_used
        unexplained = (ops.square(errors - errors_mean) * valid).sum()
        return total, (
            total,
            policy_gradient,
            baseline,
            entropy,
            (entropies * valid).sum() / rows_used,
            rhos.sum() / rows_used,
            clipped,
            vs_mean,
            1.0 - unexplained / (variance + 1e-8),
        )

    def forward(self, observation, action, reward, first, before=()):
        """The policy at all T + 1 rows: ``(logits [T+1, B, A], values [T+1, B])``, B = S E."""
        flat = rows_of(observation)
        if self.policy_inputs:
            outputs = self.policy(flat, self.inputs_of_rows(action, reward, first, before))
        else:
            outputs = self.policy(flat)
        unrolls, rows, envs = first.shape
        state_shape = (unrolls, envs, self.state_size)
        width = self.distribution.num_parameters
        check_outputs(outputs, unrolls * rows * envs, width, state_shape)
        logits, values = outputs[0], outputs[1]
        logits = logits.reshape((*first.shape, logits.shape[-1]))
        return time_major(logits), time_major(values.reshape(first.shape))

    def inputs_of_rows(self, action, reward, first, before):
        """What the policy reads beside observations at all T + 1 rows, in its own order."""
        inputs = ()
        for name in self.policy_inputs:
            if name == "first":
                inputs += (first,)
            elif name == "core_state":
                inputs += (before[self.extra.index(name)],)
            else:
                values = action if name == "last_action" else reward
                start = ops.expand_dims(before[self.extra.index(name)], 1)
                values = ops.concat((start, values), 1)
                begun = first.reshape((*first.shape, *[1] * (values.ndim - 3)))
                values = ops.where(begun, ops.zeros_like(values), values)
                inputs += (values.reshape((-1, *values.shape[3:])),)
        return inputs

    def construct(self, lr, new, *tensors):
        """One update; with a loss or gradient that is not finite the weights stay.

        Args:
            lr: Scalar float32.
            new: Scalar float32, 1 for a batch that is learned from for the first time, else 0.
            *tensors: Of ``tensors``. Not as tuples: compiled code takes a tuple of tensors for a
                constant and would be compiled again for every batch.

        Returns:
            ``[len(STATISTICS)]`` float32.
        """
        arguments = self.arguments(tensors)
        (_, statistics), gradients = self._gradient(*arguments)
        squares = ms.Tensor(0.0, ms.float32)
        for gradient in gradients:
            squares = squares + ops.square(gradient).sum()
        norm = ops.sqrt(squares)
        scale = ops.minimum(self.max_grad_norm / (norm + 1e-12), ms.Tensor(1.0, ms.float32))
        if ops.isfinite(norm + statistics[0]):
            ops.assign(self.optimizer.learning_rate, lr)
            scaled = ()
            for gradient in gradients:
                scaled += (gradient * scale,)
            self.optimizer(scaled)
            if self.counts_observations:
                first = arguments[4]
                # the last row is the first one of the next unroll, and counted there
                weight = new * ops.ones_like(first[:, 1:].astype(ms.float32))
                weight = ops.concat((weight, 0.0 * weight[:, :1]), 1).reshape((-1,))
                self.policy.count_observations(rows_of(arguments[0]), weight)
        return ops.stack((*statistics[:7], norm, *statistics[7:]))

    def learning_rate(self, env_steps):
        """The learning rate after so many environment steps have been learned from."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * max(0.0, 1.0 - env_steps / self.total_env_steps)

    def learn(self, experience, env_steps=0, new=True):
        """Update the weights from a batch.

        Args:
            experience: ``{field: [S, ...]}``, contiguous; not written to before this returns.
            env_steps: Environment steps learned from so far, for the schedule.
            new: Whether the batch is learned from for the first time; a replayed one is not
                counted in the statistics of observations again.

        Returns:
            ``{name: float}`` of ``STATISTICS`` and ``learning_rate``.
        """
        lr = self.learning_rate(env_steps)
        scalars = ms.Tensor(lr, ms.float32), ms.Tensor(float(new), ms.float32)
        values = self(*scalars, *self.tensors(experience)).asnumpy()
        statistics = dict(zip(STATISTICS, values.tolist(), strict=True))
        return statistics | {"learning_rate": lr}

    def tensors(self, batch):
        """The batch as tensors that may share its memory, in the order that ``arguments`` takes."""
        parts = [name for name in batch if name.startswith("observation")]
        self.parts = 0 if parts == ["observation"] else len(parts)
        arrays = [batch[name] for name in parts]
        rows = arrays[0].shape[:3]
        arrays = self.policy.prepare([array.reshape(-1, *array.shape[3:]) for array in arrays])
        arrays = [array.reshape(*rows, *array.shape[1:]) for array in arrays]
        names = [*INPUTS, *self.extra]
        names += ["action_mask"] * ("action_mask" in batch)
        arrays += [batch[name] for name in names]
        frame_stack = rows[1] - batch["action"].shape[1]
        self.stacks = frame_stack > 1
        if self.stacks:
            arrays.insert(1, stack_places(batch["first"], frame_stack))
        return [ms.Tensor.from_numpy(array) for array in arrays]

    def arguments(self, tensors):
        """The arguments of ``loss`` from ``tensors``."""
        begin = self.parts or 1
        observation = tensors[:begin] if self.parts else tensors[0]
        if self.stacks:
            observation, begin = stacked(*tensors[:2]), 2
        end = begin + len(INPUTS)
        before = tensors[end : end + len(self.extra)]
        mask = tensors[end + len(self.extra)] if len(tensors) > end + len(self.extra) else None
        return (observation, *tensors[begin:end], before, mask)

    def named_parameters(self):
        """Weights and the optimiser's state as ``{name: array}``: all that a resumed run needs."""
        return {name: p.asnumpy().copy() for name, p in self.parameters_dict().items()}

    def named_weights(self, flat):
        """Weights of ``FlatWeights`` under their names in a checkpoint, ``{name: array}``."""
        return {parameter.name: values for parameter, values in self.weights.split(flat)}

    def warm_up(self, batch):
        """Compile for batches like this one; no weight changes."""
        scalars = ms.Tensor(self.lr, ms.float32), ms.Tensor(1.0, ms.float32)
        self.compile(*scalars, *self.tensors(batch))


def rows_of(observation):
    """``[S, T+1, E, ...]``, or a tuple of these, as rows ``[S (T+1) E, ...]``."""
    if not isinstance(observation, tuple):
        return observation.reshape((-1, *observation.shape[3:]))
    rows = ()
    for part in observation:
        rows += (part.reshape((-1, *part.shape[3:])),)
    return rows


def stacked(frames, places):
    """Stacks of frames, ``[S, T+1, E, k, ...]``.

    Args:
        frames: ``[S, T+k, E, ...]``.
        places: ``[S, T+1, E, k]`` of ``stack_places``.
    """
    frame = frames.shape[3:]
    stacks = ops.gather(frames.reshape((-1, math.prod(frame))), places.reshape(-1), 0)
    return stacks.reshape((*places.shape, *frame))


def make_optimizer(parameters, params):
    """The optimiser that the configuration names.

    Args:
        parameters: Trainable parameters.
        params: ``learner_params``.

    Returns:
        ``nn.Optimizer`` whose ``learning_rate`` is a parameter, set before each update.
    """
    if params["optimizer"] == "rmsprop":
        return RMSProp(
            parameters,
            params["lr"],
            decay=params["rmsprop_decay"],
            momentum=params["rmsprop_momentum"],
            epsilon=params["optimizer_epsilon"],
        )
    return nn.Adam(
        parameters,
        params["lr"],
        beta1=params["adam_beta1"],
        beta2=params["adam_beta2"],
        eps=params["optimizer_epsilon"],
    )
