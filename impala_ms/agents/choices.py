"""Choose the torso by the observations, and describe the run in a few lines at its start.

Input: the configuration, and the spaces of the environment. Output: the torso of the network, and
lines for the user.
"""

from impala_ms.spaces import leaf_array, leaves

NO_IMAGES = "observations are not images"
SMALLEST_SIDE = 20  # pixels; the shallow network needs so many
OURS = "impala_ms.agents."  # networks that take all of network_params


def seen_space(spaces):
    """Description of the policy's observations: stacked frames are ``[k, ...]``."""
    observation, frames = spaces["observation"], spaces["frame_stack"]
    return observation if frames == 1 else observation | {"shape": [frames, *observation["shape"]]}


def images_in(observation_space):
    """Shapes of the parts of an observation that are images: two sides of 20 pixels or more."""
    shapes = [leaf_array(leaf)[0] for leaf in leaves(observation_space).values()]
    return [shape for shape in shapes if len(shape) > 1 and sorted(shape)[-2] >= SMALLEST_SIDE]


def automatic_torso(observation_space):
    """The torso for a configuration that does not name one.

    Args:
        observation_space: Description of the space.

    Returns:
        ``(name, reason)``, such as ``("shallow", "observations are images [84, 84, 3]")``.
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
    """Put a torso into a configuration that does not name one.

    Returns:
        Lines that say which torso was chosen.
    """
    params = config.network_params
    if params["torso"] is not None:
        return []
    params["torso"], why = automatic_torso(seen_space(spaces))
    config.chosen["network.torso"] = why
    return [f"chosen, since {why}: network.torso {params['torso']}"] * (why != NO_IMAGES)


def warnings(config, spaces, has_step_limit=True):
    """Warnings, a line for each: settings that are allowed but probably a mistake.

    Args:
        config: ``Config``, with a torso.
        spaces: The spaces of the environment.
        has_step_limit: Whether the environment of the training has a time limit.
    """
    params, space = config.network_params, seen_space(spaces)
    lines = []
    images = images_in(space)
    if params["torso"] == "mlp" and images:
        lines.append(
            f"network.torso is mlp, but observations are images {list(images[0])}: shallow, nature "
            "and resnet are made for these"
        )
    elif params["torso"] == "mlp" and not params.get("normalize_observations", True):
        parts = [list(leaf_array(leaf)[0]) for leaf in leaves(space).values() if _is_large(leaf)]
        if parts:
            lines.append(
                f"observations {parts[0]} go up to 255 and are read as they are: "
                "--normalize_observations true scales them"
            )
    if params["torso"] != "mlp":
        parts = [leaf for leaf in leaves(space).values() if _is_large(leaf)]
        parts = [leaf["dtype"] for leaf in parts if len(leaf["shape"]) > 1]
        if wrong := [dtype for dtype in parts if dtype != "uint8"]:
            lines.append(
                f"images go up to 255 and are {wrong[0]}, which are read as they are: give them as "
                "uint8, or as numbers from 0 to 1"
            )
    unused = {
        "network.hidden_sizes": params["torso"] != "mlp",
        "network.activation": params["torso"] != "mlp",
        "network.core_size": params.get("core") == "none",
    }
    if config.algorithm_config["policy_and_network"]["type"].startswith(OURS):
        lines += [
            f"{path} is not used: the torso is {params['torso']}, the core {params['core']}"
            for path, is_unused in unused.items()
            if is_unused and config.is_changed(path)
        ]
    action = spaces["action"]
    if action["type"] == "Box" and not config.collect_env_params["scale_actions"]:
        low, high = (_numbers(action[bound]) for bound in ("low", "high"))
        if max(low) > -1.0 or min(high) < 1.0:
            lines.append(
                f"actions are only clipped to their bounds, {action['low']} to {action['high']}, "
                "and a new policy's are about -1 to 1: --scale_actions true scales them"
            )
    evaluation, id = config.eval_env_params, config.collect_env_params["id"]
    unlimited = evaluation["max_episode_steps"] is None and not has_step_limit
    if config.trainer_params["eval_interval_updates"] and unlimited and evaluation["id"] == id:
        lines.append(
            f"{id} has no time limit: an evaluation episode is cut off after "
            f"{config.trainer_params['eval_max_steps']:,} steps (trainer.eval_max_steps); "
            "eval_env.max_episode_steps sets a limit"
        )
    return [f"warning: {line}" for line in lines]


def _is_large(leaf):
    """Whether the numbers of a part go up to 255, as in images and in the RAM of a game."""
    return leaf["type"] == "Box" and max(_numbers(leaf["high"])) == 255.0


def _numbers(bound):
    """The bounds in a description as numbers; NaN if there is only a hash of them."""
    if isinstance(bound, str) and bound.startswith("sha256:"):
        return [float("nan")]
    return [float(value) for value in (bound if isinstance(bound, list) else [bound])]


def described(config, spaces):
    """Observations, actions and network in one line."""
    network = config.network_params
    torso = network["torso"]
    if torso == "mlp":
        torso += f" {network['hidden_sizes']}"
    core = network.get("core", "none")
    core = "" if core == "none" else f" + {core} {network['core_size']}"
    own = config.algorithm_config["policy_and_network"]["type"]
    name = f"{torso}{core}" if own.startswith(OURS) else own
    observation, action = _short(seen_space(spaces)), _short(spaces["action"])
    if spaces["action"]["type"] == "Box":
        scaled = config.collect_env_params["scale_actions"]
        action += f" {'scaled' if scaled else 'clipped'} to its bounds"
    if spaces["action_mask"]:
        action += " with a mask"
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
