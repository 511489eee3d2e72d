"""Work is an unroll: actors play, one learner computes gradients and applies them.

Input: ``Config``. Output: the loop of an actor, the learner, and the layout of their messages.
"""

import numpy as np

from impala_ms.agents import build
from impala_ms.configuration.checks import replayed_unrolls
from impala_ms.memory import check_room
from impala_ms.replay.trajectories import TrajectoryReplay, ring_bytes
from impala_ms.roles.acting import ActorTrainer
from impala_ms.seeds import FOR_REPLAY
from impala_ms.trajectory import Batches


class Unrolls:
    """Makes actors and a learner.

    Args:
        config: ``Config``.

    Attributes:
        name: Of what travels, in the logs.
        is_answered: Whether an actor waits for new weights after each unroll.
        per_update: S, number of unrolls in a batch.
        in_flight: Number of buffers of an actor.
        needed: The smallest number of actors with which a batch can be filled.
        learner_cores: On a host with too few cores, actors leave the learner so many for itself.
    """

    name = "unrolls"
    is_answered = False
    needed = 1
    learner_cores = 0

    def __init__(self, config):
        self.config, params = config, config.trainer_params
        self.per_update = config.unrolls_per_batch
        per_round = self.per_update // config.actors
        self.in_flight = per_round if params["synchronous"] else params["unrolls_in_flight"]

    def recorded(self, policy):
        """Further arguments of ``TrajectorySpec``."""
        return {}

    def store(self, layout):
        """Where the learner takes its batches from."""
        params = self.config.trainer_params
        if not (fraction := params.get("replay_fraction", 0.0)):
            return Batches(layout, self.per_update)
        kept = params["replay_trajectories"]
        check_room(ring_bytes(layout, kept), "trainer.replay_trajectories", kept)
        replayed = replayed_unrolls(self.per_update, fraction)
        rng = np.random.default_rng((params["seed"], self.config.epoch, FOR_REPLAY))
        return TrajectoryReplay(layout, self.per_update, replayed=replayed, kept=kept, rng=rng)

    def acting(self, spec, policy, parts):
        """``(layout of the messages, trainer of an actor)``."""
        return spec, ActorTrainer(parts, self.config.trainer_params)

    def row(self, recorder, dropped, withheld):
        """Further columns of a row; so much work was dropped, or not sent, since the last one."""
        return {}

    def divide(self, layout, learner, collector, env_steps):
        """``(layout, learner)`` after the learner was restored; for several parameter servers."""
        return layout, learner

    def learning(self, spec, policy):
        """``(layout of the messages, learner)``."""
        return spec, build.make_learner(self.config, policy)
