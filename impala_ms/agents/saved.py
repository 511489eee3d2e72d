"""What a learner has that is saved, and under which names.

Input: the parameters of a learner. Output: arrays by name for a checkpoint, or flat weights for a
snapshot.
"""


class Saved:
    """Methods of a learner, a ``Cell`` with ``weights`` (``FlatWeights`` of its network)."""

    def take_over(self):
        """Called when the weights have become those of another run; for other kinds of agents."""

    def named_parameters(self):
        """Weights and state of the optimiser, ``{name: array}``: all that a resumed run needs."""
        return {name: p.asnumpy().copy() for name, p in self.parameters_dict().items()}

    def network_names(self):
        """Which of ``named_parameters`` are the network, in the order of its weights."""
        return [parameter.name for parameter in self.weights.parameters]

    def network_weights(self):
        """All weights of the network, ``[size]`` float32."""
        return self.weights.read()

    def named_weights(self, flat):
        """Weights of ``FlatWeights`` by their names in a checkpoint, ``{name: array}``."""
        return {parameter.name: values for parameter, values in self.weights.split(flat)}
