"""Evaluation: play whole episodes with a policy's current weights.

Input: an actor, a new environment. Output: the raw returns of the episodes.
"""

import logging
import math

import numpy as np

from impala_ms.agents.actor import Stream

logger = logging.getLogger(__name__)


def evaluate(
    actor, environment, episodes, *, greedy, seed, max_steps=math.inf, stop=None, ended=None
):
    """Play whole episodes with the actor's current weights.

    Every environment plays its share of the episodes, so that long episodes count as much as short
    ones. The environment must be new: then equal seeds give equal returns.

    Without a time limit an episode may never end. After ``max_steps`` steps it is cut off and
    counts with its return so far; its environment plays no further episode. A warning says so.

    Args:
        actor: ``PolicyActor``.
        environment: A new ``VectorEnvironment``.
        episodes: Number of episodes.
        greedy: Whether to take the mode instead of a sample.
        seed: Seed of the generator that samples the actions.
        max_steps: Limit of an episode if the environment has no time limit.
        stop: None, or a function that ends the evaluation early if it returns True.
        ended: None, or a function that is called after each step with the number of episodes that
            have ended.

    Returns:
        ``[episodes]`` float64 raw returns, fewer if some were cut off, or None if stopped early.
    """
    envs = environment.num_envs
    limit = max_steps if environment.step_limit is None else math.inf
    so_far, lengths, cut = np.zeros(envs), np.zeros(envs, np.int64), 0
    quota = np.full(envs, episodes // envs)
    quota[: episodes % envs] += 1
    returns = [[] for _ in range(envs)]
    stream = Stream(environment, actor.policy)
    rng, actor.rng = actor.rng, np.random.default_rng(seed)
    try:
        while quota.any():
            if stop is not None and stop():
                return None
            action, _, state = actor.choose(stream, greedy)
            reward, _ = stream.step(action, state)
            so_far, lengths = so_far + reward, lengths + ~stream.first
            for env, value, _ in zip(*environment.finished, strict=True):
                so_far[env] = lengths[env] = 0
                if quota[env]:
                    quota[env] -= 1
                    returns[env].append(value)
            for env in np.flatnonzero((lengths >= limit) & (quota > 0)):
                quota[env], cut = 0, cut + 1
                returns[env].append(so_far[env])
            if ended is not None:
                ended(sum(map(len, returns)))
    finally:
        actor.rng = rng
    if cut:
        logger.warning(
            "%d of %d evaluation episodes were cut off after %d steps, and count with their return "
            "so far: %s has no time limit (eval_env.max_episode_steps sets one)",
            *(cut, sum(map(len, returns)), max_steps, environment.id),
        )
    return np.concatenate(returns)
