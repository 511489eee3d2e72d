"""The configuration of Ape-X DQN: what it is made of, and with which numbers it learns.

Every dict below is a section of settings, built from groups: ``impala_ms/settings.py`` says what
each key means, and its default. To change a default here, give it by name:
``section(settings.TRAINING, seed=7)``. For one run, override it: with ``--config FILE``,
``--set learner.lr=0.001`` or ``--lr 0.001``. The whole list is in ``docs/settings/apex_dqn.md``.
"""

from impala_ms import settings
from impala_ms.configuration.checks import (
    one_learner,
    replay_that_can_be_used,
    size_of_a_replay,
)
from impala_ms.configuration.values import Setting
from impala_ms.metrics.columns import Q_LEARNING
from impala_ms.settings import section

wiring = "impala_ms.cluster.topology:star_of_unrolls"  # 1 learner, N - 1 actors
work = "impala_ms.roles.replaying:ReplayedUnrolls"

# Horgan et al. 2018, arXiv:1803.00933, section 4.1: environment i of M takes a random action with
# the probability epsilon_base ^ (1 + epsilon_power i / (M - 1)).
LADDER = {
    "epsilon_base": Setting(
        0.4,
        "float",
        "",
        "[0, 1]",
        "The first environment takes a random action with this probability.",
    ),
    "epsilon_power": Setting(
        7.0,
        "float",
        "",
        ">= 0",
        "The last environment does so with the probability epsilon_base ^ (1 + epsilon_power); "
        "the others lie between.",
    ),
}

collect_env_params = section(settings.ENVIRONMENT, num_envs=16)
eval_env_params = section(settings.EVALUATION_ENVIRONMENT)
network_params = section(
    settings.Q_NETWORK, hidden_sizes=[128, 128], activation="relu", dueling=None
)
policy_params = section(LADDER)
learner_params = section(
    settings.LEARNER,
    settings.Q_LEARNING,
    settings.CALLS,
    settings.REWARDS,
    settings.OPTIMIZER,
    lr_schedule=None,
    n_step=None,
    double=True,
    adam_beta1=0.9,
    error_clip=None,
)
trainer_params = section(
    settings.TRAINING,
    settings.REPLAY,
    settings.FAULTS,
    settings.ACTORS,
    settings.FILES,
    settings.EVALUATION,
    priority_exponent=0.6,
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
    "other": {  # tuned on CartPole-v1
        "collect_env.frame_stack": 1,
        "network.dueling": False,
        "learner.reward_clip": "none",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.004,
        "learner.lr_schedule": "linear",
        "learner.n_step": 20,
        "learner.target_period": 50,
        "learner.updates_per_call": 8,
        "trainer.unroll_length": 40,
        "trainer.total_env_steps": 500_000,
        "trainer.batch_size": 256,
        "trainer.replay_capacity": 100_000,
        "trainer.replay_start": 1_000,
    },
    # The paper, section 4.1 and appendix C; but Adam, and a replay of 200,000 instead of 2,000,000
    # decisions, which takes 1.6 GiB.
    "atari": {
        "network.torso": "nature",
        "network.dueling": True,
        "collect_env.frame_stack": 4,
        "learner.reward_clip": "abs_one",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.0001,
        "learner.lr_schedule": "constant",
        "learner.n_step": 3,
        "learner.target_period": 2_500,
        "learner.updates_per_call": 1,
        "trainer.unroll_length": 20,
        "trainer.total_env_steps": 10_000_000,
        "trainer.batch_size": 512,
        "trainer.replay_capacity": 200_000,
        "trainer.replay_start": 50_000,
    },
}

# Of metrics.csv, beside those that all algorithms have.
columns = Q_LEARNING


def check(values):
    """What does not fit together, one line for each problem."""
    return [*one_learner(values), *replay_that_can_be_used(values)]


sizes = size_of_a_replay  # said at the start
