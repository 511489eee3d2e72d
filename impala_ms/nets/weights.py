"""Weights as one flat float32 array, the form in which they are sent and saved as a snapshot.

Input: the parameters of a network. Output: one array; and the other way round.
"""

import mindspore as ms
import numpy as np


class FlatWeights:
    """Copies a list of parameters to and from one flat float32 array.

    Args:
        parameters: MindSpore parameters, in an order that is the same on every rank.
    """

    def __init__(self, parameters):
        """Assign each parameter its part of the array."""
        self.parameters = list(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        ends = np.cumsum([parameter.size for parameter in self.parameters])
        self.size = int(ends[-1])
        self._slices = [
            slice(end - p.size, end) for end, p in zip(ends, self.parameters, strict=True)
        ]
        self._can_write = False  # checked at the first write: a learner, on any device, only reads

    def read(self):
        """The current values, ``[size]`` float32: a copy, which later updates do not change."""
        flat = np.empty(self.size, np.float32)
        for parameter, where in zip(self.parameters, self._slices, strict=True):
            flat[where] = parameter.asnumpy().ravel()
        return flat

    def write(self, flat):
        """Copy ``[size]`` float32 values into the parameters; compiled code uses them at once.

        On the CPU ``asnumpy`` is a view of the parameter's own memory. Writing into it also reaches
        code under ``ms.jit``, which ``set_data`` does not.

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
        """The pairs ``(parameter, its values in flat)``.

        Raises:
            ValueError: If ``flat`` has another size.
        """
        if flat.size != self.size:
            raise ValueError(f"the network has {self.size} weights, got {flat.size}")
        parts = zip(self.parameters, self._slices, self.shapes, strict=True)
        return [(parameter, flat[where].reshape(shape)) for parameter, where, shape in parts]


def check_views(parameter):
    """Raise RuntimeError unless ``asnumpy`` is a view of the parameter's own memory."""
    device = ms.get_context("device_target")
    if device != "CPU" or not np.shares_memory(parameter.asnumpy(), parameter.asnumpy()):
        raise RuntimeError(
            f"weights from the learner can be used on the CPU only, but this process computes on "
            f"{device}: set learner.device = CPU, or start 2 or more ranks (actors use the CPU)"
        )
