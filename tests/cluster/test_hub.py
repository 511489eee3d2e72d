"""Hub and spokes over a transport in one process: the test decides the order of all steps."""

import json
import logging
import socket
import time

import numpy as np
import pytest

from impala_ms.cluster import hub as module
from impala_ms.cluster import messages
from impala_ms.cluster.hub import Hub, Intake
from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.messages import (
    BYE,
    ERROR,
    EVALUATION,
    STOP,
    WEIGHTS,
    encode,
    pack_weights,
    unpack_weights,
)
from impala_ms.cluster.roster import (
    ALIVE,
    EXPECTED,
    LIVED_S,
    REFUSED_IN_A_ROW,
    SILENT,
)
from impala_ms.cluster.spoke import Spoke
from impala_ms.comm.local import LocalTransport
from impala_ms.errors import RunError
from impala_ms.trajectory import Batches, TrajectorySpec

SPEC = TrajectorySpec(
    unroll_length=3,
    num_envs=2,
    observation={"": ((1,), np.float32)},
    action_shape=(),
    action_dtype=np.int32,
    policy_parameters=2,
)
SPACES = {"observation": {"shape": [1], "dtype": "float32"}, "action": {"n": 2}}
WEIGHTS_SIZE = 5


class FakeTransport(LocalTransport):
    """Behaves like MPI: ranks are concurrent, and some may be ``dead``."""

    concurrent = True

    def __init__(self, *args):
        super().__init__(*args)
        self.dead = {}
        self.replaced = []  # (rank, command)
        self.told = {}  # by rank: tags of the messages that the process before had not taken

    def replace(self, peer, command):
        self.replaced.append((peer, command))
        self.told[peer] = [pending.message.tag for pending in self._inboxes[peer]]
        self._inboxes[peer].clear()
        for pending in [p for p in self._inboxes[self.rank] if p.message.peer == peer]:
            self._inboxes[self.rank].remove(pending)

    def lost(self):
        dead, self.dead = self.dead, {}
        return dead


class Group:
    """A hub and its spokes; a batch holds ``unrolls`` unrolls."""

    def __init__(self, actors=2, unrolls=1, max_policy_lag=None, answers=False, **options):
        hub_end, *ends = FakeTransport.connect(1 + actors)
        limits = {"min_actors": 1, "start_timeout_s": 60.0} | options
        peers = range(1, 1 + actors)
        self.hub = Hub(Mailbox(hub_end), peers, answers=answers, **limits)
        self.max_policy_lag, self.answers = max_policy_lag, answers
        self.spokes = {end.rank: self.spoke(end) for end in ends}
        self.batches = Batches(SPEC, unrolls)

    def spoke(self, end, heartbeat_s=None):
        return Spoke(Mailbox(end), heartbeat_s=heartbeat_s, waits_for_answer=self.answers)

    def begin(self, version=0, in_flight=2):
        """Have all spokes send HELLO and be ready for unrolls and weights."""
        for spoke in self.spokes.values():
            spoke.hello(SPACES)
            self.begin_spoke(spoke, in_flight)
        assert self.hub.await_hello(len(self.spokes), lambda: False) == SPACES
        self.begin_hub(version)
        self.pump()
        return self

    def begin_spoke(self, spoke, in_flight=1):
        spoke.begin([SPEC.empty() for _ in range(in_flight)], WEIGHTS_SIZE)

    def begin_hub(self, version=0):
        lag = self.max_policy_lag
        intake = Intake(SPEC, self.batches, max_policy_lag=lag, version=version)
        self.hub.begin(intake, WEIGHTS_SIZE)

    def pump(self):
        return self.hub.mailbox.pump()

    def dead(self, rank, what="was lost"):
        self.hub.transport.dead[rank] = what

    def publish(self, version):
        flat = np.full(WEIGHTS_SIZE, version, np.float32)
        self.hub.publish(version, flat, env_steps=11 * version)

    def send_unroll(self, rank, version=0, ended=(), **fields):
        """Send an unroll, if the spoke has a free buffer; whether it had one."""
        buffer = self.spokes[rank].free_buffer()
        if buffer is None:
            return False
        for values in buffer[1].values():
            values[...] = 0
        buffer[1]["behaviour_version"][...] = version
        for name, value in fields.items():
            buffer[1][name][...] = value
        for step, env, episode_return, length in ended:
            buffer[1]["episode_return"][step, env] = episode_return
            buffer[1]["episode_length"][step, env] = length
        self.spokes[rank].send_work(buffer)
        return True


