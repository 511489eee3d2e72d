"""Networks in float64 NumPy, written independently of the ones that are tested."""

import numpy as np


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def conv(x, weight, bias, stride=1, padding=0):
    """``[N, C, H, W]``, ``[O, C, k, k]``, ``[O]`` -> ``[N, O, h, w]``."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    kernel = weight.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True) + bias[:, None, None]


def max_pool(x):
    """3x3 at every second place, padded like TensorFlow's SAME: an odd one goes to the end."""
    height, width = x.shape[2:]
    pads = [max(0, 2 * ((size - 1) // 2) + 3 - size) for size in (height, width)]
    edges = [(pad // 2, pad - pad // 2) for pad in pads]
    x = np.pad(x, ((0, 0), (0, 0), *edges), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    return windows[:, :, ::2, ::2].max((-2, -1))


def relu(x):
    return np.maximum(x, 0.0)


def plain(x, parameters, strides):
    """Convolutions with ReLU, then one fully connected layer with ReLU, read pixel by pixel."""
    for i, stride in enumerate(strides):
        x = relu(conv(x, parameters[2 * i], parameters[2 * i + 1], stride))
    x = x.transpose(0, 2, 3, 1)
    return relu(x.reshape(len(x), -1) @ parameters[-2].T + parameters[-1])


def resnet(x, parameters):
    """Three sections of a convolution, a maximum and two residual blocks, then fully connected."""
    layers = iter(zip(parameters[::2], parameters[1::2], strict=True))
    for _ in range(3):
        x = max_pool(conv(x, *next(layers), padding=1))
        for _ in range(2):
            inner = conv(relu(x), *next(layers), padding=1)
            x = x + conv(relu(inner), *next(layers), padding=1)
    weight, bias = next(layers)
    return relu(relu(x).reshape(len(x), -1) @ weight.T + bias)


def lstm(features, first, state, parameters):
    """Outputs ``[T, B, H]`` and the state after them; gates in the order in, forget, out, cell."""
    input_weight, input_bias, state_weight = parameters
    hidden, cells = np.split(state, 2, -1)
    outputs = []
    for row, reset in zip(features, first, strict=True):
        hidden, cells = (np.where(reset[:, None], 0.0, x) for x in (hidden, cells))
        gates = row @ input_weight.T + input_bias + hidden @ state_weight.T
        i, f, o, g = np.split(gates, 4, -1)
        cells = sigmoid(f) * cells + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cells)
        outputs.append(hidden)
    return np.stack(outputs), np.concatenate([hidden, cells], -1)


def slope(function, arrays, index, direction, step=1e-6):
    """Derivative of ``function(arrays)``, a number, along a direction of one of the arrays."""
    values = []
    for sign in (1, -1):
        moved = list(arrays)
        moved[index] = moved[index] + sign * step * direction
        values.append(function(moved))
    return (values[0] - values[1]) / (2 * step)
