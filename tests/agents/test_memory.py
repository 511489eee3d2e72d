"""Memory, last action and reward, stacked frames, masks: actor and learner compute the same."""

import gymnasium
import mindspore as ms
import numpy as np
import pytest

from impala_ms import compat, config
from impala_ms.agents.actor import PolicyActor, Stream
from impala_ms.agents.actor_critic import VTraceLearner
from impala_ms.agents.checks import check_mask
from impala_ms.agents.evaluation import evaluate
from impala_ms.agents.network import ActorCriticPolicy
from impala_ms.envs.sync import SyncVectorEnvironment
from impala_ms.ops.distributions import make_distribution
from impala_ms.spaces import leaf_array, leaves
from impala_ms.trajectory import ALIGNMENT_BYTES, Batches, TrajectorySpec
from tests.compiled import FunctionCell

LEARNER = config.load("impala", [], 2).learner_params

T, E = 5, 3
LENGTHS = (3, 4, 7)


class Noisy(gymnasium.Env):
    """Random observations and rewards; episode k of an environment lasts ``LENGTHS[k % 3]``."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
            self.rng = np.random.default_rng(seed)
        self.episode, self.step_ = self.episode + 1, 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype).squeeze())
        self.step_ += 1
        over = self.step_ == LENGTHS[self.episode % len(LENGTHS)]
        return self.observation_space.sample(), self.rng.normal(), over, False, {}


def make_environment(observation_space, action_space, frame_stack=1, envs=E):
    environment = SyncVectorEnvironment(
        "Noisy-v0", lambda: Noisy(observation_space, action_space), seeds=list(range(envs))
    )
    environment.frame_stack = frame_stack
    return environment


def make_policy(environment, options=None, **params):
    spaces = environment.spaces()
    observation = spaces["observation"]
    if environment.frame_stack > 1:
        shape = [environment.frame_stack, *observation["shape"]]
        observation = observation | {"shape": shape}
    ms.set_seed(3)
    policy = ActorCriticPolicy(
        observation, make_distribution(spaces["action"]), **params, **(options or {})
    )
    # larger heads, so that a difference shows
    policy.policy_head.weight.set_data(policy.policy_head.weight * 100)
    policy.frame_stack = environment.frame_stack
    return policy


def make_spec(environment, policy):
    spaces = environment.spaces()
    return TrajectorySpec(
        unroll_length=T,
        num_envs=environment.num_envs,
        observation={p: leaf_array(leaf) for p, leaf in leaves(spaces["observation"]).items()},
        action_shape=policy.distribution.action_shape,
        action_dtype=policy.distribution.action_dtype,
        policy_parameters=policy.distribution.num_parameters,
        frame_stack=environment.frame_stack,
        inputs=policy.inputs,
        state_size=policy.state_size,
    )


def play(environment, policy, unrolls, spec):
    """A batch of consecutive unrolls, as the learner receives it."""
    actor = PolicyActor(policy, environment, T, np.random.default_rng(5))
    batches = Batches(spec, unrolls)
    for _ in range(unrolls):
        buffer, unroll = spec.empty()
        buffer[ALIGNMENT_BYTES:] = 0xA5
        batches.add(actor.act(compat.COLLECT, unroll))
    return batches.take(0.0)


def forward(learner, batch):
    """The learner's logits and values at all rows, ``[S, T + 1, E, ...]``."""

    def outputs(*tensors):
        observation, action, reward, _, first, _, before, _ = learner.arguments(tensors)
        return learner.forward(observation, action, reward, first, before)

    logits, values = (x.asnumpy() for x in FunctionCell(outputs)(*learner.tensors(batch)))
    unrolls, rows, envs = batch["first"].shape
    logits = logits.reshape((rows, unrolls, envs, -1)).swapaxes(0, 1)
    return logits, values.reshape((rows, unrolls, envs)).swapaxes(0, 1)


