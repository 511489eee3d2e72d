"""What the observations decide, and what is said of it at the start.

Input: the configuration, and the spaces of the environment. Output: the torso of the network, and
lines for the user.
"""

from impala_ms.trajectory import leaf_array, leaves

NO_IMAGES = "observations are not images"
SMALLEST_SIDE = 20  # pixels; the shallow network needs as many
IMPALA_POLICY = "impala_ms.algorithm.impala.network:IMPALAPolicy"


def seen_space(spaces):
    """Description of what the policy sees: stacked frames are ``[k, ...]``."""
    observation, frames = spaces["observation"], spaces["frame_stack"]
    return observation if frames == 1 else observation | {"shape": [frames, *observation["shape"]]}


def images_in(observation_space):
    """Shapes of the parts of an observation that are images: two sides of 20 pixels or more."""
    shapes = [leaf_array(leaf)[0] for leaf in leaves(observation_space).values()]
    return [shape for shape in shapes if len(shape) > 1 and sorted(shape)[-2] >= SMALLEST_SIDE]


def automatic_torso(observation_space):
    """The torso that is taken where the configuration names none.

    Args:
        observation_space: Description of the space.

    Returns:
        ``(name, why)``, such as ``("shallow", "observations are images [84, 84, 3]")``.
    """
    planes = [leaf_array(leaf)[0] for leaf in leaves(observation_space).values()]
    planes = [list(shape) for shape in planes if len(shape) > 1]
    images = [list(shape) for shape in images_in(observation_space)]
    shown = ", ".join(map(str, planes))
    if images and len(images) == len(planes):
        return "shallow", f"observations are images {shown}"
    if planes:
        return "mlp", f"{shown} is not an image of {SMALLEST_SIDE} x {SMALLEST_SIDE} or more"
    return "mlp", NO_IMAGES


def settle_torso(config, spaces):
    """Name the torso in the configuration where that says None.

    Returns:
        What the user is to know of it, a line; empty if there is nothing.
    """
    params, space = config.network_params, seen_space(spaces)
    if params["torso"] is None:
        params["torso"], why = automatic_torso(space)
        config.chosen["network.torso"] = why
        return f"chosen, since {why}: network.torso {params['torso']}" * (why != NO_IMAGES)
    if params["torso"] == "mlp" and (images := images_in(space)):
        return (
            f"warning: network.torso is mlp, but observations are images {list(images[0])}: "
            "shallow, nature and resnet are made for these"
        )
    return ""


def described(config, spaces):
    """Observations, actions and network in a line."""
    network = config.network_params
    torso = network["torso"]
    if torso == "mlp":
        torso += f" {network['hidden_sizes']}"
    core = "" if network["core"] == "none" else f" + {network['core']} {network['core_size']}"
    own = config.algorithm_config["policy_and_network"]["type"]
    name = f"{torso}{core}" if own == IMPALA_POLICY else own
    observation, action = _short(seen_space(spaces)), _short(spaces["action"])
    if spaces["action"]["type"] == "Box":
        scaled = config.collect_env_params["scale_actions"]
        action += f" {'scaled' if scaled else 'clipped'} to its bounds"
    return f"observation {observation}, action {action}, network {name}"


def _short(space):
    """A space for people: ``[4] float32``, ``Discrete 2``."""
    if space["type"] == "Box":
        return f"{space['shape']} {space['dtype']}"
    if "spaces" in space:
        parts = space["spaces"]
        named = parts.items() if isinstance(parts, dict) else enumerate(parts)
        return ", ".join(f"{name} {_short(part)}" for name, part in named)
    return f"{space['type']} {space.get('n', space.get('nvec'))}"
