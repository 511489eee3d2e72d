"""Work is a gradient: workers play and compute gradients, one parameter server applies them.

Input: on a worker, weights of the server; on the server, gradients of the workers. Output: on a
worker, gradients; on the server, new weights.

    worker   unroll -> loss -> gradient, clipped by its global norm -> one message to the server
    server   gradients_per_update of them, weighted by their valid rows -> one optimiser step
"""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from impala_ms import compat
from impala_ms.agents import build
from impala_ms.agents.checks import check_statistics
from impala_ms.agents.learner import GradientLearner
from impala_ms.classes import resolve
from impala_ms.errors import ConfigError
from impala_ms.roles.acting import Acting
from impala_ms.trajectory import Batches, Layout

TEXT_BYTES = 256  # limit of the text that says what is not finite


class GradientLayout(Layout):
    """Layout of a gradient, with the numbers that the server counts.

    Args:
        spec: ``TrajectorySpec`` of the unroll behind the gradient.
        size: Number of trainable weights.
        statistics: Names of the numbers that describe the loss.
        keeps: Whether the worker keeps its decisions, in a replay of its own.
    """

    def __init__(self, spec, size, statistics, keeps=False):
        """Add the fields of the unroll that the hub reads."""
        self.kept_by_sender, self.size = keeps, size
        self._rest = spec, statistics, keeps
        kept = ("episode_return", "episode_length", "behaviour_version", "env_steps")
        super().__init__(
            {
                "gradient": ((size,), np.dtype(np.float32)),  # clipped
                "statistics": ((len(statistics),), np.dtype(np.float32)),  # means over rows
                "rows": ((), np.dtype(np.int64)),  # decisions that the gradient was made from
                "valid_rows": ((), np.dtype(np.int64)),  # decisions that are new
                "withheld": ((), np.dtype(np.int64)),  # gradients that were not sent before this
                "problem": ((TEXT_BYTES,), np.dtype(np.uint8)),  # text, filled with zeros
            }
            | {name: spec.fields[name] for name in (*kept, "wait_fraction")}
        )

    def of(self, size):
        """The same layout for a gradient of another size."""
        spec, statistics, keeps = self._rest
        return GradientLayout(spec, size, statistics, keeps)

    def valid_rows(self, work):
        """Number of new decisions behind a gradient, or behind a batch of gradients."""
        return int(work["valid_rows"].sum())

    def problem(self, work):
        """Which value in the worker's unroll was not finite, or None."""
        return bytes(work["problem"]).rstrip(b"\0").decode(errors="ignore") or None


class GradientStep(nn.Cell):
    """The gradient of a learner's loss, as one compiled graph.

    Args:
        learner: ``GradientLearner``.
    """

    def __init__(self, learner):
        super().__init__(auto_prefix=False)  # parameters keep their names
        self.learner = learner

    def construct(self, *tensors):
        """Compute the gradient and the statistics of a batch.

        Args:
            *tensors: Those of ``learner.tensors``.

        Returns:
            ``(gradient [size], statistics and norm before clipping [K + 1])`` float32.
        """
        arguments = self.learner.arguments(tensors)
        gradients, norm, statistics = self.learner.clipped_gradient(arguments)
        if self.learner.gives_errors:
            statistics = statistics[:-1]
        flat = ()
        for gradient in gradients:
            flat += (gradient.reshape((-1,)),)
        return ops.concat(flat), ops.stack((*statistics, norm))


class Working(Acting):
    """The loop of a worker: it plays as an actor, and sends the gradient of its unroll.

    Args: those of ``Acting``; ``parts`` also has ``learner`` and ``spec``.
    """

    def __init__(self, parts, params):
        super().__init__(parts, params)
        self.spec, self.learner = parts.spec, parts.learner
        self.step = GradientStep(parts.learner)
        _, self.unroll = parts.spec.empty()
        self.batch = {name: values[None] for name, values in self.unroll.items()}

    def work(self, fields):
        """Play an unroll and put its gradient into the fields of a message."""
        self.actor.play(self.unroll)
        problem, rows = self.spec.problem(self.unroll), self.spec.valid_rows(self.unroll)
        for name in fields.keys() & self.unroll.keys():
            fields[name][...] = self.unroll[name]
        self.count(fields, rows, problem)
        if not problem:
            fields["rows"][...] = rows
            fields["gradient"][...], fields["statistics"][...] = self.gradient_of(self.batch)
        return True

    def count(self, fields, new, problem, withheld=0):
        """Begin a message: its new decisions, and what is not finite in them, or None."""
        text = (problem or "").encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        fields["problem"][...] = np.frombuffer(text, np.uint8)
        fields["valid_rows"][...], fields["withheld"][...] = new, withheld
        for name in ("gradient", "statistics", "rows"):
            fields[name][...] = 0

    def gradient_of(self, batch):
        """``(gradient [size], statistics and norm [K + 1])``."""
        gradient, statistics = (made.asnumpy() for made in self.step(*self.learner.tensors(batch)))
        check_statistics(self.learner, len(statistics) - 1)
        return gradient, statistics

    def begin(self):
        """Compile the gradient; weights are not needed for that."""
        self.step.compile(*self.learner.tensors(self.batch))


class WorkerTrainer(compat.Trainer):
    """MindSpore RL's trainer for a worker."""

    loop_type = Working


