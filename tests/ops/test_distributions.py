"""Distributions against float64, frequencies of samples, forbidden actions."""

import mindspore as ms
import numpy as np
import pytest

from impala_ms.ops.distributions import (
    LOG_STD_RANGE,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    make_distribution,
)
from tests.compiled import compiled, eager, one_by_one, to_tensor

FORBIDDEN = np.finfo(np.float32).min
HOW = pytest.mark.parametrize("how", [compiled, eager])


def log_softmax(logits):
    """In float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def logits():
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.uniform(-2, 1.3, (20, 7, 1))
    return (scale * rng.normal(size=(20, 7, 5)) + 100 * rng.normal(size=(20, 7, 1))).astype("f4")


@HOW
def test_log_prob_agrees_with_numpy(how, logits):
    action = np.random.default_rng(1).integers(0, 5, (20, 7), np.int32)
    got = how(Categorical(5).log_prob)(logits, action)
    wanted = np.take_along_axis(log_softmax(logits), action[..., None], -1)[..., 0]
    assert got.shape == (20, 7)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=5e-5)


@HOW
def test_entropy_agrees_with_numpy(how, logits):
    got = how(Categorical(5).entropy)(logits)
    log_probs = log_softmax(logits)
    assert got.shape == (20, 7)
    np.testing.assert_allclose(got, -(np.exp(log_probs) * log_probs).sum(-1), atol=5e-5)


def test_entropy_of_the_uniform_distribution_is_the_logarithm_of_the_actions():
    got = compiled(Categorical(6).entropy)(np.full((2, 6), 3.0, np.float32))
    np.testing.assert_allclose(got, np.log(6.0), rtol=1e-6)


@HOW
def test_samples_have_the_probabilities_of_the_logits(how):
    distribution, draws = Categorical(4), 40_000
    probabilities = np.array([0.5, 0.3, 0.19, 0.01])
    logits = np.tile(np.log(probabilities) + 7, (draws, 1)).astype(np.float32)
    noise = distribution.noise(np.random.default_rng(2), (draws,))
    action = how(distribution.sample)(logits, noise)
    assert action.shape == (draws,)
    assert action.dtype == np.int32
    counts = np.bincount(action, minlength=4)
    assert len(counts) == 4
    expected = draws * probabilities
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 16.3, counts  # 3 degrees of freedom: exceeded once in 1,000 seeds


class TestNoise:
    def test_shape_type_and_moments(self):
        noise = Categorical(4).noise(np.random.default_rng(3), (200, 50))
        assert noise.shape == (200, 50, 4)
        assert noise.dtype == np.float32
        assert np.isfinite(noise).all()
        assert abs(noise.mean() - np.euler_gamma) < 0.02
        assert abs(noise.var() - np.pi**2 / 6) < 0.05

    def test_seed_repeats_the_draws_and_later_draws_differ(self):
        rng, again = np.random.default_rng(4), np.random.default_rng(4)
        first, second = (Categorical(3).noise(rng, (5,)) for _ in range(2))
        np.testing.assert_array_equal(Categorical(3).noise(again, (5,)), first)
        assert (first != second).all()

    def test_draw_of_0_gives_finite_noise(self):
        class Zeros:
            def standard_exponential(self, shape, dtype):
                return np.zeros(shape, dtype)

        assert np.isfinite(Categorical(2).noise(Zeros(), (3,))).all()

    @HOW
    def test_noise_of_zeros_gives_the_mode(self, how, logits):
        flat = logits.reshape(-1, 5)
        action = how(Categorical(5).sample)(flat, np.zeros_like(flat))
        np.testing.assert_array_equal(action, flat.argmax(-1))


class TestForbiddenActions:
    LOGITS = np.array([[0.0, FORBIDDEN, 1.0], [FORBIDDEN, FORBIDDEN, 2.0]], np.float32)

    @HOW
    def test_forbidden_actions_are_never_drawn(self, how):
        distribution = Categorical(3)
        noise = distribution.noise(np.random.default_rng(5), (10_000,))
        action = how(distribution.sample)(np.tile(self.LOGITS, (5_000, 1)), noise)
        assert np.bincount(action[0::2], minlength=3)[1] == 0
        assert set(action[0::2]) == {0, 2}
        assert set(action[1::2]) == {2}

    @HOW
    def test_forbidden_actions_have_probability_0_and_a_finite_entropy(self, how):
        log_prob = how(Categorical(3).log_prob)(self.LOGITS, np.array([1, 0], np.int32))
        np.testing.assert_array_equal(np.exp(log_prob), 0.0)
        assert np.isfinite(log_prob).all()
        entropy = how(Categorical(3).entropy)(self.LOGITS)
        p = 1 / (1 + np.e)
        of_two = -p * np.log(p) - (1 - p) * np.log(1 - p)
        np.testing.assert_allclose(entropy, [of_two, 0.0], atol=1e-5)

    @pytest.mark.parametrize("how", ["compiled", "eager"])
    def test_gradients_are_those_of_the_allowed_actions_alone(self, how):
        distribution = Categorical(3)
        action = ms.Tensor([2, 2], ms.int32)

        def both(logits):
            return (
                distribution.log_prob(logits, action).sum()
                + 2.0 * distribution.entropy(logits).sum()
            )

        if how == "compiled":
            gradient = compiled(ms.grad(both))(self.LOGITS)
        else:
            with one_by_one():
                gradient = ms.grad(both)(to_tensor(self.LOGITS)).asnumpy()
        probs = np.exp(log_softmax(self.LOGITS))
        log_probs = np.where(probs > 0, log_softmax(self.LOGITS), 0.0)
        entropy = -(probs * log_probs).sum(-1, keepdims=True)
        wanted = np.eye(3)[[2, 2]] - probs - 2.0 * probs * (log_probs + entropy)
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)
        np.testing.assert_array_equal(gradient[:, 1], 0.0)


def test_gradient_of_log_prob_is_one_hot_minus_probabilities(logits):
    action = np.random.default_rng(6).integers(0, 5, (20, 7), np.int32)

    def total(logits):
        return Categorical(5).log_prob(logits, to_tensor(action)).sum()

    gradient = compiled(ms.grad(total))(logits)
    wanted = np.eye(5)[action] - np.exp(log_softmax(logits))
    np.testing.assert_allclose(gradient, wanted, atol=2e-5)


def test_one_action_is_certain():
    distribution = Categorical(1)
    logits = np.array([[3.0], [-2.0]], np.float32)
    np.testing.assert_array_equal(compiled(distribution.entropy)(logits), [0, 0])
    np.testing.assert_array_equal(
        compiled(distribution.sample)(logits, np.zeros_like(logits)), [0, 0]
    )


class TestMultiCategorical:
    SIZES = (2, 3, 4)

    @HOW
    def test_log_probabilities_and_entropies_are_sums_over_the_parts(self, how):
        # then the ratio of two policies is the product of the parts' ratios
        distribution, rng = MultiCategorical(self.SIZES), np.random.default_rng(0)
        assert distribution.num_parameters == 9
        assert distribution.action_shape == (3,)
        logits = 2 * rng.normal(size=(7, 5, 9)).astype(np.float32)
        action = np.stack([rng.integers(0, n, (7, 5), np.int32) for n in self.SIZES], -1)
        parts = np.split(logits, [2, 5], -1)
        log_probs = [log_softmax(part) for part in parts]
        wanted = sum(
            np.take_along_axis(of, action[..., i : i + 1], -1)[..., 0]
            for i, of in enumerate(log_probs)
        )
        entropy = -sum((np.exp(of) * of).sum(-1) for of in log_probs)
        got = how(distribution.log_prob)(logits, action)
        assert got.shape == (7, 5)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(how(distribution.entropy)(logits), entropy, rtol=1e-5)

    @HOW
    def test_two_parts_agree_with_numbers_by_hand(self, how):
        logits = np.log(np.float32([[0.25, 0.75, 0.5, 0.25, 0.25]]))
        distribution = MultiCategorical([2, 3])
        got = how(distribution.log_prob)(logits, np.int32([[1, 0]]))
        np.testing.assert_allclose(got, [np.log(0.75 * 0.5)], rtol=1e-5)
        entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)) + 1.5 * np.log(2)
        np.testing.assert_allclose(how(distribution.entropy)(logits), [entropy], rtol=1e-5)

    @HOW
    def test_one_part_equals_a_categorical(self, how):
        rng = np.random.default_rng(1)
        logits = rng.normal(size=(20, 5)).astype(np.float32)
        one, plain = MultiCategorical([5]), Categorical(5)
        noise = one.noise(np.random.default_rng(2), (20,))
        np.testing.assert_array_equal(noise, plain.noise(np.random.default_rng(2), (20,)))
        action = how(plain.sample)(logits, noise)
        np.testing.assert_array_equal(how(one.sample)(logits, noise), action[:, None])
        for name, arguments in [
            ("log_prob", (logits, action)),
            ("entropy", (logits,)),
            ("encode", (action,)),
        ]:
            of_one = how(getattr(one, name))(*[a[:, None] if a is action else a for a in arguments])
            np.testing.assert_array_equal(of_one, how(getattr(plain, name))(*arguments))

    def test_parts_are_sampled_independently_with_their_probabilities(self):
        distribution, draws = MultiCategorical([2, 3]), 30_000
        probabilities = [np.array([0.3, 0.7]), np.array([0.2, 0.5, 0.3])]
        logits = np.tile(np.log(np.concatenate(probabilities)), (draws, 1)).astype(np.float32)
        noise = distribution.noise(np.random.default_rng(2), (draws,))
        action = compiled(distribution.sample)(logits, noise)
        assert action.shape == (draws, 2)
        joint = np.bincount(action[:, 0] * 3 + action[:, 1], minlength=6) / draws
        np.testing.assert_allclose(joint, np.outer(*probabilities).ravel(), atol=0.01)


class TestMasks:
    def test_masked_action_is_never_drawn_and_has_probability_0(self):
        distribution, draws = Categorical(4), 10_000
        mask = np.array([True, False, True, False])
        logits = np.float32([1.0, 9.0, 0.0, 3.0])
        masked = compiled(distribution.mask)(np.tile(logits, (draws, 1)), np.tile(mask, (draws, 1)))
        noise = distribution.noise(np.random.default_rng(3), (draws,))
        action = compiled(distribution.sample)(masked, noise)
        assert set(np.unique(action)) == {0, 2}
        log_probs = compiled(distribution.log_prob)(masked[:4], np.arange(4, dtype=np.int32))
        probs = np.exp(np.float64(log_probs))
        np.testing.assert_allclose(probs, [np.e / (1 + np.e), 0, 1 / (1 + np.e), 0], atol=5e-6)
        assert (probs[[1, 3]] == 0).all()
        entropy = compiled(distribution.entropy)(masked[:1])
        kept = probs[[0, 2]]
        np.testing.assert_allclose(entropy, [-(kept * np.log(kept)).sum()], rtol=1e-5)

    @HOW
    def test_gradients_are_finite_and_0_for_masked_actions(self, how):
        distribution = MultiCategorical([2, 2])
        mask = np.array(
            [[True, False, True, True], [False, False, True, True]]
        )  # the second row allows no action of the first part
        logits = np.float32([[0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0]])
        action = np.int32([[0, 1], [0, 0]])

        def loss(logits, mask, action):
            masked = distribution.mask(logits, mask)
            entropy = distribution.entropy(masked).sum()
            return (distribution.log_prob(masked, action) + entropy).sum()

        gradient = how(ms.grad(loss))(logits, mask, action)
        assert gradient.shape == (2, 4)
        assert np.isfinite(gradient).all()
        assert (gradient[~mask] == 0).all()
        assert np.abs(gradient[0, 2:]).min() > 0


class TestDiagonalGaussian:
    @HOW
    def test_density_entropy_and_samples_agree_with_numpy(self, how):
        rng, distribution = np.random.default_rng(0), DiagonalGaussian((2, 3))
        assert distribution.num_parameters == 12
        mean = rng.normal(size=(9, 6))
        log_std = rng.uniform(-2, 1, (9, 6))
        parameters = np.concatenate([mean, log_std], -1).astype(np.float32)
        action = rng.normal(size=(9, 2, 3)).astype(np.float32)
        z = (action.reshape(9, 6) - mean) / np.exp(log_std)
        density = np.exp(-0.5 * z**2) / (np.exp(log_std) * np.sqrt(2 * np.pi))
        got = how(distribution.log_prob)(parameters, action)
        assert got.shape == (9,)
        np.testing.assert_allclose(got, np.log(density.prod(-1)), rtol=1e-4, atol=1e-4)
        entropy = 0.5 * np.log(2 * np.pi * np.e * np.exp(2 * log_std)).sum(-1)
        np.testing.assert_allclose(how(distribution.entropy)(parameters), entropy, rtol=1e-4)
        noise = distribution.noise(np.random.default_rng(1), (9,))
        sample = how(distribution.sample)(parameters, noise)
        assert sample.shape == (9, 2, 3)
        assert sample.dtype == np.float32
        wanted = (mean + np.exp(log_std) * noise).reshape(9, 2, 3)
        np.testing.assert_allclose(sample, wanted, rtol=1e-4, atol=1e-5)
        mode = how(distribution.sample)(parameters, np.zeros_like(noise))
        np.testing.assert_allclose(mode.reshape(9, 6), mean, rtol=1e-6)

    def test_noise_is_standard_normal(self):
        noise = DiagonalGaussian((3,)).noise(np.random.default_rng(1), (100, 50))
        assert noise.shape == (100, 50, 3)
        assert noise.dtype == np.float32
        assert abs(noise.mean()) < 0.03
        assert abs(noise.std() - 1) < 0.03

    def test_log_prob_takes_the_dimensions_of_an_unroll(self):
        distribution = DiagonalGaussian((2,))
        parameters = np.zeros((5, 4, 4), np.float32)
        got = compiled(distribution.log_prob)(parameters, np.ones((5, 4, 2), np.float32))
        np.testing.assert_allclose(got, np.full((5, 4), -1 - np.log(2 * np.pi)), rtol=1e-5)

    def test_standard_deviations_are_bounded(self):
        low, high = LOG_STD_RANGE
        parameters = np.float32([[0.0, -99.0], [0.0, 99.0]])
        entropy = compiled(DiagonalGaussian((1,)).entropy)(parameters)
        constant = 0.5 * np.log(2 * np.pi * np.e)
        np.testing.assert_allclose(entropy, [low + constant, high + constant], rtol=1e-5)


def test_each_space_has_its_distribution():
    discrete = make_distribution({"type": "Discrete", "n": 5, "start": 0})
    assert (type(discrete), discrete.num_parameters) == (Categorical, 5)
    several = make_distribution({"type": "MultiDiscrete", "nvec": [2, 3]})
    assert (type(several), several.num_parameters, several.action_shape) == (
        MultiCategorical,
        5,
        (2,),
    )
    binary = make_distribution({"type": "MultiBinary", "n": 3})
    assert (type(binary), binary.num_parameters) == (MultiCategorical, 6)
    box = make_distribution({"type": "Box", "shape": [2, 2]})
    assert (type(box), box.num_parameters, box.action_shape) == (DiagonalGaussian, 8, (2, 2))


@HOW
def test_encode_makes_inputs_of_actions(how):
    np.testing.assert_array_equal(
        how(Categorical(3).encode)(np.int32([2, 0])), [[0, 0, 1], [1, 0, 0]]
    )
    np.testing.assert_array_equal(
        how(MultiCategorical([2, 2]).encode)(np.int32([[1, 0]])), [[0, 1, 1, 0]]
    )
    got = how(DiagonalGaussian((2,)).encode)(np.float32([[0.5, -99.0]]))
    np.testing.assert_array_equal(got, [[0.5, -10.0]])


def test_clamped_deviation_has_a_gradient_by_log_prob_and_none_by_entropy():
    distribution = DiagonalGaussian((1,))
    high = LOG_STD_RANGE[1]
    parameters = ms.Tensor(np.array([[0.0, high + 0.5]], np.float32))
    action = ms.Tensor(np.zeros((1, 1), np.float32))
    held = ms.Tensor(np.array([[0.0, high]], np.float32))
    for method in (lambda p: distribution.log_prob(p, action), distribution.entropy):
        np.testing.assert_allclose(method(parameters).asnumpy(), method(held).asnumpy(), rtol=1e-6)

    def log_prob(parameters):
        return distribution.log_prob(parameters, action).sum()

    def entropy(parameters):
        return distribution.entropy(parameters).sum()

    assert ms.grad(log_prob)(parameters).asnumpy()[0, 1] == pytest.approx(-1.0)
    assert ms.grad(entropy)(parameters).asnumpy()[0, 1] == 0.0


@pytest.mark.parametrize(
    "distribution", [Categorical(3), MultiCategorical([2, 3]), DiagonalGaussian((2,))]
)
def test_arrays_give_the_same_as_tensors(distribution):
    rng = np.random.default_rng(0)
    parameters = rng.normal(size=(4, distribution.num_parameters)).astype(np.float32)
    noise = distribution.noise(rng, (4,))
    action = distribution.sample(parameters, noise).asnumpy()
    calls = {
        "sample": (parameters, noise),
        "log_prob": (parameters, action),
        "entropy": (parameters,),
        "encode": (action,),
    }
    if hasattr(distribution, "mask"):
        calls["mask"] = parameters, rng.random(parameters.shape) < 0.7
    for name, arrays in calls.items():
        method = getattr(distribution, name)
        tensors = method(*map(ms.Tensor, arrays)).asnumpy()
        np.testing.assert_array_equal(method(*arrays).asnumpy(), tensors)
