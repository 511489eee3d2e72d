"""Convolutional torsos: the shallow network of IMPALA and the Nature CNN.

Input: images, from the actor or the learner. Output: features, to the LSTM or the heads.

On the CPU the convolutions are the C kernels of ``kernels``; on other devices, and without a C
compiler, they are MindSpore's. The kernels compute on ``[N, H, W, C]``, MindSpore on
``[N, C, H, W]``. Images enter as ``[N, C, H, W]`` in both cases: stacked frames are channels.
"""

import functools
import logging
import math
from numbers import Real

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal

from impala_ms.nets.kernels import build, operators
from impala_ms.nets.mlp import dense

logger = logging.getLogger(__name__)

CHANNELS = ("first", "last", "auto")


def image_of(observation_shape, channels="auto"):
    """On which side the channels of an observation are, and the shape of its image.

    Args:
        observation_shape: ``(H, W)``, ``(C, H, W)``, ``(H, W, C)``, or stacked frames with one of
            these shapes, ``(k, ...)``. Frames become channels: all channels of the first frame,
            then those of the second. ``(k, H, W)`` is read like ``(C, H, W)``.
        channels: ``first``, ``last`` or ``auto``. ``auto`` takes the axis that is left over if the
            two others have the same length (a square image), else the shorter one of the first and
            the last axis, and the last axis if these have the same length.

    Returns:
        ``(whether the channels are last, (C, H, W))``.

    Raises:
        ValueError: If the shape or ``channels`` is not one of these.
    """
    if channels not in CHANNELS:
        raise ValueError(
            f"network.options has channels {channels!r}: allowed are {', '.join(CHANNELS)}, the "
            "position of the channels in the shape of an image"
        )
    given = tuple(observation_shape)
    if not 2 <= len(given) <= 4 or min(given) < 1:
        raise ValueError(
            f"observations of shape {list(given)} are not images: allowed are [H, W], [C, H, W], "
            "[H, W, C], and stacked frames [k, C, H, W], [k, H, W, C]; use the torso mlp"
        )
    last = len(given) > 2 and (channels == "last" or (channels == "auto" and looks_last(given)))
    if last:
        given = *given[:-3], given[-1], *given[-3:-1]
    *others, height, width = given
    return last, (math.prod(others), height, width)


def looks_last(shape):
    """Whether ``(..., a, b, c)`` looks like an image with its channels last."""
    a, b, c = shape[-3:]
    if (a == b) != (b == c):
        return a == b
    return c <= a


@functools.cache
def say_layout(shape, channels):
    """Log once how observations of a shape are read, although actor and learner both call this."""
    if len(shape) < 3:
        return
    last, (count, height, width) = image_of(shape, channels)
    side, other = ("last", "first") if last else ("first", "last")
    why = "as network.options.channels says"
    if channels == "auto":
        why = f"guessed from the shape {list(shape)}; network.options.channels={other} changes it"
    logger.info("images %dx%d with %d channels (channels %s, %s)", height, width, count, side, why)


