"""Convolutional torsos: the shallow network of IMPALA and the Nature CNN.

On the CPU a product of matrices runs two to three times as fast as MindSpore's convolution kernel.
A convolution whose kernel is a multiple of its stride is such a product once its windows lie side
by side, and a window is a few blocks of ``stride x stride`` pixels, which ``gather`` copies whole.
So an image becomes blocks once, in NumPy, when it is seen (``prepare``), however many stacks it is
in, and every layer puts its pixels out in the order of the next layer's blocks: nothing is
transposed in between.
"""

import math
from numbers import Real

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal, initializer

from impala_ms.nets.mlp import dense

COLOURS = (1, 3, 4)  # channels of an image whose channels come last


def image_of(observation_shape):
    """Where the channels of an observation are, and what image it makes.

    Args:
        observation_shape: ``(H, W)``, ``(C, H, W)``, ``(H, W, C)`` or one of the last two with
            stacked frames before it, ``(k, ...)``, which become channels, the frame counting
            slowest. Channels are last where there are 1, 3 or 4 of them and fewer than rows.

    Returns:
        ``(whether the channels are last, (C, H, W))``.

    Raises:
        ValueError: If the shape is none of these.
    """
    given = tuple(observation_shape)
    if not 2 <= len(given) <= 4 or min(given) < 1:
        raise ValueError(
            f"observations of shape {list(given)} are no images: [H, W], [C, H, W], [H, W, C], or "
            "stacked frames [k, C, H, W], [k, H, W, C]; use the torso mlp"
        )
    last = len(given) > 2 and given[-1] in COLOURS and given[-1] < given[-3]
    if last:
        given = *given[:-3], given[-1], *given[-3:-1]
    *channels, height, width = given
    return last, (math.prod(channels), height, width)


def block_pixels(rows, columns, side, width):
    """Numbers of the pixels of ``rows x columns`` blocks, block by block.

    Args:
        rows: Of blocks.
        columns: Of blocks.
        side: Pixels along a block.
        width: Pixels in a row of the image; what no block covers is left out.

    Returns:
        ``[rows * columns, side * side]`` int.
    """
    y, x, dy, dx = np.ogrid[:rows, :columns, :side, :side]
    return ((side * y + dy) * width + side * x + dx).reshape(rows * columns, side * side)


class ImageTorso(nn.Cell):
    """What torsos for images have in common: how pixels lie, and how uint8 becomes float32.

    Args:
        observation_shape: Of one image or of stacked frames (``image_of``).
        black: Of uint8, what becomes 0. Layers learn fastest if that is the background.
        scale: Of uint8, the difference that becomes 1.

    Attributes:
        image: ``(C, H, W)``, stacked frames being channels.
        stack_axis: Where ``construct`` wants the frames of a stack, see ``IMPALAPolicy.prepare``.

    Raises:
        ValueError: If the shape is that of no image, or there is no such scale.
    """

    stack_axis = 0

    def __init__(self, observation_shape, black, scale):
        super().__init__()
        if not all(isinstance(x, Real) and math.isfinite(x) for x in (black, scale)) or scale <= 0:
            raise ValueError(
                f"network.options has black {black!r} and scale {scale!r}: allowed are numbers, "
                "and a scale above 0"
            )
        self.black, self.scale = black, scale
        self.channels_last, self.image = image_of(observation_shape)

    def planes(self, images):
        """``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]`` as ``[N, C, H, W]``."""
        if self.channels_last:
            return np.moveaxis(images, -1, 1)
        return images[:, None] if images.ndim == 3 else images

    def scaled(self, images):
        """Numbers as float32, uint8 as ``(x - black) / scale``."""
        if images.dtype != np.uint8:
            return images.astype(np.float32)
        x = np.multiply(images, np.float32(1 / self.scale), dtype=np.float32)
        if self.black:
            x -= np.float32(self.black / self.scale)
        return x


def blocks(images, rows, columns, side):
    """``[N, C, H, W]`` -> ``[N, rows * columns, C * side * side]``, without what no block covers.

    The ``side`` pixels that lie side by side in an image and in a block are copied as one.
    """
    count, channels = images.shape[:2]
    images = np.ascontiguousarray(images[..., : rows * side, : columns * side])
    runs = images.view(f"V{side * images.itemsize}").reshape(count, channels, rows, side, columns)
    runs = np.ascontiguousarray(runs.transpose(0, 2, 4, 1, 3))
    return runs.view(images.dtype).reshape(count, rows * columns, -1)