def states(group):
    """``{rank: state}``."""
    return {rank: member.state for rank, member in group.hub.roster.members.items()}


class TestHello:
    def test_one_hello_is_enough_to_begin(self):
        group = Group()
        group.spokes[2].hello(SPACES)
        assert group.hub.await_hello(1, lambda: False) == SPACES
        assert states(group) == {1: EXPECTED, 2: ALIVE}

    def test_other_spaces_are_refused_with_ranks_and_fields(self):
        group = Group()
        group.spokes[1].hello(SPACES)
        group.pump()
        group.spokes[2].hello(SPACES | {"action": {"n": 3}})
        with pytest.raises(RunError) as error:
            group.pump()
        assert str(error.value) == (
            "the action space of rank 2 is {'n': 3}, that of rank 1 is {'n': 2}: all ranks need "
            "the same environment"
        )

    def test_other_spaces_of_a_late_spoke_are_refused(self):
        group = Group()
        group.spokes[2].hello(SPACES)
        group.hub.await_hello(1, lambda: False)
        group.begin_hub()
        group.spokes[1].hello(SPACES | {"observation": {"shape": [4], "dtype": "uint8"}})
        with pytest.raises(RunError, match=r"observation space of rank 1 is .* of rank 2 is"):
            group.pump()

    def test_late_spoke_gets_weights_and_sends_unrolls(self):
        group = Group()
        group.spokes[2].hello(SPACES)
        group.hub.await_hello(1, lambda: False)
        group.begin_hub()
        group.publish(4)
        group.spokes[1].hello(SPACES)
        group.begin_spoke(group.spokes[1], 1)
        group.pump()
        group.spokes[1].drain()
        assert group.spokes[1]._take_weights()[0] == 4
        group.send_unroll(1, version=4)
        group.pump()
        assert group.hub.take(0.0)["behaviour_version"] == [4]

    def test_wait_for_hello_can_be_given_up(self):
        assert Group().hub.await_hello(1, lambda: True) is None

    def test_silent_spoke_is_left_out_after_the_start_timeout(self, caplog):
        group = Group(start_timeout_s=0.05)
        group.spokes[2].hello(SPACES)
        began = time.monotonic()
        group.hub.await_hello(2, lambda: False)
        assert 0.04 < time.monotonic() - began < 5
        assert states(group) == {1: SILENT, 2: ALIVE}
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert warnings == ["rank 1 has not spoken in 0.05 s: left out, actors that remain: 1"]

    def test_spoke_left_out_at_the_start_may_still_come(self):
        group = Group(start_timeout_s=0.05)
        group.spokes[2].hello(SPACES)
        group.hub.await_hello(2, lambda: False)
        group.begin_hub()
        group.spokes[1].hello(SPACES)
        group.begin_spoke(group.spokes[1], 1)
        group.publish(4)
        group.pump()
        assert states(group)[1] == ALIVE
        group.spokes[1].drain()
        assert group.spokes[1]._take_weights()[0] == 4

    def test_too_few_speaking_spokes_end_the_run(self):
        group = Group(start_timeout_s=0.05, min_actors=2)
        group.spokes[2].hello(SPACES)
        with pytest.raises(RunError, match=r"rank 1 has not spoken .*remain: 1, needed: 2"):
            group.hub.await_hello(2, lambda: False)

    def test_silence_of_all_spokes_ends_the_run(self):
        group = Group(start_timeout_s=0.05)
        with pytest.raises(RunError, match=r"rank 2 has not spoken .*remain: 0, needed: 1"):
            group.hub.await_hello(1, lambda: False)