class ImageTorso(nn.Cell):
    """What torsos for images share: the layout of pixels, and how uint8 becomes float32.

    Args:
        observation_shape: Shape of one image or of stacked frames (``image_of``).
        layers: ``(outputs, kernel, stride)`` of each convolution.
        black: The uint8 value that becomes 0. Layers learn fastest if it is the background's.
        scale: The difference of uint8 values that becomes 1.
        channels: Position of the channels: ``first``, ``last`` or ``auto`` (``image_of``).

    Attributes:
        image: ``(C, H, W)``, where stacked frames are channels.
        library: Path of the C kernels; None if MindSpore's operators compute the layers.
        channels_come_last: Whether the layers return ``[N, H, W, C]``, as the kernels do.

    Raises:
        ValueError: If the shape is not that of an image, or an option has a value that is not
            allowed.
    """

    def __init__(self, observation_shape, layers, black, scale, channels="auto"):
        super().__init__()
        if not all(isinstance(x, Real) and math.isfinite(x) for x in (black, scale)) or scale <= 0:
            raise ValueError(
                f"network.options has black {black!r} and scale {scale!r}: allowed are numbers, "
                "and a scale above 0"
            )
        self.factor, self.offset = 1.0 / scale, -black / scale
        self.observation_shape = tuple(observation_shape)
        self.channels_last, self.image = image_of(observation_shape, channels)
        say_layout(self.observation_shape, channels)
        self.library = build.library_for(layers)
        self.channels_come_last = self.library is not None

    def convolution(self, inputs, outputs, kernel, *, first, **options):
        """One layer; ``first``: it reads the image. The options are those of ``Convolution``."""
        if self.library is None:
            return Convolution(inputs, outputs, kernel, **options)
        scale = (self.factor, self.offset) if first else None
        return operators.Convolution(self.library, inputs, outputs, kernel, scale=scale, **options)

    def with_channels_first(self, images):
        """``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]`` as ``[N, C, H, W]``."""
        if images.ndim == 3:  # even if the shape of a stack was read as (H, W, C)
            return images[:, None]
        return np.moveaxis(images, -1, 1) if self.channels_last else images

    def prepare(self, images):
        """Make of images what ``construct`` takes: by NumPy, once for each frame.

        Args:
            images: ``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]``.

        Returns:
            ``[N, C, H, W]``, uint8 or float32: the first layer scales uint8.

        Raises:
            ValueError: If the network was made for images of another size.
        """
        dtype = np.uint8 if images.dtype == np.uint8 else np.float32
        prepared = self.with_channels_first(images)
        if prepared.shape[-2:] != self.image[1:]:  # stacks (k, H, W) that were read as (H, W, C)
            raise ValueError(
                f"frames {list(images.shape[1:])} do not make the images "
                f"{self.image[1]}x{self.image[2]} that were read from the shape "
                f"{list(self.observation_shape)}: set network.options.channels=first"
            )
        return np.ascontiguousarray(prepared, dtype)

    def read(self, images):
        """Make of images or stacks the input of the first layer: frames as channels."""
        images = images.reshape((-1, *self.image))
        if images.dtype == ms.uint8 and not self.channels_come_last:  # the kernels scale uint8
            return images.astype(ms.float32) * self.factor + self.offset
        return images


class Convolution(nn.Conv2d):
    """A convolution by MindSpore, with orthogonal weights and a bias.

    Args:
        inputs: Input channels.
        outputs: Output channels.
        kernel: Height and width of a window, pixels.
        stride: Pixels from a window to the next.
        padding: Zeros on each side of the image.
        relu: Whether negative numbers of the input count as 0.
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
    """Images of uint8 (scaled to 0 ... 1) or of other numbers -> ``[N, outputs]`` float32.

    Args:
        observation_shape: Shape of one image or of stacked frames (``image_of``).
        layers: ``(outputs, kernel, stride)`` of each convolution, without padding and followed by
            a ReLU.
        outputs: Width of the fully connected layer behind the convolutions. It reads pixel by
            pixel, the channels of a pixel side by side.
        black, scale, channels: As of ``ImageTorso``.

    Raises:
        ValueError: If the image is too small for the layers.
    """

    def __init__(self, observation_shape, layers, outputs, black=0.0, scale=255.0, channels="auto"):
        super().__init__(observation_shape, layers, black, scale, channels)
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
        """Features of images ``[N, C, H, W]`` or of stacks ``[N, k, C, H, W]``."""
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

    def __init__(self, observation_shape, black=0.0, scale=255.0, channels="auto"):
        layers = (16, 8, 4), (32, 4, 2)
        super().__init__(observation_shape, layers, 256, black, scale, channels)


class Nature(ConvTorso):
    """The network of deep Q-learning: 32 8x8/4, 64 4x4/2, 64 3x3/1, 512.

    Source:
        Mnih et al. 2015, doi:10.1038/nature14236, methods.
    """

    def __init__(self, observation_shape, black=0.0, scale=255.0, channels="auto"):
        layers = (32, 8, 4), (64, 4, 2), (64, 3, 1)
        super().__init__(observation_shape, layers, 512, black, scale, channels)