class WindowProduct(nn.Cell):
    """Windows of several blocks, side by side, times a matrix, plus a bias; with its gradient.

    Args:
        windows: ``[Q, taps]``, the blocks of each window.
        spread: ``[P, taps]``, the windows in which each block is the first, second, ...; Q: none.
    """

    def __init__(self, windows, spread):
        super().__init__()
        self.count, self.taps = windows.shape
        self.blocks = len(spread)
        self.windows = ms.Tensor(windows.reshape(-1), ms.int32)
        self.spread = ms.Tensor(spread.reshape(-1), ms.int32)
        # operators, not functions: those of ``ops`` do not always compile inside ``bprop``
        self.gather, self.concat = ops.Gather(), ops.Concat(1)
        self.times, self.ones = ops.MatMul(), ops.Ones()
        self.transposed_times = ops.MatMul(transpose_a=True)

    def construct(self, x, matrix, bias):
        """Multiply.

        Args:
            x: ``[N, P, B]``.
            matrix: ``[taps * B, O]``.
            bias: ``[O]``.

        Returns:
            ``([N * Q, O], [N * Q, taps * B])``: the products, and the windows for the gradient.
        """
        side_by_side = ops.gather(x, self.windows, 1).reshape((-1, matrix.shape[0]))
        return ops.bias_add(self.times(side_by_side, matrix), bias), side_by_side

    def bprop(self, x, matrix, bias, results, gradients):
        """Gradients of all; that of ``x`` is a product with windows of the gradient's rows."""
        gradient = gradients[0]
        outputs, width = matrix.shape[1], x.shape[2]
        by_matrix = self.transposed_times(results[1], gradient)
        rows = gradient.reshape((-1, self.count, outputs))
        rows = self.concat((rows, ops.zeros_like(rows[:, :1])))
        rows = self.gather(rows, self.spread, 1).reshape((-1, self.taps * outputs))
        turned = matrix.reshape((self.taps, width, outputs)).transpose((0, 2, 1))
        by_x = self.times(rows, turned.reshape((-1, width)))
        # a product with ones takes a fifth of BiasAddGrad's time
        by_bias = self.times(self.ones((1, gradient.shape[0]), ms.float32), gradient)
        return by_x.reshape((-1, self.blocks, width)), by_matrix, by_bias.reshape(bias.shape)


class Convolution(nn.Cell):
    """A convolution with bias and ReLU, ``[N, P, B]`` blocks -> ``[N, Q, outputs]`` pixels.

    Args:
        inputs: Channels.
        outputs: Channels.
        kernel: Pixels along it; a multiple of the stride.
        stride: Pixels along a block too.
        size: ``(rows, columns)`` of pixels that come out.
        order: ``[Q]``, which of them come out, in this order.
        inner: Order of the axes of a block: ``"cyx"`` or ``"yxc"``.
    """

    def __init__(self, inputs, outputs, kernel, stride, size, order, inner):
        super().__init__()
        shape = outputs, inputs, kernel, kernel
        self.weight = ms.Parameter(initializer(Orthogonal(2.0**0.5), shape), name="weight")
        self.bias = ms.Parameter(initializer("zeros", (outputs,)), name="bias")
        taps = kernel // stride
        self.split = outputs, inputs, taps, stride, taps, stride
        self.matrix_order = (2, 4, *((1, 3, 5) if inner == "cyx" else (3, 5, 1)), 0)
        self.pixels = len(order), outputs
        self.product = WindowProduct(*window_places(size, order, taps))

    def construct(self, x):
        """Pixels of a batch of images."""
        outputs = self.pixels[1]
        matrix = self.weight.reshape(self.split).transpose(self.matrix_order)
        matrix = matrix.reshape((-1, outputs))
        x = ops.relu(self.product(x, matrix, self.bias)[0])
        return x.reshape((-1, *self.pixels))


