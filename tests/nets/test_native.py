"""The kernels of ``native.c`` against NumPy in float64, and how they come to be compiled."""

import ctypes
import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from impala_ms.nets import native
from tests.compiled import FunctionCell
from tests.nets import reference
from tests.nets.gradients import check_slopes

pytestmark = pytest.mark.skipif(
    native.library("cc") is None, reason="there is no C compiler on this machine"
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
PLANES = {
    "Atari": (3, 4, 17, 15, 16, 8, 4, 0),
    "residual network": (2, 3, 6, 8, 16, 3, 1, 1),
    "one plane": (2, 1, 9, 9, 32, 3, 1, 0),
}


@pytest.fixture
def threads():
    """As many as some cases have images, more than others have; the tests of torsos have one."""
    library = ctypes.CDLL(native.library("cc"))
    yield library.set_threads(3)
    library.set_threads(1)


def convolve(planes=None, **options):
    return native.Convolve(native.library("cc"), planes=planes, **options)


def value_and_gradients(cell, inputs, weights, positions):
    def loss(*tensors):
        return (cell(*tensors) * weights).sum()

    gradients = FunctionCell(ms.grad(loss, positions))(*map(ms.Tensor, inputs))
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    value = cell(*map(ms.Tensor, inputs)).asnumpy()
    return value, [gradient.asnumpy().astype(np.float64) for gradient in gradients]


@pytest.mark.parametrize("case", CASES)
def test_convolution(case, threads):
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
    cell = convolve(kernel=kernel, stride=stride, padding=padding, relu=relu)
    value, gradients = value_and_gradients(cell, (x, weight, bias), ms.Tensor(sums), (0, 1, 2))
    np.testing.assert_allclose(value, result, atol=1e-5 * np.abs(result).max())
    check_slopes(lambda arrays: (wanted(*arrays) * sums).sum(), arrays, gradients, rng)


@pytest.mark.parametrize("case", PLANES)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_planes(case, dtype, threads):
    count, inputs, height, width, outputs, kernel, stride, padding = PLANES[case]
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
    cell = convolve((0.02, -1.5), kernel=kernel, stride=stride, padding=padding, outputs=outputs)
    numbers = 1 if dtype == np.uint8 else 0  # there is no gradient of bytes
    value, gradients = value_and_gradients(
        cell, (x, weight, bias), ms.Tensor(sums), tuple(range(numbers, 3))
    )
    np.testing.assert_allclose(value, result, atol=1e-5 * np.abs(result).max())

    def loss(given):
        return (wanted(*arrays[:numbers], *given) * sums).sum()

    check_slopes(loss, arrays[numbers:], gradients, rng)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (7, 4), (4, 9), (12, 11)])
def test_pool(size, threads):
    rng = np.random.default_rng(0)
    x = rng.permutation(3 * 5 * size[0] * size[1]).reshape(3, *size, 5).astype(np.float32)

    def wanted(x):
        return reference.max_pool(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)

    result = wanted(x)
    sums = rng.normal(size=result.shape).astype(np.float32)
    cell = native.Pool(native.library("cc"))
    value, gradients = value_and_gradients(cell, (x,), ms.Tensor(sums), 0)
    np.testing.assert_array_equal(value, result)
    check_slopes(
        lambda arrays: (wanted(arrays[0]) * sums).sum(), [x.astype(np.float64)], gradients, rng
    )


def test_of_equal_pixels_the_first_one_gets_the_gradient():
    x = np.zeros((1, 4, 4, 1), np.float32)
    sums = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32).reshape(1, 2, 2, 1)
    _, (gradient,) = value_and_gradients(
        native.Pool(native.library("cc")), (x,), ms.Tensor(sums), 0
    )
    assert gradient[0, ..., 0].tolist() == [[1, 0, 2, 0], [0] * 4, [3, 0, 4, 0], [0] * 4]


