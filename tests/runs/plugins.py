"""A user's own environments, trainers and networks, named in the configuration."""

import json
import os
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


class TroubledEnv(CartPoleEnv):
    """CartPole, with faults on one rank.

    Args:
        rank: The rank with the faults.
        fails_in_reset: Whether ``reset`` raises.
        fails_at_step: The step that raises, counted from 1 since the environment was made.
        exits_at_step: The step that calls ``sys.exit``.
        stuck_at_step: The step that never returns.
        nan_at_step: The first step with the reward NaN.
        after: Whether ``reset`` raises if there is a file ``trouble`` in the run folder.
        actions: Number of actions.
    """

    def __init__(
        self,
        rank,
        fails_in_reset=False,
        fails_at_step=0,
        exits_at_step=0,
        stuck_at_step=0,
        nan_at_step=float("inf"),
        actions=2,
        after=False,
    ):
        super().__init__()
        here = rank == RANK
        self.fails_in_reset = here and fails_in_reset
        self.fails_at_step = fails_at_step if here else 0
        self.exits_at_step = exits_at_step if here else 0
        self.stuck_at_step = stuck_at_step if here else 0
        self.nan_at_step = nan_at_step if here else float("inf")
        self.after = after
        self.action_space = gymnasium.spaces.Discrete(actions if here else 2)
        self.steps = 0

    def reset(self, **kwargs):
        if self.fails_in_reset:
            raise KeyError("no track")
        if self.after and Path(os.environ["IMPALA_MS_RUN_DIR"], "trouble").exists():
            raise RuntimeError("trouble after the start")
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at_step:
            raise ValueError(f"the wheel came off\nat step {self.steps}")
        if self.steps == self.exits_at_step:
            sys.exit(0)
        while self.steps == self.stuck_at_step:
            time.sleep(1.0)
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if self.steps >= self.nan_at_step else reward, *rest


class RecordingEnv(CartPoleEnv):
    """CartPole that writes its seeds to ``seeds_<rank>.txt`` in the run folder."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            with Path(os.environ["IMPALA_MS_RUN_DIR"], f"seeds_{RANK}.txt").open("a") as file:
                file.write(f"{json.dumps(seed)}\n")
        return super().reset(seed=seed, options=options)


class SlowEnv(CartPoleEnv):
    """CartPole with slow steps, on one rank or on all."""

    def __init__(self, rank=None):
        super().__init__()
        self.slow = rank is None or rank == RANK

    def step(self, action):
        if self.slow:
            time.sleep(0.01)
        return super().step(action)


gymnasium.register("Slow-v0", SlowEnv, max_episode_steps=500)
gymnasium.register("Troubled-v0", TroubledEnv, max_episode_steps=500)
gymnasium.register("Recording-v0", RecordingEnv, max_episode_steps=500)


def slow_trainer(parts, params):
    """Our trainer, with updates of one second."""
    from impala_ms.roles.learning import LearnerTrainer

    learn = parts.learner.learn

    def slowly(*arguments):
        time.sleep(1.0)
        return learn(*arguments)

    parts.learner.learn = slowly
    return LearnerTrainer(parts, params)


def slow_learner(*arguments):
    """Our learner; compiling its step takes 12 s longer."""
    from impala_ms.agents.actor_critic import VTraceLearner

    learner = VTraceLearner(*arguments)
    compile_ = learner.warm_up

    def slowly(batch):
        time.sleep(12.0)
        compile_(batch)

    learner.warm_up = slowly
    return learner


def recording_trainer(parts, params):
    """Our trainer; it writes the learner's first parameters to ``start_<epoch>.npz``."""
    from impala_ms.roles.learning import LearnerTrainer

    file = parts.process.run_dir / f"start_{parts.process.config.epoch}.npz"
    np.savez(file, **parts.learner.named_parameters())
    return LearnerTrainer(parts, params)


def __getattr__(name):
    """``PlainPolicy`` is made here: it imports MindSpore, which environments must not do."""
    if name != "PlainPolicy":
        raise AttributeError(name)
    from impala_ms.agents.network import ActorCriticPolicy

    class PlainPolicy(ActorCriticPolicy):
        """A network without memory that ignores its settings."""

        def __init__(
            self,
            space,
            distribution,
            torso,
            hidden_sizes,
            activation,
            core,
            core_size,
            last_action_reward,
            separate_baseline,
        ):
            super().__init__(space, distribution, hidden_sizes=hidden_sizes)

    return PlainPolicy
