"""The deep residual network of IMPALA."""

import functools

from mindspore import nn, ops

from impala_ms.nets.conv import ImageTorso
from impala_ms.nets.kernels import operators
from impala_ms.nets.mlp import dense


class ResidualBlock(nn.Cell):
    """``x + conv(relu(conv(relu(x))))``, float32, of the shape of x.

    Args:
        first, second: The convolutions, each behind its ReLU.
    """

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def construct(self, x):
        """Add to the features what the block computes from them."""
        return x + self.second(self.first(x))


class ResNet(ImageTorso):
    """Images of uint8 (scaled to 0 ... 1) or of other numbers -> ``[N, 256]`` float32.

    Each section is a 3x3 convolution, a 3x3 maximum at every second place (padded like TensorFlow's
    SAME) and two residual blocks: 15 convolutions together.

    Args:
        observation_shape: Shape of one image or of stacked frames (``image_of``).
        sizes: Output channels of each section.
        outputs: Width of the fully connected layer behind the sections.
        black, scale, channels: As of ``ImageTorso``.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, figure 3, right.
    """

    def __init__(
        self,
        observation_shape,
        sizes=(16, 32, 32),
        outputs=256,
        black=0.0,
        scale=255.0,
        channels="auto",
    ):
        """Draw the initial weights from MindSpore's generator."""
        layers = [(size, 3, 1) for size in sizes]
        super().__init__(observation_shape, layers, black, scale, channels)
        inputs, height, width = self.image
        conv = functools.partial(self.convolution, kernel=3, padding=1)
        cells = []
        for size in sizes:
            cells.append(conv(inputs, size, first=not cells))
            pool = nn.MaxPool2d(3, 2, pad_mode="same")
            cells.append(operators.MaxPool(self.library) if self.library else pool)
            for _ in range(2):
                pair = (conv(size, size, relu=True, first=False) for _ in range(2))
                cells.append(ResidualBlock(*pair))
            inputs, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.SequentialCell(cells)
        self.inputs, self.outputs = inputs * height * width, outputs
        self.full = dense(self.inputs, outputs, 2.0**0.5)

    def construct(self, images):
        """Features of images ``[N, C, H, W]`` or of stacks ``[N, k, C, H, W]``."""
        x = self.layers(self.read(images))
        if self.channels_come_last:
            x = x.transpose((0, 3, 1, 2))
        x = ops.relu(x)
        return ops.relu(self.full(x.reshape((-1, self.inputs))))
