"""The loop of a rank that plays: take the newest weights, play an unroll, send it.

Input: weights of ``cluster/spoke``. Output: unrolls of ``agents/actor``, sent to the hub; on the
first of these ranks also evaluations.
"""

import logging
import time

from impala_ms import compat
from impala_ms.cluster.messages import EVALUATION, pack_weights

logger = logging.getLogger(__name__)


class Acting:
    """An actor rank.

    Args:
        parts: Has ``actor`` (``PolicyActor``), ``spoke`` (begun), ``number`` (of this rank among
            those that play), ``evaluate(actor, stop)``, which plays evaluation episodes, and
            ``meanwhile()``, called during these, which says whether to stop.
        params: ``trainer_params``.
    """

    def __init__(self, parts, params):
        self.actor, self.spoke, self.parts = parts.actor, parts.spoke, parts
        self.params = params
        self.evaluated = 0

    def run(self):
        """Play until the hub says to stop."""
        while self.turn():
            pass

    def turn(self):
        """One unroll with the newest weights; False when told to stop."""
        began = time.perf_counter()
        turn = self.spoke.turn()
        if turn is None:
            return False
        weights, buffer = turn
        if weights is not None:
            self.actor.set_weights(*weights)
        self.actor.wait_s += time.perf_counter() - began
        self.evaluate_if_due()
        self.work(buffer[1])
        began = time.perf_counter()
        self.spoke.send_work(buffer)
        self.actor.wait_s += time.perf_counter() - began
        return True

    def work(self, fields):
        """Play an unroll into the fields of a message."""
        self.actor.play(fields)

    def evaluate_if_due(self):
        """On the first of the playing ranks, between unrolls."""
        every, version = self.params["eval_interval_updates"], self.actor.version
        if every and self.parts.number == 1 and version >= self.evaluated + every:
            self.evaluated = version - version % every
            self.evaluate()

    def evaluate(self):
        """Play evaluation episodes with the current weights and send their returns."""
        logger.info("Evaluating in actor 1")
        version = self.actor.version
        self.spoke.say("evaluates")
        returns = self.parts.evaluate(self.actor, stop=self.told_to_stop)
        self.spoke.say("")
        if returns is None:  # the run is ending
            return
        logger.info("evaluate in actor 1, avg_reward %.1f", returns.mean())
        message = pack_weights(version, self.actor.weights.read(), returns)
        self.spoke.send(EVALUATION, message, wait=self.spoke.transport.concurrent)

    def told_to_stop(self):
        """Whether an evaluation is to end, as the run does."""
        return self.spoke.drain() or self.parts.meanwhile()


class ActorTrainer(compat.Trainer):
    """MindSpore RL's trainer of an actor rank."""

    loop_type = Acting
