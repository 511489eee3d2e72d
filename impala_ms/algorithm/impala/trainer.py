"""The loops: act, send; receive, learn, publish. Both roles of one iteration are on this page.

Input: what ``session`` has built for this rank. Output: the order of events; rows for
``metrics``, checkpoints. Messages are the business of ``exchange``.
"""

import logging
import time

import numpy as np

from impala_ms import checkpoint, compat
from impala_ms.algorithm.impala.exchange import (
    EVALUATION,
    POLL_S,
    STOP_VERSION,
    RunError,
    pack_weights,
    unpack_weights,
)
from impala_ms.metrics import progress
from impala_ms.trajectory import Replay

logger = logging.getLogger(__name__)

SHOWN_S = 2.0  # that the learner waits without a word
TAKE_S = 0.2  # between two looks at signals while there is no batch
SKIPS_IN_A_ROW = 10  # that end the run
REPLAY = 1 << 26  # in the place of a rank, in the seed of what is learned from again


class ActorTrainer(compat.Trainer):
    """An actor rank.

    Args:
        msrl: Has ``actor`` (``IMPALAActor``), ``exchange`` (``ActorExchange``, begun) and
            ``evaluate(actor, stop)``, which plays evaluation episodes; ``meanwhile()``, called
            during these, says whether to stop.
        params: ``trainer_params`` and ``unrolls_per_round``, k.
    """

    def __init__(self, msrl, params):
        super().__init__(msrl)
        self.exchange, self.params = msrl.exchange, params
        self.evaluated = 0

    @property
    def actor(self):
        """Not an attribute: a Cell that is one would have its parameters renamed."""
        return self.msrl.actor

    def train(self, episodes=0, callbacks=None, ckpt_path=None):
        """Play until the learner says to stop."""
        if self.params["synchronous"] and self.exchange.transport.concurrent:
            self.play_synchronously()
        while self.train_one_episode():
            pass

    def train_one_episode(self):
        """One unroll with the newest weights; False when told to stop."""
        began = time.perf_counter()
        while True:
            if self.exchange.drain():
                return False
            if newest := self.exchange.newest_weights():
                self.actor.set_weights(*newest)
            if self.actor.version >= 0 and (buffer := self.exchange.free_buffer()):
                break
            time.sleep(POLL_S)
        self.actor.wait_s += time.perf_counter() - began
        self.evaluate_if_due()
        self.actor.act(compat.COLLECT, buffer[1])
        self.exchange.send_unroll(buffer)
        return True

    def play_synchronously(self):
        """Rounds: new weights by broadcast, k unrolls, given by gather; until told to stop."""
        exchange, size = self.exchange, self.actor.weights.size
        buffers = [exchange.free_buffer() for _ in range(self.params["unrolls_per_round"])]
        message = pack_weights(0, np.zeros(size, np.float32))
        while True:
            arrived = exchange.finish(exchange.transport.broadcast(message))
            version, flat, _ = unpack_weights(message, size)
            if not arrived or version == STOP_VERSION:
                return
            self.actor.set_weights(version, flat)
            self.evaluate_if_due()
            for _, unroll in buffers:
                self.actor.act(compat.COLLECT, unroll)
            began = time.perf_counter()
            unrolls = np.concatenate([buffer for buffer, _ in buffers])
            if not exchange.finish(exchange.transport.gather(unrolls, None)):
                return
            self.actor.wait_s += time.perf_counter() - began

    def evaluate_if_due(self):
        """On rank 1, between unrolls: play evaluation episodes and report them."""
        every, version = self.params["eval_interval_updates"], self.actor.version
        if every and self.exchange.transport.rank == 1 and version >= self.evaluated + every:
            self.evaluated = version - version % every
            self.evaluate()

    def evaluate(self):
        """Play evaluation episodes with the current weights and send their returns."""
        logger.info("Evaluating in actor 1")
        version = self.actor.version
        self.exchange.say("evaluates")
        returns = self.msrl.evaluate(self.actor, stop=self.told_to_stop)
        self.exchange.say("")
        if returns is None:  # the run is ending
            return
        logger.info("evaluate in actor 1, avg_reward %.1f", returns.mean())
        message = pack_weights(version, self.actor.weights.read(), returns)
        self.exchange.send(EVALUATION, message, wait=self.exchange.transport.concurrent)

    def told_to_stop(self):
        """Whether an evaluation is to end, as the run does."""
        return self.exchange.drain() or self.msrl.meanwhile()