class TestWeights:
    def test_unpack_returns_what_was_packed(self):
        flat = np.arange(WEIGHTS_SIZE, dtype=np.float32)
        version, weights, more = unpack_weights(pack_weights(7, flat, [1.5, 2.5]), WEIGHTS_SIZE)
        assert (version, weights.tolist(), more.tolist()) == (7, flat.tolist(), [1.5, 2.5])

    @pytest.mark.parametrize("missing", [1, 8, 9, 28])
    def test_message_cut_short_is_refused(self, missing):
        message = pack_weights(7, np.zeros(WEIGHTS_SIZE, np.float32))
        with pytest.raises(ValueError, match=f"came in {28 - missing} bytes, but 5, .* are 28:"):
            unpack_weights(message[: len(message) - missing], WEIGHTS_SIZE)

    def test_only_the_newest_weights_are_sent_one_at_a_time(self):
        group = Group(actors=1).begin()
        inbox = group.spokes[1].transport._inboxes[1]
        for version in range(5):
            group.publish(version)
            group.pump()
            assert len(inbox) == 1  # version 0, which the spoke has not taken
        actor = group.spokes[1]
        actor.drain()
        assert actor._take_weights()[0] == 0
        group.pump()
        actor.drain()
        version, flat, env_steps = actor._take_weights()
        assert (version, env_steps) == (4, 44)
        np.testing.assert_array_equal(flat, np.full(WEIGHTS_SIZE, 4, np.float32))

    def test_same_weights_are_not_sent_twice(self):
        group = Group(actors=1).begin()
        group.publish(3)
        group.pump()
        group.spokes[1].drain()
        assert group.spokes[1]._take_weights()[0] == 3
        for _ in range(3):
            group.pump()
        assert not group.spokes[1].transport.poll()
        assert group.spokes[1]._take_weights() is None

    def test_spoke_takes_the_last_weights_that_arrived(self):
        group = Group(actors=1).begin()
        for version in (1, 2, 3):
            message = pack_weights(version, np.zeros(WEIGHTS_SIZE, np.float32), [0])
            group.hub.transport.send(1, WEIGHTS, message)
        group.spokes[1].drain()
        assert group.spokes[1]._take_weights()[0] == 3
        assert group.spokes[1]._take_weights() is None

    def test_slow_spoke_does_not_hold_up_another(self):
        group = Group().begin()
        for version in range(3):
            group.publish(version)
            group.pump()
            group.spokes[2].drain()
            assert group.spokes[2]._take_weights()[0] == version
        group.spokes[1].drain()
        assert group.spokes[1]._take_weights()[0] == 0


