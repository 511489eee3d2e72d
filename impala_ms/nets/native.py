"""Convolutions, pooling and an LSTM by ``native.c``, compiled on the machine that needs them.

On the CPU MindSpore's own take two to three times as long: oneDNN is handed plain arrays, for which
it has no direct convolution, and an LSTM is dozens of operators a step. Where there is no C
compiler, or another device, ``kernels`` returns None and the networks use MindSpore's.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal, initializer

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.c")
OPTIONS = "-O3 -march=native -std=gnu11 -shared -fPIC -pthread"
OUTPUTS = 16  # their number must be a multiple of it
COMPILE_S = 120.0
FAILURES = OSError, ValueError, subprocess.SubprocessError  # ValueError: of shlex


def kernels(layers):
    """The library of kernels, if they serve these convolutions.

    Args:
        layers: ``(outputs, kernel, stride)`` of each.

    Returns:
        Its path, or None where MindSpore's operators are to be used.
    """
    if ms.get_context("device_target") != "CPU":
        return None
    if any(size % OUTPUTS or kernel % stride for size, kernel, stride in layers):
        return None
    path = library(os.environ.get("IMPALA_MS_CC", "cc"))
    if path:
        threads = ms.get_context("runtime_num_threads")
        ctypes.CDLL(path).set_threads(min(threads, len(os.sched_getaffinity(0))))
    return path


@functools.cache
def library(compiler):
    """The path of ``load``, or None, with a warning, where it fails; none wanted: none."""
    try:
        return load(compiler) if compiler else None
    except FAILURES as error:
        logger.warning("images and LSTMs take up to three times as long: %s", reason(error))
        return None


def reason(error):
    """Why there are no kernels and what to do, in one line."""
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    said = next((line for line in lines if "error" in line), lines[0])
    return (
        f"native.c could not be compiled ({said}); it needs a C compiler, cc (apt install gcc) or "
        "what IMPALA_MS_CC names (pip install ziglang; IMPALA_MS_CC='python -m ziglang cc'), and "
        "to keep the result ~/.cache or the folder that XDG_CACHE_HOME names"
    )


def load(compiler):
    """``native.c`` as a library, made once for a kind of machine and kept in the user's cache.

    Args:
        compiler: The command.

    Returns:
        The path, of what this process has loaded.

    Raises:
        FAILURES: If there is no such compiler, it fails, or there is no place for the result.
    """
    about = [SOURCE.read_text(), OPTIONS, compiler, platform.machine(), processor()]
    name = hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):
        raise OSError("this user has no home folder")
    path = Path(cache).absolute() / "impala_ms" / f"native-{name}.so"
    try:
        ctypes.CDLL(str(path))
    except OSError:  # not there yet, or damaged
        compile_to(path, compiler)
        ctypes.CDLL(str(path))
    return str(path)


def compile_to(path, compiler):
    """Make the library, first beside its place, since several ranks may be at it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "native.so"
        command = [*shlex.split(compiler), *OPTIONS.split(), str(SOURCE), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_S)
        made.replace(path)


