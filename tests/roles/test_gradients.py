"""Workers that send gradients and the server that applies them, on fakes and by hand."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from impala_ms import config
from impala_ms.agents.actor import PolicyActor
from impala_ms.agents.actor_critic import ActorCriticLearner, VTraceLearner
from impala_ms.cluster.hub import Hub, Intake
from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.roster import REFUSED_IN_A_ROW
from impala_ms.cluster.spoke import Spoke
from impala_ms.errors import ConfigError, RunError
from impala_ms.metrics.recorder import Recorder
from impala_ms.roles.gradients import (
    TEXT_BYTES,
    GradientLayout,
    Gradients,
    GradientServer,
    GradientStep,
    Working,
)
from impala_ms.roles.learning import Learning
from impala_ms.spaces import leaf_array, leaves
from impala_ms.trajectory import ALIGNMENT_BYTES, Batches, TrajectorySpec
from tests.agents.test_learner import by_hand
from tests.agents.test_memory import DISCRETE, FRAMES, make_environment, make_policy
from tests.cluster.test_hub import FakeTransport
from tests.compiled import one_by_one
from tests.fakes import linear_net

T, E = 5, 3
PARAMS = config.load("a3c", [], 3).learner_params | {"lr": 0.01, "reward_scale": 1.0}
IMPALA = config.load("impala", [], 3).learner_params
TRAINER = config.load("a3c", [], 3).trainer_params
# So a step of the optimiser is the gradient itself: the running mean square stays 1.
PLAIN = {
    "lr": 1.0,
    "lr_schedule": "constant",
    "rmsprop_decay": 1.0,
    "rmsprop_start": 1.0,
    "optimizer_epsilon": 0.0,
}
STATISTICS = (*ActorCriticLearner.statistics, "gradient_norm")


def make_spec(environment, policy, mask_size=0, steps=T):
    spaces = environment.spaces()
    return TrajectorySpec(
        unroll_length=steps,
        num_envs=E,
        observation={p: leaf_array(leaf) for p, leaf in leaves(spaces["observation"]).items()},
        action_shape=policy.distribution.action_shape,
        action_dtype=policy.distribution.action_dtype,
        policy_parameters=policy.distribution.num_parameters,
        frame_stack=environment.frame_stack,
        mask_size=mask_size,
        inputs=policy.inputs,
        state_size=policy.state_size,
    )


def make_layout(spec, policy):
    size = sum(parameter.size for parameter in policy.trainable_params())
    return GradientLayout(spec, size, STATISTICS)


def make_worker(environment, policy, mask_size=0, steps=T, **changes):
    """A worker without a spoke; and the layout of its messages."""
    spec = make_spec(environment, policy, mask_size, steps)
    parts = SimpleNamespace(
        actor=PolicyActor(policy, environment, steps, np.random.default_rng(5)),
        learner=ActorCriticLearner(policy, PARAMS | changes, 1000),
        spec=spec,
        spoke=None,
        number=1,
    )
    return Working(parts, TRAINER), make_layout(spec, policy)


def work(worker, layout):
    """What a worker writes over the absurd values of a buffer."""
    buffer, fields = layout.empty()
    buffer[ALIGNMENT_BYTES:] = 0xA5
    worker.work(fields)
    return fields


def make_server(policy=None, **changes):
    policy = policy or linear_net((1,), 1)
    return GradientServer(policy, PARAMS | changes, 1000, ActorCriticLearner)


def batch_of(*gradients, rows, statistics=0.0):
    """A batch of gradients, each of one number for every weight, of a server's one layout."""
    described = np.zeros((len(gradients), len(STATISTICS)), np.float32)
    described[:] = np.reshape(statistics, (-1, 1))
    return {
        "gradient": np.repeat(np.array(gradients, np.float32)[:, None], 3, 1),
        "statistics": described,
        "rows": np.array(rows, np.int64),
        "valid_rows": np.array(rows, np.int64),
    }


def weights_of(server):
    """The one value that all weights of a server of ``make_server`` have."""
    (value,) = set(server.weights.read().tolist())
    return value