class TestUnrolls:
    def test_unrolls_are_taken_in_the_order_of_arrival(self):
        group = Group(unrolls=3).begin()
        for rank, value in ((2, 1), (1, 2), (2, 3)):
            assert group.send_unroll(rank, reward=value)
            group.pump()
        batch = group.hub.take(0.0)
        assert batch["reward"][:, 0, 0].tolist() == [1, 2, 3]

    def test_full_store_holds_the_sender_up_and_loses_nothing(self):
        group = Group(actors=1).begin(in_flight=2)
        sent = 0
        for _ in range(10):
            sent += group.send_unroll(1, reward=sent)
            group.pump()
        assert sent == 2 + 2  # two batches of one unroll, and two in flight
        seen = []
        while (batch := group.hub.take(0.0)) is not None:
            seen.append(int(batch["reward"][0, 0, 0]))
            group.batches.give_back(batch)
            group.pump()
        assert seen == [0, 1, 2, 3]
        assert group.send_unroll(1)

    def test_full_store_lets_other_messages_through(self):
        group = Group().begin()
        for _ in range(4):
            group.send_unroll(1)
            group.pump()
        message = pack_weights(2, np.zeros(WEIGHTS_SIZE, np.float32), [1.0])
        group.spokes[2].send(EVALUATION, message, wait=False)
        group.pump()
        assert len(group.hub.evaluations) == 1

    def test_unroll_of_another_layout_ends_the_run(self):
        group = Group().begin()
        other = TrajectorySpec(
            unroll_length=3,
            num_envs=2,
            observation={"": ((1,), np.int32)},
            action_shape=(),
            action_dtype=np.int32,
            policy_parameters=2,
        )
        group.spokes[2].send_work(other.empty())
        with pytest.raises(RunError, match=f"rank 2: .*{SPEC.digest()}, got {other.digest()}"):
            group.pump()
        assert group.batches.completed == 0

    def test_reset_rows_do_not_count_as_steps(self):
        group = Group(actors=1, max_policy_lag=0).begin(version=5)
        first = np.zeros((4, 2), bool)
        first[0] = True  # the reset row is in the unroll before
        first[2, 1] = True
        group.send_unroll(1, version=4, first=first)
        group.pump()
        assert group.hub.intake.env_steps_dropped == 3 * 2 - 1

    def test_unrolls_above_the_lag_limit_are_dropped(self):
        """An unroll is used at the first version plus the number of batches filled so far."""
        group = Group(actors=1, max_policy_lag=2).begin(version=10)
        used = []
        for version in (8, 8, 9, 9, 12, 9, 11):  # used at 10, 11: dropped, 11, 12: dropped, ...
            group.send_unroll(1, version=version)
            group.pump()
            while (batch := group.hub.take(0.0)) is not None:
                used.append(int(batch["behaviour_version"][0]))
                group.batches.give_back(batch)
        assert used == [8, 9, 12, 11]
        assert group.hub.intake.env_steps_dropped == 3 * 6
        assert [version - behaviour for version, behaviour in enumerate(used, 10)] == [2, 2, 0, 2]

    def test_episodes_of_a_dropped_unroll_count(self):
        group = Group(actors=1, max_policy_lag=0).begin(version=5)
        group.send_unroll(1, version=0, ended=[(1, 0, 21.0, 21)])
        group.pump()
        assert len(group.hub.intake.episodes) == 1

    def test_finished_episodes_are_collected(self):
        group = Group(actors=1).begin()
        group.send_unroll(1, ended=[(2, 0, 7.5, 3), (0, 1, -1.0, 9)])
        group.pump()
        group.send_unroll(1)
        group.pump()
        ((returns, lengths, scored),) = group.hub.intake.episodes
        assert (returns.tolist(), lengths.tolist()) == ([-1.0, 7.5], [9, 3])
        assert scored.tolist() == [True, True]

    @pytest.mark.parametrize("field", ["reward", "observation", "behaviour_logits"])
    def test_non_finite_unroll_is_dropped_with_rank_field_and_step(self, field, caplog):
        group = Group().begin()
        values = np.zeros(SPEC.fields[field][0], np.float32)
        values[1, 1] = np.inf
        group.send_unroll(2, env_steps=600, **{field: values})
        group.pump()
        said = (
            f"rank 2, at 600 env steps of its own: {field} is inf at step 1 of an unroll, "
            "environment 1"
        )
        assert f"{said}: the unroll is left out" in caplog.text
        assert group.hub.take(0.0) is None
        assert (group.hub.intake.env_steps_received, group.hub.intake.env_steps_dropped) == (6, 6)
        for _ in range(REFUSED_IN_A_ROW - 2):
            group.send_unroll(2, env_steps=600, **{field: values})
            group.pump()
        group.send_unroll(1)  # from another rank: does not change the count of rank 2
        group.pump()
        group.send_unroll(2, env_steps=600, **{field: values})
        with pytest.raises(RunError) as error:
            group.pump()
        assert str(error.value) == f"{said}, in {REFUSED_IN_A_ROW} unrolls in a row"

    def test_first_non_finite_unroll_ends_the_run_with_refusals_1(self):
        """As in synchronous rounds, which need the work of every rank."""
        group = Group(refusals=1).begin()
        group.send_unroll(2, env_steps=600, reward=np.nan)
        with pytest.raises(RunError, match=r"rank 2, at 600 .* environment 0$"):
            group.pump()

    def test_finite_unroll_sets_the_count_of_refusals_to_0(self):
        group = Group(unrolls=100).begin()
        for _ in range(3):
            for _ in range(REFUSED_IN_A_ROW - 1):
                group.send_unroll(1, reward=np.nan)
                group.pump()
            group.send_unroll(1)
            group.pump()
        assert group.hub.intake.env_steps_dropped == 3 * (REFUSED_IN_A_ROW - 1) * 6