def window_places(size, order, taps):
    """Which blocks are in which window of ``taps x taps`` blocks: arguments of WindowProduct.

    Args:
        size: ``(rows, columns)`` of windows.
        order: ``[Q]``, which of them are wanted, in this order.
        taps: Blocks along a window.
    """
    rows, columns = size
    y, x, i, j = np.ogrid[:rows, :columns, :taps, :taps]
    block = (y + i) * (columns + taps - 1) + x + j
    windows = block.reshape(rows * columns, taps * taps)[order]
    spread = np.full(((rows + taps - 1) * (columns + taps - 1), taps * taps), len(order))
    for tap in range(taps * taps):
        spread[windows[:, tap], tap] = np.arange(len(order))
    return windows, spread


class ConvTorso(ImageTorso):
    """Images of uint8 (made 0 ... 1) or of other numbers -> ``[N, outputs]`` float32.

    Args:
        observation_shape: Of one image or of stacked frames (``image_of``).
        layers: ``(outputs, kernel, stride)`` of each convolution, without padding; the kernel is a
            multiple of the stride. Behind each is a ReLU.
        outputs: Width of the fully connected layer behind them. It reads pixel by pixel, the
            channels of a pixel side by side.
        black, scale: As of ``ImageTorso``.

    Raises:
        ValueError: If the image is too small for the layers.
    """

    stack_axis = 1

    def __init__(self, observation_shape, layers, outputs, black=0.0, scale=255.0):
        super().__init__(observation_shape, black, scale)
        inputs, height, width = self.image
        smallest = 1
        for _, kernel, stride in reversed(layers):
            smallest = (smallest - 1) * stride + kernel
        if min(height, width) < smallest:
            raise ValueError(
                f"the layers need images of at least {smallest} x {smallest}, "
                f"got {height} x {width} (observations {list(observation_shape)})"
            )
        sizes, orders = [(height, width)], []
        for _, kernel, stride in layers:
            rows, columns = ((pixels - kernel) // stride + 1 for pixels in sizes[-1])
            more = kernel // stride - 1
            orders.append(block_pixels(rows + more, columns + more, stride, sizes[-1][1]))
            sizes.append((rows, columns))
        orders.append(np.arange(math.prod(sizes[-1])))

        _, kernel, stride = layers[0]
        rows, columns = (pixels + kernel // stride - 1 for pixels in sizes[1])
        self.grid = rows, columns, stride
        self.shape = rows * columns, inputs * stride**2
        cells = []
        for i, (size, kernel, stride) in enumerate(layers):
            order, inner = orders[i + 1].reshape(-1), "cyx" if i == 0 else "yxc"
            cells.append(Convolution(inputs, size, kernel, stride, sizes[i + 1], order, inner))
            inputs = size
        self.layers = nn.CellList(cells)
        self.inputs, self.outputs = inputs * math.prod(sizes[-1]), outputs
        self.full = dense(self.inputs, outputs, 2.0**0.5)
        # pixels of a block lie side by side: what the next layer reads
        self.shapes = [(len(order), -1) for order in orders[1:-1]]

    def prepare(self, images):
        """What ``construct`` takes of images, by NumPy and once for each.

        Args:
            images: ``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]``.

        Returns:
            ``[N, P, B]`` float32, P blocks of B numbers.
        """
        return self.scaled(blocks(self.planes(images), *self.grid))

    def construct(self, blocks):
        """Features of a batch of images ``[N, P, B]`` or of stacks of them ``[N, P, k, B]``."""
        x = self.layers[0](blocks.reshape((-1, *self.shape)))
        for i in range(len(self.shapes)):
            x = self.layers[i + 1](x.reshape((x.shape[0], *self.shapes[i])))
        return ops.relu(self.full(x.reshape((-1, self.inputs))))


class Shallow(ConvTorso):
    """The shallow network of IMPALA: 16 8x8/4, 32 4x4/2, 256.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, figure 3, left.
    """

    def __init__(self, observation_shape, black=0.0, scale=255.0):
        super().__init__(observation_shape, ((16, 8, 4), (32, 4, 2)), 256, black, scale)


class Nature(ConvTorso):
    """The network of deep Q-learning: 32 8x8/4, 64 4x4/2, 64 3x3/1, 512.

    Source:
        Mnih et al. 2015, doi:10.1038/nature14236, methods.
    """

    def __init__(self, observation_shape, black=0.0, scale=255.0):
        layers = (32, 8, 4), (64, 4, 2), (64, 3, 1)
        super().__init__(observation_shape, layers, 512, black, scale)