class TestClipping:
    """Case 71, by the loss of a worker whose terms are given."""

    @pytest.mark.parametrize(
        ("shared", "limit", "expected"),
        [
            ((10.0, -7.0), None, (3.0, 6.0, 8.0)),
            ((0.0, 0.0), 5.0, (0.0, 3.0, 4.0)),
            ((10.0, -10.0), 5.0, (0.0, 3.0, 4.0)),
        ],
    )
    def test_a_shared_weight_gets_both_gradients_and_all_are_clipped_together(
        self, shared, limit, expected
    ):
        policy = linear_net((1,), 1)

        class Given(ActorCriticLearner):
            def policy_gradient_term(self, log_probs, advantages):
                return (shared[0] * policy.policy_bias + 6.0 * policy.policy_weight).sum()

            def baseline_term(self, values, vs, valid):
                return (shared[1] * policy.policy_bias + 8.0 * policy.baseline_weight).sum()

        changes = {"max_grad_norm": limit, "loss_reduction": "sum", "baseline_cost": 1.0}
        learner = Given(policy, PARAMS | changes | {"entropy_cost": 0.0}, 1000)
        gradient, described = gradient_of(learner, constant_batch(1))
        names = [parameter.name for parameter in learner.optimizer.parameters]
        found = dict(zip(names, gradient.tolist(), strict=True))
        order = ("policy_bias", "policy_weight", "baseline_weight")
        assert [found[name] for name in order] == pytest.approx(expected, abs=1e-6)
        norm = np.sqrt((sum(shared) ** 2) + 100.0)
        assert described[-1] == pytest.approx(norm)  # before clipping


def gradient_of(learner, batch):
    """Gradient and description, operator by operator, which saves compiling."""
    with one_by_one():
        return [x.asnumpy() for x in GradientStep(learner)(*learner.tensors(batch))]


def constant_batch(steps, envs=1):
    """Every row is the same: observation 1, action 0, reward 1."""
    rows = 1, steps, envs
    return {
        "observation": np.ones((1, steps + 1, envs, 1), np.float32),
        "action": np.zeros(rows, np.int32),
        "reward": np.ones(rows, np.float32),
        "terminated": np.zeros(rows, np.bool_),
        "first": np.zeros((1, steps + 1, envs), np.bool_),
        "behaviour_logits": np.zeros((*rows, 1), np.float32),
    }


class TestServer:
    @pytest.mark.parametrize(
        ("reduction", "cases"),
        [
            (
                "mean",
                [
                    ((10, 30), 4.25, 7.0, 7.0),  # of all rows together
                    ((5, 5), 3.5, 6.0, 6.0),
                    ((20, 20), 3.5, 6.0, 6.0),  # T = 20 instead of 5
                    ((0, 10), 5.0, 8.0, 8.0),  # T = 1, and the only environment was reset
                    ((0, 0), 0.0, 0.0, 0.0),  # not 0 / 0
                ],
            ),
            ("sum", [((10, 30), 7.0, 12.0, 7.0), ((20, 20), 7.0, 12.0, 6.0)]),
        ],
    )
    def test_gradients_of_a_mean_are_weighted_by_valid_rows_and_of_a_sum_added(
        self, reduction, cases
    ):
        """Case 72."""
        server = make_server(loss_reduction=reduction, **PLAIN)
        for rows, gradient, loss, norm in cases:
            server.weights.write(np.zeros(3, np.float32))
            found = server.learn(batch_of(2.0, 5.0, rows=rows, statistics=[4.0, 8.0]))
            assert weights_of(server) == pytest.approx(-gradient)
            assert (found["loss_total"], found["gradient_norm"]) == pytest.approx((loss, norm))
            assert found["applied"]

    def test_a_worker_gives_gradients_of_one_scale_for_short_and_long_unrolls(self):
        """Case 72."""
        found = []
        for steps in (5, 20):
            learner = ActorCriticLearner(linear_net((1,), 1), PARAMS | {"gamma": 0.0}, 1000)
            found.append(gradient_of(learner, constant_batch(steps))[0])
        np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
        assert np.abs(found[0]).max() == pytest.approx(PARAMS["baseline_cost"])  # V - 1, V = 0

    def test_statistics_of_rmsprop_are_shared_and_begin_at_0(self):
        """Case 73: the second gradient was made with the first weights, as the first was."""
        changes = {"rmsprop_decay": 0.99, "optimizer_epsilon": 0.1, "lr_schedule": "constant"}
        server = make_server(**changes)
        server.weights.write(np.ones(3, np.float32))
        for gradient, expected in ((1.0, 0.969849), (2.0, 0.918192)):
            server.learn(batch_of(gradient, rows=(10,)))
            assert weights_of(server) == pytest.approx(expected, abs=1e-6)

    def test_every_weight_gets_its_own_part_of_a_gradient(self):
        policy = linear_net((3,), 4)
        server = make_server(policy, **PLAIN)
        gradient = np.arange(server.size, dtype=np.float32)
        batch = batch_of(0.0, rows=(1,)) | {"gradient": gradient[None]}
        server.learn(batch)
        parts = [p.asnumpy().ravel() for p in policy.trainable_params()]
        np.testing.assert_array_equal(np.concatenate(parts), -gradient)
        assert len(parts) == 3

    @pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
    def test_an_update_with_a_gradient_that_is_not_finite_is_skipped_and_counted(self, optimizer):
        server = make_server(optimizer=optimizer)
        recorder = Recorder(0.0)
        spec = TestLayout().spec(observation={"": ((1,), np.float32)})
        parts = SimpleNamespace(
            learner=server,
            hub=None,
            store=Batches(GradientLayout(spec, server.size, STATISTICS), 2),
            recorder=recorder,
            process=SimpleNamespace(config=SimpleNamespace(epoch=0)),
            partner=None,
            best_return=None,
        )
        learning = Learning(parts, TRAINER)
        hub_reads = {"behaviour_version": np.zeros(2, np.int64), "wait_fraction": np.zeros(2)}

        def state():
            return {name: v.tobytes() for name, v in server.named_parameters().items()}

        learning.update(batch_of(1.0, 1.0, rows=(10, 10)) | hub_reads)
        before = state()
        for bad in (np.nan, np.inf, -np.inf):
            learning.update(batch_of(1.0, bad, rows=(10, 10)) | hub_reads)
        bad_loss = batch_of(1.0, 1.0, rows=(10, 10), statistics=[0.0, np.nan])
        learning.update(bad_loss | hub_reads)
        assert state() == before
        assert (recorder.updates, recorder.updates_skipped) == (1, 4)
        assert (recorder.env_steps, recorder.env_steps_dropped) == (20, 80)
        learning.update(batch_of(1.0, 1.0, rows=(10, 10)) | hub_reads)
        assert state() != before
        assert learning.version == 6  # workers are answered with weights of a new version


