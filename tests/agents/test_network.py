"""The policy and baseline network."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops

from impala_ms.agents.actor import PolicyActor
from impala_ms.agents.checks import WIDEST, check_policy
from impala_ms.agents.choices import automatic_torso
from impala_ms.agents.network import ActorCriticPolicy
from impala_ms.agents.torso import Torso
from impala_ms.errors import ConfigError, describe
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops.distributions import Categorical
from tests import compiled  # noqa: F401  sets graph mode
from tests.fakes import box


@pytest.fixture(scope="module")
def policy():
    ms.set_seed(3)
    return ActorCriticPolicy(box(2, 3), Categorical(4), hidden_sizes=[16, 8], activation="relu")


def numpy_outputs(policy, observation):
    flat = FlatWeights(policy.get_parameters()).read().astype(np.float64)
    sizes = [6 * 16, 16, 16 * 8, 8, 8 * 4, 4, 8, 1]
    w1, b1, w2, b2, wp, bp, wv, bv = np.split(flat, np.cumsum(sizes)[:-1])
    x = observation.reshape(len(observation), 6).astype(np.float64)
    x = np.maximum(x @ w1.reshape(16, 6).T + b1, 0)
    x = np.maximum(x @ w2.reshape(8, 16).T + b2, 0)
    return x @ wp.reshape(4, 8).T + bp, x @ wv + bv


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_logits_and_baseline_are_those_by_numpy(policy, dtype):
    observation = np.random.default_rng(0).integers(0, 200, (5, 2, 3)).astype(dtype)
    logits, baseline = (x.asnumpy() for x in policy(ms.Tensor(observation)))
    assert (logits.shape, baseline.shape) == ((5, 4), (5,))
    assert logits.dtype == baseline.dtype == np.float32
    wanted = numpy_outputs(policy, observation)
    np.testing.assert_allclose(logits, wanted[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(baseline, wanted[1], rtol=1e-4, atol=1e-3)


def test_first_policy_is_near_uniform_and_first_baseline_is_not_0(policy):
    observation = np.random.default_rng(1).normal(size=(50, 2, 3)).astype(np.float32)
    logits, baseline = (x.asnumpy() for x in policy(ms.Tensor(observation)))
    assert 0 < np.abs(logits).max() < 0.1
    assert np.abs(baseline).max() > 0.1


STRUCTURED = {
    "type": "Dict",
    "spaces": {
        "picture": box(2, 2),
        "kind": {"type": "Discrete", "n": 3, "start": 0},
        "code": {"type": "MultiDiscrete", "nvec": [4, 5], "start": [0, 0]},
    },
}


class Mean(ms.nn.Cell):
    """A torso: the mean of an image, times ``factor``."""

    def __init__(self, observation_shape, *, factor=1.0):
        super().__init__()
        self.outputs = 1
        self.factor = factor

    def construct(self, x):
        return self.factor * x.astype(ms.float32).reshape((x.shape[0], -1)).mean(-1, True)


class TestStructuredObservations:
    """``mlp`` takes all parts concatenated; other torsos take images only."""

    picture = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    kind = np.array([2, 0, 1])
    code = np.array([[3, 4], [0, 0], [1, 2]])

    def features(self, torso, **options):
        net = Torso(STRUCTURED, torso, [6], "relu", options)
        parts = tuple(map(ms.Tensor, (self.picture, self.kind, self.code)))
        return net, net(parts).asnumpy()

    def concatenated(self):
        return np.concatenate([self.picture.reshape(3, 4), np.eye(3)[self.kind], self.code], -1)

    def test_mlp_takes_all_parts_concatenated(self):
        net, got = self.features("mlp")
        weight = net.whole.layers[0].weight.asnumpy()
        assert weight.shape == (6, 9)
        wanted = np.maximum(self.concatenated() @ weight.T, 0)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        assert net.outputs == 6

    def test_torso_takes_images_and_is_concatenated_with_other_parts(self):
        net, got = self.features(f"{__name__}:Mean", factor=2.0)
        mean = 2 * self.picture.reshape(3, 4).mean(-1, keepdims=True)
        wanted = np.concatenate([mean, np.eye(3)[self.kind], self.code], -1)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
        assert net.outputs == got.shape[1] == 6

    def test_discrete_observation_is_one_hot(self):
        net = Torso({"type": "Discrete", "n": 4, "start": 0}, "mlp", [5], "relu", {})
        weight = net.whole.layers[0].weight.asnumpy()
        assert weight.shape == (5, 4)
        got = net(ms.Tensor(np.array([3, 1]))).asnumpy()
        np.testing.assert_allclose(got, np.maximum(weight.T[[3, 1]], 0), rtol=1e-6)


def test_core_and_last_action_add_inputs(policy):
    assert (policy.inputs, policy.state_size) == ((), 0)
    params = {"hidden_sizes": [4], "activation": "tanh"}
    net = ActorCriticPolicy(box(3), Categorical(2), last_action_reward=True, **params)
    assert net.inputs == ("last_action", "last_reward")
    assert net.policy_head.in_channels == 4 + 2 + 1
    net = ActorCriticPolicy(box(3), Categorical(2), core="lstm", core_size=5, **params)
    assert net.inputs == ("first", "core_state")
    assert (net.state_size, net.policy_head.in_channels) == (10, 5)


def test_separate_baseline_shares_no_weights_with_the_policy():
    params = {"hidden_sizes": [6, 5], "separate_baseline": True, "last_action_reward": True}
    net = ActorCriticPolicy(box(3), Categorical(2), **params)
    rng = np.random.default_rng(0)
    observation = ms.Tensor(rng.normal(size=(4, 3)).astype(np.float32))
    last = (ms.Tensor([0, 1, 1, 0]), ms.Tensor(rng.normal(size=4).astype(np.float32)))
    names = [parameter.name for parameter in net.trainable_params()]

    def moved_by(output):
        def squares(x):
            return ops.square(net(x, last)[output]).sum()

        gradients = ms.grad(squares, None, net.trainable_params())(observation)
        pairs = zip(names, gradients, strict=True)
        return {name.partition(".")[0] for name, g in pairs if np.abs(g.asnumpy()).max() > 0}

    assert moved_by(0) == {"torso", "policy_head"}
    assert moved_by(1) == {"baseline_torso", "baseline_head"}
    # the baseline by hand: its own features, the last action one-hot, the last reward clamped
    x = observation.asnumpy().astype(np.float64)
    for layer in net.baseline_torso.whole.layers[::2]:
        x = np.tanh(x @ layer.weight.asnumpy().T.astype(np.float64))
    reward = np.clip(last[1].asnumpy(), -1, 1)[:, None]
    x = np.concatenate([x, np.eye(2)[[0, 1, 1, 0]], reward], -1)
    wanted = x @ net.baseline_head.weight.asnumpy()[0]
    np.testing.assert_allclose(net(observation, last)[1].asnumpy(), wanted, rtol=1e-4, atol=1e-6)


def test_policy_has_the_distribution_of_its_actions(policy):
    assert policy.distribution.num_actions == policy.distribution.num_parameters == 4


def test_equal_seeds_give_equal_weights_on_every_rank():
    def flat(seed):
        ms.set_seed(seed)
        net = ActorCriticPolicy(box(3), Categorical(2), hidden_sizes=[4], activation="tanh")
        return FlatWeights(net.get_parameters()).read()

    np.testing.assert_array_equal(flat(1), flat(1))
    assert (flat(1) != flat(2)).any()


def test_policy_without_hidden_layers_is_linear():
    policy = ActorCriticPolicy(box(2, 3), Categorical(4), hidden_sizes=[])
    names = [parameter.name for parameter in policy.get_parameters()]
    assert sorted({name.partition(".")[0] for name in names}) == ["baseline_head", "policy_head"]
    x = np.random.default_rng(0).normal(size=(7, 2, 3)).astype(np.float32)
    logits, _ = (y.asnumpy() for y in policy(ms.Tensor(x)))
    weight = policy.policy_head.weight.asnumpy()
    np.testing.assert_allclose(logits, x.reshape(7, 6) @ weight.T, rtol=1e-4, atol=1e-6)


class NoCell:
    """Not a Cell."""

    def __init__(self, observation_shape):
        self.outputs = 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"torso": "mlp", "factor": 2},
            "network.torso mlp with network.options {'factor': 2}: .*'factor'",
        ),
        ({"torso": "shallow", "factor": 2}, "network.torso shallow with .*'factor'"),
        ({"torso": f"{__name__}:NoCell"}, f"network.torso {__name__}:NoCell is not a torso"),
    ],
)
def test_class_that_is_not_a_torso_or_lacks_an_option_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        ActorCriticPolicy(box(20, 20), Categorical(4), **options)


class Own(ms.nn.Cell):
    """A user's own network: two numbers become two logits and a baseline."""

    def __init__(self, **attributes):
        super().__init__()
        self.heads = ms.nn.Dense(2, 3)
        self.distribution = Categorical(2)
        for name, value in attributes.items():
            setattr(self, name, value)

    def construct(self, observation, inputs=()):
        outputs = self.heads(observation)
        return outputs[:, :2], outputs[:, 2]


