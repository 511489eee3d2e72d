"""The C kernels against NumPy in float64, and kernels without memory or threads."""

import ctypes
import errno

import mindspore as ms
import numpy as np
import pytest

from impala_ms.nets.kernels import build, operators
from tests.compiled import FunctionCell
from tests.nets import reference
from tests.nets.gradients import check_slopes

pytestmark = pytest.mark.skipif(
    build.library("cc") is None, reason="there is no C compiler on this machine"
)
# images, channels, height, width, outputs, kernel, stride, padding, relu
CASES = {
    "residual block": (3, 16, 7, 9, 32, 3, 1, 1, True),
    "no padding": (2, 32, 6, 5, 16, 3, 1, 0, False),
    "stride": (2, 16, 11, 14, 32, 4, 2, 0, True),  # with pixels that no window covers
    "large stride": (1, 16, 13, 12, 16, 8, 4, 0, False),
    "stride of the kernel": (2, 16, 7, 7, 16, 3, 3, 0, True),
    "one pixel": (5, 16, 1, 1, 16, 3, 1, 1, True),
    "wide": (1, 16, 3, 25, 48, 1, 1, 0, False),
}
IMAGES = {
    "Atari": (3, 4, 17, 15, 16, 8, 4, 0),
    "residual network": (2, 3, 6, 8, 16, 3, 1, 1),
    "one plane": (2, 1, 9, 9, 32, 3, 1, 0),
}


@pytest.fixture
def threads():
    """Three: fewer than the images of some cases, more than those of others."""
    library = ctypes.CDLL(build.library("cc"))
    yield library.set_threads(3)
    library.set_threads(1)


def conv2d(**options):
    return operators.Conv2d(build.library("cc"), **options)


def max_pool():
    return operators.MaxPool(build.library("cc"))


def value_and_gradients(cell, inputs, weights, positions):
    def loss(*tensors):
        return (cell(*tensors) * weights).sum()

    gradients = FunctionCell(ms.grad(loss, positions))(*map(ms.Tensor, inputs))
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    value = cell(*map(ms.Tensor, inputs)).asnumpy()
    return value, [gradient.asnumpy().astype(np.float64) for gradient in gradients]


@pytest.mark.parametrize("case", CASES)
def test_convolution_and_its_gradients_agree_with_numpy(case, threads):
    count, inputs, height, width, outputs, kernel, stride, padding, relu = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, height, width, inputs)).astype(np.float32)
    weight = rng.normal(size=(outputs, inputs, kernel, kernel)).astype(np.float32)
    bias = rng.normal(size=outputs).astype(np.float32)

    def wanted(x, weight, bias):
        x = x.transpose(0, 3, 1, 2)
        y = reference.conv(reference.relu(x) if relu else x, weight, bias, stride, padding)
        return y.transpose(0, 2, 3, 1)

    arrays = [array.astype(np.float64) for array in (x, weight, bias)]
    result = wanted(*arrays)
    sums = rng.normal(size=result.shape).astype(np.float32)
    cell = conv2d(kernel=kernel, stride=stride, padding=padding, relu=relu)
    value, gradients = value_and_gradients(cell, (x, weight, bias), ms.Tensor(sums), (0, 1, 2))
    np.testing.assert_allclose(value, result, atol=1e-5 * np.abs(result).max())
    check_slopes(lambda arrays: (wanted(*arrays) * sums).sum(), arrays, gradients, rng)


