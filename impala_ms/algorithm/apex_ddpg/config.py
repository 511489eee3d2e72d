"""The configuration of Ape-X DDPG: what it is made of, and with which numbers it learns.

Every dict below is a section of settings, built from groups: ``impala_ms/settings.py`` says what
each key means, and its default. To change a default here, give it by name:
``section(settings.TRAINING, seed=7)``. For one run, override it: with ``--config FILE``,
``--set learner.lr=0.001`` or ``--lr 0.001``. The whole list is in ``docs/settings/apex_ddpg.md``.
"""

from impala_ms import settings
from impala_ms.configuration.checks import (
    one_learner,
    replay_that_can_be_used,
    scaled_actions,
    size_of_a_replay,
)
from impala_ms.configuration.values import Setting
from impala_ms.metrics.columns import REPLAY
from impala_ms.settings import section

wiring = "impala_ms.cluster.topology:star_of_unrolls"  # 1 learner, N - 1 actors
work = "impala_ms.roles.replaying:ReplayedMotions"

# Horgan et al. 2018, arXiv:1803.00933, appendix D. The ladder is our own.
NOISE = {
    "noise": Setting(
        0.3,
        "float",
        "",
        ">= 0",
        "Gaussian noise of this standard deviation is added to actions of -1 ... 1.",
    ),
    "noise_ladder": Setting(
        0.0,
        "float",
        "",
        "[0, 1]",
        "The last of all environments has this part less noise than the first; the others lie "
        "between. 0: all have the same.",
    ),
}
DDPG = {
    "critic_lr": Setting(
        0.001, "float", "", "> 0", "The learning rate of the critic begins with this value."
    ),
    "target_rate": Setting(
        1.0,
        "float",
        "",
        "(0, 1]",
        "The target networks move this part of the way to the learned ones, every target_period "
        "updates. 1 makes them copies.",
    ),
    "slope_clip": Setting(
        1.0,
        "float | None",
        "",
        "> 0",
        "The critic's derivative for each number of an action is clipped to this. None does not "
        "clip.",
    ),
}
COLUMNS = {
    "action_at_bound_fraction": (
        "0-1",
        "Part of the policy's numbers that are beyond 0.99, almost at the bounds of the actions.",
    ),
    "policy_gradient_norm": (
        "",
        "Norm of the policy's gradient before it is clipped; gradient_norm is of the critic's.",
    ),
}

collect_env_params = section(settings.ENVIRONMENT, id="Pendulum-v1", num_envs=16)
eval_env_params = section(settings.EVALUATION_ENVIRONMENT)
network_params = section(
    settings.WITH_HEADS, hidden_sizes=[128], head_sizes=[128], activation="relu"
)
policy_params = section(NOISE)
learner_params = section(
    settings.LEARNER,
    settings.TRANSITIONS,
    settings.CALLS,
    DDPG,
    settings.REWARDS,
    settings.OPTIMIZER,
    lr_schedule="constant",
    n_step=5,
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
        "type": "impala_ms.agents.exploring:ExploringActor",
        "params": policy_params,
    },
    "learner": {
        "number": 1,
        "type": "impala_ms.agents.ddpg:DDPGLearner",
        "params": learner_params,
    },
    "policy_and_network": {
        "type": "impala_ms.agents.ddpg_network:DeterministicPolicy",
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

# What a setting that is None stands for. Any other value is yours. network.torso depends on the
# observations, which are known later. Atari games have no continuous actions.
automatic = {
    kind: {
        "collect_env.frame_stack": 1,
        "learner.reward_clip": "none",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.001,
        "learner.target_period": 100,
        "learner.updates_per_call": 8,
        "trainer.unroll_length": 20,
        "trainer.total_env_steps": 300_000,
        "trainer.batch_size": 128,
        "trainer.replay_capacity": 200_000,
        "trainer.replay_start": 1_000,
    }
    for kind in ("other", "atari")
}

# Of metrics.csv, beside those that all algorithms have.
columns = REPLAY | COLUMNS


def check(values):
    """What does not fit together, one line for each problem."""
    return [*one_learner(values), *replay_that_can_be_used(values), *scaled_actions(values)]


sizes = size_of_a_replay  # said at the start
