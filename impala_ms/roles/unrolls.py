"""Work is an unroll: actors play, one learner computes the gradients."""

from impala_ms.agents import build
from impala_ms.roles.acting import ActorTrainer


class Unrolls:
    """How actors and a learner are made.

    Args:
        config: ``Config``.

    Attributes:
        is_answered: Whether an actor waits for new weights after each unroll.
        per_update: S, unrolls in a batch.
        spokes_needed: Actors that fill a batch.
        in_flight: Buffers of one actor.
    """

    is_answered = False
    spokes_needed = 1

    def __init__(self, config):
        self.config, params = config, config.trainer_params
        self.per_update = config.unrolls_per_batch
        per_round = self.per_update // config.actors
        self.in_flight = per_round if params["synchronous"] else params["unrolls_in_flight"]

    def acting(self, spec, policy, parts):
        """``(layout of the messages, MindSpore RL's trainer of an actor)``."""
        return spec, ActorTrainer(parts, self.config.trainer_params)

    def row(self, dropped):
        """Columns beside those that all algorithms have, if so many unrolls were dropped."""
        return {}

    def learning(self, spec, policy):
        """``(layout of the messages, learner)``."""
        return spec, build.make_learner(self.config, policy)
