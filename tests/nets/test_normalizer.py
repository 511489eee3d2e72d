"""Running mean and variance of observations, against NumPy in float64."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from impala_ms.agents.network import ActorCriticPolicy
from impala_ms.errors import ConfigError
from impala_ms.nets.normalizer import Normalizer
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops.distributions import Categorical
from tests import compiled  # noqa: F401  sets graph mode
from tests.fakes import box


class Counting(nn.Cell):
    def __init__(self, size):
        super().__init__()
        self.normalizer = Normalizer(size)

    def construct(self, x, weight):
        scaled = self.normalizer(x)
        self.normalizer.update(*self.normalizer.sums(x, weight))
        return scaled


def call(cell, x, weight=None):
    x = np.asarray(x, np.float32)
    weight = np.ones(len(x)) if weight is None else weight
    return cell(ms.Tensor(x), ms.Tensor(np.asarray(weight, np.float32))).asnumpy()


def statistics(normalizer):
    return [p.asnumpy() for p in (normalizer.count, normalizer.mean, normalizer.variance)]


def test_statistics_are_those_of_all_rows_with_weight_1():
    rng, cell, rows = np.random.default_rng(0), Counting(3), []
    for size in (7, 40, 1, 200):
        x = rng.normal([3.0, -50.0, 0.0], [1.0, 20.0, 0.01], (40, 3)).astype(np.float32)
        weight = np.arange(40) < size
        call(cell, x, weight)
        rows.append(x[weight].astype(np.float64))
    rows = np.concatenate(rows)
    count, mean, variance = statistics(cell.normalizer)
    assert (count.shape, mean.shape, variance.shape) == ((), (3,), (3,))
    assert count == len(rows) == 88
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, rows.var(0), rtol=1e-4)


def sums_of(normalizer, x):
    x = np.asarray(x, np.float32)
    parts = normalizer.sums(ms.Tensor(x), ms.Tensor(np.ones(len(x), np.float32)))
    return [part.asnumpy() for part in parts]


def test_sums_of_several_batches_add_up():
    """30 values of mean 2 and variance 1, 10 of mean 6 and variance 1: mean 3, variance 4."""
    cell = Counting(1)
    ones = np.tile([[-1.0], [1.0]], (15, 1))
    cell.normalizer.update(*map(ms.Tensor, sums_of(cell.normalizer, 2 + ones)))
    assert [x.item() for x in statistics(cell.normalizer)] == [30.0, 2.0, 1.0]
    first, second = (sums_of(cell.normalizer, 6 + ones[k : k + 4]) for k in (0, 4))
    rest = sums_of(cell.normalizer, 6 + ones[8:10])
    rows, distances, squares = (first[k] + second[k] + rest[k] for k in (0, 2, 3))
    cell.normalizer.update(*map(ms.Tensor, (rows, first[1], distances, squares)))
    assert [x.item() for x in statistics(cell.normalizer)] == [40.0, 3.0, 4.0]


@pytest.mark.parametrize(("mean", "deviation"), [(1e6, 10.0), (101325.0, 10.0), (1000.0, 0.1)])
def test_numbers_far_from_0_have_their_deviation_after_one_batch(mean, deviation):
    cell = Counting(1)
    x = np.random.default_rng(0).normal(mean, deviation, (320, 1)).astype(np.float32)
    call(cell, x)
    assert statistics(cell.normalizer)[2] == pytest.approx(x.astype(np.float64).var(), rel=0.01)


@pytest.mark.parametrize("value", [1e20, 3e38, float(np.finfo(np.float32).max)])
@pytest.mark.parametrize("at_first", [True, False])
def test_a_huge_number_leaves_the_statistics_finite_and_the_others_right(value, at_first):
    cell = Counting(2)
    x = np.random.default_rng(0).normal(3.0, 2.0, (50, 2)).astype(np.float32)
    huge = x.copy()
    huge[7, 0] = value
    for batch in (huge, x) if at_first else (x, huge):
        call(cell, batch)
    count, mean, variance = statistics(cell.normalizer)
    assert count == 100
    assert np.isfinite(mean).all()
    np.testing.assert_allclose(mean[1], x[:, 1].mean(), rtol=1e-4)
    np.testing.assert_allclose(variance[1], x[:, 1].var(), rtol=1e-4)
    assert 0.1 < variance[0] < 40


def test_values_are_scaled_by_the_statistics_before_they_are_counted():
    cell = Counting(1)
    np.testing.assert_array_equal(call(cell, [[4.0], [8.0]]), [[4.0], [8.0]])  # no statistics yet
    np.testing.assert_allclose(call(cell, [[6.0], [10.0]]), [[0.0], [2.0]], atol=1e-6)
    assert call(cell, [[1e6]])[0, 0] == 10.0


def test_without_a_new_row_the_statistics_keep_their_bits():
    cell = Counting(2)
    call(cell, np.random.default_rng(1).normal(size=(9, 2)))
    before = [x.tobytes() for x in statistics(cell.normalizer)]
    call(cell, np.full((4, 2), 100.0), np.zeros(4))
    assert [x.tobytes() for x in statistics(cell.normalizer)] == before


MIXED = {
    "type": "Dict",
    "spaces": {
        "image": box(24, 24, dtype="uint8"),
        "kind": {"type": "Discrete", "n": 3, "start": 0},
        "speed": box(2),
    },
}


def make_policy(space, **settings):
    return ActorCriticPolicy(space, Categorical(2), normalize_observations=True, **settings)


def test_images_and_choices_are_not_normalized():
    policy = make_policy(MIXED)
    assert policy.normalizer.sizes == (0, 0, 2)
    for space in (box(24, 24, dtype="uint8"), {"type": "Discrete", "n": 3, "start": 0}):
        with pytest.raises(ConfigError, match="normalize_observations is true, but"):
            make_policy(space)


def test_mlp_normalizes_every_box():
    assert make_policy(box(2, 3)).normalizer.sizes == (6,)
    assert make_policy(box(10, 10, 3, dtype="uint8")).normalizer.sizes == (300,)
    assert make_policy(MIXED, torso="mlp").normalizer.sizes == (24 * 24, 0, 2)


def test_statistics_travel_with_the_weights_and_are_not_trained():
    policy = make_policy(box(2))
    trained = {parameter.name for parameter in policy.trainable_params()}
    others = {p.name: p for p in policy.get_parameters() if p.name not in trained}
    assert sorted(name.rpartition(".")[2] for name in others) == ["count", "mean", "variance"]
    flat = FlatWeights(policy.get_parameters())
    assert flat.size == sum(p.size for p in policy.trainable_params()) + 5

    x = np.array([[3.0, 5.0], [1.0, -1.0]], np.float32)
    before = policy(ms.Tensor(x))[1].asnumpy()
    weights = flat.read()
    for parameter, values in flat.split(weights):
        if parameter.name.endswith("mean"):
            values[:] = [1.0, 2.0]
    flat.write(weights)
    plain = ActorCriticPolicy(box(2), Categorical(2))
    FlatWeights(plain.get_parameters()).write(
        np.concatenate([v.ravel() for p, v in flat.split(weights) if p.name in trained])
    )
    wanted = plain(ms.Tensor(x - np.array([1.0, 2.0], np.float32)))[1].asnumpy()
    got = policy(ms.Tensor(x))[1].asnumpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(got, before)


def test_each_part_of_a_structured_observation_has_its_own_statistics():
    space = {"type": "Tuple", "spaces": [box(1), {"type": "Discrete", "n": 3}, box(2, 2)]}
    normalizer = make_policy(space).normalizer
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, (50, 1)), rng.integers(0, 3, 50), rng.normal(-5, 4, (50, 2, 2))]
    parts = [p.astype(np.int64 if p.dtype.kind == "i" else np.float32) for p in parts]
    tensors = tuple(map(ms.Tensor, parts))
    normalizer.update(tensors, ms.Tensor(np.ones(50, np.float32)))
    first, kind, last = (x.asnumpy() for x in normalizer(tensors))
    for got, given in ((first, parts[0]), (last, parts[2])):
        assert got.shape == given.shape
        wanted = (given - given.mean(0)) / given.std(0)
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(kind, parts[1])