class TestAnswers:
    """Each piece of work is answered once, by weights that contain it."""

    def group(self, **options):
        group = Group(answers=True, **options).begin(in_flight=1)
        group.publish(0)
        group.pump()
        for spoke in group.spokes.values():
            spoke.drain()
            assert spoke._take_weights()[0] == 0
        return group

    def answered(self, group):
        """Versions of the answers that have arrived so far, by rank."""
        group.pump()
        found = {}
        for rank, spoke in group.spokes.items():
            spoke.drain()
            if weights := spoke._take_weights():
                found[rank] = weights[0]
        return found

    def use(self, group, version):
        group.batches.give_back(group.hub.take(0.0))
        group.publish(version)

    def test_only_a_spoke_whose_work_was_used_gets_the_new_weights(self):
        group = self.group()
        group.send_unroll(2)
        assert self.answered(group) == {}
        self.use(group, 1)
        assert self.answered(group) == {2: 1}
        group.publish(2)
        assert self.answered(group) == {}

    def test_two_spokes_in_one_update_are_answered_together(self):
        group = self.group(unrolls=2)
        group.send_unroll(2)
        assert self.answered(group) == {}
        group.send_unroll(1)
        group.pump()
        self.use(group, 1)
        assert self.answered(group) == {1: 1, 2: 1}

    def test_work_that_is_used_the_moment_it_arrives_is_answered(self):
        """The loop of the learner may take a batch before the mailbox's thread goes on."""
        group = self.group(actors=1)
        add = group.batches.add

        def add_and_use(work):
            add(work)
            self.use(group, 1)

        group.batches.add = add_and_use
        group.send_unroll(1)
        assert self.answered(group) == {1: 1}

    def test_dropped_work_is_answered_at_once_with_the_newest_weights(self):
        group = self.group(max_policy_lag=0)
        group.send_unroll(1)
        group.pump()
        self.use(group, 1)
        group.send_unroll(2)  # made with version 0, would be used at version 1
        assert self.answered(group) == {1: 1, 2: 1}
        assert group.hub.intake.env_steps_dropped == 6

    def test_restarted_spoke_gets_the_newest_weights(self):
        group = self.group(restarts=1)
        group.publish(4)
        group.dead(2)
        group.pump()
        group.hub.roster.members[2].replace_at = 0.0
        group.pump()
        self.begin_again(group, 2)
        assert self.answered(group) == {2: 4}

    def begin_again(self, group, rank):
        """A new process has taken the place of a lost one."""
        again = group.spokes[rank] = group.spoke(group.spokes[rank].transport)
        again.hello(SPACES)
        group.begin_spoke(again)
        group.pump()

    def test_restarted_spoke_gets_no_answer_to_work_of_the_process_before(self):
        group = self.group(restarts=1)
        group.send_unroll(2)
        group.pump()
        group.dead(2)
        group.pump()
        group.hub.roster.members[2].replace_at = 0.0
        group.pump()
        self.begin_again(group, 2)
        assert self.answered(group) == {2: 0}
        self.use(group, 1)
        assert self.answered(group) == {}
        group.send_unroll(2)
        group.pump()
        self.use(group, 2)
        assert self.answered(group) == {2: 2}

    @pytest.mark.parametrize(
        ("workers", "in_update", "mean"), [(2, 1, 1), (3, 1, 2), (7, 1, 6), (2, 2, 0), (6, 2, 2)]
    )
    def test_lag_goes_by_the_number_of_workers_however_fast_each_is(self, workers, in_update, mean):
        """Work waits in no buffer; how fast each is differs by ten times here."""
        group = Group(actors=workers, unrolls=in_update, answers=True).begin(in_flight=1)
        group.publish(0)
        rng, lags, has, version = np.random.default_rng(4), [], {}, 0
        chance = np.geomspace(0.05, 0.5, workers)
        for _ in range(3000):
            has |= self.answered(group)
            for rank in [rank for rank in has if rng.random() < chance[rank - 1]]:
                group.send_unroll(rank, version=has.pop(rank))
            if (batch := group.hub.take(0.0)) is not None:
                lags += (version - batch["behaviour_version"]).tolist()
                group.batches.give_back(batch)
                version += 1
                group.publish(version)
        assert version > 100
        assert np.mean(lags) == pytest.approx(mean, rel=0.05)

    def test_turn_waits_for_the_answer(self):
        group = self.group(actors=1)
        group.send_unroll(1)
        group.pump()
        spoke, turns = group.spokes[1], []
        spoke._has_weights = True
        pump = spoke.mailbox.pump

        def pump_and_count():
            turns.append(None)
            if len(turns) == 5:
                self.use(group, 1)
                group.pump()
            return pump()

        spoke.mailbox.pump = pump_and_count
        assert spoke.turn()[0][0] == 1
        assert len(turns) >= 5


