"""V-trace against numbers by hand and an independent double sum; gradients and infinities."""

from functools import partial
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops

from impala_ms.agents import actor_critic as losses
from impala_ms.ops import vtrace as module
from impala_ms.ops.vtrace import clip_ratios, vtrace
from tests.compiled import compiled, eager, one_by_one, to_tensor

RESET = -np.inf  # log ratio of a row that only reset


def column(values):
    return np.array(values, np.float32)[:, None]


def run_column(ratios, discounts, rewards, values, bootstrap, how=compiled, **options):
    """V-trace of one environment, from lists."""
    with np.errstate(divide="ignore"):
        log_rhos = np.log(column(ratios))
    discounts = np.broadcast_to(np.float32(discounts), len(rewards))
    arrays = log_rhos, column(discounts), column(rewards), column(values), np.float32([bootstrap])
    vs, advantages = how(partial(vtrace, **options))(*arrays)
    assert vs.shape == advantages.shape == (len(rewards), 1)
    assert vs.dtype == advantages.dtype == np.float32
    return vs[:, 0], advantages[:, 0]


def double_sum(
    log_rhos, discounts, rewards, values, bootstrap, rho_bar, c_bar, pg_rho_bar, lambda_
):
    """Equation 1 of the paper, term by term in float64: for every s, the sum over t of

    gamma_s c_s ... gamma_{t-1} c_{t-1} rho_t (r_t + gamma_t V(x_{t+1}) - V(x_t)).
    """
    log_rhos, discounts, rewards, values, bootstrap = (
        np.asarray(array, np.float64) for array in (log_rhos, discounts, rewards, values, bootstrap)
    )
    ratios = np.exp(np.minimum(log_rhos, 20.0))
    rhos, cs, pg_rhos = (
        np.minimum(ratios, np.inf if bar is None else bar) for bar in (rho_bar, c_bar, pg_rho_bar)
    )
    cs = lambda_ * cs
    following = np.concatenate([values[1:], bootstrap[None]])
    deltas = rhos * (rewards + discounts * following - values)
    vs = np.empty_like(values)
    for s in range(len(values)):
        traces = np.cumprod(discounts[s:-1] * cs[s:-1], axis=0)
        weights = np.concatenate([np.ones_like(values[:1]), traces])
        vs[s] = values[s] + (weights * deltas[s:]).sum(axis=0)
    following_vs = np.concatenate([vs[1:], bootstrap[None]])
    return vs, pg_rhos * (rewards + discounts * following_vs - values)


def random_unrolls(steps, envs, *, seed, spread=1.0, ends=True, on_policy=False):
    """Inputs of V-trace with rewards and values of many sizes, terminations and truncations."""
    rng = np.random.default_rng(seed)
    shape = steps, envs
    scale = 10.0 ** rng.uniform(-2, 3, envs)
    log_rhos = np.zeros(shape) if on_policy else rng.normal(0.0, spread, shape)
    discounts = np.full(shape, 0.99)
    rewards, values = rng.normal(0.0, scale, shape), rng.normal(0.3 * scale, scale, shape)
    bootstrap = rng.normal(0.0, scale, envs)
    if ends:
        terminated = rng.random(shape) < 0.05
        truncated = rng.random(shape) < 0.05
        discounts[terminated] = 0.0
        reset = np.zeros(shape, np.bool_)
        reset[1:] = (terminated | truncated)[:-1]
        log_rhos[reset], rewards[reset] = RESET, 0.0
    return [x.astype(np.float32) for x in (log_rhos, discounts, rewards, values, bootstrap)]


def assert_close_per_column(got, wanted, scale, share):
    assert got.shape == wanted.shape
    assert np.isfinite(got).all()
    error = np.abs(got - wanted).max(axis=0)
    assert (error <= share * np.abs(scale).max(axis=0)).all(), error / np.abs(scale).max(axis=0)