class NoParameters(ms.nn.Cell):
    """Has nothing to train."""


class NoSuper(Own):
    """Its constructor does not call that of Cell."""

    def __init__(self):
        pass


def with_a_whole_number():
    own = Own()
    own.count = ms.Parameter(ms.Tensor([1], ms.int32), name="count")
    return own


def without_distribution():
    own = Own()
    del own.distribution
    return own


@pytest.mark.parametrize(
    ("make", "core", "says"),
    [
        (lambda: NoCell(None), "none", "is not a mindspore.nn.Cell"),
        (NoParameters, "none", "has no parameters that can be trained"),
        (NoSuper, "none", r"must call super\(\).__init__\(\) first"),
        (with_a_whole_number, "none", "has the parameter count of Int32: allowed is Float32"),
        (lambda: Own(distribution=None), "none", "has distribution None: keep the argument"),
        (without_distribution, "none", "has no attribute distribution: keep the arg"),
        (lambda: Own(inputs="first"), "none", "has inputs 'first'; allowed is a tuple with any of"),
        (lambda: Own(inputs=("reward",)), "none", r"has inputs \('reward',\); allowed is"),
        (lambda: Own(state_size=-1), "none", "has state_size -1; allowed is 0 or more"),
        (lambda: Own(state_size="8"), "none", "has state_size '8'; allowed is 0 or more"),
        (lambda: Own(state_size=4), "none", r"has state_size 4 and inputs \(\): a network with"),
        (lambda: Own(inputs=("core_state",)), "none", "has state_size 0 and inputs"),
        (Own, "lstm", "network.core is lstm, but the network mine:Net has no memory"),
    ],
)
def test_unusable_own_network_is_refused(make, core, says):
    with pytest.raises(ConfigError, match=f"^(the network mine:Net )?{says}"):
        check_policy(make(), "mine:Net", core)


