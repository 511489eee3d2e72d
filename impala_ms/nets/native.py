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
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal, initializer

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.c")
OPTIONS = "-O3 -march=native -std=gnu11 -shared -fPIC -pthread"
OUTPUTS = 16  # their number must be a multiple of it
COMPILE_S = 120.0
COMPLETE = b"complete"  # the end of a library that was written to its end


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
    path = library(wanted_compiler())
    if path:
        threads = ms.get_context("runtime_num_threads")
        ctypes.CDLL(path).set_threads(min(threads, len(os.sched_getaffinity(0))))
    return path


def wanted_compiler():
    """The command; empty: none is wanted."""
    return os.environ.get("IMPALA_MS_CC", "cc").strip()


class NoKernels(Exception):
    """Why there are no kernels and what to do, in one line."""


@functools.cache
def library(compiler):
    """The path of ``load``, or None, with a warning, where it fails; no compiler wanted: none."""
    try:
        return load(compiler) if compiler.strip() else None
    except NoKernels as error:
        logger.warning("images and LSTMs take up to three times as long: %s", error)
        return None


def load(compiler):
    """``native.c`` as a library, made once for a kind of machine and kept in the user's cache.

    Args:
        compiler: The command.

    Returns:
        The path, of what this process has loaded.

    Raises:
        NoKernels: If it cannot be made, kept or used.
    """
    about = [SOURCE.read_text(), OPTIONS, compiler, platform.machine(), processor()]
    name = hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    path = Path(cache).absolute() / "impala_ms" / f"native-{name}.so"
    elsewhere = f"set XDG_CACHE_HOME to a folder for {path.name} that can be written"
    if cache.startswith("~") or ":" in str(path):  # no home; MindSpore ends a path at a colon
        raise NoKernels(f"{path.parent} is no folder for libraries; {elsewhere}")
    try:
        if not (path.exists() and path.read_bytes().endswith(COMPLETE)):
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in path.parent.glob("tmp*"):  # of those that were stopped meanwhile
                if time.time() - old.stat().st_mtime > 10 * COMPILE_S:
                    shutil.rmtree(old, ignore_errors=True)
            # first beside its place: several ranks may be at it
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / "native.so"
                run_compiler(compiler, made)
                # to the loader what follows the library is nothing; of half a one it would die
                made.write_bytes(made.read_bytes() + COMPLETE)
                made.replace(path)
        ctypes.CDLL(str(path)).set_threads(1)
    except OSError as error:
        raise NoKernels(f"{path} cannot be kept or loaded ({error}); {elsewhere}") from None
    except AttributeError as error:
        raise NoKernels(f"{path} lacks what it should have: {error}") from None
    return str(path)


def run_compiler(compiler, made):
    """Compile ``native.c``.

    Raises:
        NoKernels: If that fails.
    """
    try:
        command = [*shlex.split(compiler), *OPTIONS.split(), str(SOURCE), "-o", str(made)]
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMPILE_S
        )
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        if done.returncode == 0 and made.exists():
            return
        why = next((line for line in said if "error" in line), said[0])
    except subprocess.TimeoutExpired:
        why = f"it has not ended after {COMPILE_S:g} s"
    except (OSError, ValueError) as error:  # ValueError: quotes
        why = getattr(error, "strerror", None) or str(error)
    raise NoKernels(
        f"`{compiler}` does not compile {SOURCE.name}: {why}; needed is a C compiler, cc (apt "
        "install gcc) or the command that IMPALA_MS_CC names (pip install ziglang: python -m "
        "ziglang cc)"
    )


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
        stride: Pixels from a window to the next; it divides the kernel.
        padding: Zeros around the image; for a gradient, none if the stride is above 1.
        relu: Whether the negative numbers of x count as 0.
        planes: ``(factor, offset)`` if x is ``[N, C, H, W]``, which they turn into numbers if it is
            uint8. Their gradient is for no padding or what keeps the size, and without ReLU.
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
        self.convolve = custom(path, "conv2d", convolved, case=case)
        self.by_x = custom(path, "conv2d_backward_input", lambda gradient, weight, x, how: x)
        self.by_weights = custom(path, "conv2d_backward_weight", weights, 2, case)
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

        self.pool = custom(path, "max_pool", pooled)
        self.by_x = custom(path, "max_pool_backward", lambda gradient, x, y: x)

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
        custom(path, "lstm_forward", results, 5),
        custom(path, "lstm_backward", gradients, 3),
    )
