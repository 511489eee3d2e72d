"""The records of a run: rows of metrics, checkpoints, the best evaluation, the progress line.

Input: the counts of ``metrics/recorder`` and of the hub's intake. Output: ``metrics.csv`` and the
other sinks, files in ``checkpoints`` and ``snapshots``, the progress line.
"""

import logging
import time

from impala_ms import checkpoint, snapshots
from impala_ms.metrics import progress

logger = logging.getLogger(__name__)

SHOWN_S = 2.0  # a longer wait of the learner is shown


class Records:
    """Keeps the records on the rank that learns.

    Args: those of ``Learning``.
    """

    def __init__(self, parts, params):
        self.parts, self.params = parts, params
        self.learner, self.hub, self.process = parts.learner, parts.hub, parts.process
        self.recorder, self.best_return = parts.recorder, parts.best_return
        self.logged_s = self.saved_s = self.took_s = self.shown_s = time.monotonic()
        self.snapshot_s = self.saved_s
        self.dropped = 0  # steps dropped by the intake that the recorder has already counted
        self.works = 0, 0  # dropped and withheld pieces of work that are already in a row
        self.before = self.recorder.env_steps + self.recorder.env_steps_dropped  # before a resume
        self.saved = None  # path of the newest checkpoint
        self.saved_updates = self.recorder.updates  # a resumed run has their checkpoint
        self.last_row = {}

    def keep(self, finished):
        """After an update: add what actors reported; write a row or a checkpoint if it is due."""
        while self.hub.intake.episodes:
            self.recorder.episodes.add(*self.hub.intake.episodes.popleft())
        while self.hub.evaluations:
            self.take_evaluation(*self.hub.evaluations.popleft())
        now = time.monotonic()
        first = not self.last_row
        if first or finished or now - self.logged_s >= self.params["log_interval_s"]:
            self.write_row(now)
        if now - self.saved_s >= self.params["checkpoint_interval_s"]:
            self.save()
        every_s = self.params["snapshot_interval_s"]
        if every_s and now - self.snapshot_s >= every_s:
            self.save_snapshot()

    def take_evaluation(self, version, flat, returns):
        """Note an evaluation, and save its weights if it is the best so far."""
        mean = float(returns.mean())
        self.recorder.evaluation = mean, version
        if self.best_return is None or mean > self.best_return:
            self.best_return = mean
            state = self.state() | {"eval_version": version, "eval_returns": returns.tolist()}
            weights = self.learner.named_weights(flat)
            checkpoint.save(self.process.checkpoints, checkpoint.BEST, weights, state)

    def write_row(self, now):
        """Write a row of metrics and a line of the learner's log."""
        self.logged_s = now
        recorder, concurrent = self.recorder, self.hub.transport.concurrent
        self.count_dropped()
        row = recorder.row(now)
        total, speed = self.params["total_env_steps"], row["env_steps_per_s"]
        servers = 1 + len(self.process.place.reports)
        eta_s = None
        if speed and self.last_row:  # the first rate is over too few steps
            eta_s = max(0, total - recorder.env_steps) / speed
        row |= {
            "wall_time_s": self.process.wall_time_s(),
            "env_frames": recorder.env_steps * self.params["action_repeat"],
            "ranks_alive": servers + len(self.hub.roster.alive) * concurrent,
            "servers": servers,
            "total_env_steps": total,
            "eta_s": eta_s,
            "actors_expected": self.params["actors"] * concurrent,
        }
        before, self.works = self.works, (self.hub.intake.dropped, self.hub.intake.withheld)
        newly = (now - then for now, then in zip(self.works, before, strict=True))
        row |= self.parts.work.row(self.recorder, *newly)
        self.last_row = row
        self.parts.sinks.write(row)
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

    def end(self):
        """At the end of training: a checkpoint, and a snapshot if there are any."""
        self.save()
        if self.params["snapshot_interval_s"]:
            self.save_snapshot()

    def save(self):
        """Write a checkpoint, unless this update has one, and delete the oldest ones."""
        self.saved_s = time.monotonic()
        if self.saved_updates == self.recorder.updates:
            return
        name = checkpoint.file_name(self.recorder.updates)
        parameters = self.learner.named_parameters()
        more = {"network": self.learner.network_names(), "spaces": self.parts.spaces}
        state = self.state() | more
        self.saved = checkpoint.save(self.process.checkpoints, name, parameters, state)
        self.saved_updates = self.recorder.updates
        checkpoint.prune(self.process.checkpoints, self.params["checkpoints_kept"])

    def save_snapshot(self):
        """Write the weights alone, for an evaluation after the run."""
        self.snapshot_s = time.monotonic()
        recorder = self.recorder
        taken = snapshots.Taken(
            round(self.process.wall_time_s(), 3), recorder.env_steps, recorder.updates
        )
        snapshots.save(self.process.run_dir, self.learner.network_weights(), taken)

    def state(self):
        """What a checkpoint holds beside the parameters."""
        waiting = self.env_steps_waiting()
        return {
            "totals": self.recorder.totals() | {"env_steps_waiting": waiting},
            "epoch": self.process.config.epoch,
            "wall_time_s": self.process.wall_time_s(),
            "best_return": self.best_return,
            "config": self.process.config.to_json(),
        }

    def count_dropped(self):
        """Add steps that the intake has newly dropped to the recorder; return the total."""
        newly = self.hub.intake.env_steps_dropped - self.dropped
        self.dropped += newly
        self.recorder.env_steps_dropped += newly
        return self.recorder.env_steps_dropped

    def env_steps_waiting(self):
        """Environment steps that have arrived and are neither learned from nor dropped."""
        settled = self.recorder.env_steps + self.count_dropped()
        return self.before + self.hub.intake.env_steps_received - settled

    def show_wait(self, what=""):
        """Show on the progress line what the learner waits for, if that takes long."""
        now = time.monotonic()
        waited_s = now - max(self.logged_s, self.took_s)
        if waited_s < SHOWN_S or now - self.shown_s < SHOWN_S / 2:
            return
        self.shown_s = now
        busy = [f"rank {rank}, which {doing}" for rank, doing in self.hub.doing().items()]
        what = what or ", ".join(busy) or self.parts.work.name
        total = self.params.get("total_env_steps")
        row = {"env_steps": self.recorder.env_steps, "total_env_steps": total} | self.last_row
        row |= {"env_steps_per_s": None, "eta_s": None}
        row["waiting_for"] = f"{what} ({waited_s:.0f} s)"
        self.process.console.write(progress.encode(row) + "\n")

    def while_evaluating(self):
        """With N = 1, called during an evaluation: show it; return whether to stop."""
        self.show_wait("an evaluation")
        return self.process.stop_requested

    def summary(self):
        """What ``status.json`` says about the run beside its state."""
        recorder = self.recorder
        saved = self.saved or next(iter(checkpoint.listing(self.process.checkpoints)), None)
        return {
            "env_steps": recorder.env_steps,
            # what has not become part of a full batch counts as dropped
            "env_steps_dropped": self.env_steps_waiting() + recorder.env_steps_dropped,
            "episodes": recorder.episodes.count,
            "best_eval_return": self.best_return,
            "updates": recorder.updates,
            "episode_return_mean": recorder.episodes.return_mean,
            "checkpoint": str(saved) if saved else None,
        }
