"""Convolutional torsos: the shallow and the deep network of IMPALA, and the Nature CNN."""

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal

from impala_ms.nets.mlp import dense


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
    """``[N, C, H, W]`` uint8 (scaled by 1/255) or float32 -> ``[N, outputs]`` float32.

    Args:
        observation_shape: ``(C, H, W)``.
        layers: ``(outputs, kernel, stride)`` of each convolution, without padding.
        outputs: Width of the fully connected layer behind them.
    """

    def __init__(self, observation_shape, layers, outputs):
        super().__init__()
        channels, height, width = observation_shape
        cells = []
        for size, kernel, stride in layers:
            cells += [conv(channels, size, kernel, stride), nn.ReLU()]
            channels = size
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.layers = nn.SequentialCell(cells)
        self.outputs = outputs
        self.inputs = channels * height * width
        self.full = dense(self.inputs, outputs, 2.0**0.5)

    def construct(self, observation):
        """Features of a batch of images."""
        x = self.layers(pixels(observation))
        return ops.relu(self.full(x.reshape((-1, self.inputs))))


def pixels(observation):
    """Images as float32; uint8 becomes 0 … 1."""
    if observation.dtype == ms.uint8:
        return observation.astype(ms.float32) * (1.0 / 255.0)
    return observation.astype(ms.float32)


class Shallow(ConvTorso):
    """The shallow network of IMPALA (figure 3, left): 16 8x8/4, 32 4x4/2, 256."""

    def __init__(self, observation_shape):
        super().__init__(observation_shape, ((16, 8, 4), (32, 4, 2)), 256)


class Nature(ConvTorso):
    """The network of Mnih et al. 2015: 32 8x8/4, 64 4x4/2, 64 3x3/1, 512."""

    def __init__(self, observation_shape):
        super().__init__(observation_shape, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512)
