"""Refuse a user's own network or torso that cannot be used, in one line.

Input: what the user's class has made, or returned. Output: nothing, or an error that says what is
allowed.
"""

import copy
from numbers import Integral

import mindspore as ms
from mindspore import nn

from impala_ms.classes import check_arguments
from impala_ms.errors import ConfigError

# Inputs that a network may take beside the observation.
INPUTS = ("last_action", "last_reward", "first", "core_state")
# Attributes of a torso and a network whose class does not set them.
TORSO_DEFAULTS = {"prepare": lambda observations: observations}
POLICY_DEFAULTS = {"inputs": (), "state_size": 0, "parts": 0, "frame_stack": 1} | TORSO_DEFAULTS
WIDEST = 100_000  # limit of one-hot inputs and of outputs: each needs a row of weights


def make_torso(name, type_, arguments, options):
    """Make a torso, check it, and set the attributes that its class has left out.

    Raises:
        ConfigError: If the class does not take the options, or is not a torso.
    """
    check_arguments(
        f"network.torso {name} with network.options {options}",
        "a torso is made by (observation_shape, **options)",
        type_,
        *arguments,
        **options,
    )
    torso = type_(*arguments, **copy.deepcopy(options))  # several torsos get the same
    if not (isinstance(torso, nn.Cell) and isinstance(getattr(torso, "outputs", None), Integral)):
        raise ConfigError(
            f"network.torso {name} is not a torso: it must be a mindspore.nn.Cell with the number "
            "of its features as the attribute outputs"
        )
    set_missing(torso, TORSO_DEFAULTS)
    return torso


def set_missing(cell, defaults):
    """Set the attributes that the cell's class has left out."""
    for attribute, default in defaults.items():
        if not hasattr(cell, attribute):
            setattr(cell, attribute, default)


def check_policy(policy, name, core):
    """Refuse a user's own network that actor and learner cannot use.

    Args:
        policy: The network; optional attributes are set if its class has left them out.
        name: Name of its class.
        core: ``network.core`` of the configuration.

    Raises:
        ConfigError: If it is not a Cell with parameters, or an attribute is missing or wrong.
    """
    if not isinstance(policy, nn.Cell):
        raise ConfigError(f"the network {name} is not a mindspore.nn.Cell")
    if not hasattr(policy, "_params"):
        raise ConfigError(f"the network {name} must call super().__init__() first")
    if not policy.trainable_params():
        raise ConfigError(f"the network {name} has no parameters that can be trained")
    if not hasattr(policy, "distribution"):
        raise ConfigError(
            f"the network {name} has no attribute distribution: keep the argument distribution of "
            "its constructor"
        )
    if not hasattr(policy.distribution, "num_parameters"):
        raise ConfigError(
            f"the network {name} has distribution {policy.distribution!r}: keep the argument "
            "distribution of its constructor"
        )
    for parameter in policy.trainable_params():
        if parameter.dtype != ms.float32:
            raise ConfigError(
                f"the network {name} has the parameter {parameter.name} of {parameter.dtype}: "
                "allowed is Float32, or requires_grad=False"
            )
    set_missing(policy, POLICY_DEFAULTS)
    inputs, size = policy.inputs, policy.state_size
    if not isinstance(inputs, (tuple, list)) or not set(inputs) <= set(INPUTS):
        raise ConfigError(
            f"the network {name} has inputs {inputs!r}; allowed is a tuple with any of "
            f"{', '.join(INPUTS)}"
        )
    if not isinstance(size, Integral) or size < 0:
        raise ConfigError(f"the network {name} has state_size {size!r}; allowed is 0 or more")
    if ("core_state" in inputs) != (size > 0):
        raise ConfigError(
            f"the network {name} has state_size {size} and inputs {inputs!r}: a network with "
            "memory has a state_size above 0 and takes core_state, one without has neither"
        )
    if core != "none" and not size:
        raise ConfigError(
            f"network.core is {core}, but the network {name} has no memory (its state_size is 0 or "
            "missing): set network.core to none"
        )


def check_outputs(outputs, rows, width, state_shape):
    """Refuse wrong outputs of a user's own network, while it is compiled.

    Args:
        outputs: What its ``construct`` has returned.
        rows: N, number of observations.
        width: A, number of parameters of the action distribution.
        state_shape: ``(S, E, state_size)``; with a state_size of 0 there is no state.

    Raises:
        ValueError: If they are not like those of ``ActorCriticPolicy``.
    """
    wanted = "parameters [N, A] and baseline [N]"
    parts = 2
    if state_shape[2] > 0:
        wanted, parts = wanted + f" and core_state {state_shape}", 3
    wanted += ", all float32"
    if not isinstance(outputs, tuple) or len(outputs) != parts:
        raise ValueError(f"the network must return a tuple of {parts}: {wanted}")
    for output in outputs:
        if not isinstance(output, ms.Tensor) or output.dtype != ms.float32:
            raise ValueError(f"the network must return {wanted}, but one is not a float32 tensor")
    shapes = tuple([output.shape for output in outputs])
    if (
        shapes[0] != (rows, width)
        or outputs[1].size != rows
        or (parts == 3 and shapes[2] != state_shape)
    ):
        raise ValueError(
            f"the network returned {shapes}, but must return {wanted}; here N = {rows}, A = {width}"
        )


def check_width(what, width, kind):
    """Refuse a space that would not fit into memory.

    Raises:
        ConfigError: If it has more choices than ``WIDEST``.
    """
    if width > WIDEST:
        raise ConfigError(
            f"{what} has {width:,} choices, which would be as many {kind} of the network; "
            f"{WIDEST:,} are allowed: wrap the environment, or give a network of your own"
        )


def check_mask(mask, first):
    """Refuse a mask that allows no action, except for final observations.

    Args:
        mask: ``[E, M]`` bool, the mask of the row that was played.
        first: ``[E]`` bool, whether the environment was reset in this row.
    """
    nowhere = ~mask.any(-1) & ~first
    if nowhere.any():
        raise ValueError(
            f"the action mask of environment {int(nowhere.argmax())} allows no action, and its "
            "episode has not ended: an environment must allow at least one"
        )


def check_statistics(learner, count):
    """Refuse a loss whose statistics do not fit their names.

    Args:
        learner: Has the names in ``statistics``.
        count: How many numbers its loss returned.

    Raises:
        ConfigError: If it does.
    """
    if count != len(learner.statistics) or learner.statistics[0] != "loss_total":
        raise ConfigError(
            f"the learner {type(learner).__name__} has the statistics "
            f"{', '.join(learner.statistics)}, and its loss returns {count} numbers: give a name "
            "for each, loss_total first"
        )
