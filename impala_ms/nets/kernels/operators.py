"""The C kernels as operators and Cells of MindSpore.

Input: the path of the library, from ``build.py``. Output: layers, to ``conv.py``, ``resnet.py``
and ``lstm.py``. Images inside are ``[N, H, W, C]``, the channels of a pixel side by side.
"""

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Orthogonal, initializer


def custom(path, name, shape, results=1, key=()):
    """An operator of the library, whose results are float32.

    Args:
        path: Path of the library.
        name: Name of the C function.
        shape: Function from the shapes of the inputs to the shape of the result, or to the shapes
            of the results.
        results: Number of results.
        key: All values that ``shape`` depends on besides the inputs. Without them MindSpore takes
            two operators of one name for the same, and the shapes of the first for both.
    """
    kind = ms.float32 if results == 1 else (ms.float32,) * results
    operator = ops.Custom(f"{path}:{name}", shape, lambda *_: kind, func_type="aot")
    return operator.add_prim_attr("key", str(key))


class Conv2d(nn.Cell):
    """A convolution of given weights, and its gradients: ``conv2d.c``.

    Args:
        path: Path of the library.
        kernel: Height and width of a window, pixels.
        stride: Pixels from a window to the next; it divides the kernel.
        padding: Zeros on each side of the image. The input gradient needs 0 if the stride is
            above 1.
        relu: Whether negative numbers of the input count as 0.
        scale: None for an input ``[N, H, W, C]``. ``(factor, offset)`` for images
            ``[N, C, H, W]``: a uint8 pixel b stands for ``b * factor + offset``. The gradient of
            images needs ``relu`` False, and padding 0 or one that keeps the size.
        outputs: Number of output channels; only used with ``scale``.
    """

    def __init__(self, path, kernel, stride=1, padding=0, relu=False, scale=None, outputs=0):
        super().__init__()
        self.channels_first = scale is not None
        channels_first = self.channels_first

        def output_shape(x, weight, bias, settings, scale):
            height, width = x[2:] if channels_first else x[1:3]
            sizes = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
            return [x[0], *sizes, *bias]

        def weight_shapes(gradient, x, settings, scale):
            outputs, inputs = gradient[3], x[1 if channels_first else 3]
            return [outputs, inputs, kernel, kernel], [outputs]

        # An operator takes tensors only. The order is that of two structs in conv2d.c.
        self.settings = ms.Tensor([stride, padding, relu, channels_first], ms.int64)
        self.scale = ms.Tensor(scale or (1.0, 0.0), ms.float32)
        key = kernel, stride, padding, channels_first
        self.forward = custom(path, "conv2d_forward", output_shape, key=key)
        self.backward_input = custom(path, "conv2d_backward_input", lambda d_y, weight, x, _: x)
        self.backward_weight = custom(path, "conv2d_backward_weight", weight_shapes, 2, key)
        if channels_first:
            # Mode "pad" loses its padding inside a bprop.
            mode = "same" if padding else "valid"
            self.backward_image = ops.Conv2DBackpropInput(outputs, kernel, mode, stride=stride)

    def construct(self, x, weight, bias):
        """Convolve.

        Args:
            x: ``[N, H, W, C]`` float32; with ``scale`` ``[N, C, H, W]``, float32 or uint8.
            weight: ``[O, C, k, k]`` float32.
            bias: ``[O]`` float32.

        Returns:
            ``[N, H', W', O]`` float32.
        """
        return self.forward(x, weight, bias, self.settings, self.scale)

    def bprop(self, x, weight, bias, result, gradient):
        """Gradients of ``x``, ``weight`` and ``bias``."""
        d_weight, d_bias = self.backward_weight(gradient, x, self.settings, self.scale)
        if x.dtype == ms.uint8:
            d_x = ops.zeros_like(x)
        elif self.channels_first:  # MindSpore leaves it out of the graph if nothing asks for it
            d_x = self.backward_image(gradient.transpose((0, 3, 1, 2)), weight, x.shape)
        else:
            d_x = self.backward_input(gradient, weight, x, self.settings)
        return d_x, d_weight, d_bias


class Convolution(nn.Cell):
    """A convolution with orthogonal weights and a bias.

    Args:
        path: Path of the library.
        inputs: Input channels.
        outputs: Output channels.
        kernel, stride, padding, relu, scale: As of ``Conv2d``.
    """

    def __init__(self, path, inputs, outputs, kernel, stride=1, padding=0, relu=False, scale=None):
        super().__init__()
        shape = outputs, inputs, kernel, kernel
        self.weight = ms.Parameter(initializer(Orthogonal(2.0**0.5), shape), name="weight")
        self.bias = ms.Parameter(initializer("zeros", (outputs,)), name="bias")
        self.conv2d = Conv2d(path, kernel, stride, padding, relu, scale, outputs)

    def construct(self, x):
        """Convolve ``x``, as of ``Conv2d``: ``[N, H', W', outputs]`` float32."""
        return self.conv2d(x, self.weight, self.bias)


class MaxPool(nn.Cell):
    """The maximum of 3x3 pixels at every second place, padded like TensorFlow's SAME: max_pool.c.

    Args:
        path: Path of the library.
    """

    def __init__(self, path):
        super().__init__()

        def output_shape(x):
            return [x[0], (x[1] + 1) // 2, (x[2] + 1) // 2, x[3]]

        self.forward = custom(path, "max_pool_forward", output_shape)
        self.backward = custom(path, "max_pool_backward", lambda d_y, x, y: x)

    def construct(self, x):
        """``[N, H, W, C]`` float32 -> ``[N, ceil(H / 2), ceil(W / 2), C]``."""
        return self.forward(x)

    def bprop(self, x, y, gradient):
        """The gradient of ``x``; the first of equal pixels gets it."""
        return (self.backward(gradient, x, y),)


def lstm_steps(path):
    """The steps of an LSTM and their gradient: ``lstm.c``.

    Args:
        path: Path of the library.

    Returns:
        Two operators with the arguments and results of ``lstm.forward`` and ``lstm.backward``.
    """

    def result_shapes(gate_inputs, keep, hidden, cells, weight):
        steps, envs, size = *gate_inputs[:2], hidden[1]
        row = [steps, envs, size]
        return row, row, [steps, envs, 3 * size], row, row

    def gradient_shapes(d_outputs, d_cells, keep, cells, *others):
        return [*d_outputs[:2], 4 * cells[1]], cells, cells

    return (
        custom(path, "lstm_forward", result_shapes, 5),
        custom(path, "lstm_backward", gradient_shapes, 3),
    )
