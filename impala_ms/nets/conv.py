"""Convolutional torsos: the shallow network of IMPALA and the Nature CNN; what they share."""

import math

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal

from impala_ms.nets.mlp import dense

COLOURS = (1, 3, 4)  # channels of an image whose channels come last


class Images(nn.Cell):
    """``[N, *observation_shape]`` of any number type -> ``[N, C, H, W]`` float32.

    uint8 is scaled by 1/255; other types are only converted.

    Args:
        observation_shape: ``(H, W)``, ``(C, H, W)``, ``(H, W, C)`` or one of the last two with
            stacked frames before it, ``(k, ...)``, which become channels, the frame counting
            slowest. Channels are last where there are 1, 3 or 4 of them and fewer than rows.
        smallest: Rows and columns that the layers need at least.

    Attributes:
        shape: ``(C, H, W)``.

    Raises:
        ValueError: If the shape is none of these, or the image is too small.
    """

    def __init__(self, observation_shape, smallest=1):
        super().__init__()
        given = tuple(observation_shape)
        if not 2 <= len(given) <= 4:
            raise ValueError(
                f"observations of shape {given} are no images: [H, W], [C, H, W], [H, W, C], or "
                "stacked frames [k, C, H, W], [k, H, W, C]; use the torso mlp"
            )
        order = list(range(1, len(given) + 1))
        if len(given) > 2 and given[-1] in COLOURS and given[-1] < given[-3]:
            order.insert(-2, order.pop())
        self.order = (0, *order)
        *channels, height, width = (given[axis - 1] for axis in order)
        self.shape = math.prod(channels), height, width
        if min(self.shape) < 1 or min(height, width) < smallest:
            raise ValueError(
                f"the layers need images of at least {smallest} x {smallest}, "
                f"got {height} x {width} (observations {list(given)})"
            )

    def construct(self, observation):
        """Images in the layout of convolutions."""
        x = observation
        if self.order != tuple(range(len(self.order))):
            x = ops.transpose(x, self.order)
        x = x.reshape((-1, *self.shape))
        if x.dtype == ms.uint8:
            return x.astype(ms.float32) * (1.0 / 255.0)
        return x.astype(ms.float32)


def conv(inputs, outputs, kernel, stride, padding=0):
    """A convolution with orthogonal weights."""
    return nn.Conv2d(
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


class ConvTorso(nn.Cell):
    """``[N, *observation_shape]`` uint8 (scaled by 1/255) or float32 -> ``[N, outputs]`` float32.

    Args:
        observation_shape: Of one image or of stacked frames (``Images``).
        layers: ``(outputs, kernel, stride)`` of each convolution, without padding.
        outputs: Width of the fully connected layer behind them.

    Raises:
        ValueError: If the image is too small for the layers.
    """

    def __init__(self, observation_shape, layers, outputs):
        super().__init__()
        smallest = 1
        for _, kernel, stride in reversed(layers):
            smallest = (smallest - 1) * stride + kernel
        self.images = Images(observation_shape, smallest)
        inputs, height, width = self.images.shape
        cells = []
        for size, kernel, stride in layers:
            cells += [conv(inputs, size, kernel, stride), nn.ReLU()]
            inputs = size
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.layers = nn.SequentialCell(cells)
        self.inputs, self.outputs = inputs * height * width, outputs
        self.full = dense(self.inputs, outputs, 2.0**0.5)

    def construct(self, observation):
        """Features of a batch of images."""
        x = self.layers(self.images(observation))
        return ops.relu(self.full(x.reshape((-1, self.inputs))))


class Shallow(ConvTorso):
    """The shallow network of IMPALA: 16 8x8/4, 32 4x4/2, 256.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, figure 3, left.
    """

    def __init__(self, observation_shape):
        super().__init__(observation_shape, ((16, 8, 4), (32, 4, 2)), 256)


class Nature(ConvTorso):
    """The network of deep Q-learning: 32 8x8/4, 64 4x4/2, 64 3x3/1, 512.

    Source:
        Mnih et al. 2015, doi:10.1038/nature14236, methods.
    """

    def __init__(self, observation_shape):
        super().__init__(observation_shape, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512)