LINEAR = {"entropy_cost": 0.3, "baseline_cost": 0.7, "gamma": 0.9, "max_grad_norm": None}


@pytest.fixture(scope="module")
def linear():
    """A worker with a net whose gradients can be worked out; layout of its messages."""
    space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    environment = make_environment(space, gymnasium.spaces.Discrete(4))
    worker, layout = make_worker(environment, linear_net((3,), 4), **LINEAR)
    worker.begin()
    return worker, layout


class TestWorker:
    def test_acts_and_computes_gradients_by_the_weights_that_it_was_given_last(self, linear):
        """Two compiled graphs share the weights."""
        worker, layout = linear
        rng = np.random.default_rng(1)
        for version in (3, 4, 5):
            flat = (0.5 * rng.normal(size=4 * 3 + 4 + 3)).astype(np.float32)
            worker.actor.set_weights(version, flat)
            fields = work(worker, layout)
            assert fields["behaviour_version"] == version
            batch = worker.batch
            logits = batch["observation"][0, :-1] @ flat[:12].reshape(4, 3).T + flat[12:16]
            np.testing.assert_allclose(batch["behaviour_logits"][0], logits, atol=1e-5)
            settings = PARAMS | LINEAR | {"correction": "none", "rho_bar": None}
            gradient, statistics = by_hand(flat, batch, settings)
            np.testing.assert_allclose(fields["gradient"], gradient, atol=2e-6)
            found = dict(zip(STATISTICS, fields["statistics"].tolist(), strict=True))
            for name, value in found.items():
                assert value == pytest.approx(statistics[name], abs=1e-5), name

    def test_a_message_has_what_the_server_counts_by(self, linear):
        worker, layout = linear
        unroll = worker.unroll
        fields = {"episode_length": np.zeros(1)}
        while not (fields["episode_length"] > 0).any() or not unroll["first"][1:].any():
            before = worker.actor.env_steps
            fields = work(worker, layout)
        assert set(fields) == set(layout.fields)
        for name in ("episode_return", "episode_length", "behaviour_version", "wait_fraction"):
            np.testing.assert_array_equal(fields[name], unroll[name])
        rows = int((~unroll["first"][1:]).sum())
        assert fields["valid_rows"] == layout.valid_rows(fields) == rows < T * E
        assert fields["env_steps"] == before + rows
        assert layout.problem(fields) is None


def masked(environment):
    """Give an environment random masks; what they allow is another at each step."""
    rng, step = np.random.default_rng(8), environment.step

    def masked_step(action):
        row = step(action)
        environment.action_mask = mask = rng.random((E, 3)) < 0.5
        mask[:, 2] |= ~mask.any(-1)
        mask[environment._over] = False
        return row

    environment.step, environment.action_mask = masked_step, np.ones((E, 3), np.bool_)
    return environment


