"""The deep residual network of IMPALA."""

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal

from impala_ms.nets.conv import channels_first, scale_of
from impala_ms.nets.mlp import dense


class Images(nn.Cell):
    """``[N, *observation_shape]`` of any number type -> ``[N, C, H, W]`` float32, uint8 scaled."""

    def __init__(self, observation_shape):
        super().__init__()
        axes, self.shape = channels_first(observation_shape)
        self.axes = (0, *(axis + 1 for axis in axes))
        self.moves = axes != tuple(sorted(axes))

    def construct(self, observation):
        """Images in the layout of convolutions."""
        x = ops.transpose(observation, self.axes) if self.moves else observation
        x = x.reshape((-1, *self.shape)).astype(ms.float32)
        scale = scale_of(observation)
        return x if scale == 1.0 else x * scale


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


class ResidualBlock(nn.Cell):
    """``[N, C, H, W]`` float32 -> the same: x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels):
        super().__init__()
        self.first = conv(channels, channels)
        self.second = conv(channels, channels)

    def construct(self, x):
        """The features with what the block adds to them."""
        return x + self.second(ops.relu(self.first(ops.relu(x))))


class ResNet(nn.Cell):
    """``[N, *observation_shape]`` uint8 (scaled by 1/255) or float32 -> ``[N, 256]`` float32.

    Each section is a 3x3 convolution, a 3x3 maximum of every second place (padding as TensorFlow's
    SAME) and two residual blocks; 15 convolutions in all.

    Args:
        observation_shape: Of one image or of stacked frames (``Images``).
        channels: Of each section.
        outputs: Width of the fully connected layer behind them.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, figure 3, right.
    """

    def __init__(self, observation_shape, channels=(16, 32, 32), outputs=256):
        """Draw the initial weights from MindSpore's generator."""
        super().__init__()
        self.images = Images(observation_shape)
        inputs, height, width = self.images.shape
        cells = []
        for size in channels:
            cells += [conv(inputs, size), nn.MaxPool2d(3, 2, pad_mode="same")]
            cells += [ResidualBlock(size), ResidualBlock(size)]
            inputs, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.SequentialCell(cells)
        self.inputs, self.outputs = inputs * height * width, outputs
        self.full = dense(self.inputs, outputs, 2.0**0.5)

    def construct(self, observation):
        """Features of a batch of images."""
        x = ops.relu(self.layers(self.images(observation)))
        return ops.relu(self.full(x.reshape((-1, self.inputs))))
