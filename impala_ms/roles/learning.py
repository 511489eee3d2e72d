"""The loop of a rank that learns: take a batch, update, publish the weights.

Input: full batches of ``cluster/hub``. Output: new weights, which the hub gives to its spokes; and
records, by ``roles/records``. The loop is also that of a parameter server: its learner applies
gradients.
"""

import time

import numpy as np

from impala_ms import compat
from impala_ms.errors import RunError
from impala_ms.replay.batches import BatchReplay
from impala_ms.roles.records import Records
from impala_ms.seeds import FOR_REPLAY

TAKE_S = 0.2  # longest wait for a batch before signals are checked again
SKIPS_IN_A_ROW = 10  # so many skipped updates in a row end the run


class Learning:
    """The loop of a learner.

    Args:
        parts: Has ``learner``, ``hub`` (begun), ``store`` (of its intake), ``recorder``,
            ``sinks``, ``work`` (what travels), ``spaces`` (of the environment), ``process``
            (``impala_ms.process.Run``),
            ``best_return`` (of a resumed run), and ``partner``: with N = 1 the loop that acts in
            the same process, else None.
        params: ``trainer_params``, ``action_repeat``, ``actors``.
    """

    records_type = Records

    def __init__(self, parts, params):
        self.params = params
        self.learner, self.hub, self.store = parts.learner, parts.hub, parts.store
        self.recorder, self.process, self.partner = parts.recorder, parts.process, parts.partner
        self.records = self.records_type(parts, params)
        self.version = self.recorder.updates + self.recorder.updates_skipped
        self.skipped_in_a_row = 0
        self.replay = None
        if params.get("replay_updates"):
            seed = params["seed"], self.process.config.epoch, FOR_REPLAY
            self.replay = BatchReplay(params["replay_batches"], np.random.default_rng(seed))

    def run(self):
        """Learn until the steps are reached, the user stops the run or a rank fails; then save."""
        try:
            if not self.finished() and self.partner is None:
                self.hub.start()
            while not self.finished():
                self.turn()
        finally:
            self.records.end()

    def finished(self):
        """Whether the steps are reached or the user has stopped the run."""
        done = self.recorder.env_steps >= self.params["total_env_steps"]
        return done or self.process.stop_requested

    def turn(self):
        """Make one update, MindSpore RL's episode: ``(loss, return, steps)``; None at the end."""
        self.recorder.waiting.begin(time.monotonic())
        batch = self.next_batch()
        while batch is None:
            if self.finished():
                return None
            self.recorder.env_steps += self.store.newly_kept()
            if self.partner is None:
                self.records.show_wait(self.store.waits_for())
            batch = self.next_batch()
        self.recorder.waiting.end(time.monotonic())
        loss = self.update(batch)
        if self.partner is None or not self.store.is_due():  # with N = 1, when it acts next
            self.hub.publish(self.version, self.learner.weights.read(), self.recorder.env_steps)
        self.records.keep(self.finished())
        return loss, self.recorder.episodes.return_mean, self.recorder.env_steps

    def next_batch(self):
        """The next full batch, or None if there is none yet."""
        if self.partner is None:
            return self.hub.take(TAKE_S)
        if not self.store.is_due():  # N = 1: learner and actor take turns in this process
            self.serve()
            self.partner.turn()
            self.serve()
        return self.hub.take(0.0)

    def serve(self):
        """Read all that the partner has sent, since it may wait for an answer to the last of it."""
        while self.hub.mailbox.pump():
            pass

    def update(self, batch):
        """Learn from a batch, give it back and count it; return the loss."""
        self.records.took_s = time.monotonic()
        statistics = self.learner.learn(batch, self.recorder.env_steps)
        errors = statistics.pop("errors", None)
        new, learned = self.store.rows(batch)
        made = self.learner.updates_per_call
        learned = learned * statistics["applied"] // made
        if statistics["applied"]:
            learned += self.learn_again(batch)
        lags, waits = self.version - batch["behaviour_version"], batch["wait_fraction"]
        described = statistics | self.store.columns()
        self.recorder.add_updates(made, described, lags, waits, new, learned, self.store.keeps)
        self.store.give_back(batch, errors)
        self.version += made
        self.check_skips(made, statistics)
        return statistics["loss_total"]

    def learn_again(self, batch):
        """Make replay_updates more gradient steps; the rows that were learned from."""
        rows = 0
        if self.replay is None:
            return rows
        self.replay.add(batch)
        for _ in range(self.params["replay_updates"]):
            again = self.replay.draw()
            old = again | {"new": np.zeros(self.store.unrolls, np.float32)}
            if self.learner.learn(old, self.recorder.env_steps)["applied"]:
                rows += self.store.layout.valid_rows(again)
        return rows

    def check_skips(self, made, statistics):
        """End the run if too many updates in a row were skipped."""
        self.skipped_in_a_row = 0 if statistics["applied"] else self.skipped_in_a_row + made
        if self.skipped_in_a_row >= SKIPS_IN_A_ROW:
            raise RunError(
                f"loss or gradient was not finite in {self.skipped_in_a_row} updates in a row "
                f"(loss {statistics['loss_total']:g}, gradient norm "
                f"{statistics['gradient_norm']:g}): "
                "try a smaller lr or a reward_clip"
            )


class LearnerTrainer(compat.Trainer):
    """MindSpore RL's trainer for the learner."""

    loop_type = Learning
