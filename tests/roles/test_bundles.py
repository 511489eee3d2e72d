"""Gorila's workers: own replay, outliers that are not sent, and what the server counts."""

from types import SimpleNamespace

import gymnasium
import mindspore as ms
import numpy as np
import pytest

from impala_ms import config
from impala_ms.agents.checks import check_policy
from impala_ms.agents.q_actor import QActor
from impala_ms.agents.q_learning import QLearner
from impala_ms.cluster.hub import Hub, Intake
from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.spoke import Spoke
from impala_ms.errors import ConfigError
from impala_ms.roles.bundles import DECAY, FLOOR, WARM_UP, Bundles, Bundling, Outliers
from impala_ms.roles.gradients import GradientLayout, GradientServer
from impala_ms.trajectory import Batches, TrajectorySpec
from tests.agents.test_memory import make_environment
from tests.agents.test_q_learning import Table, batch_of
from tests.cluster.test_hub import FakeTransport

LOADED = config.load("gorila", ["--num_envs", "3", "--unroll_length", "4", "--n_step", "2"], 3)
PARAMS = LOADED.learner_params
STATISTICS = (*QLearner.statistics, "replay_age_mean", "replay_rows")
REPORTED = SimpleNamespace(statistics=STATISTICS, columns={})
T, E = 4, 3


def make_layout(spec, policy):
    size = sum(parameter.size for parameter in policy.trainable_params())
    return GradientLayout(spec, size, (*STATISTICS, "gradient_norm"), keeps=True)


def make_spec():
    fields = {"scored": ((E,), np.dtype(np.bool_))}
    return TrajectorySpec(
        unroll_length=T,
        num_envs=E,
        observation={"": ((2,), np.float32)},
        action_shape=(),
        action_dtype=np.int32,
        policy_parameters=0,
        recorded=fields,
    )


class Recorded:
    """In place of a replay: batches that are always due, one after the other."""

    def __init__(self, batches):
        self.batches, self.taken = batches, 0

    def example(self):
        return self.batches[0]

    def is_due(self):
        return True

    def take(self, timeout_s):
        self.taken += 1
        return self.batches[self.taken - 1]

    def give_back(self, batch):
        pass

    def columns(self):
        return {"replay_age_mean": 2.0, "replay_rows": 50.0}


def random_batches(number, rows=8):
    rng = np.random.default_rng(3)
    return [
        batch_of(
            *rng.normal(size=(2, rows, 2)),
            rng.integers(3, size=rows),
            rng.normal(size=rows),
            rng.random(rows),
        )
        for _ in range(number)
    ]


class TestOneWorkerIsDqn:
    @pytest.mark.parametrize("optimizer", ["adagrad", "adam", "rmsprop"])
    def test_fifty_updates_give_the_same_weights(self, optimizer):
        changes = {"optimizer": optimizer, "lr": 0.05, "target_period": 7, "double": True}
        params, batches = PARAMS | changes, random_batches(50)
        first = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)

        def table():
            made = Table()
            check_policy(made, "table", "none")
            made.weight.set_data(ms.Tensor(first))
            return made

        alone = QLearner(table(), params, 1000)
        policy = table()
        learner, server = (
            QLearner(policy, params, 1000),
            GradientServer(table(), params, 1000, REPORTED),
        )
        actor = SimpleNamespace(version=0, env_steps=0)
        parts = SimpleNamespace(
            actor=actor,
            learner=learner,
            spec=make_spec(),
            spoke=None,
            replay=Recorded(batches),
            outliers=Outliers(None),
        )
        worker = Bundling(parts, LOADED.trainer_params)
        actor.weights = learner.weights
        layout = make_layout(parts.spec, policy)
        store = Batches(layout, 1)
        for update, batch in enumerate(batches):
            actor.version = update
            actor.weights.write(server.weights.read())
            _, fields = layout.empty()
            assert worker.work(fields)
            store.add(fields)
            of_server = server.learn(taken := store.take(0.0))
            store.give_back(taken)
            of_dqn = alone.learn(batch)
            assert of_server["loss_total"] == pytest.approx(of_dqn["loss_total"], abs=1e-5)
            np.testing.assert_allclose(
                server.weights.read(), alone.weights.read(), rtol=0.0, atol=1e-6
            )
        assert of_server["replay_rows"] == 50.0
        assert np.abs(alone.weights.read()[:6] - first.ravel()).max() > 0.1