class TestEvaluation:
    def test_evaluation_arrives_with_version_weights_and_returns(self):
        group = Group().begin()
        flat = np.arange(WEIGHTS_SIZE, dtype=np.float32)
        message = pack_weights(30, flat, [10.0, 21.5])
        group.spokes[1].send(EVALUATION, message, wait=False)
        group.pump()
        message[:] = 0xA5  # the sender may use its buffer again
        ((version, weights, returns),) = group.hub.evaluations
        assert (version, weights.tolist(), returns.tolist()) == (30, flat.tolist(), [10.0, 21.5])


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: ``clock(5)`` lets 5 seconds pass."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


def pass_time(group, clock, seconds, talking=()):
    """Let time pass and serve every half second, so that the hub does not seem to pause."""
    for _ in range(round(2 * seconds)):
        clock(0.5)
        for rank in talking:
            group.spokes[rank].drain()
        group.pump()


class TestSilence:
    """A spoke that is alive but sends nothing: it hangs, is stopped or cut off."""

    def begin(self, **options):
        group = Group(heartbeat_s=10.0, **options)
        for rank, actor in group.spokes.items():
            group.spokes[rank] = group.spoke(actor.transport, 10.0)
        return group.begin()

    def test_silent_spoke_is_left_out_and_taken_back(self, clock, caplog):
        group = self.begin()
        for rank in group.spokes:
            group.send_unroll(rank, env_steps=60)
            group.pump()
            group.batches.give_back(group.hub.take(0.0))
        pass_time(group, clock, 9.5, talking=[1])
        assert group.hub.roster.alive == {1, 2}
        pass_time(group, clock, 1.5, talking=[1])
        assert group.hub.roster.alive == {1}
        said = "rank 2 has not spoken in 10 s after 60 env steps on host "
        assert said in caplog.text
        group.send_unroll(2, env_steps=66)
        group.pump()
        assert group.hub.roster.alive == {1, 2}
        assert "rank 2 speaks again: taken back" in caplog.text
        assert group.hub.take(0.0)["behaviour_version"] == [0]

    def test_beats_keep_a_spoke_in(self, clock):
        group = self.begin()
        for rank in group.spokes:
            group.send_unroll(rank)
        group.pump()
        pass_time(group, clock, 100.0, talking=[1, 2])
        assert group.hub.roster.alive == {1, 2}

    def test_hub_knows_that_a_spoke_evaluates_until_it_has_finished(self, clock):
        group = self.begin()
        group.spokes[1].say("evaluates")
        group.pump()
        pass_time(group, clock, 30.0, talking=[1, 2])  # a BEAT does not change it
        assert group.hub.doing() == {1: "evaluates"}
        group.spokes[1].say("")
        group.pump()
        assert group.hub.doing() == {}

    def test_spoke_with_a_held_message_is_not_silent(self, clock):
        """The hub has no room: so the hub does not listen, and the spoke cannot send."""
        group = self.begin(actors=1)
        for _ in range(2):
            group.send_unroll(1)
            group.pump()
        group.send_unroll(1)
        pass_time(group, clock, 100.0)
        assert group.hub.roster.alive == {1}

    def test_pause_of_the_hub_is_not_silence_of_a_spoke(self, clock):
        group = self.begin(actors=1)
        group.send_unroll(1)
        group.pump()
        clock(500.0)  # as if the hub had been stopped, or had compiled
        group.pump()
        assert group.hub.roster.alive == {1}

    def test_slow_spoke_is_left_out_only_once(self, clock):
        """If its unrolls take longer than heartbeat_s, the hub learns that when it comes back."""
        group = self.begin(actors=1, unrolls=9, min_actors=0)
        group.send_unroll(1)
        pass_time(group, clock, 12.0)
        assert group.hub.roster.alive == set()
        group.send_unroll(1)
        for _ in range(3):
            pass_time(group, clock, 12.0)
            assert group.hub.roster.alive == {1}
            group.send_unroll(1)

    def test_first_unroll_may_take_the_start_timeout(self, clock):
        group = self.begin(actors=1, start_timeout_s=60.0, min_actors=0)
        pass_time(group, clock, 58.0)
        assert group.hub.roster.alive == {1}
        pass_time(group, clock, 4.0)
        assert group.hub.roster.alive == set()


