"""Several parameter servers: each has a contiguous range of the weights, with its optimiser state.

Input: a server of the whole network, as restored. Output: a server for each range; on rank 0 one
that collects what the others have, so that checkpoints and snapshots hold the whole network.
"""

import math

import numpy as np
from mindspore import Parameter, Tensor, nn

from impala_ms.cluster.spokes import Spokes
from impala_ms.errors import ConfigError
from impala_ms.roles.gradients import Gradients, GradientServer

WEIGHTS = "weights"  # name of the one parameter of a range


def ranges(size, servers):
    """Contiguous ranges ``[(begin, end)]`` of so many weights, as equal as possible.

    Raises:
        ConfigError: If there are more servers than weights.
    """
    if servers > size:
        raise ConfigError(f"trainer.servers = {servers:_}: the network has {size:_} weights only")
    ends = [size * (server + 1) // servers for server in range(servers)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


class Flat(nn.Cell):
    """One parameter with a range of a network's weights, in the place of the network.

    Args:
        size: Length of the range.
    """

    distribution, inputs, parts, frame_stack = None, (), 0, 1

    def __init__(self, size):
        """Begin with zeros."""
        super().__init__(auto_prefix=False)
        self.weights = Parameter(np.zeros(size, np.float32), name=WEIGHTS)


class Division:
    """The state of a server of the whole network, by parameters and as flat arrays.

    Args:
        named: Its ``named_parameters``: weights, their optimiser state (``moments.<name>``), and
            numbers that all servers have, such as the number of steps.
        names: Of the weights, in the order of a gradient.
    """

    def __init__(self, named, names):
        self.keys, self.shapes = list(named), {key: values.shape for key, values in named.items()}
        kinds = {key.removesuffix(names[0]) for key in named if key.endswith(names[0])}
        kinds = [kind for kind in sorted(kinds) if all(f"{kind}{name}" in named for name in names)]
        self.members = {f"{kind}{WEIGHTS}": [f"{kind}{name}" for name in names] for kind in kinds}
        self.flats = {
            key: np.concatenate([named[one].reshape(-1) for one in ones])
            for key, ones in self.members.items()
        }
        flat = {one for ones in self.members.values() for one in ones}
        self.numbers = {key: values.copy() for key, values in named.items() if key not in flat}

    def part(self, begin, end):
        """``{key: array}`` of the server of a range; views, or the numbers that all have."""
        return {key: values[begin:end] for key, values in self.flats.items()} | self.numbers

    def named(self):
        """``{key: array}`` of the whole network, as it was given."""
        found = dict(self.numbers)
        for key, ones in self.members.items():
            found |= self.split(self.flats[key], ones)
        return {key: found[key].copy() for key in self.keys}

    def split(self, flat, keys):
        """Views of a flat array in the shapes of these keys, one after the other."""
        ends = np.cumsum([math.prod(self.shapes[key]) for key in keys])
        parts = zip(keys, np.split(flat, ends[:-1]), strict=True)
        return {key: part.reshape(self.shapes[key]) for key, part in parts}


def pack(named):
    """The bytes of ``{key: array}``, in the order of the keys."""
    arrays = [np.ascontiguousarray(named[key]).reshape(-1) for key in sorted(named)]
    return np.concatenate([array.view(np.uint8) for array in arrays])


def unpack(data, named):
    """Copy the bytes of ``pack`` into arrays of the same sizes, ``{key: array}``."""
    begin = 0
    for key in sorted(named):
        size = named[key].nbytes
        named[key][...] = (
            data[begin : begin + size].view(named[key].dtype).reshape(named[key].shape)
        )
        begin += size


class ShareServer(GradientServer):
    """The server of one range, as one flat parameter.

    Args:
        size: Length of the range.
        params, total_env_steps, described_by: Those of ``GradientServer``.
    """

    def __init__(self, size, *arguments):
        super().__init__(Flat(size), *arguments)

    def own_parameters(self):
        """Weights and optimiser state of the range."""
        return super().named_parameters()

    def take_state(self, data):
        """Begin with a state, as bytes of ``pack``."""
        named = self.own_parameters()
        unpack(data, named)
        for key, parameter in self.parameters_dict().items():
            parameter.set_data(Tensor(named[key]))


class FirstServer(ShareServer):
    """The server on rank 0, which collects what the others have.

    Args:
        whole: ``GradientServer`` of the whole network, as restored.
        bounds: The range of each server.
        collector: ``cluster.reports.Collector``, or None if there are no others.
        env_steps: So far, for the schedule of the others.
        params, total_env_steps, described_by: Those of ``GradientServer``.
    """

    def __init__(self, whole, bounds, collector, env_steps, *arguments):
        """Take the first range, and tell the others what they begin with."""
        super().__init__(bounds[0][1], *arguments)
        self.bounds, self.collector = bounds, collector
        self.names = whole.network_names()
        self.division = Division(whole.named_parameters(), self.names)
        self.take_state(pack(self.division.part(*bounds[0])))
        if collector is not None:
            parts = {i: pack(self.division.part(*one)) for i, one in enumerate(bounds) if i > 0}
            collector.begin(parts, env_steps)

    def collect(self):
        """Bring the division up to date."""
        several = self.collector is not None and len(self.bounds) > 1
        states = self.collector.collect() if several else {}
        states[0] = pack(self.own_parameters())
        for server in sorted(states, reverse=True):  # numbers that all have are those of rank 0
            unpack(states[server], self.division.part(*self.bounds[server]))

    def named_parameters(self):
        """Weights and optimiser state of all servers together, in the shapes of the network."""
        self.collect()
        return self.division.named()

    def network_names(self):
        """See ``Saved``."""
        return self.names

    def network_weights(self):
        """See ``Saved``."""
        self.collect()
        return self.division.flats[WEIGHTS].copy()

    def named_weights(self, flat):
        """See ``Saved``."""
        return self.division.split(flat, self.names)


class SharedGradients(Gradients):
    """Makes workers and one or several parameter servers.

    Args:
        config: ``Config``.
    """

    def __init__(self, config):
        super().__init__(config)
        self.servers = config.trainer_params.get("servers", 1)

    def acting(self, spec, policy, parts):
        """``(layout of the messages, trainer of a worker)``."""
        layout, trainer = super().acting(spec, policy, parts)
        if isinstance(parts.spoke, Spokes):
            bounds = ranges(layout.size, self.servers)
            parts.spoke.divide([layout.of(end - begin) for begin, end in bounds])
        return layout, trainer

    def divide(self, layout, whole, collector, env_steps):
        """``(layout, learner)`` of rank 0; the other servers begin with their ranges.

        Args:
            layout: Of a gradient of the whole network.
            whole: The server of the whole network, as restored.
            collector: ``cluster.reports.Collector``, or None if there are no others.
            env_steps: So far.
        """
        policy = whole.policy
        if len(policy.trainable_params()) < len(list(policy.get_parameters())):
            if self.servers > 1:
                raise ConfigError("trainer.servers: must be 1, the network has weights not trained")
            if collector is not None:
                collector.begin({})
            return layout, whole
        bounds = ranges(layout.size, self.servers)
        first = FirstServer(whole, bounds, collector, env_steps, *self.of_servers())
        return layout.of(first.size), first

    def serving(self, spec, policy, number):
        """``(layout, learner)`` of the server of this number, from 0."""
        layout = self.layout(spec, policy)
        begin, end = ranges(layout.size, self.servers)[number]
        return layout.of(end - begin), ShareServer(end - begin, *self.of_servers())