def test_what_is_not_finite_is_not_hidden():
    one = np.zeros((1, 3, 3, 16), np.float32)
    one[0, 1, 1] = np.nan
    assert np.isnan(native.Pool(native.library("cc"))(ms.Tensor(one)).asnumpy()).all()
    for value in (np.nan, np.inf):
        x = np.full((1, 4, 4, 16), value, np.float32)
        weight, bias = np.ones((16, 16, 3, 3), np.float32), np.zeros(16, np.float32)
        cell = convolve(kernel=3, padding=1, relu=True)
        y = cell(*map(ms.Tensor, (native.Pool(native.library("cc"))(ms.Tensor(x)), weight, bias)))
        assert not np.isfinite(y.asnumpy()).any()


def test_threads_change_no_result():
    library, rng = ctypes.CDLL(native.library("cc")), np.random.default_rng(0)
    x = ms.Tensor(rng.normal(size=(9, 6, 6, 16)).astype(np.float32))
    weight = ms.Tensor(rng.normal(size=(16, 16, 3, 3)).astype(np.float32))
    bias, cell, results = ms.Tensor(np.zeros(16, np.float32)), convolve(kernel=3, padding=1), []
    for threads in (1, 2, 8, 100):
        library.set_threads(threads)
        results.append(cell(x, weight, bias).asnumpy())
    library.set_threads(1)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


