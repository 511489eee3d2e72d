"""The deep residual network of IMPALA."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal

from impala_ms.nets.conv import ImageTorso
from impala_ms.nets.mlp import dense


def conv(inputs, outputs):
    """A 3x3 convolution that keeps the size, with orthogonal weights."""
    return nn.Conv2d(
        inputs,
        outputs,
        3,
        pad_mode="pad",
        padding=1,
        has_bias=True,
        weight_init=Orthogonal(2.0**0.5),
        bias_init="zeros",
    )


class Pool(nn.Cell):
    """The maximum of 3x3 pixels at every second place, padded as TensorFlow's SAME.

    On the CPU the gradient of ``MaxPool`` pools once more, slowly: with ``MaxPoolWithArgmax`` pool
    and gradient take a third of the time. That is slower without a gradient, so it serves the
    learner alone, and its gradient is wrong where there is padding before the first pixel, which
    there is for an odd number of them.

    Args:
        height: Pixels.
        width: Pixels.
    """

    def __init__(self, height, width):
        super().__init__()
        self.pool = nn.MaxPool2d(3, 2, pad_mode="same")
        self.pool_and_places = ops.MaxPoolWithArgmax(3, 2, "same")
        on_cpu = ms.get_context("device_target") == "CPU"
        self.keeps_places = on_cpu and height % 2 == width % 2 == 0

    def construct(self, x):
        """``[N, C, H, W]`` float32 -> ``[N, C, ceil(H / 2), ceil(W / 2)]``."""
        if self.training and self.keeps_places:
            return self.pool_and_places(x)[0]
        return self.pool(x)


class ResidualBlock(nn.Cell):
    """``[N, C, H, W]`` float32 -> the same: x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels):
        super().__init__()
        self.first = conv(channels, channels)
        self.second = conv(channels, channels)

    def construct(self, x):
        """The features with what the block adds to them."""
        return x + self.second(ops.relu(self.first(ops.relu(x))))


class ResNet(ImageTorso):
    """Images of uint8 (made 0 ... 1) or of other numbers -> ``[N, 256]`` float32.

    Each section is a 3x3 convolution, a 3x3 maximum of every second place (padding as TensorFlow's
    SAME) and two residual blocks; 15 convolutions in all.

    Args:
        observation_shape: Of one image or of stacked frames (``image_of``).
        channels: Of each section.
        outputs: Width of the fully connected layer behind them.
        black, scale: As of ``ImageTorso``.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, figure 3, right.
    """

    def __init__(
        self, observation_shape, channels=(16, 32, 32), outputs=256, black=0.0, scale=255.0
    ):
        """Draw the initial weights from MindSpore's generator."""
        super().__init__(observation_shape, black, scale)
        inputs, height, width = self.image
        cells = []
        for size in channels:
            cells += [conv(inputs, size), Pool(height, width)]
            cells += [ResidualBlock(size), ResidualBlock(size)]
            inputs, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.SequentialCell(cells)
        self.inputs, self.outputs = inputs * height * width, outputs
        self.full = dense(self.inputs, outputs, 2.0**0.5)

    def prepare(self, images):
        """As ``ConvTorso.prepare``, but ``[N, C, H, W]`` float32."""
        return self.scaled(np.ascontiguousarray(self.planes(images)))

    def construct(self, images):
        """Features of a batch of images, ``[N, C, H, W]`` or stacks ``[N, k, C, H, W]``."""
        x = ops.relu(self.layers(images.reshape((-1, *self.image))))
        return ops.relu(self.full(x.reshape((-1, self.inputs))))