class TestOutliers:
    def test_mean_and_deviation_are_those_of_the_losses_so_far(self):
        rng = np.random.default_rng(2)
        losses = rng.normal(size=60) ** 2
        found = Outliers(3.0)
        for loss in losses:
            assert not found(loss)  # still warming up
        assert found.mean == pytest.approx(losses.mean())
        assert found.variance == pytest.approx(losses.var())

    def test_later_losses_count_more_than_early_ones(self):
        found, mean = Outliers(None), 0.0
        for i in range(400):
            loss = float(i >= 200)
            share = max(1 / (i + 1), 1 - DECAY)
            mean += share * (loss - mean)
            found(loss)
        assert found.mean == pytest.approx(mean)
        assert mean > 0.85  # 0.5 if all counted alike

    def test_one_is_a_loss_beyond_sigma_deviations(self):
        for loss, far in ((1.0 + 2.9 * 0.5, False), (1.0 + 3.1 * 0.5, True), (0.0, False)):
            found = Outliers(3.0)
            for i in range(WARM_UP):
                assert not found(1.5 if i % 2 else 0.5)
            assert found.mean == pytest.approx(1.0, abs=0.01)
            assert found(loss) == far
            assert found(-loss) in (far, False)  # of a negative loss, the size counts

    def test_equal_losses_have_a_deviation_above_zero(self):
        found = Outliers(1.0)
        for _ in range(3 * WARM_UP):
            assert not found(2.0)
        assert not found(2.0 * (1.0 + 0.5 * FLOOR))
        assert found(2.0 * (1.0 + 3.0 * FLOOR))

    def test_a_lasting_change_does_not_lock_a_worker_out(self):
        found = Outliers(2.0)
        for _ in range(WARM_UP):
            found(1.0)
        refused = [found(10.0) for _ in range(100)]
        assert refused[0]
        assert not any(refused[50:])

    def test_a_loss_that_is_not_finite_is_left_to_the_server(self):
        found = Outliers(3.0)
        for _ in range(WARM_UP):
            found(1.0)
        assert not found(float("nan"))
        assert not found(float("inf"))
        assert found.mean == pytest.approx(1.0)
        assert found(10.0)

    def test_none_are_found_without_sigma(self):
        found = Outliers(None)
        assert not any(found(10.0 ** (i % 7)) for i in range(3 * WARM_UP))


@pytest.fixture
def pair():
    """A worker under a hub, message by message; it plays environments, and has a replay."""
    environment = make_environment(
        gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32), gymnasium.spaces.Discrete(3)
    )
    options = ["--num_envs", str(E), "--unroll_length", str(T), "--sigma", "1"]
    options += ["--batch_size", "8", "--replay_start", "20", "--replay_ratio", "2"]
    work = Bundles(config.load("gorila", [*options, "--n_step", "2"], 2))
    policy, spec = Table(), make_spec()
    policy.inputs, policy.state_size, policy.parts, policy.frame_stack = (), 0, 0, 1
    policy.prepare = list
    parts = SimpleNamespace(
        actor=QActor(policy, environment, T, np.random.default_rng(5)),
        spec=spec,
        number=1,
        incarnation=0,
    )
    parts.learner = QLearner(policy, PARAMS, 1000)
    work.equip(spec, parts)
    hub_end, end = FakeTransport.connect(2)
    hub = Hub(Mailbox(hub_end), [1], answers=True, min_actors=1, start_timeout_s=60.0)
    parts.spoke = spoke = Spoke(Mailbox(end), waits_for_answer=True)
    worker = Bundling(parts, LOADED.trainer_params)
    layout = work.layout(spec, policy)
    spoke.hello({})
    size = parts.actor.weights.size
    spoke.begin([layout.empty()], size)
    assert hub.await_hello(1, lambda: False) == {}
    store = Batches(layout, 1)
    hub.begin(Intake(layout, store, max_policy_lag=2, version=10), size)
    hub.publish(10, np.zeros(size, np.float32))
    hub.mailbox.pump()
    return SimpleNamespace(worker=worker, hub=hub, store=store, size=size, actor=parts.actor)