class TestLossIsThatOfImpalaWithAllRatios1:
    """The gradient that a worker sends, beside that of IMPALA's learner on the same unroll."""

    @staticmethod
    def assert_equal(worker, layout, policy, correction, **changes):
        """``policy``: with weights of its own, which are made those of the worker."""
        same = {name: PARAMS[name] for name in PARAMS.keys() & IMPALA.keys()}
        params = IMPALA | same | changes | {"correction": correction}
        impala = VTraceLearner(policy, params, 1000)
        impala.weights.write(worker.actor.weights.read())
        fields = work(worker, layout)
        batches = Batches(worker.spec, 1)
        batches.add(worker.unroll)
        gradient, _ = gradient_of(impala, batches.take(0.0))
        assert np.abs(gradient).max() > 0.01
        np.testing.assert_allclose(fields["gradient"], gradient, rtol=0.0, atol=1e-6)

    @pytest.mark.parametrize("correction", ["none", "vtrace", "one_step_is"])
    def test_of_a_linear_net(self, linear, correction):
        rng = np.random.default_rng(2)
        worker, layout = linear
        worker.actor.set_weights(6, rng.normal(size=4 * 3 + 4 + 3).astype(np.float32))
        self.assert_equal(worker, layout, linear_net((3,), 4), correction, **LINEAR)

    def test_with_memory_stacked_frames_and_masks(self):
        """V-trace: the ratios are 1 only if worker and learner see the same."""
        environment = make_environment(FRAMES, DISCRETE, frame_stack=3)
        params = {"hidden_sizes": [8], "core": "lstm", "core_size": 5, "last_action_reward": True}
        policies = [make_policy(environment, **params) for _ in range(2)]
        worker, layout = make_worker(masked(environment), policies[0], mask_size=3, steps=3)
        worker.actor.play(worker.unroll)
        self.assert_equal(worker, layout, policies[1], "vtrace")
        assert worker.unroll["first"][1:-1].any()  # core and stack begin anew inside an unroll
        assert worker.unroll["core_state"].any()
        assert not worker.unroll["action_mask"].all()


