"""Convolutional torsos: the shallow network of IMPALA and the Nature CNN.

On the CPU their convolutions are the kernels of ``native.c``; elsewhere, and where there is no C
compiler, MindSpore's. The former want the channels of a pixel side by side; only an image that
comes in has them as planes, which is how frames are stacked.
"""

import math
from numbers import Real

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal

from impala_ms.nets import native
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


class ImageTorso(nn.Cell):
    """What torsos for images have in common: how pixels lie, and how uint8 becomes float32.

    Args:
        observation_shape: Of one image or of stacked frames (``image_of``).
        layers: ``(outputs, kernel, stride)`` of each convolution.
        black: Of uint8, what becomes 0. Layers learn fastest if that is the background.
        scale: Of uint8, the difference that becomes 1.

    Attributes:
        image: ``(C, H, W)``, stacked frames being channels.
        library: Of the kernels that serve the layers, or None: MindSpore's operators do.
        channels_come_last: Whether the layers put out ``[N, H, W, C]``, as the kernels do.

    Raises:
        ValueError: If the shape is that of no image, or there is no such scale.
    """

    def __init__(self, observation_shape, layers, black, scale):
        super().__init__()
        if not all(isinstance(x, Real) and math.isfinite(x) for x in (black, scale)) or scale <= 0:
            raise ValueError(
                f"network.options has black {black!r} and scale {scale!r}: allowed are numbers, "
                "and a scale above 0"
            )
        self.factor, self.offset = 1.0 / scale, -black / scale
        self.channels_last, self.image = image_of(observation_shape)
        self.library = native.kernels(layers)
        self.channels_come_last = self.library is not None

    def convolution(self, inputs, outputs, kernel, *, first, **options):
        """One of the layers; ``first``: it reads the image. Options: as of ``Convolution``."""
        if self.library is None:
            return Convolution(inputs, outputs, kernel, **options)
        planes = (self.factor, self.offset) if first else None
        return native.Convolution(self.library, inputs, outputs, kernel, planes=planes, **options)

    def planes(self, images):
        """``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]`` as ``[N, C, H, W]``."""
        if self.channels_last:
            return np.moveaxis(images, -1, 1)
        return images[:, None] if images.ndim == 3 else images

    def prepare(self, images):
        """What ``construct`` takes of images, by NumPy and once for each.

        Args:
            images: ``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]``.

        Returns:
            ``[N, C, H, W]``, uint8 or float32: bytes become numbers when they are used.
        """
        dtype = np.uint8 if images.dtype == np.uint8 else np.float32
        return np.ascontiguousarray(self.planes(images), dtype)

    def read(self, images):
        """What the first layer takes of images or stacks: frames as channels, and numbers."""
        images = images.reshape((-1, *self.image))
        if images.dtype == ms.uint8 and not self.channels_come_last:  # the kernels read bytes
            return images.astype(ms.float32) * self.factor + self.offset
        return images


class Convolution(nn.Conv2d):
    """A convolution by MindSpore, with orthogonal weights and a bias.

    Args:
        inputs: Channels.
        outputs: Channels.
        kernel: Pixels along it.
        stride: Pixels from a window to the next.
        padding: Zeros around the image.
        relu: Whether the negative numbers of x count as 0.
    """

    def __init__(self, inputs, outputs, kernel, stride=1, padding=0, relu=False):
        super().__init__(
            inputs,
            outputs,
            kernel,
            stride,
            pad_mode="pad",
            padding=padding,
            has_bias=True,
            weight_init=Orthogonal(2.0**0.5),
            bias_init="zeros",
        )
        self.relu = relu

    def construct(self, x):
        """``[N, inputs, H, W]`` float32 -> ``[N, outputs, H', W']``."""
        return super().construct(ops.relu(x) if self.relu else x)


class ConvTorso(ImageTorso):
    """Images of uint8 (made 0 ... 1) or of other numbers -> ``[N, outputs]`` float32.

    Args:
        observation_shape: Of one image or of stacked frames (``image_of``).
        layers: ``(outputs, kernel, stride)`` of each convolution, without padding. Behind each is a
            ReLU.
        outputs: Width of the fully connected layer behind them. It reads pixel by pixel, the
            channels of a pixel side by side.
        black, scale: As of ``ImageTorso``.

    Raises:
        ValueError: If the image is too small for the layers.
    """

    def __init__(self, observation_shape, layers, outputs, black=0.0, scale=255.0):
        super().__init__(observation_shape, layers, black, scale)
        inputs, height, width = self.image
        smallest = 1
        for _, kernel, stride in reversed(layers):
            smallest = (smallest - 1) * stride + kernel
        if min(height, width) < smallest:
            raise ValueError(
                f"the layers need images of at least {smallest} x {smallest}, "
                f"got {height} x {width} (observations {list(observation_shape)})"
            )
        cells = []
        for size, kernel, stride in layers:
            first = not cells
            cells.append(
                self.convolution(inputs, size, kernel, stride=stride, relu=not first, first=first)
            )
            inputs = size
            height, width = ((pixels - kernel) // stride + 1 for pixels in (height, width))
        self.layers = nn.CellList(cells)
        self.inputs, self.outputs = inputs * height * width, outputs
        self.full = dense(self.inputs, outputs, 2.0**0.5)

    def construct(self, images):
        """Features of a batch of images, ``[N, C, H, W]`` or stacks ``[N, k, C, H, W]``."""
        x = self.read(images)
        for layer in self.layers:
            x = layer(x)
        if not self.channels_come_last:
            x = x.transpose((0, 2, 3, 1))
        return ops.relu(self.full(ops.relu(x).reshape((-1, self.inputs))))


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