@pytest.mark.parametrize("case", IMAGES)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_convolution_of_images_agrees_with_numpy(case, dtype, threads):
    count, inputs, height, width, outputs, kernel, stride, padding = IMAGES[case]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, inputs, height, width)).astype(dtype)
    weight = rng.normal(size=(outputs, inputs, kernel, kernel)).astype(np.float32)
    bias = rng.normal(size=outputs).astype(np.float32)
    factor, offset = (0.02, -1.5) if dtype == np.uint8 else (1.0, 0.0)

    def wanted(x, weight, bias):
        y = reference.conv(x * factor + offset, weight, bias, stride, padding)
        return y.transpose(0, 2, 3, 1)

    arrays = [array.astype(np.float64) for array in (x, weight, bias)]
    result = wanted(*arrays)
    sums = rng.normal(size=result.shape).astype(np.float32)
    cell = conv2d(
        kernel=kernel, stride=stride, padding=padding, scale=(0.02, -1.5), outputs=outputs
    )
    numbers = 1 if dtype == np.uint8 else 0  # uint8 has no gradient
    value, gradients = value_and_gradients(
        cell, (x, weight, bias), ms.Tensor(sums), tuple(range(numbers, 3))
    )
    np.testing.assert_allclose(value, result, atol=1e-5 * np.abs(result).max())

    def loss(given):
        return (wanted(*arrays[:numbers], *given) * sums).sum()

    check_slopes(loss, arrays[numbers:], gradients, rng)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (7, 4), (4, 9), (12, 11)])
def test_max_pool_agrees_with_numpy(size, threads):
    rng = np.random.default_rng(0)
    x = rng.permutation(3 * 5 * size[0] * size[1]).reshape(3, *size, 5).astype(np.float32)

    def wanted(x):
        return reference.max_pool(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)

    result = wanted(x)
    sums = rng.normal(size=result.shape).astype(np.float32)
    cell = max_pool()
    value, gradients = value_and_gradients(cell, (x,), ms.Tensor(sums), 0)
    np.testing.assert_array_equal(value, result)
    check_slopes(
        lambda arrays: (wanted(arrays[0]) * sums).sum(), [x.astype(np.float64)], gradients, rng
    )


def test_first_of_equal_pixels_gets_the_gradient():
    x = np.zeros((1, 4, 4, 1), np.float32)
    sums = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32).reshape(1, 2, 2, 1)
    _, (gradient,) = value_and_gradients(max_pool(), (x,), ms.Tensor(sums), 0)
    assert gradient[0, ..., 0].tolist() == [[1, 0, 2, 0], [0] * 4, [3, 0, 4, 0], [0] * 4]


def test_nan_and_inf_stay_visible():
    one = np.zeros((1, 3, 3, 16), np.float32)
    one[0, 1, 1] = np.nan
    assert np.isnan(max_pool()(ms.Tensor(one)).asnumpy()).all()
    for value in (np.nan, np.inf):
        x = np.full((1, 4, 4, 16), value, np.float32)
        weight, bias = np.ones((16, 16, 3, 3), np.float32), np.zeros(16, np.float32)
        cell = conv2d(kernel=3, padding=1, relu=True)
        y = cell(*map(ms.Tensor, (max_pool()(ms.Tensor(x)), weight, bias)))
        assert not np.isfinite(y.asnumpy()).any()


def test_result_is_the_same_with_any_number_of_threads():
    library, rng = ctypes.CDLL(build.library("cc")), np.random.default_rng(0)
    x = ms.Tensor(rng.normal(size=(9, 6, 6, 16)).astype(np.float32))
    weight = ms.Tensor(rng.normal(size=(16, 16, 3, 3)).astype(np.float32))
    bias, cell, results = ms.Tensor(np.zeros(16, np.float32)), conv2d(kernel=3, padding=1), []
    for threads in (1, 2, 8, 100):
        library.set_threads(threads)
        results.append(cell(x, weight, bias).asnumpy())
    library.set_threads(1)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