class TestRestart:
    """A lost spoke is replaced by a new process, which sends HELLO as the first did."""

    def begin(self, **options):
        return Group(**{"restarts": 2, "min_actors": 2} | options).begin()

    def test_lost_spoke_is_restarted_after_a_second(self, clock, caplog, monkeypatch):
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2")
        group = self.begin()
        group.publish(3)
        group.pump()
        for actor in group.spokes.values():
            actor.drain()
        group.dead(2)
        group.pump()  # the run does not end, though there are fewer than min_actors
        assert "left out, to be started again in 1 s, actors that remain: 1" in caplog.text
        assert group.hub.transport.replaced == []
        pass_time(group, clock, 1.5)
        ((rank, command),) = group.hub.transport.replaced
        assert rank == 2
        content = json.loads(command[-1])
        assert content["incarnation"] == 1
        assert content["variables"]["OMPI_COMM_WORLD_RANK"] == "2"
        assert content["variables"]["OMPI_COMM_WORLD_SIZE"] == "3"
        assert content["variables"]["OMPI_COMM_WORLD_LOCAL_RANK"] == "2"  # from its HELLO
        assert states(group) == {1: ALIVE, 2: EXPECTED}
        again = group.spoke(group.spokes[2].transport)
        again.hello(SPACES)
        group.begin_spoke(again, 2)
        group.pump()
        assert group.hub.roster.alive == {1, 2}
        again.drain()
        assert again._take_weights()[0] == 3

    def test_restarts_are_limited_and_each_waits_longer(self, clock, caplog):
        group = self.begin()
        for _ in range(2):
            group.dead(2)
            pass_time(group, clock, 3.0)
        assert [rank for rank, _ in group.hub.transport.replaced] == [2, 2]
        assert "to be started again in 2 s" in caplog.text
        group.dead(2)
        with pytest.raises(RunError, match=r"rank 2 was lost .*remain: 1, needed: 2"):
            group.pump()

    def test_long_life_sets_the_count_of_restarts_to_0(self, clock):
        group = self.begin()
        for tries in range(1, 6):
            group.dead(2)
            pass_time(group, clock, 3.0)
            assert len(group.hub.transport.replaced) == tries
            again = group.spokes[2] = group.spoke(group.spokes[2].transport)
            again.hello(SPACES)
            group.begin_spoke(again, 2)
            group.pump()
            group.send_unroll(2)
            group.pump()
            group.batches.give_back(group.hub.take(0.0))
            pass_time(group, clock, LIVED_S + 1.0)

    def test_hanging_spoke_is_replaced_and_told_to_stop(self, clock):
        group = self.begin(heartbeat_s=10.0, min_actors=1)
        group.send_unroll(2)
        group.pump()
        pass_time(group, clock, 10.5, talking=[])
        assert 2 in group.hub.roster.of(SILENT)
        assert group.hub.transport.replaced == []  # it may come back
        pass_time(group, clock, 12.0, talking=[])
        assert 2 in [rank for rank, _ in group.hub.transport.replaced]
        assert group.hub.transport.told[2] == [STOP]

    def test_process_that_cannot_be_started_uses_up_the_restarts(self, clock, caplog):
        group = self.begin(min_actors=1)
        group.dead(2)
        for tries in (1, 2):
            pass_time(group, clock, 5.0)
            assert len(group.hub.transport.replaced) == tries
            group.dead(2, "could not be started (no more processes)")
        pass_time(group, clock, 30.0)
        assert caplog.text.count("rank 2 could not be started (no more processes)") == 2
        assert len(group.hub.transport.replaced) == 2
        assert group.hub.roster.alive == {1}

    def test_all_spokes_lost_before_hello_are_restarted(self, clock):
        group = Group(restarts=1)
        group.dead(1)
        group.dead(2)
        looks = []

        def give_up():
            looks.append(clock(0.5))
            return len(looks) > 10

        assert group.hub.await_hello(1, give_up) is None
        assert sorted(rank for rank, _ in group.hub.transport.replaced) == [1, 2]


