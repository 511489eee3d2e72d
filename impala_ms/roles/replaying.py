"""Work is an unroll that goes into a replay; the learner learns from transitions drawn of it.

Input: ``Config``. Output: the loop of an actor that explores, the learner, its replay.
"""

import numpy as np

from impala_ms.agents.exploring import GaussianNoise
from impala_ms.agents.q_actor import FirstErrors, LadderOfEpsilons, LinearEpsilon
from impala_ms.memory import check_room
from impala_ms.replay.limiter import RateLimiter
from impala_ms.replay.rewards import Rewards
from impala_ms.replay.sampling import Prioritized, Uniform
from impala_ms.replay.transitions import TransitionReplay, ring_bytes
from impala_ms.roles.unrolls import Unrolls
from impala_ms.seeds import FOR_REPLAY


class ReplayedUnrolls(Unrolls):
    """Makes actors that explore, and a learner with a replay.

    Args:
        config: ``Config``.
    """

    actors_know_errors = True  # else new rows have the largest priority so far

    def __init__(self, config):
        self.config, params = config, config.trainer_params
        self.per_update, self.in_flight = 1, params.get("unrolls_in_flight", 1)
        learner = config.learner_params
        self.rewards = Rewards(learner["reward_clip"], learner["reward_scale"])
        self.n, self.gamma = learner["n_step"], learner["gamma"]
        self.prioritized = params.get("priority_exponent", 0.0) > 0.0
        if params["replay_ratio"] is None:  # nothing else holds the actors back
            self.learner_cores = learner["threads"] or 1

    def recorded(self, policy):
        """Further arguments of ``TrajectorySpec``."""
        params, envs = self.config.trainer_params, self.config.collect_env_params["num_envs"]
        fields = {"scored": ((envs,), np.dtype(np.bool_))}
        if self.prioritized and self.actors_know_errors:
            fields["error"] = (params["unroll_length"], envs), np.dtype(np.float32)
        return {"policy_parameters": 0, "recorded": fields, "next_mask": True}

    def acting(self, spec, policy, parts):
        """``(layout of the messages, trainer of an actor)``."""
        parts.actor.explore(*self.exploration(parts.number))
        if "error" in spec.fields:
            parts.actor.first_errors = FirstErrors(self.n, self.gamma, self.rewards)
        return super().acting(spec, policy, parts)

    def exploration(self, number):
        """``(epsilon, scored)`` of the actor of this number; see ``ExploringActor.explore``."""
        policy, envs = self.config.policy_params, self.config.collect_env_params["num_envs"]
        if "epsilon_base" in policy:
            base, power = policy["epsilon_base"], policy["epsilon_power"]
            ladder = LadderOfEpsilons(base, power, number, self.config.actors, envs)
            return ladder, ladder.scored
        names = ("epsilon_begin", "epsilon_end", "epsilon_steps")
        return LinearEpsilon(*(policy[name] for name in names)), True

    def row(self, recorder, dropped, withheld):
        """Further columns of a row; so much work was dropped, or not sent, since the last one."""
        epsilon, _ = self.exploration(1)
        probability = np.mean(epsilon(recorder.env_steps))
        every = recorder.episodes.all_return_mean
        return {"epsilon": probability, "episode_return_all_mean": every}

    def store(self, layout):
        """The replay of the learner."""
        return self.replay(layout, free=self.config.ranks > 1)

    def replay(self, layout, *owner, free=False, copies=1):
        """A replay.

        Args:
            layout: ``TrajectorySpec``.
            *owner: Numbers that its seed depends on, where there are several.
            free: Whether, with a replay_ratio of None, nobody waits; else each unroll is followed
                by one call of the learner.
            copies: So many of them must fit into the memory of this host.
        """
        params = self.config.trainer_params
        capacity = params["replay_capacity"]
        check_room(copies * ring_bytes(layout, capacity), "trainer.replay_capacity", capacity)
        rng = np.random.default_rng((params["seed"], self.config.epoch, FOR_REPLAY, *owner))
        sampler = Uniform(capacity, rng)
        if self.prioritized:
            alpha, beta = params["priority_exponent"], params["importance_exponent"]
            sampler = Prioritized(capacity, rng, alpha=alpha, beta=beta)
        draws = self.config.learner_params.get("updates_per_call", 1)
        batch, ratio = params["batch_size"] * draws, params["replay_ratio"]
        unroll = layout.unroll_length * layout.num_envs
        if ratio is None and not free:
            ratio = batch / unroll
        # So far the actors may be ahead: two batches, or two unrolls, are due then.
        slack = 2.0 * max(batch, unroll * (ratio or 0.0))
        return TransitionReplay(
            layout,
            capacity=capacity,
            batch_size=batch,
            draws=draws,
            n=self.n,
            gamma=self.gamma,
            rewards=self.rewards,
            sampler=sampler,
            limiter=RateLimiter(ratio, params["replay_start"], slack),
        )


class ReplayedMotions(ReplayedUnrolls):
    """The same for continuous actions: noise explores, and the critic stays at the learner."""

    actors_know_errors = False

    def exploration(self, number):
        """``(noise, scored)`` of the actor of this number; see ``ExploringActor.explore``."""
        policy, envs = self.config.policy_params, self.config.collect_env_params["num_envs"]
        start = self.config.trainer_params["replay_start"]
        noise, ladder = policy["noise"], policy["noise_ladder"]
        made = GaussianNoise(noise, ladder, start, number, self.config.actors, envs)
        return made, made.scored

    def row(self, recorder, dropped, withheld):
        """Further columns of a row; so much work was dropped, or not sent, since the last one."""
        return {"episode_return_all_mean": recorder.episodes.all_return_mean}