class TestLayout:
    def spec(self, **changes):
        fields = {
            "unroll_length": T,
            "num_envs": E,
            "observation": {"": ((1000,), np.float32)},
            "action_shape": (),
            "action_dtype": np.int32,
            "policy_parameters": 2,
        }
        return TrajectorySpec(**fields | changes)

    def test_a_gradient_travels_without_the_unroll_it_was_made_from(self):
        layout = GradientLayout(self.spec(), 500, STATISTICS)
        assert set(layout.fields) == {
            *("gradient", "statistics", "rows", "valid_rows", "withheld", "problem"),
            *("episode_return", "episode_length", "behaviour_version", "env_steps"),
            "wait_fraction",
        }
        assert 4 * 500 < layout.nbytes < 4 * 500 + 1500

    def test_a_gradient_of_another_network_is_refused(self):
        layout = GradientLayout(self.spec(), 500, STATISTICS)
        buffer, _ = GradientLayout(self.spec(), 499, STATISTICS).empty()
        assert buffer.size == layout.nbytes  # by the alignment
        with pytest.raises(ValueError, match=r"layout .*: do all ranks run the same version"):
            layout.views(buffer)
        same, _ = GradientLayout(self.spec(), 500, STATISTICS).empty()
        assert layout.views(same)["gradient"].shape == (500,)

    def test_rows_of_a_batch_are_counted_together(self):
        layout = GradientLayout(self.spec(), 3, STATISTICS)
        batch = layout.batch(2)
        batch["valid_rows"][:] = 7, 12
        assert layout.valid_rows(batch) == 19

    def test_a_long_problem_is_cut_and_letters_are_kept_whole(self):
        layout = GradientLayout(self.spec(), 3, STATISTICS)
        _, fields = layout.empty()
        assert layout.problem(fields) is None
        text = ("ä" * TEXT_BYTES).encode()[1 : 1 + TEXT_BYTES]
        fields["problem"][:] = np.frombuffer(text, np.uint8)
        assert layout.problem(fields) == "ä" * (TEXT_BYTES // 2 - 1)


class TestExchange:
    """One worker under a hub, message by message."""

    @pytest.fixture
    def pair(self, linear):
        worker, layout = linear
        hub_end, end = FakeTransport.connect(2)
        hub = Hub(Mailbox(hub_end), [1], answers=True, min_actors=1, start_timeout_s=60.0)
        spoke = Spoke(Mailbox(end), waits_for_answer=True)
        spoke.hello({})
        size = worker.actor.weights.size
        spoke.begin([layout.empty()], size)
        assert hub.await_hello(1, lambda: False) == {}
        store = Batches(layout, 1)
        hub.begin(Intake(layout, store, max_policy_lag=2, version=10), size)
        hub.publish(10, np.zeros(size, np.float32))
        hub.mailbox.pump()
        worker.spoke = spoke
        return SimpleNamespace(worker=worker, hub=hub, store=store, size=size)

    def turn(self, pair):
        """The worker takes a turn, and the hub what it sends; how many valid rows that had."""
        assert not pair.worker.spoke.drain()
        assert pair.worker.spoke._may_begin()  # or the turn would wait for ever
        assert pair.worker.turn()
        pair.hub.mailbox.pump()
        return pair.worker.spec.valid_rows(pair.worker.unroll)

    def use(self, pair, version):
        batch = pair.hub.take(0.0)
        pair.store.give_back(batch)
        pair.hub.publish(version, np.full(pair.size, version, np.float32))
        pair.hub.mailbox.pump()
        return batch

    def test_a_worker_goes_on_with_weights_that_contain_its_gradient(self, pair):
        for version in (10, 11, 12):
            self.turn(pair)
            assert pair.worker.actor.version == version
            assert self.use(pair, version + 1)["behaviour_version"] == [version]
        assert pair.hub.intake.dropped == 0

    def test_a_stale_gradient_is_dropped_counted_and_answered(self, pair):
        pair.store.completed = 3  # meanwhile three of other workers were applied
        pair.hub.publish(13, np.ones(pair.size, np.float32))
        rows = self.turn(pair)
        intake = pair.hub.intake
        assert pair.worker.actor.version == 10
        assert (intake.dropped, intake.env_steps_dropped, intake.env_steps_received) == (
            *(1, rows, rows),
        )
        assert pair.hub.take(0.0) is None
        pair.hub.mailbox.pump()
        self.turn(pair)
        assert pair.worker.actor.version == 13
        assert intake.dropped == 1
        assert pair.hub.take(0.0)["behaviour_version"] == [13]

    def test_a_reward_that_is_not_a_number_is_said_with_its_place(self, pair, monkeypatch, caplog):
        play = pair.worker.actor.play

        def play_badly(unroll):
            play(unroll)
            unroll["reward"][2, 1] = np.nan

        rows = self.turn(pair)
        self.use(pair, 11)
        monkeypatch.setattr(pair.worker.actor, "play", play_badly)
        monkeypatch.setattr(pair.worker, "step", None)  # no gradient is computed of it
        dropped = self.turn(pair)
        pair.hub.mailbox.pump()
        intake = pair.hub.intake
        assert (intake.env_steps_received, intake.env_steps_dropped) == (rows + dropped, dropped)
        assert (
            f"rank 1, at {pair.worker.actor.env_steps} env steps of its own: reward is nan at step "
            "2 of an unroll, environment 1: the unroll is left out"
        ) in caplog.text
        for _ in range(REFUSED_IN_A_ROW - 2):
            self.turn(pair)
            pair.hub.mailbox.pump()
        with pytest.raises(RunError, match=r"rank 1, .* is nan .*, in 10 unrolls in a row"):
            self.turn(pair)
        received = intake.env_steps_received
        assert received == intake.env_steps_dropped + rows
        pair.hub._stopping = True
        pair.hub.mailbox.pump()
        assert intake.env_steps_received == received  # the last one is not counted again


class Misnamed(ActorCriticLearner):
    statistics = ("loss_total",)


class Named(ActorCriticLearner):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.statistics = (*self.statistics, "more")


class TestOwnLearner:
    def parts(self, type_):
        settings = ["--set", f"learner.type=tests.roles.test_gradients:{type_}"]
        return Gradients(config.load("a3c", settings, 2))

    def test_statistics_without_a_name_are_refused(self, linear):
        worker, layout = linear
        right, worker.learner = worker.learner, Misnamed(linear_net((3,), 4), PARAMS, 1000)
        try:
            with pytest.raises(ConfigError, match="statistics loss_total, and its loss returns 7"):
                work(worker, layout)
        finally:
            worker.learner = right

    def test_statistics_must_be_known_without_making_one(self):
        environment = make_environment(gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32), DISCRETE)
        policy = make_policy(environment)
        with pytest.raises(ConfigError, match="Named changes statistics in its constructor"):
            self.parts("Named").acting(make_spec(environment, policy), policy, SimpleNamespace())

    def test_a_function_is_refused(self):
        with pytest.raises(ConfigError, match=r"test_gradients:work has no statistics: where work"):
            self.parts("work")