class TestEnd:
    def test_error_of_a_spoke_ends_the_run_with_its_reason(self):
        group = Group().begin()
        group.spokes[2].send(ERROR, encode({"reason": "KeyError: 7"}), wait=False)
        with pytest.raises(RunError) as error:
            group.pump()
        assert str(error.value) == "rank 2: KeyError: 7 (worker_2.txt has the traceback)"

    def test_error_before_hello_ends_the_run(self):
        group = Group()
        group.spokes[2].send(ERROR, encode({"reason": "no such environment"}), wait=False)
        with pytest.raises(RunError, match="rank 2: no such environment"):
            group.hub.await_hello(1, lambda: False)

    def test_lost_spoke_is_left_out(self, caplog):
        group = Group().begin()
        group.send_unroll(2, env_steps=600)
        group.pump()
        group.dead(2)
        group.pump()
        assert group.hub.roster.alive == {1}
        host = socket.gethostname()
        assert (
            f"rank 2 was lost after 600 env steps on host {host}: left out, actors that remain: 1"
        ) in caplog.text
        group.publish(1)
        group.pump()
        assert group.spokes[1].transport.poll()
        assert not group.spokes[2].transport.poll()

    def test_too_many_lost_spokes_end_the_run(self):
        group = Group(min_actors=2).begin()
        group.dead(1)
        with pytest.raises(RunError, match=r"rank 1 was lost after 0 .*remain: 1, needed: 2"):
            group.pump()

    def test_lost_hub_ends_a_spoke(self):
        group = Group().begin()
        group.spokes[1].transport.dead[0] = "was lost"
        with pytest.raises(RunError, match=r"the learner \(rank 0\) is gone"):
            group.spokes[1].drain()

    def test_exception_in_the_thread_is_raised_by_take(self):
        group = Group().begin()
        group.hub.start()
        group.spokes[1].send(ERROR, encode({"reason": "KeyError: 7"}), wait=False)
        group.hub.mailbox._thread.join(timeout=5)
        with pytest.raises(RunError, match="KeyError: 7"):
            group.hub.take(0.0)

    def test_stop_reaches_every_spoke_and_waits_for_the_answers(self):
        group = Group().begin()
        answer_when_told(group, 1, 2)
        assert group.hub.stop()
        assert all(actor.stopped for actor in group.spokes.values())

    def test_unrolls_that_arrive_after_the_stop_are_dropped_and_counted(self):
        group = Group().begin()
        for _ in range(2):
            group.send_unroll(1)
        answer_when_told(group, 1, 2)
        assert group.hub.stop()
        assert group.hub.intake.env_steps_dropped == 2 * 6
        assert group.hub.take(0.0) is None

    def test_stop_reaches_spokes_that_have_not_begun(self):
        """One has not sent HELLO; the other has, but the hub has not begun."""
        group = Group()
        group.spokes[2].hello(SPACES)
        group.hub.await_hello(1, lambda: False)
        for actor in group.spokes.values():
            group.begin_spoke(actor, 1)
        answer_when_told(group, 1, 2, hello=[1])
        assert group.hub.stop()
        assert all(actor.stopped for actor in group.spokes.values())

    def test_stop_does_not_wait_for_ever_for_an_answer(self, monkeypatch):
        monkeypatch.setattr(module, "STOP_S", 0.1)
        group = Group().begin()
        answer_when_told(group, 1)
        began = time.monotonic()
        assert not group.hub.stop()
        assert 0.09 < time.monotonic() - began < 5

    def test_error_counts_as_an_answer_to_stop(self):
        group = Group().begin()
        answer_when_told(group, 1)
        group.spokes[2].send(ERROR, encode({"reason": "late"}), wait=False)
        assert group.hub.stop()

    def test_stop_does_not_wait_for_lost_spokes(self):
        group = Group().begin()
        answer_when_told(group, 1)
        group.dead(2)
        assert group.hub.stop()

    def test_stop_sends_nothing_to_a_spoke_in_the_same_thread(self):
        hub_end, end = LocalTransport.connect(2)
        hub = Hub(Mailbox(hub_end), [1], min_actors=1, start_timeout_s=60.0)
        assert hub.stop()
        Spoke(Mailbox(end)).begin([], WEIGHTS_SIZE)
        assert not end.poll()


def answer_when_told(group, *ranks, hello=()):
    """Let spokes read messages whenever the hub does, and answer STOP with BYE."""
    pump, waiting = group.hub.mailbox.pump, set(ranks)

    def pump_all():
        for rank in sorted(waiting):
            if group.spokes[rank].drain():
                waiting.discard(rank)
                if rank in hello:
                    group.spokes[rank].hello(SPACES)
                group.spokes[rank].send(BYE, encode({}), wait=False)
        return pump()

    group.hub.mailbox.pump = pump_all


def test_tags_differ():
    names = ("HELLO", "WEIGHTS", "WORK", "EVALUATION", "ERROR", "STOP", "BYE", "BEAT")
    assert len({getattr(messages, name) for name in names}) == len(names)