BOX = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
COLOURS = gymnasium.spaces.Box(0, 255, (22, 21, 3), np.uint8)
FRAMES = gymnasium.spaces.Box(0, 255, (20, 20), np.uint8)
DISCRETE = gymnasium.spaces.Discrete(3)
KINDS = {
    "mlp": (BOX, DISCRETE, 1, {"hidden_sizes": [8]}),
    "last action": (BOX, DISCRETE, 1, {"hidden_sizes": [8], "last_action_reward": True}),
    "lstm": (BOX, DISCRETE, 1, {"hidden_sizes": [8], "core": "lstm", "core_size": 5}),
    "lstm, last action": (
        BOX,
        gymnasium.spaces.MultiDiscrete([2, 3]),
        1,
        {"hidden_sizes": [8], "core": "lstm", "core_size": 5, "last_action_reward": True},
    ),
    "gaussian": (
        BOX,
        gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float32),
        1,
        {"hidden_sizes": [8], "core": "lstm", "core_size": 5, "last_action_reward": True},
    ),
    "stacked frames": (FRAMES, DISCRETE, 3, {"hidden_sizes": [8]}),
    "stacked colours": (COLOURS, DISCRETE, 3, {"torso": "shallow"}),
    "stacked images": (COLOURS, DISCRETE, 3, {"torso": "resnet", "options": {"sizes": [4]}}),
    "image and vector": (
        gymnasium.spaces.Dict({"image": COLOURS, "more": BOX}),
        DISCRETE,
        1,
        {"torso": "shallow"},
    ),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k == "last action")) for k in KINDS]
)
def test_learner_computes_the_logits_that_the_actor_recorded(kind):
    observation_space, action_space, frames, params = KINDS[kind]
    environment = make_environment(observation_space, action_space, frames)
    policy = make_policy(environment, **params)
    batch = play(environment, policy, 4, make_spec(environment, policy))
    learner = VTraceLearner(policy, LEARNER, 1000)
    logits, _ = forward(learner, batch)
    assert logits[:, :T].shape == batch["behaviour_logits"].shape
    assert batch["first"][:, 1:T].sum() > 5  # episodes end inside unrolls
    assert batch["behaviour_logits"].std() > 0.05
    np.testing.assert_allclose(logits[:, :T], batch["behaviour_logits"], rtol=1e-4, atol=1e-4)
    # on-policy: all ratios are 1; and there is a gradient
    learner.warm_up(batch)
    statistics = learner.learn(batch)
    assert statistics["rho_mean"] == pytest.approx(1.0, abs=1e-3)
    assert statistics["gradient_norm"] > 1e-4


def test_new_values_do_not_compile_again():
    # MindSpore would take a tuple of tensors for a constant
    space = gymnasium.spaces.Dict({"a": BOX, "b": gymnasium.spaces.Discrete(3)})
    environment = make_environment(space, DISCRETE)
    policy = make_policy(environment, **KINDS["lstm, last action"][3])
    actor = PolicyActor(policy, environment, T, np.random.default_rng(5))
    learner = VTraceLearner(policy, LEARNER, 1000)
    spec = make_spec(environment, policy)
    for _ in range(3):
        batches = Batches(spec, 1)
        batches.add(actor.act(compat.COLLECT, spec.empty()[1]))
        assert np.isfinite(learner.learn(batches.take(0.0))["loss_total"])
    assert len(actor.compile_cache) == len(learner.compile_cache) == 1