class IMPALATrainer(compat.Trainer):
    """The learner's rank.

    Args:
        msrl: Has ``learner`` (``IMPALALearner``), ``exchange`` (``LearnerExchange``, begun),
            ``batches``, ``recorder``, ``sinks``, ``spaces`` (of the environment), ``job``
            (``impala_ms.session.Run``),
            ``best_return`` (of a resumed run) and with N = 1 ``partner``, the ``ActorTrainer``
            of the same process, else None.
        params: ``trainer_params``, ``action_repeat``, ``actors``.
    """

    def __init__(self, msrl, params):
        super().__init__(msrl)
        self.params = params
        self.exchange, self.batches = msrl.exchange, msrl.batches
        self.recorder, self.job = msrl.recorder, msrl.job
        self.version = self.recorder.updates + self.recorder.updates_skipped
        self.skipped_in_a_row = 0
        seed = params["seed"], msrl.job.config.epoch, REPLAY
        self.replay = Replay(params["replay_batches"], np.random.default_rng(seed))
        self.best_return = msrl.best_return
        self.logged_s = self.saved_s = self.took_s = self.shown_s = time.monotonic()
        self.total = params.get("total_env_steps")
        self.dropped = 0  # of the exchange's count, already in the recorder's
        self.before = self.recorder.env_steps + self.recorder.env_steps_dropped  # a resumed run
        self.saved = None  # path of the newest checkpoint
        self.saved_updates = self.recorder.updates  # those of a resumed run are on the disk
        self.last_row = {}

    @property
    def learner(self):
        """Not an attribute: a Cell that is one would have its parameters renamed."""
        return self.msrl.learner

    @property
    def partner(self):
        """The actor's trainer in the same process (N = 1), or None."""
        return self.msrl.partner

    def train(self, episodes=0, callbacks=None, ckpt_path=None):
        """Learn until the steps are reached, the user says to stop or a rank fails; then save."""
        try:
            if self.params["synchronous"] and self.exchange.transport.concurrent:
                self.learn_synchronously()
            elif not self.finished() and self.partner is None:
                self.exchange.start()
            while not self.finished():
                self.train_one_episode()
        finally:
            self.save()

    def finished(self):
        """Whether the steps are reached or the user has said to stop."""
        done = self.recorder.env_steps >= self.params["total_env_steps"]
        return done or self.job.stop_requested

    def train_one_episode(self):
        """One update, in MindSpore RL's terms one episode: ``(loss, returns, steps)``."""
        self.recorder.waiting.begin(time.monotonic())
        batch = None
        while batch is None:
            if self.partner is not None:  # N = 1: take turns in this process
                self.exchange.serve()
                self.partner.train_one_episode()
                self.exchange.serve()
            batch = self.exchange.take(TAKE_S if self.partner is None else 0.0)
            if batch is None and self.finished():
                return None
            if batch is None and self.partner is None:
                self.show_wait()
        self.recorder.waiting.end(time.monotonic())
        loss = self.update(batch)
        self.batches.give_back(batch)
        self.exchange.publish(self.version, self.learner.weights.read())
        self.keep_records()
        return loss, self.recorder.episodes.return_mean, self.recorder.env_steps

    def learn_synchronously(self):
        """Rounds: broadcast weights, gather S unrolls in rank order, update."""
        exchange, batches, actors = self.exchange, self.batches, self.params["actors"]
        shape = actors, batches.unrolls // actors, batches.spec.nbytes
        gathered = np.zeros(shape, np.uint8)
        while not self.finished():
            self.broadcast(self.version)
            self.recorder.waiting.begin(time.monotonic())
            if not exchange.finish(exchange.transport.gather(None, gathered), self.is_to_stop):
                return  # the actors are told by a message of its own
            self.recorder.waiting.end(time.monotonic())
            exchange.take_round(gathered)
            batch = exchange.take(0.0)
            self.update(batch)
            batches.give_back(batch)
            self.keep_records()
        self.broadcast(STOP_VERSION)

    def show_wait(self, what=""):
        """Say on the progress line what the learner waits for, once that takes long."""
        now = time.monotonic()
        waited_s = now - max(self.logged_s, self.took_s)
        if waited_s < SHOWN_S or now - self.shown_s < SHOWN_S / 2:
            return
        self.shown_s = now
        busy = [f"rank {rank}, which {doing}" for rank, doing in self.exchange.doing().items()]
        what = what or ", ".join(busy) or "unrolls"
        row = {"env_steps": self.recorder.env_steps, "total_env_steps": self.total} | self.last_row
        row |= {"env_steps_per_s": None, "eta_s": None}
        row["waiting_for"] = f"{what} ({waited_s:.0f} s)"
        self.job.console.write(progress.encode(row) + "\n")

    def is_to_stop(self):
        """Show what is waited for; whether the user has said to stop."""
        self.show_wait()
        return self.job.stop_requested

    def while_evaluating(self):
        """With N = 1: show that the actor evaluates; whether it is to stop."""
        self.show_wait("an evaluation")
        return self.job.stop_requested

    def broadcast(self, version):
        """Give every actor the weights."""
        message = pack_weights(version, self.learner.weights.read())
        self.exchange.finish(self.exchange.transport.broadcast(message))

    def update(self, batch):
        """Learn from a batch and count it; returns the loss."""
        self.took_s = time.monotonic()
        learned = self.recorder.env_steps
        statistics = self.learner.learn(batch, learned)
        if self.params["replay_updates"]:
            self.replay.add(batch)
        for _ in range(self.params["replay_updates"]):
            self.learner.learn(self.replay.draw(), learned, new=False)
        env_steps = int((~batch["first"][:, 1:]).sum())
        lags = self.version - batch["behaviour_version"]
        updates = self.recorder.updates
        self.recorder.add_update(statistics, lags, batch["wait_fraction"], env_steps)
        self.version += 1
        self.skipped_in_a_row = 0 if self.recorder.updates > updates else self.skipped_in_a_row + 1
        if self.skipped_in_a_row == SKIPS_IN_A_ROW:
            raise RunError(
                f"loss or gradient was not finite in {SKIPS_IN_A_ROW} updates in a row (loss "
                f"{statistics['loss_total']:g}, gradient norm {statistics['gradient_norm']:g}): "
                "try a smaller lr or a reward_clip"
            )
        return statistics["loss_total"]

    def keep_records(self):
        """After an update: what actors reported, and a row or a checkpoint when it is due."""
        while self.exchange.episodes:
            self.recorder.episodes.add(*self.exchange.episodes.popleft())
        while self.exchange.evaluations:
            self.take_evaluation(*self.exchange.evaluations.popleft())
        now = time.monotonic()
        first = not self.last_row
        if first or now - self.logged_s >= self.params["log_interval_s"] or self.finished():
            self.write_row(now)
        if now - self.saved_s >= self.params["checkpoint_interval_s"]:
            self.save()

    def count_dropped(self):
        """Add what the exchange has dropped since to the recorder's count; returns the total."""
        newly = self.exchange.env_steps_dropped - self.dropped
        self.dropped += newly
        self.recorder.env_steps_dropped += newly
        return self.recorder.env_steps_dropped

    def env_steps_waiting(self):
        """Environment steps that arrived and are neither learned from nor dropped yet."""
        settled = self.recorder.env_steps + self.count_dropped()
        return self.before + self.exchange.env_steps_received - settled

    def take_evaluation(self, version, flat, returns):
        """Log an evaluation, and keep its weights if it is the best so far."""
        mean = float(returns.mean())
        self.recorder.evaluation = mean, version
        if self.best_return is None or mean > self.best_return:
            self.best_return = mean
            state = self.state() | {"eval_version": version, "eval_returns": returns.tolist()}
            weights = self.learner.named_weights(flat)
            checkpoint.save(self.job.checkpoints, checkpoint.BEST, weights, state)

    def write_row(self, now):
        """One row of metrics and one line in the learner's log."""
        self.logged_s = now
        recorder, exchange = self.recorder, self.exchange
        self.count_dropped()
        row = recorder.row(now)
        total = self.params["total_env_steps"]
        speed = row["env_steps_per_s"]
        eta_s = None
        if speed and self.last_row:  # the first rate is that of a few steps
            eta_s = max(0, total - recorder.env_steps) / speed
        row |= {
            "wall_time_s": self.job.wall_time_s(),
            "env_frames": recorder.env_steps * self.params["action_repeat"],
            "ranks_alive": 1 + len(exchange.roster.alive) * exchange.transport.concurrent,
            "total_env_steps": total,
            "eta_s": eta_s,
            "actors_expected": self.params["actors"] * exchange.transport.concurrent,
        }
        self.last_row = row
        self.msrl.sinks.write(row)
        logger.info(
            "Train from one actor, episode %d, loss %.4f, env_steps %d, env_steps_per_s %s, "
            "return %s, policy_lag %.2f",
            recorder.updates,
            row.get("loss_total") or 0.0,
            recorder.env_steps,
            "-" if speed is None else f"{speed:.0f}",
            "-" if row["episode_return_mean"] is None else f"{row['episode_return_mean']:.2f}",
            row["policy_lag_mean"] or 0.0,
        )

    def state(self):
        """What a checkpoint holds beside parameters."""
        self.count_dropped()
        return {
            "totals": self.recorder.totals(),
            "epoch": self.job.config.epoch,
            "wall_time_s": self.job.wall_time_s(),
            "best_return": self.best_return,
            "config": self.job.config.to_json(),
        }

    def save(self):
        """Write a checkpoint, unless there is one of this update, and delete those too old."""
        self.saved_s = time.monotonic()
        if self.saved_updates == self.recorder.updates:
            return
        name = checkpoint.file_name(self.recorder.updates)
        parameters = self.learner.named_parameters()
        network = [parameter.name for parameter in self.learner.weights.parameters]
        state = self.state() | {"network": network, "spaces": self.msrl.spaces}
        self.saved = checkpoint.save(self.job.checkpoints, name, parameters, state)
        self.saved_updates = self.recorder.updates
        checkpoint.prune(self.job.checkpoints, self.params["checkpoints_kept"])

    def evaluate(self):
        """Actors evaluate; with N = 1 the actor of this process does."""
        if self.partner is not None:
            self.partner.evaluate()
