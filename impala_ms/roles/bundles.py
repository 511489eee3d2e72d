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
from impala_ms.roles.gradients import Gradients, WorkerTrainer, Working
from impala_ms.roles.replaying import ReplayedUnrolls

WARM_UP = 100  # losses before the first one can be an outlier
DECAY = 0.99  # of the running mean and variance of losses
FLOOR = 0.01  # of the deviation, as a part of the mean


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
        self.follow_target()
        while not self.replay.is_due():
            if self.spoke.drain():
                return False
            if problem := self.play():
                self.report(fields, problem)
                return True
        batch = self.replay.take(0.0)
        gradient, statistics = self.gradient_of(batch)
        described = [*statistics[:-1], *self.replay.columns().values(), statistics[-1]]
        self.replay.give_back(batch)
        if self.outliers(float(statistics[0])):
            self.withheld += 1
            return False
        self.report(fields)
        fields["gradient"][...], fields["statistics"][...] = gradient, described
        fields["rows"][...] = len(batch["returns"])
        return True

    def follow_target(self):
        """Make the target network a copy of the weights when a new period has begun."""
        period = self.actor.version // self.learner.period
        if period != self.copied:
            self.copied = period
            self.target.write(self.actor.weights.read())

    def play(self):
        """Play an unroll into the replay; or say which value in it is not finite."""
        self.actor.play(self.unroll)
        self.new_rows += self.spec.valid_rows(self.unroll)
        if problem := self.spec.problem(self.unroll):
            return problem
        ended = self.unroll["episode_length"] > 0
        found = (self.unroll[f"episode_{name}"][ended] for name in ("return", "length"))
        self.episodes.extend(zip(*found, strict=True))
        self.replay.add(self.unroll)
        return None

    def report(self, fields, problem=None):
        """Begin a message: what has happened since the last one."""
        self.count(fields, self.new_rows, problem, self.withheld)
        self.new_rows = self.withheld = 0
        fields["behaviour_version"][...] = self.actor.version
        fields["env_steps"][...] = self.actor.env_steps
        fields["wait_fraction"][...] = self.unroll["wait_fraction"]
        returns, lengths = fields["episode_return"].ravel(), fields["episode_length"].ravel()
        lengths[...] = 0
        for i in range(min(len(lengths), len(self.episodes))):
            returns[i], lengths[i] = self.episodes.popleft()


class BundleTrainer(WorkerTrainer):
    """MindSpore RL's trainer for a worker with a replay."""

    loop_type = Bundling


class Bundles(Gradients):
    """Makes workers that bundle actor, replay and learner, and a parameter server.

    Args:
        config: ``Config``.
    """

    keeps = True
    trainer_type = BundleTrainer

    def __init__(self, config):
        super().__init__(config)
        self.replayed = ReplayedUnrolls(config)
        self.statistics = (*self.learner_type.statistics, "replay_age_mean", "replay_rows")

    def recorded(self, policy):
        """Further arguments of ``TrajectorySpec``."""
        return self.replayed.recorded(policy)

    def equip(self, spec, parts):
        """Give a worker its replay, its way to explore, and its judgement of losses."""
        _, here = ranks_here() or (0, 2)
        workers = max(min(self.config.actors, here), 1)
        parts.replay = self.replayed.replay(spec, parts.number, parts.incarnation, copies=workers)
        parts.outliers = Outliers(self.config.trainer_params["sigma"])
        parts.actor.explore(*self.replayed.exploration(parts.number))

    def row(self, recorder, dropped, withheld):
        """Further columns of a row; so much work was dropped, or not sent, since the last one."""
        counted = {"gradients_dropped": dropped, "gradients_withheld": withheld}
        return counted | self.replayed.row(recorder, dropped, withheld)
