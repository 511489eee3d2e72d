"""Prints how much longer a convolution takes than a product of matrices of as many operations."""

import time

import numpy as np
from mindspore import ops

from tests.compiled import FunctionCell, to_tensor


def convolution(x, weight):
    return ops.Conv2D(64, 3)(x, weight)


def product(a, b):
    return ops.matmul(a, b)


def seconds(function, *shapes):
    """Of the fastest of five calls, compiled."""
    cell, rng = FunctionCell(function), np.random.default_rng(0)
    inputs = [to_tensor(rng.normal(size=shape)) for shape in shapes]
    cell(*inputs).asnumpy()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        cell(*inputs).asnumpy()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    print(
        seconds(convolution, (64, 64, 22, 22), (64, 64, 3, 3))
        / seconds(product, (64 * 20 * 20, 576), (576, 64))
    )
