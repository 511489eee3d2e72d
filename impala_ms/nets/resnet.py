"""The deep residual network of IMPALA."""

import functools

import mindspore as ms
from mindspore import nn, ops

from impala_ms.nets import native
from impala_ms.nets.conv import Convolution, ImageTorso
from impala_ms.nets.mlp import dense


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
    """``x + conv(relu(conv(relu(x))))``, float32, of the shape of x.

    Args:
        first, second: The convolutions, each with its ReLU.
    """

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def construct(self, x):
        """The features with what the block adds to them."""
        return x + self.second(self.first(x))


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
        path = native.kernels([(size, 3, 1) for size in channels])
        self.channels_come_last = path is not None
        cells = []
        for size in channels:
            same = {"kernel": 3, "padding": 1}
            if path:
                conv = functools.partial(native.Convolution, path, **same)
                planes = None if cells else (self.factor, self.offset)
                cells += [conv(inputs, size, planes=planes), native.Pool(path)]
            else:
                conv = functools.partial(Convolution, **same)
                cells += [conv(inputs, size), Pool(height, width)]
            for _ in range(2):
                pair = (conv(size, size, relu=True) for _ in range(2))
                cells.append(ResidualBlock(*pair))
            inputs, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.SequentialCell(cells)
        self.inputs, self.outputs = inputs * height * width, outputs
        self.full = dense(self.inputs, outputs, 2.0**0.5)

    def construct(self, images):
        """Features of a batch of images, ``[N, C, H, W]`` or stacks ``[N, k, C, H, W]``."""
        x = images.reshape((-1, *self.image))
        x = self.layers(x if self.channels_come_last else self.scaled(x))
        if self.channels_come_last:
            x = x.transpose((0, 3, 1, 2))
        x = ops.relu(x)
        return ops.relu(self.full(x.reshape((-1, self.inputs))))