class GradientServer(GradientLearner):
    """Applies gradients. The optimiser's statistics are here, shared by all workers.

    Args:
        policy: Network whose weights are learned.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.
        described_by: Has ``statistics`` and ``columns``, which are reported.

    Source:
        Mnih et al. 2016, arXiv:1602.01783, section 4, "Optimization" (shared RMSProp).
    """

    def __init__(self, policy, params, total_env_steps, described_by):
        """Give each parameter its range in a gradient."""
        super().__init__(policy, params, total_env_steps)
        self.statistics, self.columns = described_by.statistics, described_by.columns
        self.mean = params.get("loss_reduction", "mean") == "mean"
        names = (*self.statistics, "gradient_norm")
        self.summed = np.array([name.startswith("loss") for name in names])  # like the gradients
        self.shapes = tuple(tuple(parameter.shape) for parameter in self.optimizer.parameters)
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes]).tolist()
        self.ends, self.begins = tuple(ends), (0, *ends[:-1])
        self.size = ends[-1]
        self.is_flat = self.shapes == ((self.size,),)

    def construct(self, lr, new, shares, gradients, described):
        """Make one update; if the gradient is not finite, the weights do not change.

        Args:
            lr: Scalar float32.
            new: Not used: a gradient is applied only once.
            shares: ``[G]`` float32, factor of each gradient.
            gradients: ``[G, size]`` float32.
            described: ``[K + 1]`` float32, the statistics of all gradients together.

        Returns:
            ``[K + 2]`` float32: these statistics, then whether the gradient was applied.
        """
        flat = (ops.expand_dims(shares, -1) * gradients).sum(0)
        finite = ops.isfinite(ops.square(flat).sum() + described[0])
        if finite:
            ops.assign(self.optimizer.learning_rate, lr)
            parts = (flat,)
            if not self.is_flat:
                parts = ()
                for i in range(len(self.shapes)):
                    parts += (flat[self.begins[i] : self.ends[i]].reshape(self.shapes[i]),)
            self.optimizer(parts)
        return ops.concat((described, finite.astype(ms.float32).reshape((1,))))

    def tensors(self, batch):
        """Shares, gradients and statistics of a batch."""
        rows = batch["rows"].astype(np.float32)
        means = rows / max(rows.sum(), 1.0)
        # For a mean loss, the gradient of the mean over all rows; for a sum, the sum of gradients.
        shares = means if self.mean else np.ones_like(rows)
        weights = np.where(self.summed, shares[:, None], means[:, None])
        described = (weights * batch["statistics"]).sum(0)
        arrays = shares, batch["gradient"], described
        return [ms.Tensor.from_numpy(array) for array in arrays]


class Gradients:
    """Makes workers and a parameter server.

    Args:
        config: ``Config``.

    Attributes:
        name: Of what travels, in the logs.
        is_answered: A worker goes on only with weights that contain its own gradient, so that the
            policy lag grows with the number of workers and not of buffers.
        per_update: Gradients in one update.
        in_flight: Number of buffers of a worker.
        needed: With fewer workers an update never gets all its gradients, since each worker has
            only one gradient under way.
        learner_cores: See ``Unrolls``.
        keeps: Whether workers keep their decisions, in replays of their own.
    """

    name = "gradients"
    keeps = False
    is_answered = True
    in_flight = 1
    learner_cores = 0
    trainer_type = WorkerTrainer

    def __init__(self, config):
        self.config = config
        self.learner_type = resolve(config.algorithm_config["learner"]["type"])
        if not hasattr(self.learner_type, "statistics"):
            raise ConfigError(
                f"the learner {config.algorithm_config['learner']['type']} has no statistics: "
                "where workers compute gradients it is a subclass of GradientLearner"
            )
        self.per_update = self.needed = config.trainer_params.get("gradients_per_update", 1)
        self.statistics, self.columns = self.learner_type.statistics, self.learner_type.columns

    def recorded(self, policy):
        """Further arguments of ``TrajectorySpec``."""
        return {}

    def store(self, layout):
        """Where the server takes its gradients from."""
        return Batches(layout, self.per_update)

    def acting(self, spec, policy, parts):
        """``(layout of the messages, trainer of a worker)``."""
        parts.spec = spec
        parts.learner = build.make_learner(self.config, policy)
        if parts.learner.statistics != self.learner_type.statistics:
            raise ConfigError(
                f"the learner {self.learner_type.__name__} changes statistics in its constructor: "
                "the server, which makes none, reads them in the class"
            )
        self.equip(spec, parts)
        trainer = self.trainer_type(parts, self.config.trainer_params)
        trainer.loop.begin()
        return self.layout(spec, policy), trainer

    def learning(self, spec, policy):
        """``(layout of the messages, learner)``."""
        return self.layout(spec, policy), GradientServer(policy, *self.of_servers())

    def of_servers(self):
        """The arguments of every ``GradientServer`` after the network."""
        config = self.config
        return config.learner_params, config.trainer_params["total_env_steps"], self

    def equip(self, spec, parts):
        """Give a worker further parts; for other kinds of workers."""

    def row(self, recorder, dropped, withheld):
        """Further columns of a row; so much work was dropped, or not sent, since the last one."""
        return {"gradients_dropped": dropped}

    def layout(self, spec, policy):
        """The layout of a message."""
        size = sum(parameter.size for parameter in policy.trainable_params())
        return GradientLayout(spec, size, (*self.statistics, "gradient_norm"), self.keeps)