class TestByHand:
    """T = 2, gamma = .5, ratios [2, .5], r = [1, 2], V = [0, 1], V(x_T) = 4."""

    @pytest.mark.parametrize("how", [compiled, eager])
    @pytest.mark.parametrize(
        ("options", "ratios", "discounts", "vs", "advantages"),
        [
            ({}, [2, 0.5], 0.5, [2.25, 2.5], [2.25, 1.5]),
            ({"pg_rho_bar": 2.0}, [2, 0.5], 0.5, [2.25, 2.5], [4.5, 1.5]),
            ({"rho_bar": 2.0}, [2, 0.5], 0.5, [3.75, 2.5], [2.25, 1.5]),
            ({"rho_bar": 2.0, "c_bar": 2.0}, [2, 0.5], 0.5, [4.5, 2.5], [2.25, 1.5]),
            ({}, [2, 0.5], [0, 0.5], [1, 2.5], [1, 1.5]),
            ({}, [1, 1], 0.5, [3, 4], [3, 3]),
        ],
        ids=["base", "pg_rho_bar", "rho_bar", "rho_bar and c_bar", "terminated", "on-policy"],
    )
    def test_two_steps_by_hand(self, how, options, ratios, discounts, vs, advantages):
        got = run_column(ratios, discounts, [1, 2], [0, 1], 4, how, **options)
        np.testing.assert_allclose(got, [vs, advantages], rtol=1e-6)

    @pytest.mark.parametrize(("third_value", "bootstrap"), [(50.0, 7.0), (-1e6, 7.0), (50.0, 1e6)])
    def test_nothing_after_a_termination_counts(self, third_value, bootstrap):
        values = [2.0, 3.0, third_value]
        vs, advantages = run_column([1] * 3, [0.9, 0, 0.9], [1] * 3, values, bootstrap)
        np.testing.assert_allclose(vs[:2], [1.9, 1.0], rtol=1e-6)
        np.testing.assert_allclose(advantages[:2], [-0.1, -2.0], rtol=1e-5)
        if (third_value, bootstrap) == (50.0, 7.0):
            np.testing.assert_allclose(vs[2], 7.3, rtol=1e-6)
            np.testing.assert_allclose(advantages[2], -42.7, rtol=1e-6)

    def test_mixed_ratios_by_hand(self):
        got = run_column([0.25, 4, 1], 0.9, [1, 2, 3], [0.5, 1.5, 2.5], 3.5)
        wanted = [[2.320375, 7.535, 6.15], [1.820375, 6.035, 3.65]]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)

    @pytest.mark.parametrize(("lambda_", "vs"), [(0.0, [3.0, 4.5]), (1.0, [3.125, 4.5])])
    def test_lambda_by_hand(self, lambda_, vs):
        got, _ = run_column([0.5, 2], 0.5, [1, 2], [3, 4], 5, lambda_=lambda_)
        np.testing.assert_allclose(got, vs, rtol=1e-6)

    def test_truncation_bootstraps_from_the_final_observation_and_termination_from_0(self):
        # the episode ends at row 0, x_1 is its final observation and row 1 the reset row
        for discount, target in [(0.5, 1 + 0.5 * 10), (0.0, 1.0)]:
            vs, advantages = run_column([1, 0, 1], [discount, 0.5, 0.5], [1, 0, 1], [2, 10, 6], 8)
            np.testing.assert_allclose(vs, [target, 10.0, 5.0], rtol=1e-6)
            np.testing.assert_allclose(advantages, [target - 2, 0.0, -1.0], rtol=1e-6)


class TestAgainstTheDoubleSum:
    @pytest.mark.parametrize("steps", [1, 5, 20, 100, 1000])
    def test_mixed_ends_and_ratios_agree_with_the_double_sum(self, steps):
        options = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "lambda_": 1.0}
        self.compare(random_unrolls(steps, 16, seed=steps), options)

    @pytest.mark.parametrize("steps", [1, 5, 100, 1000])
    def test_vs_is_the_n_step_return_on_policy_without_ends(self, steps):
        arrays = random_unrolls(steps, 8, seed=steps, on_policy=True, ends=False)
        vs, _ = compiled(vtrace)(*arrays)
        _, discounts, rewards, _, bootstrap = (array.astype(np.float64) for array in arrays)
        wanted, following = np.empty_like(rewards), bootstrap
        for t in reversed(range(steps)):
            wanted[t] = following = rewards[t] + discounts[t] * following
        # the scale includes the values, which V-trace subtracts and adds again
        scale = np.concatenate([wanted, arrays[3]])
        assert_close_per_column(vs, wanted, scale, 1e-5)

    @pytest.mark.parametrize(
        "options",
        [
            {"rho_bar": 2.0, "c_bar": 0.7, "pg_rho_bar": 1.5, "lambda_": 0.9},
            {"rho_bar": 0.5, "c_bar": 1.2, "pg_rho_bar": 0.5, "lambda_": 1.0},
            {"rho_bar": None, "c_bar": 1.0, "pg_rho_bar": 1.0, "lambda_": 1.0},
            {"rho_bar": 1.0, "c_bar": None, "pg_rho_bar": None, "lambda_": 0.8},
            {"rho_bar": None, "c_bar": None, "pg_rho_bar": None, "lambda_": 1.0},
        ],
        ids=str,
    )
    def test_thresholds_agree_with_the_double_sum(self, options):
        self.compare(random_unrolls(20, 16, seed=1, spread=0.7), options)

    @staticmethod
    def compare(arrays, options):
        vs, advantages = compiled(partial(vtrace, **options))(*arrays)
        wanted_vs, wanted_advantages = double_sum(*arrays, **options)
        # with one row the value and its correction may cancel
        scale = wanted_vs if len(vs) > 1 else np.concatenate([wanted_vs, arrays[3]])
        assert_close_per_column(vs, wanted_vs, scale, 1e-5)
        scale = np.concatenate([wanted_vs, wanted_advantages])
        assert_close_per_column(advantages, wanted_advantages, scale, 1e-5)