def test_usable_own_network_is_accepted_and_completed():
    memory = {"inputs": ["first", "core_state"], "state_size": np.int64(4)}
    for attributes in ({}, {"inputs": ("last_reward",), "state_size": 0}, memory):
        policy = Own(**attributes)
        check_policy(policy, "mine:Net", "lstm" if "first" in str(attributes) else "none")
        assert policy.inputs == attributes.get("inputs", ())
        assert policy.state_size == attributes.get("state_size", 0)


class Wrong(Own):
    """A network with wrong outputs, or with a ``construct`` that fails."""

    def construct(self, x, inputs=()):
        if self.fault == "one":
            return self.heads(x)
        if self.fault == "none":
            return None
        if self.fault == "number":
            return x, 0
        if self.fault == "whole":
            return x, x[:, 0].astype(ms.int32)
        if self.fault == "three":
            return x, x[:, 0], x
        if self.fault == "width":
            return self.heads(x), x[:, 0]
        if self.fault == "baseline":
            return x, x
        return x.reshape((3, 7)), x[:, 0]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("one", "ValueError: the network must return a tuple of 2: parameters [N, A] and baseline"),
        ("none", "ValueError: the network must return a tuple of 2: parameters [N, A]"),
        ("number", "baseline [N], all float32, but one is not a float32 tensor"),
        ("whole", "baseline [N], all float32, but one is not a float32 tensor"),
        ("three", "ValueError: the network must return a tuple of 2: parameters [N, A]"),
        ("width", "ValueError: the network returned ((5, 3), (5)), but must return parameters"),
        ("baseline", "ValueError: the network returned ((5, 2), (5, 2)), but must return param"),
        ("construct", f"ValueError ({__file__}:"),
    ],
)
def test_wrong_outputs_of_an_own_network_are_refused_in_one_line(fault, says):
    """The error comes when the actor is compiled, in its first call."""
    policy = Wrong(fault=fault, inputs=(), state_size=0, parts=0)
    actor = PolicyActor(policy, None, 5, None)
    with pytest.raises(Exception) as raised:  # noqa: PT011  (of a class that MindSpore chooses)
        actor(ms.Tensor(np.zeros((5, 2), np.float32)), ms.Tensor(np.zeros((5, 2), np.float32)))
    line = describe(raised.value)
    assert says in line
    assert "C++" not in line


