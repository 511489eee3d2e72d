"""The loop of a rank that learns: take a batch, update, publish the weights.

Input: full batches of ``cluster/hub``. Output: new weights, which the hub gives to its spokes; what
happened goes to ``roles/records``. A parameter server is such a rank, whose learner applies
gradients.
"""

import time

import numpy as np

from impala_ms import compat
from impala_ms.errors import RunError
from impala_ms.replay import Replay
from impala_ms.roles.records import Records
from impala_ms.seeds import REPLAY

TAKE_S = 0.2  # between two looks at signals while there is no batch
SKIPS_IN_A_ROW = 10  # that end the run


class Learning:
    """The learner's rank.

    Args:
        parts: Has ``learner``, ``hub`` (begun), ``store`` (of its intake), ``recorder``,
            ``sinks``, ``work`` (what travels), ``spaces`` (of the environment), ``job``
            (``impala_ms.process.Run``),
            ``best_return`` (of a resumed run) and with N = 1 ``partner``, the loop that plays in
            the same process, else None.
        params: ``trainer_params``, ``action_repeat``, ``actors``.
    """

    def __init__(self, parts, params):
        self.params = params
        self.learner, self.hub, self.store = parts.learner, parts.hub, parts.store
        self.recorder, self.job, self.partner = parts.recorder, parts.job, parts.partner
        self.records = Records(parts, params)
        self.version = self.recorder.updates + self.recorder.updates_skipped
        self.skipped_in_a_row = 0
        seed = params["seed"], self.job.config.epoch, REPLAY
        self.replay = Replay(params.get("replay_batches", 1), np.random.default_rng(seed))

    def run(self):
        """Learn until the steps are reached, the user says to stop or a rank fails; then save."""
        try:
            if not self.finished() and self.partner is None:
                self.hub.start()
            while not self.finished():
                self.turn()
        finally:
            self.records.end()

    def finished(self):
        """Whether the steps are reached or the user has said to stop."""
        done = self.recorder.env_steps >= self.params["total_env_steps"]
        return done or self.job.stop_requested

    def turn(self):
        """One update, in MindSpore RL's terms one episode: ``(loss, returns, steps)``."""
        self.recorder.waiting.begin(time.monotonic())
        batch = self.next_batch()
        while batch is None:
            if self.finished():
                return None
            if self.partner is None:
                self.records.show_wait()
            batch = self.next_batch()
        self.recorder.waiting.end(time.monotonic())
        loss = self.update(batch)
        self.store.give_back(batch)
        self.hub.publish(self.version, self.learner.weights.read())
        self.records.keep(self.finished())
        return loss, self.recorder.episodes.return_mean, self.recorder.env_steps

    def next_batch(self):
        """The next full batch, or None if there is none yet."""
        if self.partner is None:
            return self.hub.take(TAKE_S)
        self.hub.mailbox.pump()  # N = 1: take turns in this process
        self.partner.turn()
        self.hub.mailbox.pump()
        return self.hub.take(0.0)

    def update(self, batch):
        """Learn from a batch and count it; returns the loss."""
        self.records.took_s = time.monotonic()
        env_steps = self.recorder.env_steps
        statistics = self.learner.learn(batch, env_steps)
        replayed = self.params.get("replay_updates", 0)
        if replayed:
            self.replay.add(batch)
        for _ in range(replayed):
            again = self.replay.draw()
            if self.learner.learn(again, env_steps, new=False)["applied"]:
                self.recorder.rows_learned += self.store.layout.valid_rows(again)
        rows = self.store.layout.valid_rows(batch)
        lags = self.version - batch["behaviour_version"]
        self.recorder.add_update(statistics, lags, batch["wait_fraction"], rows)
        self.version += 1
        self.check_skips(statistics)
        return statistics["loss_total"]

    def check_skips(self, statistics):
        """End the run when updates in a row had to be left out."""
        self.skipped_in_a_row = 0 if statistics["applied"] else self.skipped_in_a_row + 1
        if self.skipped_in_a_row == SKIPS_IN_A_ROW:
            raise RunError(
                f"loss or gradient was not finite in {SKIPS_IN_A_ROW} updates in a row (loss "
                f"{statistics['loss_total']:g}, gradient norm {statistics['gradient_norm']:g}): "
                "try a smaller lr or a reward_clip"
            )


class LearnerTrainer(compat.Trainer):
    """MindSpore RL's trainer of the learner's rank."""

    loop_type = Learning