def turn(pair):
    """The worker takes a turn, after another if it must play first; the hub what it sends."""
    played = True
    while played:
        played = not pair.worker.replay.is_due()
        assert not pair.worker.spoke.drain()
        assert pair.worker.spoke._may_begin()  # or the turn would wait for ever
        received = pair.hub.intake.env_steps_received
        assert pair.worker.turn()
        pair.hub.mailbox.pump()
        pair.hub.mailbox.pump()
        played &= pair.hub.intake.env_steps_received == received


def use(pair, version):
    batch = pair.hub.take(0.0)
    rows = pair.store.rows(batch)
    pair.store.give_back(batch)
    pair.hub.publish(version, np.full(pair.size, version, np.float32))
    pair.hub.mailbox.pump()
    return rows


class TestExchange:
    def test_decisions_are_counted_once_and_rows_for_each_gradient(self, pair):
        """The replay begins with 20 decisions; from then on 8 rows are due for every 4."""
        new, learned, steps = [], [], []
        for version in range(11, 19):
            before = pair.actor.env_steps
            turn(pair)
            steps.append(pair.actor.env_steps - before)
            rows = use(pair, version)
            new.append(rows[0])
            learned.append(rows[1])
        assert new == steps
        assert sum(new) == pair.actor.env_steps == pair.hub.intake.env_steps_received
        assert learned == [8] * 8
        assert new[0] >= 20
        assert 0 in new  # a gradient without new decisions
        assert pair.hub.intake.env_steps_dropped == 0

    def test_decisions_of_a_stale_gradient_stay_in_the_replay_and_count(self, pair):
        turn(pair)
        used = use(pair, 11)[0]
        pair.store.completed = 4  # meanwhile three gradients of other workers were applied
        pair.hub.publish(14, np.ones(pair.size, np.float32))
        pair.worker.replay.limiter.learned -= 8  # a gradient is due without playing
        pair.worker.new_rows = 5
        turn(pair)
        intake = pair.hub.intake
        assert (intake.dropped, intake.env_steps_dropped) == (1, 0)
        assert intake.env_steps_received == used + 5
        assert pair.hub.take(0.0) is None
        pair.hub.mailbox.pump()
        turn(pair)
        assert pair.actor.version == 14
        made = pair.actor.env_steps - used
        assert use(pair, 15) == (made + 5, 8)
        assert pair.store.newly_kept() == 0

    def test_a_gradient_is_made_with_weights_that_are_newer_than_the_unroll_before_it(self, pair):
        play, versions = pair.actor.play, []

        def play_while_others_learn(unroll):
            play(unroll)
            versions.append(pair.actor.version)
            pair.hub.publish(pair.hub._weights[0] + 1, np.ones(pair.size, np.float32))

        pair.actor.play = play_while_others_learn
        turn(pair)
        assert pair.hub.take(0.0)["behaviour_version"] == [versions[-1] + len(versions)]

    def test_an_outlier_is_not_sent_but_counted_and_answered_with_new_weights(self, pair):
        turn(pair)
        use(pair, 11)
        judge, pair.worker.outliers = pair.worker.outliers, lambda loss: True
        turn(pair)
        assert pair.hub.take(0.0) is None
        pair.hub.publish(12, np.ones(pair.size, np.float32))
        pair.hub.mailbox.pump()
        turn(pair)
        assert pair.actor.version in (11, 12)
        pair.hub.mailbox.pump()
        pair.worker.outliers = judge
        turn(pair)
        assert pair.actor.version == 12
        assert pair.hub.intake.withheld == 2
        assert use(pair, 13)[1] == 8
        assert pair.hub.intake.env_steps_received == pair.actor.env_steps

    def test_an_unroll_with_a_nan_is_not_kept_and_its_decisions_are_dropped(self, pair, caplog):
        play = pair.actor.play

        def play_badly(unroll):
            play(unroll)
            unroll["reward"][2, 1] = np.nan

        pair.actor.play = play_badly
        turn(pair)
        assert "reward is nan at step 2 of an unroll, environment 1" in caplog.text
        intake = pair.hub.intake
        assert intake.env_steps_dropped == intake.env_steps_received == pair.actor.env_steps > 0
        assert pair.worker.replay.limiter.accepted == 0
        pair.actor.play = play
        pair.hub.mailbox.pump()
        turn(pair)
        assert use(pair, 11)[0] == pair.actor.env_steps - intake.env_steps_dropped

    def test_unrolls_before_one_with_a_nan_are_kept_and_counted(self, pair):
        play, played = pair.actor.play, []

        def play_badly_once(unroll):
            play(unroll)
            played.append(int((~unroll["first"][1:]).sum()))
            if len(played) == 2:
                unroll["reward"][0, 0] = np.inf

        pair.actor.play = play_badly_once
        pair.worker.episodes.append((7.0, 3))  # of the unrolls that are kept
        turn(pair)
        assert pair.hub.intake.env_steps_dropped == played[1]
        assert pair.worker.episodes[0] == (7.0, 3)  # to be told with a gradient
        pair.hub.mailbox.pump()
        turn(pair)
        assert len(played) > 2
        assert use(pair, 11)[0] == sum(played) - played[1]

    def test_the_target_network_is_that_of_the_period(self, pair):
        period = pair.worker.learner.period
        target = pair.worker.target
        for version, expected in ((0, 1), (period - 1, 1), (period + 3, 2), (2 * period - 1, 2)):
            pair.actor.set_weights(version, np.full(pair.size, expected + (version % 2) * 0.0))
            if version in (period - 1, 2 * period - 1):
                pair.actor.weights.write(np.full(pair.size, 9.0, np.float32))
            pair.worker.follow_target()
            assert set(target.read().tolist()) == {expected}

    def test_finished_episodes_reach_the_hub_also_when_there_are_many(self, pair):
        turn(pair)
        use(pair, 11)
        pair.hub.intake.episodes.clear()
        pair.worker.episodes.extend((float(i), i) for i in range(1, 31))
        for version in (12, 13, 14):
            turn(pair)
            use(pair, version)
        found = np.concatenate([returns for returns, _, _ in pair.hub.intake.episodes])
        assert found.tolist()[:30] == list(range(1, 31))