def test_two_unrolls_give_the_logits_of_one_unroll_of_double_length():
    environment = make_environment(*KINDS["lstm, last action"][:2])
    policy = make_policy(environment, **KINDS["lstm, last action"][3])
    batch = play(environment, policy, 2, make_spec(environment, policy))
    learner = VTraceLearner(policy, LEARNER, 1000)
    two, _ = forward(learner, batch)
    one = {}
    for name, values in batch.items():
        if name in (
            "observation",
            "first",
        ):  # the last row of one unroll is the first row of the next
            one[name] = np.concatenate([values[0, :-1], values[1]])[None]
        elif name in ("last_action", "last_reward", "core_state", "behaviour_version"):
            one[name] = values[:1]
        elif values.ndim > 2:
            one[name] = np.concatenate([values[0], values[1]])[None]
    double, _ = forward(learner, one)
    assert double.shape == (1, 2 * T + 1, E, 5)
    np.testing.assert_allclose(double[0, : T + 1], two[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(double[0, T:], two[1], rtol=1e-5, atol=1e-5)


def test_core_state_matters_only_before_the_first_reset():
    environment = make_environment(BOX, DISCRETE)
    policy = make_policy(environment, **KINDS["lstm"][3])
    batch = play(environment, policy, 2, make_spec(environment, policy))
    learner = VTraceLearner(policy, LEARNER, 1000)
    before, _ = forward(learner, batch)
    batch["core_state"] = batch["core_state"] + 1.0
    after, _ = forward(learner, batch)
    begun = np.maximum.accumulate(batch["first"], 1)
    assert 0 < begun[1].sum() < begun[1].size
    np.testing.assert_array_equal(after[begun], before[begun])
    assert (np.abs(after - before).max(-1)[~begun] > 1e-4).all()


def test_evaluation_carries_the_core_state_like_the_actor():
    environment = make_environment(BOX, DISCRETE)
    policy = make_policy(environment, **KINDS["lstm, last action"][3])
    actor = PolicyActor(policy, environment, T, np.random.default_rng(0))
    stream, seen = Stream(environment, policy), []
    for _ in range(12):
        action, logits, state = actor.get_action(compat.EVAL, stream)
        seen.append(logits)
        stream.step(action, state)
    recorded = []
    decide = actor.decide

    def record(stream, noise):
        outputs = decide(stream, noise)
        recorded.append(outputs[1])
        return outputs

    actor.decide = record
    evaluate(actor, make_environment(BOX, DISCRETE), 6, greedy=True, seed=1)
    assert len(recorded) > 5
    np.testing.assert_array_equal(recorded, seen[: len(recorded)])


class TestMasks:
    def test_mask_without_an_allowed_action_is_refused_on_a_valid_row(self):
        mask = np.array([[True, False], [False, False], [False, True]])
        check_mask(mask, np.array([False, True, False]))
        with pytest.raises(ValueError, match="environment 1 allows no action"):
            check_mask(mask, np.array([False, False, False]))

    def test_masked_actions_are_never_sampled_and_learner_and_actor_agree(self):
        environment = make_environment(BOX, gymnasium.spaces.Discrete(4))
        rng = np.random.default_rng(8)
        step = environment.step

        def masked_step(action):
            row = step(action)
            mask = rng.random((E, 4)) < 0.5
            mask[:, 2] |= ~mask.any(-1)
            mask[environment._over] = False  # after a final observation no action is allowed
            environment.action_mask = mask
            return row

        environment.step, environment.action_mask = masked_step, np.ones((E, 4), np.bool_)
        policy = make_policy(environment, hidden_sizes=[8])
        spec = TrajectorySpec(
            unroll_length=T,
            num_envs=E,
            observation={"": ((6,), np.float32)},
            action_shape=(),
            action_dtype=np.int32,
            policy_parameters=4,
            mask_size=4,
        )
        batch = play(environment, policy, 6, spec)
        valid = ~batch["first"][:, 1:]
        taken = np.take_along_axis(batch["action_mask"], batch["action"][..., None], -1)[..., 0]
        assert (~valid).sum() > 5
        assert (~batch["action_mask"].any(-1)).sum() > 5
        assert taken[valid].all()
        learner = VTraceLearner(policy, LEARNER, 1000)
        statistics = learner.learn(batch)
        assert all(np.isfinite(value) for value in statistics.values())
        assert statistics["rho_mean"] == pytest.approx(1.0, abs=1e-4)
