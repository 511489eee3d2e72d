"""Several parameter servers: each has a contiguous range of the weights, with its optimiser state.

Input: a server of the whole network, as restored. Output: a server for each range; on rank 0 one
that collects what the others have, so that checkpoints and snapshots hold the whole network.
"""

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from impala_ms.cluster.spokes import Spokes
from impala_ms.errors import ConfigError
from impala_ms.roles.gradients import Gradients, GradientServer
from impala_ms.roles.learning import Learning


def ranges(size, servers):
    """Contiguous ranges ``[(begin, end)]`` of so many weights, as equal as possible.

    Raises:
        ConfigError: If there are more servers than weights.
    """
    if servers > size:
        raise ConfigError(f"trainer.servers = {servers:_}: the network has {size:_} weights only")
    ends = [size * (server + 1) // servers for server in range(servers)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def places_of(parameters, begin, end):
    """Which part of each parameter lies in a range, ``{name: slice}``; others are left out."""
    found, at = {}, 0
    for parameter in parameters:
        first, last = max(begin - at, 0), min(end - at, parameter.size)
        at += parameter.size
        if first < last:
            found[parameter.name] = slice(first, last)
    return found


class Share(nn.Cell):
    """A range of a network's weights, in the place of the network.

    Args:
        policy: The network.
        begin, end: The range, within the weights of all its parameters one after the other.
    """

    distribution, inputs, parts, frame_stack = None, (), 0, 1

    def __init__(self, policy, begin, end):
        """Copy the weights; the parameters keep their names."""
        super().__init__(auto_prefix=False)
        parameters = policy.trainable_params()
        if len(parameters) != len(list(policy.get_parameters())):
            raise ConfigError("trainer.servers: must be 1, the network has weights not trained")
        self.places = places_of(parameters, begin, end)
        self.own = ParameterTuple(
            Parameter(
                Tensor(parameter.asnumpy().ravel()[self.places[parameter.name]].copy()),
                name=parameter.name,
            )
            for parameter in parameters
            if parameter.name in self.places
        )


class Division:
    """How the state of a server of the whole network is divided.

    Args:
        named: Its ``named_parameters``: weights, their optimiser state (``moments.<name>``), and
            numbers that all servers have, such as the number of steps.
        names: Of the weights.
    """

    def __init__(self, named, names):
        self.named = named
        self.belongs = {key: self._weight(key, names) for key in named}

    def _weight(self, key, names):
        """The weight that a parameter belongs to, or None."""
        fitting = [name for name in names if key == name or key.endswith(f".{name}")]
        fitting = [name for name in fitting if self.named[name].shape == self.named[key].shape]
        return max(fitting, key=len, default=None)

    def part(self, places):
        """``{key: array}`` of a server whose range is ``places``; views of ``named``."""
        found = {}
        for key, values in self.named.items():
            weight = self.belongs[key]
            if weight is None:
                found[key] = values.reshape(-1)
            elif weight in places:
                found[key] = values.reshape(-1)[places[weight]]
        return found


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
    """The server of one range.

    Args:
        number: Of the server, from 0.
        servers: How many there are.
        policy: The whole network.
        params, total_env_steps, described_by: Those of ``GradientServer``.
    """

    def __init__(self, number, servers, policy, *arguments):
        size = sum(parameter.size for parameter in policy.trainable_params())
        super().__init__(Share(policy, *ranges(size, servers)[number]), *arguments)

    def own_parameters(self):
        """Weights and optimiser state of the range."""
        return super().named_parameters()

    def take_state(self, data):
        """Begin with a state, as bytes of ``pack``."""
        named = self.own_parameters()
        unpack(data, named)
        for key, parameter in self.parameters_dict().items():
            parameter.set_data(Tensor(named[key].reshape(parameter.shape)))


class FirstServer(ShareServer):
    """The server on rank 0, which collects what the others have.

    Args:
        whole: ``GradientServer`` of the whole network, as restored.
        collector: ``cluster.reports.Collector``.
        servers: How many there are.
        params, total_env_steps, described_by: Those of ``GradientServer``.
    """

    def __init__(self, whole, collector, servers, *arguments):
        """Tell the others what they begin with."""
        policy = whole.policy
        super().__init__(0, servers, policy, *arguments)
        self.collector, self.network = collector, whole.network_names()
        self.division = Division(whole.named_parameters(), self.network)
        parameters = policy.trainable_params()
        bounds = ranges(sum(parameter.size for parameter in parameters), servers)
        self.places = [places_of(parameters, *one) for one in bounds]
        self.take_state(pack(self.division.part(self.places[0])))
        others = range(1, servers)
        collector.begin({one: pack(self.division.part(self.places[one])) for one in others})

    def named_parameters(self):
        """Weights and optimiser state of all servers together, in the shapes of the network."""
        states = self.collector.collect() | {0: pack(self.own_parameters())}
        for server in sorted(states, reverse=True):  # numbers that all have are those of rank 0
            part = self.division.part(self.places[server])
            unpack(states[server], part)
        return {key: values.copy() for key, values in self.division.named.items()}

    def network_names(self):
        """See ``GradientLearner``."""
        return self.network

    def network_weights(self):
        """See ``GradientLearner``."""
        named = self.named_parameters()
        return np.concatenate([named[name].reshape(-1) for name in self.network])

    def named_weights(self, flat):
        """See ``GradientLearner``."""
        begin, found = 0, {}
        for name in self.network:
            values = self.division.named[name]
            found[name] = flat[begin : begin + values.size].reshape(values.shape)
            begin += values.size
        return found


class Reports:
    """In place of records: a further server keeps none, and answers rank 0.

    Args: those of ``Learning``; ``parts`` also has ``reporter``.
    """

    took_s = 0.0

    def __init__(self, parts, params):
        self.parts = parts

    def keep(self, finished):
        """After an update: answer, and forget what rank 0 keeps."""
        self.parts.hub.intake.episodes.clear()
        self.show_wait()

    def show_wait(self, what=""):
        """Answer rank 0 if it has asked."""
        if self.parts.reporter.asked:
            self.parts.reporter.tell(pack(self.parts.learner.own_parameters()))

    def end(self):
        """Nothing: rank 0 has what is needed."""


class Serving(Learning):
    """The loop of a further server: it learns until rank 0 sends STOP."""

    records_type = Reports

    def finished(self):
        """Whether rank 0 has sent STOP."""
        return self.records.parts.reporter.stopped


class SharedGradients(Gradients):
    """Makes workers and one or several parameter servers.

    Args:
        config: ``Config``.
    """

    def __init__(self, config):
        super().__init__(config)
        self.servers = config.trainer_params["servers"]

    def acting(self, spec, policy, parts):
        """``(layout of the messages, trainer of a worker)``."""
        layout, trainer = super().acting(spec, policy, parts)
        if isinstance(parts.spoke, Spokes):
            sizes = (end - begin for begin, end in ranges(layout.size, self.servers))
            parts.spoke.divide([layout.of(size) for size in sizes])
        return layout, trainer

    def divide(self, layout, whole, collector):
        """``(layout, learner)`` of rank 0 beside other servers, which begin with their ranges.

        Args:
            layout: Of a gradient of the whole network.
            whole: The server of the whole network, as restored.
            collector: ``cluster.reports.Collector``.
        """
        if self.servers == 1:  # beside a store
            collector.begin({})
            return layout, whole
        first = FirstServer(whole, collector, self.servers, *self.of_servers())
        return layout.of(first.size), first

    def serving(self, spec, policy, number):
        """``(layout, learner)`` of the server of this number, from 0."""
        server = ShareServer(number, self.servers, policy, *self.of_servers())
        return self.layout(spec, policy).of(server.size), server