FAILING = """
#include <pthread.h>
#include <stdlib.h>
#define ONCE __attribute__((weak)) /* the same in all files of the library */
ONCE _Atomic int test_calls, test_taken;
ONCE int test_failing; /* number of the call that fails, from 1; 0: all succeed */
ONCE int test_threads_fail;
ONCE void fail(int call, int threads) {
    test_failing = call, test_calls = 0, test_taken = 0, test_threads_fail = threads;
}
ONCE int calls_made(void) { return test_calls; }
ONCE int left_behind(void) { return test_taken; }
static void *counted(void *memory) {
    if (++test_calls == test_failing) { free(memory); return NULL; }
    test_taken++;
    return memory;
}
static void give_back(void *memory) { if (memory) test_taken--; free(memory); }
static int start(pthread_t *thread, void *(*function)(void *), void *given) {
    return test_threads_fail ? 11 : pthread_create(thread, NULL, function, given);
}
#define malloc(size) counted(malloc(size))
#define calloc(count, size) counted(calloc(count, size))
#define free give_back
#define pthread_create(thread, options, function, given) start(thread, function, given)
"""
X, GRADIENT = (5, 6, 6, 16), (5, 6, 6, 32)
SETTINGS = np.int64([1, 1, 1, 0])  # stride 1, padding 1, ReLU
SCALE = np.float32([1, 0])
ROWS = (3, 5, 16)  # T, B, H
GATES = (3, 5, 48)
# inputs of each kernel, as arrays or shapes, and the shapes of its results
KERNELS = {
    "conv2d_forward": ([X, (32, 16, 3, 3), (32,), SETTINGS, SCALE], [GRADIENT]),
    "conv2d_backward_input": ([GRADIENT, (32, 16, 3, 3), X, SETTINGS], [X]),
    "conv2d_backward_weight": ([GRADIENT, X, SETTINGS, SCALE], [(32, 16, 3, 3), (32,)]),
    "max_pool_forward": ([X], [(5, 3, 3, 16)]),
    "max_pool_backward": ([(5, 3, 3, 16), X, (5, 3, 3, 16)], [X]),
    "lstm_forward": (
        [(3, 5, 64), (3, 5, 1), (5, 16), (5, 16), (64, 16)],
        [ROWS, ROWS, GATES, ROWS, ROWS],
    ),
    "lstm_backward": (
        [ROWS, ROWS, (3, 5, 1), (5, 16), (64, 16), ROWS, GATES, ROWS, ROWS],
        [(3, 5, 64), (5, 16), (5, 16)],
    ),
}


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """A library whose memory and threads can be made to fail, and its path."""
    folder = tmp_path_factory.mktemp("failing")
    header = folder / "failing.h"
    header.write_text(FAILING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        path = build.load(f"cc -include {header}")
    return ctypes.CDLL(path), path


def call(library, name):
    """Call a kernel as MindSpore does: its return code and its results."""
    inputs, outputs = KERNELS[name]
    rng = np.random.default_rng(0)
    arrays = [
        x if isinstance(x, np.ndarray) else rng.normal(size=x).astype(np.float32) for x in inputs
    ]
    results = [np.full(shape, np.nan, np.float32) for shape in outputs]
    arrays += results
    count = len(arrays)
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    code = getattr(library, name)(
        ctypes.c_int(count),
        (ctypes.c_void_p * count)(*(array.ctypes.data for array in arrays)),
        (ctypes.c_int * count)(*(array.ndim for array in arrays)),
        (ctypes.POINTER(ctypes.c_int64) * count)(*shapes),
        (ctypes.c_char_p * count)(*[b"float32"] * count),
        None,
        None,
    )
    return code, results


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_kernel_without_memory_says_so_and_frees_what_it_took(failing, capfd, name, threads):
    library, _ = failing
    library.set_threads(threads)
    library.fail(0, 0)
    code, wanted = call(library, name)
    allocations = library.calls_made()
    assert code == library.left_behind() == 0
    assert (allocations > 0) == (name != "max_pool_forward")  # it allocates nothing
    for number in range(1, allocations + 1):
        library.fail(number, 0)
        assert call(library, name)[0] == errno.ENOMEM
        assert library.left_behind() == 0
        assert "a kernel could not allocate memory" in capfd.readouterr().err
    library.fail(0, 0)
    for result, expected in zip(call(library, name)[1], wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_computes_without_threads_that_cannot_start(failing, name):
    library, _ = failing
    library.set_threads(3)
    library.fail(0, 0)
    _, wanted = call(library, name)
    library.fail(0, 1)
    code, results = call(library, name)
    assert code == 0
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_mindspore_raises_if_a_kernel_has_no_memory(failing):
    library, path = failing
    cell = operators.Conv2d(path, kernel=3)
    shapes = (2, 4, 4, 16), (16, 16, 3, 3), (16,)
    library.fail(1, 0)
    with pytest.raises(RuntimeError, match=rf"\(conv2d_forward\) is {errno.ENOMEM}"):
        cell(*(ms.Tensor(np.ones(shape, np.float32)) for shape in shapes))