class TestSettings:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["--sigma", "0"], "sigma = '0' (--sigma): must be float > 0 or None"),
            (["--sigma", "-1"], "must be float > 0 or None"),
            (["--servers", "0"], "trainer.servers = '0' (--servers): must be int >= 1"),
            (["--servers", "3"], "gorila with N = 3: 3 servers need N = 4 or more"),
            (["--max_policy_lag", "-1"], "must be int >= 0 or None"),
            (["--n_step", "50"], "must be at most trainer.unroll_length"),
            (["--replay_start", "120000"], "learning would not begin"),
            (["--synchronous", "true"], "unknown option --synchronous"),
            (["--optimizer", "sgd"], "must be one of adam, rmsprop, adagrad"),
        ],
    )
    def test_what_does_not_fit_is_refused_in_one_line(self, given, message):
        with pytest.raises(ConfigError) as caught:
            config.load("gorila", given, 3)
        (line,) = caught.value.problems
        assert message in line

    def test_replays_of_workers_are_drawn_from_with_seeds_of_their_own(self):
        work = Bundles(LOADED)
        first, second, again = (
            work.replayed.replay(make_spec(), number, incarnation).sampler.rng.random()
            for number, incarnation in ((1, 0), (2, 0), (1, 1))
        )
        assert len({first, second, again}) == 3

    def test_replays_that_do_not_fit_together_into_memory_are_refused(self, monkeypatch):
        monkeypatch.setattr("impala_ms.memory.free_bytes", lambda: 5_000_000)
        replay = Bundles(LOADED).replayed.replay
        replay(make_spec(), 1, copies=1)
        with pytest.raises(ConfigError, match=r"replay_capacity = 100,000: such a replay takes"):
            replay(make_spec(), 1, copies=3)
