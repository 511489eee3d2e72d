"""The loop of a rank that acts: take the newest weights, play an unroll, send it.

Input: weights from ``cluster/spoke``. Output: unrolls of ``agents/actor``, sent to the hub; the
first of these ranks also sends evaluations.
"""

import logging
import time

from impala_ms import compat
from impala_ms.cluster.messages import EVALUATION, pack_weights

logger = logging.getLogger(__name__)


class Acting:
    """The loop of an actor.

    Args:
        parts: Has ``actor`` (``PolicyActor``), ``spoke`` (begun), ``number`` (of this rank among
            those that act), ``evaluate(actor, stop)``, which plays evaluation episodes, and
            ``meanwhile()``, which is called during these and says whether to stop.
        params: ``trainer_params``.
    """

    def __init__(self, parts, params):
        self.actor, self.spoke, self.parts = parts.actor, parts.spoke, parts
        self.params = params
        self.evaluated = 0

    def run(self):
        """Play until the hub sends STOP."""
        while self.turn():
            pass

    def turn(self):
        """Play one unroll with the newest weights; False after a STOP."""
        began = time.perf_counter()
        turn = self.spoke.turn()
        if turn is None:
            return False
        weights, buffer = turn
        if weights is not None:
            self.actor.set_weights(*weights)
        self.actor.wait_s += time.perf_counter() - began
        self.evaluate_if_due()
        made = self.work(buffer[1])
        began = time.perf_counter()
        (self.spoke.send_work if made else self.spoke.withhold)(buffer)
        self.actor.wait_s += time.perf_counter() - began
        return True

    def work(self, fields):
        """Play an unroll into the fields of a message; whether it is to be sent."""
        self.actor.play(fields)
        return True

    def evaluate_if_due(self):
        """Evaluate if it is due, on the first of the acting ranks."""
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
        if returns is None:  # stopped, because the run ends
            return
        logger.info("evaluate in actor 1, avg_reward %.1f", returns.mean())
        message = pack_weights(version, self.actor.weights.read(), returns)
        self.spoke.send(EVALUATION, message, wait=self.spoke.transport.concurrent)

    def told_to_stop(self):
        """Whether an evaluation must stop, because the run ends."""
        return self.spoke.drain() or self.parts.meanwhile()


class ActorTrainer(compat.Trainer):
    """MindSpore RL's trainer for an actor."""

    loop_type = Acting