FAILING = """
#include <pthread.h>
#include <stdlib.h>
static _Atomic int calls, taken;
static int failing; /* the call that fails, counted from 1; 0: none */
static int threads_fail;
void fail(int call, int threads) { failing = call, calls = 0, taken = 0, threads_fail = threads; }
int calls_made(void) { return calls; }
int left_behind(void) { return taken; }
static void *counted(void *memory) {
    if (++calls == failing) { free(memory); return NULL; }
    taken++;
    return memory;
}
static void give_back(void *memory) { if (memory) taken--; free(memory); }
static int start(pthread_t *thread, void *(*function)(void *), void *given) {
    return threads_fail ? 11 : pthread_create(thread, NULL, function, given);
}
#define malloc(size) counted(malloc(size))
#define calloc(count, size) counted(calloc(count, size))
#define free give_back
#define pthread_create(thread, options, function, given) start(thread, function, given)
"""
X, GRADIENT = (5, 6, 6, 16), (5, 6, 6, 32)
HOW = np.float32([1, 1, 1, 0, 1, 0])  # stride 1, padding 1, ReLU
ROWS = (3, 5, 16)  # T, B, H
OPENED = (3, 5, 48)
# of each function the inputs, arrays or shapes, and the shapes of the results
FUNCTIONS = {
    "conv2d": ([X, (32, 16, 3, 3), (32,), HOW], [GRADIENT]),
    "conv2d_backward_input": ([GRADIENT, (32, 16, 3, 3), X, HOW], [X]),
    "conv2d_backward_weight": ([GRADIENT, X, HOW], [(32, 16, 3, 3), (32,)]),
    "max_pool": ([X], [(5, 3, 3, 16)]),
    "max_pool_backward": ([(5, 3, 3, 16), X, (5, 3, 3, 16)], [X]),
    "lstm_forward": (
        [(3, 5, 64), (3, 5, 1), (5, 16), (5, 16), (64, 16)],
        [ROWS, ROWS, OPENED, ROWS, ROWS],
    ),
    "lstm_backward": (
        [ROWS, ROWS, (3, 5, 1), (5, 16), (64, 16), ROWS, OPENED, ROWS, ROWS],
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
        path = native.load(f"cc -include {header}")
    return ctypes.CDLL(path), path


def call(library, name):
    """Call a function as MindSpore does: what it returns, and its results."""
    inputs, outputs = FUNCTIONS[name]
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


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_function_without_memory_says_so_and_leaves_none_behind(failing, capfd, name, threads):
    library, _ = failing
    library.set_threads(threads)
    library.fail(0, 0)
    code, wanted = call(library, name)
    allocations = library.calls_made()
    assert code == library.left_behind() == 0
    assert (allocations > 0) == (name != "max_pool")  # which needs none
    for number in range(1, allocations + 1):
        library.fail(number, 0)
        assert call(library, name)[0] == errno.ENOMEM
        assert library.left_behind() == 0
        assert "want more memory than there is" in capfd.readouterr().err
    library.fail(0, 0)
    for result, expected in zip(call(library, name)[1], wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_threads_that_cannot_be_started_are_done_without(failing, name):
    library, _ = failing
    library.set_threads(3)
    library.fail(0, 0)
    _, wanted = call(library, name)
    library.fail(0, 1)
    code, results = call(library, name)
    assert code == 0
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_mindspore_raises_where_a_kernel_has_no_memory(failing):
    library, path = failing
    cell = native.Convolve(path, kernel=3)
    shapes = (2, 4, 4, 16), (16, 16, 3, 3), (16,)
    library.fail(1, 0)
    with pytest.raises(RuntimeError, match=rf"\(conv2d\) is {errno.ENOMEM}"):
        cell(*(ms.Tensor(np.ones(shape, np.float32)) for shape in shapes))


@pytest.fixture
def forgetful():
    """No library is remembered from before, and none for later."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch, forgetful):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "impala_ms"


def test_the_library_is_made_once(cache):
    path = native.library("cc")
    assert [str(file) for file in cache.iterdir()] == [path]
    before = (cache / path).stat().st_mtime_ns
    native.library.cache_clear()
    assert native.library("cc") == path
    assert (cache / path).stat().st_mtime_ns == before


def other_process():
    code = "from impala_ms.nets import native; print(native.library('cc'))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def path_of(process):
    return process.communicate(timeout=100)[0].splitlines()[-1]


def test_a_damaged_library_is_made_again(cache):
    path = Path(path_of(other_process()))
    whole = path.read_bytes()
    path.write_bytes(whole[:20_000])
    assert path_of(other_process()) == str(path)
    assert path.stat().st_size == len(whole)


def test_ranks_that_compile_at_once(cache):
    paths = {path_of(process) for process in [other_process(), other_process()]}
    assert [str(file) for file in cache.iterdir()] == list(paths)


@pytest.fixture
def shell(tmp_path):
    def compiler(script):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return compiler


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("no-such-compiler", "No such file or directory"),
        ("cc '", "No closing quotation"),
        ("cc --no-such-option", "no-such-option"),
        ("echo; exit 1", "it says nothing"),
        ("echo >&2; exit 1", "it says nothing"),
        ("exit 0", "it says nothing"),
        ("echo an error >&2; exec sleep 9", "it has not ended after 1 s"),
    ],
)
def test_no_compiler_is_one_line(cache, caplog, shell, monkeypatch, compiler, why):
    monkeypatch.setattr(native, "COMPILE_S", 1.0)
    compiler = shell(compiler) if "echo" in compiler or "exit" in compiler else compiler
    with caplog.at_level(logging.WARNING):
        assert native.library(compiler) is None
        assert native.library(compiler) is None
    (message,) = caplog.messages
    assert "\n" not in message
    assert f"`{compiler}` does not compile native.c" in message
    assert why in message
    assert "IMPALA_MS_CC" in message
    assert not list(cache.iterdir())


def test_a_library_without_its_functions_is_one_line(cache, caplog):
    assert native.library("cc -fvisibility=hidden") is None
    (message,) = caplog.messages
    assert "lacks what it should have" in message


def test_what_a_stopped_rank_left_is_removed(cache):
    old = cache / "tmpold"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    new = cache / "tmpnew"
    new.mkdir()
    assert native.library("cc")
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("folder", ["a file", "with:colon"])
def test_a_cache_that_is_no_folder_for_it_is_one_line(
    tmp_path, caplog, monkeypatch, forgetful, folder
):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
    assert native.library("cc") is None
    (message,) = caplog.messages
    assert "set XDG_CACHE_HOME to a folder" in message
    assert str(tmp_path / folder) in message
    assert "\n" not in message


def test_a_user_without_a_home_is_one_line(monkeypatch, caplog, forgetful):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert native.library("cc") is None
    (message,) = caplog.messages
    assert "set XDG_CACHE_HOME to a folder" in message


@pytest.mark.parametrize("compiler", ["", " "])
def test_an_empty_compiler_means_none(cache, caplog, compiler):
    assert native.library(compiler) is None
    assert not caplog.messages


@pytest.mark.parametrize("layers", [[(16, 3, 1), (24, 3, 1)], [(16, 5, 2)]])
def test_what_the_kernels_do_not_serve(layers):
    assert native.kernels(layers) is None
    assert native.kernels([(16, 3, 1), (32, 4, 2)])