class TestInfinities:
    def test_ratios_are_clipped_and_exactly_0_for_reset_rows(self):
        log_rhos = column([RESET, 0.0, np.log(3.0), 20.0, 300.0])
        clipped = compiled(partial(clip_ratios, threshold=2.5))(log_rhos)
        np.testing.assert_allclose(clipped[:, 0], [0, 1, 2.5, 2.5, 2.5], rtol=1e-6)
        unclipped = compiled(partial(clip_ratios, threshold=None))(log_rhos)
        np.testing.assert_allclose(unclipped[:, 0], [0, 1, 3, np.exp(20), np.exp(20)], rtol=1e-6)
        assert clipped[0, 0] == unclipped[0, 0] == 0.0

    @pytest.mark.parametrize("c_bar", [None, 2.0])
    @pytest.mark.parametrize("how", [compiled, eager])
    def test_overflowing_products_of_ratios_stay_in_their_episode(self, how, c_bar):
        log_rhos, *others = random_unrolls(200, 8, seed=3)
        huge = np.where(np.isneginf(log_rhos), RESET, np.float32(88.0))
        options = {"rho_bar": None, "c_bar": c_bar, "pg_rho_bar": None}
        vs, advantages = how(partial(vtrace, **options))(huge, *others)
        assert np.isfinite(vs).all()
        assert np.isfinite(advantages).all()
        # an episode that ends after one step has no products
        discounts, rewards, values, _ = others
        alone = (discounts == 0) & ~np.isneginf(log_rhos)
        assert alone.sum() > 20
        wanted = values + np.exp(20.0) * (rewards - values)
        np.testing.assert_allclose(vs[alone], wanted[alone], rtol=1e-5)

    def test_traces_above_1_over_many_steps_stay_finite_and_within_their_episode(self):
        # 1.98^200 overflows float32; the first of the two episodes ends at row 199
        arrays = random_unrolls(400, 2, seed=4, on_policy=True, ends=False)
        arrays[0][...], arrays[1][199] = np.log(3.0), 0.0
        run = compiled(partial(vtrace, c_bar=2.0))
        vs, advantages = run(*arrays)
        assert np.isfinite(vs).all()
        assert np.isfinite(advantages).all()
        changed = [array.copy() for array in arrays]
        changed[2][200:] += 9.0
        changed_vs, _ = run(*changed)
        np.testing.assert_array_equal(changed_vs[:200], vs[:200])
        assert (changed_vs[380:] != vs[380:]).all()

    def test_reset_row_has_its_value_as_target_and_advantage_0(self):
        vs, advantages = run_column([1, 0, 1], 0.9, [1, 0, 1], [1, 5, 7], 9)
        assert (vs[1], advantages[1]) == (5.0, 0.0)


