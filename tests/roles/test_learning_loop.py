"""The learner's loop: the batches of an update, and what is counted."""

from types import SimpleNamespace

import numpy as np
import pytest

from impala_ms import snapshots
from impala_ms.metrics import progress
from impala_ms.metrics.recorder import Recorder
from impala_ms.roles.learning import Learning
from impala_ms.roles.records import Records
from impala_ms.trajectory import Batches
from tests.cluster.test_hub import SPEC

STEPS = 3 * 2  # environment steps of a batch


def learned_from(number, **params):
    """``(calls of learn, recorder)``; a call is ``(number of the batch, steps so far)``."""
    calls = []

    def learn(batch, env_steps):
        assert ("new" in batch) == (len(calls) % (1 + params["replay_updates"]) > 0)
        assert not batch.get("new", np.zeros(1)).any()
        calls.append((int(batch["reward"][0, 0, 0]), env_steps))
        return {"loss_total": 0.0, "learning_rate": 0.1, "applied": 1}

    recorder = Recorder(0.0)
    parts = SimpleNamespace(
        learner=SimpleNamespace(learn=learn, updates_per_call=1),
        hub=None,
        store=Batches(SPEC, 1),
        partner=None,
        recorder=recorder,
        process=SimpleNamespace(config=SimpleNamespace(epoch=params.pop("epoch", 0))),
        best_return=None,
    )
    learning = Learning(parts, {"seed": 1, "replay_batches": 2} | params)
    batch = {
        "first": np.zeros((1, 4, 2), bool),
        "reward": np.zeros((1, 3, 2), np.float32),
        "behaviour_version": np.zeros(1, np.int64),
        "wait_fraction": np.zeros(1),
    }
    for i in range(number):
        batch["reward"][...] = i  # in the same memory, as in ``Batches``
        learning.update(batch)
    return calls, recorder


def test_each_batch_is_learned_from_once_without_replay():
    calls, _ = learned_from(4, replay_updates=0)
    assert calls == [(i, STEPS * i) for i in range(4)]


def test_with_one_rank_all_that_its_actor_said_is_read_before_the_actors_next_turn():
    """It may wait for the answer to the last of several messages."""
    said, turns = [], []

    def turn():
        assert not said
        turns.append(None)
        said.extend(("evaluates", "evaluation", "work"))

    hub = SimpleNamespace(
        mailbox=SimpleNamespace(pump=lambda: bool(said) and bool(said.pop(0))),
        take=lambda timeout_s: None,
    )
    store = SimpleNamespace(is_due=lambda: False)
    learning = SimpleNamespace(partner=SimpleNamespace(turn=turn), hub=hub, store=store)
    learning.serve = lambda: Learning.serve(learning)
    for _ in range(2):
        Learning.next_batch(learning)
        assert not said
    assert len(turns) == 2


class TestReplay:
    def test_replay_adds_steps_on_the_newest_batches(self):
        calls, _ = learned_from(40, replay_updates=3)
        for i in range(40):
            fresh, *again = calls[4 * i : 4 * i + 4]
            assert fresh == (i, STEPS * i)
            assert {steps for _, steps in again} == {STEPS * i}  # so the learning rate is the same
            assert {old for old, _ in again} <= {max(i - 1, 0), i}
        drawn = [i - old for i in range(1, 40) for old, _ in calls[4 * i + 1 : 4 * i + 4]]
        assert 0.3 < np.mean(drawn) < 0.7

    def test_replayed_steps_do_not_count_as_updates_or_env_steps(self):
        _, recorder = learned_from(5, replay_updates=3)
        assert (recorder.updates, recorder.env_steps) == (5, 5 * STEPS)

    @pytest.mark.parametrize("other", [{"seed": 2}, {"epoch": 1}])
    def test_replayed_batches_depend_on_seed_and_epoch(self, other):
        calls, again = (learned_from(30, replay_updates=1)[0] for _ in range(2))
        assert calls == again
        assert calls != learned_from(30, replay_updates=1, **other)[0]


