"""Turn observations of any supported space into features.

Input: observations, as arrays or as tuples of their parts. Output: a row of features for each.
"""

import math

import mindspore as ms
from mindspore import nn, ops

from impala_ms.agents.checks import check_width, make_torso
from impala_ms.classes import resolve
from impala_ms.nets.mlp import MLP
from impala_ms.ops.distributions import one_hot
from impala_ms.spaces import leaf_array, leaves

TORSOS = {
    "shallow": "impala_ms.nets.conv:Shallow",
    "nature": "impala_ms.nets.conv:Nature",
    "resnet": "impala_ms.nets.resnet:ResNet",
}


class Torso(nn.Cell):
    """Turns observations of any supported space into features ``[N, outputs]``.

    A single array goes through the network as it is. For a structured observation, ``mlp`` takes
    all parts concatenated. Any other network takes each image (a part with two dimensions or more),
    and the other parts are concatenated with its features. A Discrete part is one-hot.

    Args: those of ``ActorCriticPolicy``.
    """

    def __init__(self, observation_space, torso, hidden_sizes, activation, options):
        super().__init__()
        parts = leaves(observation_space).values()
        shapes = [leaf_array(leaf)[0] for leaf in parts]
        self.choices = tuple(leaf["n"] if leaf["type"] == "Discrete" else 0 for leaf in parts)
        self.sizes = tuple(
            choices or math.prod(shape) for choices, shape in zip(self.choices, shapes, strict=True)
        )
        self.single = len(parts) == 1 and not self.choices[0]
        check_width("the Discrete observation space", sum(self.choices), "inputs")

        def make(shape):
            if torso == "mlp":
                network = MLP, (shape, hidden_sizes, activation)
            else:
                network = resolve(TORSOS.get(torso, torso)), (shape,)
            return make_torso(torso, *network, options)

        if torso == "mlp":
            self.whole = make(shapes[0] if self.single else (sum(self.sizes),))
            self.images, self.outputs = (), self.whole.outputs
            return
        if self.single:
            self.whole = make(shapes[0])
            self.images, self.outputs = (), self.whole.outputs
            return
        self.images = tuple(len(shape) > 1 for shape in shapes)
        if not any(self.images):
            raise ValueError(f"torso {torso} is for images, but there is none in {shapes}")
        pairs = list(zip(shapes, self.images, strict=True))
        self.networks = nn.CellList([make(shape) for shape, image in pairs if image])
        beside = sum(size for size, image in zip(self.sizes, self.images, strict=True) if not image)
        self.outputs = sum(network.outputs for network in self.networks) + beside

    def prepare(self, parts):
        """See ``ActorCriticPolicy``; parts without a network are returned as they are."""
        if self.single:
            return [self.whole.prepare(parts[0])]
        if not self.images:
            return parts
        networks = iter(self.networks)
        pairs = zip(parts, self.images, strict=True)
        return [next(networks).prepare(part) if image else part for part, image in pairs]

    def construct(self, observation):
        """Features of a batch of observations."""
        parts = observation if isinstance(observation, tuple) else (observation,)
        if self.single:
            features = self.whole(parts[0])
            if features.shape[-1] != self.outputs:
                raise ValueError(
                    f"the torso returned {features.shape[-1]} features, but its attribute outputs "
                    f"says {self.outputs}"
                )
            return features
        columns, network = (), 0
        for i in range(len(self.choices)):
            if self.images and self.images[i]:
                columns += (self.networks[network](parts[i]),)
                network += 1
            elif self.choices[i]:
                columns += (one_hot(parts[i], self.choices[i]),)
            else:
                columns += (parts[i].reshape((-1, self.sizes[i])).astype(ms.float32),)
        features = ops.concat(columns, -1) if len(columns) > 1 else columns[0]
        return features if self.images else self.whole(features)