def test_spaces_with_too_many_choices_are_refused():
    many = {"type": "Discrete", "n": WIDEST + 1, "start": 0}
    with pytest.raises(ConfigError, match="the Discrete observation space has 100,001 choices"):
        ActorCriticPolicy(many, Categorical(4))
    with pytest.raises(ConfigError, match="the action space has 100,001 choices"):
        ActorCriticPolicy(box(3), Categorical(WIDEST + 1))


@pytest.mark.parametrize(
    ("space", "torso", "why"),
    [
        (box(4), "mlp", "observations are not images"),
        ({"type": "Discrete", "n": 5, "start": 0}, "mlp", "observations are not images"),
        (box(84, 84, dtype="uint8"), "shallow", "observations are images [84, 84]"),
        (box(96, 96, 3, dtype="uint8"), "shallow", "observations are images [96, 96, 3]"),
        (box(4, 84, 84, dtype="uint8"), "shallow", "observations are images [4, 84, 84]"),
        (box(7, 7, 3, dtype="uint8"), "mlp", "[7, 7, 3] is not an image of 20 x 20 or more"),
        (
            {"type": "Dict", "spaces": {"a": box(64, 64, 3), "b": box(2)}},
            "shallow",
            "observations are images [64, 64, 3]",
        ),
        (
            {"type": "Dict", "spaces": {"a": box(64, 64, 3), "b": box(2, 2)}},
            "mlp",
            "[64, 64, 3], [2, 2] is not an image of 20 x 20 or more",
        ),
    ],
)
def test_images_get_a_convolutional_torso(space, torso, why):
    assert automatic_torso(space) == (torso, why)
    net = ActorCriticPolicy(space, Categorical(2))
    assert isinstance(net.torso.whole if net.torso.single else net.torso, ms.nn.Cell)
    named = {type(cell).__name__ for cell in net.cells_and_names() for cell in cell[1:]}
    assert ("Shallow" in named) == (torso == "shallow")


@pytest.mark.parametrize("part", [box(2), {"type": "Discrete", "n": 6, "start": 0}])
@pytest.mark.parametrize("normalize", [False, True])
def test_dict_with_one_part_is_read_as_that_part_alone(part, normalize):
    if normalize and part["type"] == "Discrete":
        pytest.skip("a choice is not normalized")
    net = ActorCriticPolicy(
        {"type": "Dict", "spaces": {"x": part}}, Categorical(2), normalize_observations=normalize
    )
    x = ms.Tensor(np.array([[1.0, 2.0]], np.float32) if part["type"] == "Box" else np.array([3]))
    alone = ActorCriticPolicy(part, Categorical(2), normalize_observations=normalize)
    FlatWeights(alone.get_parameters()).write(FlatWeights(net.get_parameters()).read())
    np.testing.assert_array_equal(net((x,))[0].asnumpy(), alone(x)[0].asnumpy())
