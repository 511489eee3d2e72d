"""Work is a gradient of a Q-learner: each worker has a replay of its own, and learns from that.

Input: on a worker, weights of the server; on the server, gradients of the workers. Output: on a
worker, gradients; on the server, new weights.

    worker   unroll -> own replay -> transitions -> loss -> gradient -> one message to the server
             a gradient whose loss is an outlier is not sent
    server   as in ``roles/gradients``: one optimiser step for each gradient
"""

import math
from collections import deque

from impala_ms.cluster.place import ranks_here
from impala_ms.cluster.pulling import PulledReplay, batch_layout, described
from impala_ms.roles.gradients import WorkerTrainer, Working
from impala_ms.roles.replaying import ReplayedUnrolls
from impala_ms.roles.shares import SharedGradients
from impala_ms.trajectory import Batches

WARM_UP = 100  # losses before the first one can be an outlier
DECAY = 0.99  # of the running mean and variance of losses
FLOOR = 0.01  # of the deviation, as a part of the mean
REPLAY_COLUMNS = ("replay_age_mean", "replay_rows")  # as ``TransitionReplay.columns`` has them


class Outliers:
    """Which losses are far above those before them.

    Args:
        sigma: A loss is an outlier if it is more than this many standard deviations above the
            running mean. None: none is.

    Source:
        Nair et al. 2015, arXiv:1507.04296, on stability.
    """

    def __init__(self, sigma):
        self.sigma = math.inf if sigma is None else sigma
        self.seen, self.mean, self.variance = 0, 0.0, 0.0

    def __call__(self, loss):
        """Whether a loss is an outlier; it counts in the mean from now on in any case.

        So a lasting change of the loss does not keep a worker out for ever.
        """
        size = abs(loss)
        if not math.isfinite(size):  # the server skips such a gradient, and counts it
            return False
        deviation = max(math.sqrt(self.variance), FLOOR * self.mean)
        far = self.seen >= WARM_UP and size > self.mean + self.sigma * deviation
        self.seen += 1
        share = max(1.0 / self.seen, 1.0 - DECAY)  # at first a plain mean
        difference = size - self.mean
        self.mean += share * difference
        self.variance = (1.0 - share) * (self.variance + share * difference**2)
        return far


class Bundling(Working):
    """The loop of a worker that is actor, replay and learner.

    Args: those of ``Working``; ``parts`` also has ``replay`` and ``outliers``.
    """

    def __init__(self, parts, params):
        super().__init__(parts, params)
        self.replay, self.outliers = parts.replay, parts.outliers
        self.batch = self.replay.example()
        self.target = self.learner.target_weights()
        self.copied = None  # which target network it has, counted in periods
        self.new_rows = self.withheld = 0  # since the last message
        self.episodes = deque()  # (return, length)

    def work(self, fields):
        """Put a gradient into the fields of a message; False if there is none to be sent."""
        if not self.replay.is_due():
            return self.fill(fields)
        self.follow_target()
        batch = self.replay.take(0.0)
        gradient, statistics = self.gradient_of(batch)
        columns = self.replay.columns()
        ages = [columns[name] for name in REPLAY_COLUMNS]
        reported = [*statistics[:-1], *ages, statistics[-1]]
        self.replay.give_back(batch)
        if self.outliers(float(statistics[0])):
            self.withheld += 1
            return False
        self.report(fields, self.new_rows)
        self.new_rows = 0
        fields["gradient"][...], fields["statistics"][...] = gradient, reported
        fields["rows"][...] = len(batch["returns"])
        return True

    def fill(self, fields):
        """Play until a gradient is due: the next turn makes it, with newer weights.

        An unroll with a value that is not finite is reported at once, and is not kept.

        Returns:
            Whether there is such a report in the fields.
        """
        while not (self.replay.is_due() or self.spoke.drain()):
            self.actor.play(self.unroll)
            rows = self.spec.valid_rows(self.unroll)
            if problem := self.spec.problem(self.unroll):
                self.report(fields, rows, problem)
                return True
            ended = self.unroll["episode_length"] > 0
            found = (self.unroll[f"episode_{name}"][ended] for name in ("return", "length"))
            self.episodes.extend(zip(*found, strict=True))
            self.replay.add(self.unroll)
            self.new_rows += rows
            if not self.spoke.transport.concurrent:  # N = 1: the server looks for a stop
                break
        return False

    def follow_target(self):
        """Make the target network a copy of the weights when a new period has begun."""
        period = self.actor.version // self.learner.period
        if period != self.copied:
            self.copied = period
            self.target.write(self.actor.weights.read())

    def report(self, fields, rows, problem=None):
        """Begin a message: so many new decisions, and what has happened since the last one."""
        self.count(fields, rows, problem, self.withheld)
        self.withheld = 0
        fields["behaviour_version"][...] = self.actor.version
        fields["env_steps"][...] = self.actor.env_steps
        fields["wait_fraction"][...] = self.unroll["wait_fraction"]
        returns, lengths = fields["episode_return"].ravel(), fields["episode_length"].ravel()
        lengths[...] = 0
        told = 0 if problem else min(len(lengths), len(self.episodes))
        for i in range(told):
            returns[i], lengths[i] = self.episodes.popleft()