def processor():
    """What distinguishes processors that share a home folder: their instructions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def custom(path, name, shape, results=1, case=()):
    """An operator of the library, which gives arrays of float32.

    Args:
        path: Of the library.
        name: Of the function.
        shape: From the shapes of the inputs to that of the result, or to those of the results.
        results: Their number.
        case: What else ``shape`` depends on. To MindSpore operators are equal if their attributes
            are, and it may take one for another.
    """
    kind = ms.float32 if results == 1 else (ms.float32,) * results
    operator = ops.Custom(f"{path}:{name}", shape, lambda *_: kind, func_type="aot")
    return operator.add_prim_attr("case", str(case))


class Convolve(nn.Cell):
    """The convolution and its gradient.

    Args:
        path: Of the library.
        kernel: Pixels along it.
        stride: Pixels from a window to the next; with a gradient, 1.
        padding: Zeros around the image.
        relu: Whether the negative numbers of x count as 0.
        planes: ``(factor, offset)`` if x is ``[N, C, H, W]``, which they turn into numbers if it is
            uint8. Then the gradient is for the padding that keeps the size, and without ReLU.
        outputs: Channels, for planes.
    """

    def __init__(self, path, kernel, stride=1, padding=0, relu=False, planes=None, outputs=0):
        super().__init__()

        def convolved(x, weight, bias, how):
            height, width = x[2:] if planes else x[1:3]
            sizes = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
            return [x[0], *sizes, *bias]

        def weights(gradient, x, how):
            outputs, inputs = gradient[3], x[1 if planes else 3]
            return [outputs, inputs, kernel, kernel], [outputs]

        self.planes = planes is not None
        how = stride, padding, relu, self.planes, *(planes or (1.0, 0.0))
        self.how = ms.Tensor(how, ms.float32)
        case = kernel, *how
        self.convolve = custom(path, "convolve", convolved, case=case)
        self.by_x = custom(path, "convolve_by_x", lambda gradient, weight, x, how: x)
        self.by_weights = custom(path, "convolve_by_weights", weights, 2, case)
        if planes:
            # "pad" loses its padding in a bprop
            mode = "same" if padding else "valid"
            self.by_planes = ops.Conv2DBackpropInput(outputs, kernel, mode, stride=stride)

    def construct(self, x, weight, bias):
        """Convolve.

        Args:
            x: ``[N, H, W, C]`` float32, or ``[N, C, H, W]`` as planes, float32 or uint8.
            weight: ``[O, C, k, k]``.
            bias: ``[O]``.

        Returns:
            ``[N, H', W', O]``.
        """
        return self.convolve(x, weight, bias, self.how)

    def bprop(self, x, weight, bias, result, gradient):
        """Gradients of all."""
        by_weight, by_bias = self.by_weights(gradient, x, self.how)
        if x.dtype == ms.uint8:
            by_x = ops.zeros_like(x)
        elif self.planes:  # few channels; MindSpore leaves it out if nothing asks for it
            by_x = self.by_planes(gradient.transpose((0, 3, 1, 2)), weight, x.shape)
        else:
            by_x = self.by_x(gradient, weight, x, self.how)
        return by_x, by_weight, by_bias


class Convolution(nn.Cell):
    """A convolution with orthogonal weights and a bias.

    Args:
        path: Of the library.
        inputs: Channels.
        outputs: Channels.
        kernel: Pixels along it.
        stride: Pixels from a window to the next.
        padding: Zeros around the image.
        relu: Whether the negative numbers of x count as 0.
        planes: As of ``Convolve``.
    """

    def __init__(self, path, inputs, outputs, kernel, stride=1, padding=0, relu=False, planes=None):
        super().__init__()
        shape = outputs, inputs, kernel, kernel
        self.weight = ms.Parameter(initializer(Orthogonal(2.0**0.5), shape), name="weight")
        self.bias = ms.Parameter(initializer("zeros", (outputs,)), name="bias")
        self.convolve = Convolve(path, kernel, stride, padding, relu, planes, outputs)

    def construct(self, x):
        """-> ``[N, H, W, outputs]``."""
        return self.convolve(x, self.weight, self.bias)


class Pool(nn.Cell):
    """The maximum of 3x3 pixels at every second place, padded as TensorFlow's SAME.

    Args:
        path: Of the library.
    """

    def __init__(self, path):
        super().__init__()

        def pooled(x):
            return [x[0], (x[1] + 1) // 2, (x[2] + 1) // 2, x[3]]

        self.pool = custom(path, "pool", pooled)
        self.by_x = custom(path, "pool_by_x", lambda gradient, x, y: x)

    def construct(self, x):
        """``[N, H, W, C]`` float32 -> ``[N, ceil(H / 2), ceil(W / 2), C]``."""
        return self.pool(x)

    def bprop(self, x, y, gradient):
        """Of equal pixels, the first one gets the gradient."""
        return (self.by_x(gradient, x, y),)


def recurrence(path):
    """The steps of an LSTM: what ``lstm.Recurrence`` computes, and its gradient.

    Args:
        path: Of the library.

    Returns:
        Two operators: of the arguments of ``Recurrence`` its results; and, of the gradients of
        outputs and cells, keep, cells, weight and all results but the first, the gradients of
        gates, hidden and cells.
    """

    def results(gates, keep, hidden, cells, weight):
        steps, rows, size = *gates[:2], hidden[1]
        row = [steps, rows, size]
        return row, row, [steps, rows, 3 * size], row, row

    def gradients(by_outputs, by_memory, keep, cells, *others):
        return [*by_outputs[:2], 4 * cells[1]], cells, cells

    return (
        custom(path, "remember", results, 5),
        custom(path, "remember_by_gates", gradients, 3),
    )
