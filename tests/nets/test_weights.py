"""Weights as one array: reading copies, and compiled code uses what was written."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from impala_ms.nets.weights import FlatWeights
from tests import compiled  # noqa: F401  sets graph mode


class Affine(nn.Cell):
    def __init__(self):
        super().__init__()
        self.matrix = ms.Parameter(np.arange(6, dtype=np.float32).reshape(2, 3), name="matrix")
        self.offset = ms.Parameter(np.float32([10, 20]), name="offset")
        self.factor = ms.Parameter(ms.Tensor(2.0, ms.float32), name="factor")

    def construct(self, x):
        return self.factor * (ms.ops.matmul(self.matrix, x) + self.offset)


X = np.float32([1, 2, 3])


@pytest.fixture(scope="module")
def cell():
    cell = Affine()
    cell(ms.Tensor(X))  # compiled before any weight is written
    return cell


@pytest.fixture
def weights(cell):
    weights = FlatWeights(cell.get_parameters())
    weights.write(np.float32([0, 1, 2, 3, 4, 5, 10, 20, 2]))
    return weights


def test_read_gives_all_parameters_in_order(weights):
    flat = weights.read()
    assert weights.size == 9
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat, [0, 1, 2, 3, 4, 5, 10, 20, 2])


def test_compiled_code_uses_what_is_written(cell, weights):
    for factor in (1.0, -3.0):
        flat = np.float32([1, 0, 0, 0, 0, 1, 5, 6, factor])
        weights.write(flat)
        np.testing.assert_array_equal(
            cell(ms.Tensor(X)).asnumpy(), factor * np.float32([1 + 5, 3 + 6])
        )
        np.testing.assert_array_equal(weights.read(), flat)


def test_read_is_a_copy_and_write_copies(weights):
    before = weights.read()
    flat = np.zeros(9, np.float32)
    weights.write(flat)
    flat[:] = 7
    np.testing.assert_array_equal(before, [0, 1, 2, 3, 4, 5, 10, 20, 2])
    np.testing.assert_array_equal(weights.read(), np.zeros(9))


def test_split_gives_each_parameter_its_values(weights):
    parts = weights.split(np.arange(9, dtype=np.float32))
    assert [parameter.name for parameter, _ in parts] == ["matrix", "offset", "factor"]
    assert [values.tolist() for _, values in parts] == [[[0, 1, 2], [3, 4, 5]], [6, 7], 8]


@pytest.mark.parametrize("size", [0, 8, 10])
def test_array_of_another_size_is_refused_and_changes_nothing(weights, size):
    with pytest.raises(ValueError, match=f"the network has 9 weights, got {size}"):
        weights.write(np.zeros(size, np.float32))
    np.testing.assert_array_equal(weights.read(), [0, 1, 2, 3, 4, 5, 10, 20, 2])


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ((ms, "get_context"), lambda name: "GPU"),
        ((ms.Parameter, "asnumpy"), lambda parameter: parameter.value().asnumpy().copy()),
    ],
    ids=["another device", "copies on the CPU"],
)
def test_write_is_refused_where_it_would_be_lost(cell, weights, monkeypatch, change, value):
    before = weights.read()
    fresh = FlatWeights(cell.get_parameters())
    with monkeypatch.context() as patch:
        patch.setattr(*change, value)
        with pytest.raises(RuntimeError, match="can be used on the CPU only") as error:
            fresh.write(np.zeros(9, np.float32))
        assert "\n" not in str(error.value)
        np.testing.assert_array_equal(fresh.read(), before)
