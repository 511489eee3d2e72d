"""Make the parts that a configuration names: network, actor, learner, environments, layout.

Input: ``Config``, and the spaces of the environment. Output: the parts of a rank, checked. A rank
imports only the classes that it needs. A class of the user gets copies: what it does to them, such
as ``hidden_sizes.pop()``, is not seen by the next one, nor saved.
"""

import copy
from functools import partial
from pathlib import Path

from impala_ms import checkpoint, seeds
from impala_ms.agents.checks import check_policy
from impala_ms.agents.choices import automatic_torso, seen_space
from impala_ms.agents.evaluation import evaluate
from impala_ms.classes import check_arguments, resolve
from impala_ms.config import check_kept
from impala_ms.errors import ConfigError
from impala_ms.ops.distributions import make_distribution
from impala_ms.spaces import leaf_array, leaves
from impala_ms.trajectory import TrajectorySpec


def make_policy(config, spaces):
    """The network for these spaces; its parameters have the same order on every rank.

    Raises:
        ConfigError: If the user's own network takes other settings, or cannot be used.
    """
    name = config.algorithm_config["policy_and_network"]["type"]
    network = resolve(name)
    observation = copy.deepcopy(seen_space(spaces))
    params = copy.deepcopy(config.network_params)
    params["torso"] = params["torso"] or automatic_torso(observation)[0]
    options = params.pop("options")
    normalize = params.get("normalize_observations", False)
    if not normalize:  # a user's own network may not have this argument
        params.pop("normalize_observations", None)
    arguments = observation, make_distribution(spaces["action"])
    check_arguments(
        f"the network {name}",
        "it is made by (observation_space, distribution, **all that is in network_params and its "
        "options)",
        network,
        *arguments,
        **options,
        **params,
    )
    policy = network(*arguments, **options, **params)
    check_policy(policy, name, params.get("core", "none"))
    parts = leaves(spaces["observation"])
    policy.parts = 0 if "" in parts else len(parts)
    policy.frame_stack = spaces["frame_stack"]
    policy.twin = partial(make_policy, config, spaces)  # another one, with weights of its own
    if params.get("separate_baseline") and not hasattr(policy, "baseline_torso"):
        raise ConfigError(
            f"network.separate_baseline is true, but the network {name} has no baseline_torso: "
            "set it to false"
        )
    if normalize and getattr(policy, "normalizer", None) is None:
        raise ConfigError(
            f"network.normalize_observations is true, but the network {name} does not do that: "
            "set it to false"
        )
    return policy


def check_actions(state, spaces, path):
    """Refuse a checkpoint of a policy for other actions, even if its weights fit.

    Raises:
        CheckpointError: If the action space is another. Older checkpoints do not hold theirs.
    """
    there = state.get("spaces", spaces)["action"]
    if there != spaces["action"]:
        raise checkpoint.CheckpointError(
            f"the checkpoint {path} is of a policy for the actions {there}, and those here are "
            f"{spaces['action']}: give an environment with the same actions"
        )


def begin_with(config, learner, spaces):
    """Give a new run the weights of a checkpoint, or of the newest checkpoint in a run folder.

    Raises:
        CheckpointError: If it cannot be read, or is of another network.
        ConfigError: If settings that belong to the weights differ.
    """
    source = Path(config.trainer_params["init_from"])
    if source.is_dir():
        path, saved, state = checkpoint.latest(source / "checkpoints")
    else:
        path, (saved, state) = source, checkpoint.load(source)
    here = {parameter.name: parameter for parameter in learner.policy.get_parameters()}
    checkpoint.restore(here, checkpoint.of_network(saved, state), path)
    check_actions(state, spaces, path)
    bounded = spaces["action"]["type"] == "Box"
    without = () if bounded else ("collect_env.scale_actions",)
    check_kept(config, state["config"], f"the weights of {path} are taken, but there", without)
    return path


def make_actor(config, policy, environment, rng):
    """The actor that the configuration names."""
    actor = resolve(config.algorithm_config["actor"]["type"])
    return actor(policy, environment, config.trainer_params["unroll_length"], rng)


def make_learner(config, policy):
    """The learner that the configuration names.

    Raises:
        ConfigError: If the user's own learner takes other options.
    """
    name = config.algorithm_config["learner"]["type"]
    learner, params = resolve(name), copy.deepcopy(config.learner_params)
    options = params.get("options", {})
    arguments = policy, params, config.trainer_params["total_env_steps"]
    check_arguments(
        f"the learner {name} with learner.options {options}",
        "it is made by (policy, learner_params, total_env_steps, **learner.options)",
        learner,
        *arguments,
        **options,
    )
    return learner(*arguments, **options)


def make_spec(config, spaces, policy, **recorded):
    """The layout of an unroll, the same on every rank.

    Args:
        config: ``Config``.
        spaces: ``VectorEnvironment.spaces()``.
        policy: The network.
        **recorded: Arguments of ``TrajectorySpec`` that depend on the kind of agent.
    """
    parts = leaves(spaces["observation"])
    distribution = policy.distribution
    return TrajectorySpec(
        unroll_length=config.trainer_params["unroll_length"],
        num_envs=config.collect_env_params["num_envs"],
        observation={path: leaf_array(leaf) for path, leaf in parts.items()},
        action_shape=distribution.action_shape,
        action_dtype=distribution.action_dtype,
        frame_stack=spaces["frame_stack"],
        mask_size=spaces["action_mask"],
        inputs=policy.inputs,
        state_size=policy.state_size,
        **{"policy_parameters": distribution.num_parameters} | recorded,
    )


def make_environment(config, kind, num_envs, seeds):
    """The environment for ``collect`` or ``eval``."""
    params = copy.deepcopy(getattr(config, f"{kind}_env_params"))
    params.pop("num_envs")
    make = resolve(config.algorithm_config[f"{kind}_environment"]["type"])
    return make(params.pop("id"), num_envs=num_envs, seeds=seeds, **params)


def evaluate_policy(
    config, actor, *, episodes, greedy, stop=None, ended=None, number=seeds.FOR_EVALUATION
):
    """Play evaluation episodes. Equal weights, episodes and seed give equal returns.

    Args:
        config: ``Config``; ``eval_env_params`` describes the environment.
        actor: ``PolicyActor`` with the weights to play with.
        episodes: Number of episodes.
        greedy: Whether to take the most likely action instead of a sample.
        stop: None, or a function that ends the evaluation early if it returns True.
        ended: None, or a function that is called after each step with the number of episodes that
            have ended.
        number: Number in place of a rank's in the seeds, of ``seeds``.

    Returns:
        ``[episodes]`` float64 raw returns, or None if stopped early.
    """
    envs, seed = min(config.eval_env_params["num_envs"], episodes), config.trainer_params["seed"]
    environment = make_environment(
        config, "eval", envs, seeds.episode_seeds(seed, 0, number, 0, envs)
    )
    try:
        return evaluate(
            actor,
            environment,
            episodes,
            greedy=greedy,
            seed=seeds.of_actions(seed, 0, number, 0),
            max_steps=config.trainer_params["eval_max_steps"],
            stop=stop,
            ended=ended,
        )
    finally:
        environment.close()