@pytest.mark.parametrize("how", ["compiled", "eager"])
def test_no_gradient_flows_through_the_outputs(how):
    def weighted(*inputs):
        vs, advantages = vtrace(*inputs, rho_bar=2.0)
        return (3.0 * vs + 5.0 * advantages).sum()

    def control(*inputs):
        return weighted(*inputs) + sum(ops.square(x).sum() for x in inputs)

    inputs = random_unrolls(5, 3, seed=0, ends=False)
    positions = tuple(range(5))
    if how == "compiled":
        gradients = compiled(ms.grad(weighted, positions))(*inputs)
        controls = compiled(ms.grad(control, positions))(*inputs)
    else:
        with one_by_one():
            tensors = list(map(to_tensor, inputs))
            gradients = [g.asnumpy() for g in ms.grad(weighted, positions)(*tensors)]
            controls = [g.asnumpy() for g in ms.grad(control, positions)(*tensors)]
    assert len(gradients) == 5
    for gradient, seen, x in zip(gradients, controls, inputs, strict=True):
        assert gradient.shape == x.shape
        np.testing.assert_array_equal(gradient, 0.0)
        np.testing.assert_allclose(seen, 2 * x, rtol=1e-6)  # so that a gradient would show


def test_number_of_operators_grows_with_the_logarithm_of_the_steps(monkeypatch):
    calls = []

    def counted(name):
        def call(*args, **kwargs):
            calls.append(name)
            return getattr(ops, name)(*args, **kwargs)

        return call

    monkeypatch.setattr(
        module, "ops", SimpleNamespace(**{name: counted(name) for name in dir(ops)})
    )

    def operators(steps):
        calls.clear()
        vtrace(*map(to_tensor, random_unrolls(steps, 2, seed=0)))
        return len(calls)

    counts = [operators(2**k) for k in range(4, 11)]
    steps = np.diff(counts)
    assert (steps == steps[0]).all(), counts
    assert steps[0] > 0


@pytest.mark.parametrize("kind", [np.asarray, np.float64, np.ndarray.tolist])
def test_arrays_and_lists_give_the_same_as_tensors(kind):
    inputs = random_unrolls(5, 3, seed=0)
    wanted = compiled(vtrace)(*inputs)
    for result, expected in zip(vtrace(*map(kind, inputs)), wanted, strict=True):
        assert isinstance(result, ms.Tensor)
        np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-6)


def test_losses_of_arrays_equal_those_of_tensors():
    log_rhos, discounts, rewards, values, bootstrap = random_unrolls(5, 3, seed=0)
    reset = np.isneginf(log_rhos)
    bars = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "lambda_": 1.0}
    inputs = log_rhos, reset, discounts, rewards, values, bootstrap
    calls = [
        (partial(losses.corrected_targets, name, **bars), inputs) for name in losses.CORRECTIONS
    ]
    calls += [(partial(losses.clip_rewards, how=how), (rewards,)) for how in losses.REWARD_CLIPS]
    calls += [
        (partial(losses.policy_gradient_loss, epsilon=0.1), (-np.abs(values), rewards)),
        (losses.policy_gradient_loss, (values, rewards)),
        (losses.baseline_loss, (values, rewards, discounts)),
        (losses.entropy_loss, (values, discounts)),
    ]
    for function, arrays in calls:
        got, wanted = function(*arrays), function(*map(to_tensor, arrays))
        for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, wanted)), strict=True):
            assert isinstance(x, ms.Tensor)
            np.testing.assert_array_equal(x.asnumpy(), y.asnumpy())


class TestShapes:
    GOOD = ((5, 3), (5, 3), (5, 3), (5, 3), (3,))

    @pytest.mark.parametrize(
        ("position", "shape"),
        [(0, (4, 3)), (0, (5,)), (1, (5, 1)), (2, (5,)), (3, (6, 3)), (4, (1, 3)), (4, (5,))],
    )
    def test_shapes_that_differ_are_refused(self, position, shape):
        shapes = list(self.GOOD)
        shapes[position] = shape
        with pytest.raises(ValueError, match=r"vtrace needs .* got \(?"):
            vtrace(*(to_tensor(np.zeros(shape)) for shape in shapes))

    def test_shapes_that_differ_are_refused_in_compiled_code(self):
        shapes = [*self.GOOD[:-1], (1, 3)]
        with pytest.raises(ValueError, match="vtrace needs values"):
            compiled(vtrace)(*(np.zeros(shape) for shape in shapes))

    def test_arrays_that_are_not_matrices_are_refused(self):
        with pytest.raises(ValueError, match="vtrace needs"):
            vtrace(*(to_tensor(np.zeros(shape)) for shape in [(5, 3, 1)] * 4 + [(3, 1)]))
