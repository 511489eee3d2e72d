"""The categorical distribution against float64, frequencies of samples, forbidden actions."""

import mindspore as ms
import numpy as np
import pytest

from impala_ms.ops.distributions import Categorical
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
def test_log_prob(how, logits):
    action = np.random.default_rng(1).integers(0, 5, (20, 7), np.int32)
    got = how(Categorical(5).log_prob)(logits, action)
    wanted = np.take_along_axis(log_softmax(logits), action[..., None], -1)[..., 0]
    assert got.shape == (20, 7)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=5e-5)


@HOW
def test_entropy(how, logits):
    got = how(Categorical(5).entropy)(logits)
    log_probs = log_softmax(logits)
    assert got.shape == (20, 7)
    np.testing.assert_allclose(got, -(np.exp(log_probs) * log_probs).sum(-1), atol=5e-5)


def test_entropy_of_the_uniform_distribution_is_the_logarithm_of_the_actions():
    got = compiled(Categorical(6).entropy)(np.full((2, 6), 3.0, np.float32))
    np.testing.assert_allclose(got, np.log(6.0), rtol=1e-6)


@HOW
def test_samples_have_the_probabilities(how):
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

    def test_a_seed_gives_the_same_numbers_and_goes_on_from_them(self):
        rng, again = np.random.default_rng(4), np.random.default_rng(4)
        first, second = (Categorical(3).noise(rng, (5,)) for _ in range(2))
        np.testing.assert_array_equal(Categorical(3).noise(again, (5,)), first)
        assert (first != second).all()

    def test_a_draw_of_0_stays_finite(self):
        class Zeros:
            def standard_exponential(self, shape, dtype):
                return np.zeros(shape, dtype)

        assert np.isfinite(Categorical(2).noise(Zeros(), (3,))).all()

    @HOW
    def test_without_noise_the_mode_is_taken(self, how, logits):
        flat = logits.reshape(-1, 5)
        action = how(Categorical(5).sample)(flat, np.zeros_like(flat))
        np.testing.assert_array_equal(action, flat.argmax(-1))


class TestForbiddenActions:
    LOGITS = np.array([[0.0, FORBIDDEN, 1.0], [FORBIDDEN, FORBIDDEN, 2.0]], np.float32)

    @HOW
    def test_are_never_drawn(self, how):
        distribution = Categorical(3)
        noise = distribution.noise(np.random.default_rng(5), (10_000,))
        action = how(distribution.sample)(np.tile(self.LOGITS, (5_000, 1)), noise)
        assert np.bincount(action[0::2], minlength=3)[1] == 0
        assert set(action[0::2]) == {0, 2}
        assert set(action[1::2]) == {2}

    @HOW
    def test_have_probability_0_and_a_finite_entropy(self, how):
        log_prob = how(Categorical(3).log_prob)(self.LOGITS, np.array([1, 0], np.int32))
        np.testing.assert_array_equal(np.exp(log_prob), 0.0)
        assert np.isfinite(log_prob).all()
        entropy = how(Categorical(3).entropy)(self.LOGITS)
        p = 1 / (1 + np.e)
        of_two = -p * np.log(p) - (1 - p) * np.log(1 - p)
        np.testing.assert_allclose(entropy, [of_two, 0.0], atol=1e-5)

    @pytest.mark.parametrize("how", ["compiled", "eager"])
    def test_gradients_are_those_of_the_allowed_actions(self, how):
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