class TestCounting:
    """Steps received = learned from + dropped + waiting, at a checkpoint and after a resume."""

    @staticmethod
    def records(totals=None):
        recorder = Recorder(0.0, totals)
        config = SimpleNamespace(epoch=0, to_json=dict)
        parts = SimpleNamespace(
            learner=None,
            work=SimpleNamespace(name="unrolls"),
            hub=SimpleNamespace(intake=SimpleNamespace(env_steps_received=0, env_steps_dropped=0)),
            recorder=recorder,
            process=SimpleNamespace(config=config, wall_time_s=lambda: 0.0),
            best_return=None,
        )
        return Records(parts, {"total_env_steps": 1000})

    def test_checkpoint_holds_drops_since_the_last_row_once(self):
        records = self.records()
        records.hub.intake.env_steps_received, records.hub.intake.env_steps_dropped = 100, 30
        records.recorder.env_steps = 60
        assert records.state()["totals"]["env_steps_dropped"] == 30
        assert records.state()["totals"]["env_steps_dropped"] == 30  # not added twice
        assert records.env_steps_waiting() == 10

        resumed = self.records(records.state()["totals"])
        assert resumed.env_steps_waiting() == 0
        resumed.hub.intake.env_steps_received, resumed.hub.intake.env_steps_dropped = 20, 5
        assert (resumed.env_steps_waiting(), resumed.recorder.env_steps_dropped) == (
            15,
            30 + 10 + 5,
        )


class TestSnapshots:
    @pytest.fixture
    def clock(self, monkeypatch):
        now = SimpleNamespace(s=100.0)
        monkeypatch.setattr("time.monotonic", lambda: now.s)
        return now

    @staticmethod
    def records(folder, clock, every_s):
        records = TestCounting.records()
        records.params |= {
            "log_interval_s": 1e9,
            "checkpoint_interval_s": 1e9,
            "snapshot_interval_s": every_s,
        }
        records.last_row = {"updates": 1}  # the first row is behind it
        records.hub.evaluations = records.hub.intake.episodes = ()
        records.save = lambda: None
        records.process.run_dir, records.process.wall_time_s = folder, lambda: clock.s - 90.00049
        read = lambda: np.float32([records.recorder.updates, 0.5])  # noqa: E731
        records.learner = SimpleNamespace(network_weights=read)
        return records

    def updates(self, records, clock, number, seconds):
        for _ in range(number):
            clock.s += seconds
            records.recorder.updates += 1
            records.recorder.env_steps += 40
            records.keep(finished=False)

    def test_weights_are_saved_as_they_are_every_so_many_seconds_and_at_the_end(
        self, tmp_path, clock
    ):
        records = self.records(tmp_path, clock, every_s=2.0)
        self.updates(records, clock, 15, seconds=0.5)
        records.end()
        found = [snapshots.load(path) for path in snapshots.listing(tmp_path)]
        assert [taken for _, taken in found] == [
            (12.0, 160, 4),
            (14.0, 320, 8),
            (16.0, 480, 12),
            (17.5, 600, 15),
        ]
        for flat, taken in found:
            assert flat.tolist() == [taken.updates, 0.5]

    def test_end_right_after_a_snapshot_adds_none(self, tmp_path, clock):
        records = self.records(tmp_path, clock, every_s=2.0)
        self.updates(records, clock, 4, seconds=0.5)
        clock.s += 1.0
        records.end()
        (path,) = snapshots.listing(tmp_path)
        assert snapshots.load(path)[1].wall_time_s == 12.0

    def test_interval_of_0_saves_none(self, tmp_path, clock):
        records = self.records(tmp_path, clock, every_s=0.0)
        self.updates(records, clock, 15, seconds=0.5)
        records.end()
        assert list(tmp_path.iterdir()) == []


class TestWaiting:
    def lines(self, monkeypatch, doing, what="", seconds=(1.0, 2.5, 3.0, 9.0)):
        clock = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: clock[0])
        records = TestCounting.records()
        said = []
        records.process.console = SimpleNamespace(write=said.append)
        records.hub.doing = lambda: doing
        for second in seconds:
            clock[0] = 100.0 + second
            records.show_wait(what)
        return [progress.decode(line)["waiting_for"] for line in said]

    def test_long_wait_is_shown_with_its_reason_at_most_once_a_second(self, monkeypatch):
        assert self.lines(monkeypatch, {}) == ["unrolls (2 s)", "unrolls (9 s)"]
        wanted = ["rank 1, which evaluates (2 s)", "rank 1, which evaluates (9 s)"]
        assert self.lines(monkeypatch, {1: "evaluates"}) == wanted
        wanted = ["an evaluation (2 s)", "an evaluation (9 s)"]
        assert self.lines(monkeypatch, {}, "an evaluation") == wanted