class BundleTrainer(WorkerTrainer):
    """MindSpore RL's trainer for a worker with a replay."""

    loop_type = Bundling


class Gathered(Batches):
    """Gradients at the server, whose decisions are in the replays of the workers.

    Args:
        layout, unrolls: Those of ``Batches``.
        start: Gradients are made when so many decisions are in a replay.
        is_global: Whether there is one replay for all workers.
    """

    def __init__(self, layout, unrolls, start, is_global):
        super().__init__(layout, unrolls)
        self.start, self.is_global = start, is_global

    def notes(self, resumed):
        """Lines for the start of a run."""
        if not resumed:
            return []
        what = "the replays are not in checkpoints: each worker fills its own with"
        if self.is_global:
            what = "the replay is not in checkpoints: it is filled with"
        return [f"{what} {self.start:,} decisions again before learning goes on"]

    def waits_for(self):
        """What is missing for a batch, beside what usually is."""
        who = "the workers together" if self.is_global else "each worker"
        return "" if self.completed else f"gradients: {who} must play {self.start:,} steps first"


class Bundles(SharedGradients):
    """Makes workers that bundle actor, replay and learner, and a parameter server.

    Args:
        config: ``Config``.
    """

    keeps = True
    trainer_type = BundleTrainer

    def __init__(self, config):
        super().__init__(config)
        self.replayed = ReplayedUnrolls(config)
        self.is_global = config.trainer_params["global_replay"]
        self.statistics = (*self.learner_type.statistics, *REPLAY_COLUMNS)

    def recorded(self, policy):
        """Further arguments of ``TrajectorySpec``."""
        return self.replayed.recorded(policy)

    def store(self, layout):
        """Where the server takes its gradients from."""
        start = self.config.trainer_params["replay_start"]
        return Gathered(layout, self.per_update, start, self.is_global)

    def equip(self, spec, parts):
        """Give a worker its replay, its way to explore, and its judgement of losses."""
        if self.is_global:
            layout = self.batch_layout(self.replayed.replay(spec, copies=0))
            parts.spoke.store.begin([spec.empty() for _ in range(2)], layout.nbytes // 4)
            parts.replay = PulledReplay(parts.spoke.store, layout, parts.spoke.drain)
        else:
            _, here = ranks_here() or (0, 2)
            copies = max(min(self.config.actors, here), 1)
            parts.replay = self.replayed.replay(
                spec, parts.number, parts.incarnation, copies=copies
            )
        parts.outliers = Outliers(self.config.trainer_params["sigma"])
        parts.actor.explore(*self.replayed.exploration(parts.number))

    def keeping(self, spec):
        """``(layout of unrolls, replay, draw, size of a batch)`` of the store.

        ``draw`` is that of ``StoreHub``; the size is counted in float32.
        """
        replay = self.replayed.replay(spec)
        replay.limiter.slack = math.inf  # a worker plays only when it is told to
        layout = self.batch_layout(replay)

        def draw():
            batch = replay.take(0.0)
            if batch is None:
                return None
            buffer, fields = layout.empty()
            for name, values in (batch | described(replay.columns())).items():
                if name in fields:
                    fields[name][...] = values
            return buffer

        return spec, replay, draw, layout.nbytes // 4

    def batch_layout(self, replay):
        """The layout of a batch on its way from the store."""
        return batch_layout(replay.example(), REPLAY_COLUMNS)

    def row(self, recorder, dropped, withheld):
        """Further columns of a row; so much work was dropped, or not sent, since the last one."""
        counted = {"gradients_dropped": dropped, "gradients_withheld": withheld}
        return counted | self.replayed.row(recorder, dropped, withheld)
