"""Weights as one flat float32 array: the form in which they travel and are saved as a snapshot.

Input: the parameters of a network. Output: one array, and back.
"""

import mindspore as ms
import numpy as np


class FlatWeights:
    """Copies a list of parameters to and from one flat float32 array.

    Args:
        parameters: MindSpore parameters, in an order that is the same on every rank.
    """

    def __init__(self, parameters):
        """Give every parameter its place."""
        self.parameters = list(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        ends = np.cumsum([parameter.size for parameter in self.parameters])
        self.size = int(ends[-1])
        self._slices = [
            slice(end - p.size, end) for end, p in zip(ends, self.parameters, strict=True)
        ]
        self._can_write = False  # not known yet: a learner, on any device, only reads

    def read(self):
        """The current values, ``[size]`` float32; a copy that later updates leave alone."""
        flat = np.empty(self.size, np.float32)
        for parameter, where in zip(self.parameters, self._slices, strict=True):
            flat[where] = parameter.asnumpy().ravel()
        return flat

    def write(self, flat):
        """Put ``[size]`` float32 values into the parameters, seen by compiled code at once.

        On the CPU ``asnumpy`` is a view of the parameter's own memory: a plain copy, which code
        under ``ms.jit`` would see too (it does not see ``set_data``; Cells in graph mode do).

        Raises:
            ValueError: If ``flat`` has another size.
            RuntimeError: On another device, where ``asnumpy`` is a copy.
        """
        pairs = self.split(flat)
        if not self._can_write:
            check_views(self.parameters[0])
            self._can_write = True
        for parameter, values in pairs:
            parameter.asnumpy()[...] = values

    def split(self, flat):
        """Pairs ``(parameter, its values in flat)``.

        Raises:
            ValueError: If ``flat`` has another size.
        """
        if flat.size != self.size:
            raise ValueError(f"the network has {self.size} weights, got {flat.size}")
        parts = zip(self.parameters, self._slices, self.shapes, strict=True)
        return [(parameter, flat[where].reshape(shape)) for parameter, where, shape in parts]


def check_views(parameter):
    """Raise RuntimeError unless what is written into ``asnumpy`` is in the parameter itself."""
    device = ms.get_context("device_target")
    if device != "CPU" or not np.shares_memory(parameter.asnumpy(), parameter.asnumpy()):
        raise RuntimeError(
            f"weights from the learner can be used on the CPU only, and this process computes on "
            f"{device}: use learner.device = CPU, or N of 2 or more, whose actors are on the CPU"
        )
