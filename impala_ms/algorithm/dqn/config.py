"""The configuration of DQN: what it is made of, and with which numbers it learns.

Every dict below is a section of settings, built from groups: ``impala_ms/settings.py`` says what
each key means, and its default. To change a default here, give it by name:
``section(settings.TRAINING, seed=7)``. For one run, override it: with ``--config FILE``,
``--set learner.lr=0.001`` or ``--lr 0.001``. The whole list is in ``docs/settings/dqn.md``.
"""

from impala_ms import settings
from impala_ms.configuration.checks import (
    one_learner,
    replay_that_can_be_used,
    size_of_a_replay,
)
from impala_ms.metrics.columns import Q_LEARNING
from impala_ms.settings import section

wiring = "impala_ms.cluster.topology:star_of_unrolls"  # 1 learner, N - 1 actors
work = "impala_ms.roles.replaying:ReplayedUnrolls"

collect_env_params = section(settings.ENVIRONMENT, num_envs=16)
eval_env_params = section(settings.EVALUATION_ENVIRONMENT)
network_params = section(settings.Q_NETWORK, hidden_sizes=[128, 128], activation="relu")
policy_params = section(settings.EPSILON)
learner_params = section(
    settings.LEARNER,
    settings.Q_LEARNING,
    settings.CALLS,
    settings.REWARDS,
    settings.OPTIMIZER,
    lr_schedule=None,
    n_step=None,
    adam_beta1=0.9,
    max_grad_norm=10.0,
)
trainer_params = section(
    settings.TRAINING,
    settings.REPLAY,
    settings.FAULTS,
    settings.ACTORS,
    settings.FILES,
    settings.EVALUATION,
)

# A type is a class, or "module:Class" or "file.py:Class", which only the ranks that need it import.
algorithm_config = {
    "actor": {
        "number": None,
        "type": "impala_ms.agents.q_actor:QActor",
        "params": policy_params,
    },
    "learner": {
        "number": 1,
        "type": "impala_ms.agents.q_learning:QLearner",
        "params": learner_params,
    },
    "policy_and_network": {
        "type": "impala_ms.agents.q_network:QNetwork",
        "params": network_params,
    },
    "collect_environment": {
        "type": "impala_ms.envs.make:make_vec",
        "params": collect_env_params,
    },
    "eval_environment": {
        "type": "impala_ms.envs.make:make_vec",
        "params": eval_env_params,
    },
    "trainer": {
        "type": "impala_ms.roles.learning:LearnerTrainer",
        "params": trainer_params,
    },
    "session": {
        "type": "impala_ms.roles.session:RoleSession",
        "params": None,
    },
}

# What a setting that is None stands for, by the kind of environment. Any other value is yours.
# network.torso depends on the observations, which are known later.
automatic = {
    "other": {  # tuned on CartPole-v1; the paper's returns have one step
        "collect_env.frame_stack": 1,
        "policy.epsilon_end": 0.1,
        "policy.epsilon_steps": 5_000,
        "learner.reward_clip": "none",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.004,
        "learner.lr_schedule": "linear",
        "learner.n_step": 10,
        "learner.target_period": 50,
        "learner.updates_per_call": 8,
        "trainer.unroll_length": 16,
        "trainer.total_env_steps": 150_000,
        "trainer.batch_size": 256,
        "trainer.replay_capacity": 100_000,
        "trainer.replay_start": 1_000,
        "trainer.replay_ratio": 16.0,
    },
    # Mnih et al. 2015, extended data table 1; but Adam, and a replay of 200,000 instead of
    # 1,000,000 decisions, which takes 1.6 GiB.
    "atari": {
        "network.torso": "nature",
        "collect_env.frame_stack": 4,
        "policy.epsilon_end": 0.1,
        "policy.epsilon_steps": 250_000,
        "learner.reward_clip": "abs_one",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.0001,
        "learner.lr_schedule": "constant",
        "learner.n_step": 1,
        "learner.target_period": 10_000,
        "learner.updates_per_call": 1,
        "trainer.unroll_length": 20,
        "trainer.total_env_steps": 10_000_000,
        "trainer.batch_size": 32,
        "trainer.replay_capacity": 200_000,
        "trainer.replay_start": 12_500,
        "trainer.replay_ratio": 8.0,
    },
}

# Of metrics.csv, beside those that all algorithms have.
columns = Q_LEARNING


def check(values):
    """What does not fit together, one line for each problem."""
    return [*one_learner(values), *replay_that_can_be_used(values)]


sizes = size_of_a_replay  # said at the start
