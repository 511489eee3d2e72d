"""Refuse a network or a torso of the user's that could not be used, in one line.

Input: what the user's class has made, or returned. Output: nothing, or an error that says what is
allowed.
"""

from numbers import Integral

import mindspore as ms
from mindspore import nn

from impala_ms.classes import check_arguments
from impala_ms.errors import ConfigError

# What a network may take beside the observation.
INPUTS = ("last_action", "last_reward", "first", "core_state")
# What a torso and a network have where their class does not say otherwise.
TORSO_DEFAULTS = {"prepare": lambda observations: observations}
POLICY_DEFAULTS = {"inputs": (), "state_size": 0, "parts": 0, "frame_stack": 1} | TORSO_DEFAULTS
WIDEST = 100_000  # inputs of a one-hot observation or outputs of a policy, each a row of weights


def make_torso(name, type_, arguments, options):
    """A torso with all that it need not have set; refused where it or its options are none.

    Raises:
        ConfigError: If the class does not take the options, or is no torso.
    """
    check_arguments(
        f"network.torso {name} with network.options {options}",
        "a torso is made by (observation_shape, **options)",
        type_,
        *arguments,
        **options,
    )
    torso = type_(*arguments, **options)
    if not (isinstance(torso, nn.Cell) and isinstance(getattr(torso, "outputs", None), Integral)):
        raise ConfigError(
            f"network.torso {name} is no torso: it must be a mindspore.nn.Cell with the number of "
            "its features as the attribute outputs"
        )
    set_missing(torso, TORSO_DEFAULTS)
    return torso


def set_missing(cell, defaults):
    """Set the attributes that the cell's class has left out."""
    for attribute, default in defaults.items():
        if not hasattr(cell, attribute):
            setattr(cell, attribute, default)


def check_policy(policy, name, core):
    """Refuse a network of the user's that actor and learner could not use.

    Args:
        policy: What its class has made; attributes that it need not have are set where missing.
        name: Of the class.
        core: ``network.core`` of the configuration.

    Raises:
        ConfigError: If it is no Cell with parameters, or lacks an attribute or has a wrong one.
    """
    if not isinstance(policy, nn.Cell):
        raise ConfigError(f"the network {name} is no mindspore.nn.Cell")
    if not hasattr(policy, "_params"):
        raise ConfigError(f"the network {name} must call super().__init__() first")
    if not policy.trainable_params():
        raise ConfigError(f"the network {name} has no parameters that can be trained")
    if not hasattr(policy, "distribution"):
        raise ConfigError(
            f"the network {name} has no attribute distribution: keep the one that it is made with"
        )
    if not hasattr(policy.distribution, "num_parameters"):
        raise ConfigError(
            f"the network {name} has distribution {policy.distribution!r}: keep the one that it is "
            "made with"
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
    """Refuse outputs of a network of the user's, while it is compiled.

    Args:
        outputs: What its ``construct`` has returned.
        rows: N, of observations.
        width: A, numbers of the distribution of the actions.
        state_shape: ``(S, E, state_size)``; with a state_size of 0 there is no state.

    Raises:
        ValueError: If they are not as those of ``ActorCriticPolicy``.
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
            raise ValueError(f"the network must return {wanted}, but one is no float32 tensor")
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
    """Refuse what would not fit into memory.

    Raises:
        ConfigError: If there is more than ``WIDEST`` of it.
    """
    if width > WIDEST:
        raise ConfigError(
            f"{what} has {width:,} choices, which would be as many {kind} of the network; "
            f"{WIDEST:,} are allowed: wrap the environment, or give a network of your own"
        )
