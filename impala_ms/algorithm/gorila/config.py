"""The configuration of Gorila: what it is made of, and with which numbers it learns.

Every dict below is a section of settings, built from groups: ``impala_ms/settings.py`` says what
each key means, and its default. To change a default here, give it by name:
``section(settings.TRAINING, seed=7)``. For one run, override it: with ``--config FILE``,
``--set learner.lr=0.001`` or ``--lr 0.001``. The whole list is in ``docs/settings/gorila.md``.
"""

from impala_ms import settings
from impala_ms.configuration.checks import replay_that_can_be_used
from impala_ms.configuration.messages import count
from impala_ms.configuration.values import Setting
from impala_ms.metrics.columns import GRADIENTS_DROPPED, Q_LEARNING
from impala_ms.settings import section

wiring = "impala_ms.cluster.topology:star_of_gradients"  # P servers, N - P workers
wired_by = ("trainer.servers", "trainer.global_replay")  # P; with the latter N - P - 1 workers
work = "impala_ms.roles.bundles:Bundles"

# Nair et al. 2015, arXiv:1507.04296, in its bundled mode: each worker has a replay of its own.
OWN_REPLAY = {
    "batch_size": settings.REPLAY["batch_size"]._replace(
        meaning="B: each gradient is made from so many transitions."
    ),
    "replay_capacity": settings.REPLAY["replay_capacity"]._replace(
        meaning="The replay of each worker keeps so many of its newest decisions, in whole unrolls."
    ),
    "replay_start": settings.REPLAY["replay_start"]._replace(
        meaning="A worker makes gradients when so many decisions are in its replay."
    ),
    "replay_ratio": settings.REPLAY["replay_ratio"]._replace(
        meaning="A worker makes gradients from so many transitions for each decision that it "
        "makes. None: one gradient follows each unroll."
    ),
}

SERVERS = {
    "servers": Setting(
        1,
        "int",
        "ranks",
        ">= 1",
        "P: so many ranks are parameter servers, each with a range of the weights. With more than "
        "one, or with global_replay, a lost worker is left out and not started again.",
    ),
}

GLOBAL_REPLAY = {
    "global_replay": Setting(
        False,
        "bool",
        "",
        "",
        "If true, one more rank has a replay for all workers, in the place of theirs: what is said "
        "of a worker's replay is then said of this one.",
    ),
}

OUTLIERS = {
    "sigma": Setting(
        5.0,
        "float | None",
        "standard deviations",
        "> 0",
        "A worker does not send a gradient whose loss is so far above the mean of the losses "
        "before it. None sends all.",
    ),
}

collect_env_params = section(settings.ENVIRONMENT, num_envs=16)
eval_env_params = section(settings.EVALUATION_ENVIRONMENT)
network_params = section(settings.Q_NETWORK, hidden_sizes=[128, 128], activation="relu")
policy_params = section(settings.EPSILON)
learner_params = section(
    settings.LEARNER,
    settings.Q_LEARNING,
    settings.REWARDS,
    settings.OPTIMIZER,
    optimizer="adagrad",
    lr_schedule=None,
    n_step=None,
    adam_beta1=0.9,
    max_grad_norm=10.0,
)
trainer_params = section(
    settings.TRAINING,
    SERVERS,
    OWN_REPLAY,
    GLOBAL_REPLAY,
    OUTLIERS,
    settings.STALE_GRADIENTS,
    settings.FAULTS,
    settings.ACTORS,
    settings.FILES,
    settings.EVALUATION,
    max_policy_lag=100,
)

# A type is a class, or "module:Class" or "file.py:Class", which only the ranks that need it import.
algorithm_config = {
    "actor": {
        "number": None,
        "type": "impala_ms.agents.q_actor:QActor",
        "params": policy_params,
    },
    "learner": {  # its loss, on the workers; the server applies the gradients
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
        "learner.lr": 0.2,
        "learner.lr_schedule": "linear",
        "learner.n_step": 10,
        "learner.target_period": 50,
        "trainer.unroll_length": 16,
        "trainer.total_env_steps": 150_000,
        "trainer.batch_size": 256,
        "trainer.replay_capacity": 100_000,
        "trainer.replay_start": 1_000,
        "trainer.replay_ratio": 16.0,
    },
    # Mnih et al. 2015, extended data table 1, as the paper of Gorila takes its numbers from there;
    # but each worker has a replay of 100,000 decisions, which takes 0.8 GiB.
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
        "trainer.unroll_length": 20,
        "trainer.total_env_steps": 10_000_000,
        "trainer.batch_size": 32,
        "trainer.replay_capacity": 100_000,
        "trainer.replay_start": 12_500,
        "trainer.replay_ratio": 8.0,
    },
}

# Of metrics.csv, beside those that all algorithms have.
columns = (
    Q_LEARNING
    | GRADIENTS_DROPPED
    | {
        "gradients_withheld": (
            "gradients",
            "Gradients that workers have not sent since the last row, since their loss was an "
            "outlier: see `sigma`.",
        ),
    }
)


def check(values):
    """What does not fit together, one line for each problem."""
    return replay_that_can_be_used(values)


def sizes(values):
    """The sizes of an update, and of the replays, in a line."""
    batch, ratio = values["trainer.batch_size"], values["trainer.replay_ratio"]
    start, capacity = values["trainer.replay_start"], values["trainer.replay_capacity"]
    unroll = values["trainer.unroll_length"] * values["collect_env.num_envs"]
    every = unroll if ratio is None else batch / ratio
    whose, of = "each worker's replay keeps", " of the worker"
    if values["trainer.global_replay"]:
        whose, of = "the replay of all workers keeps", ""
    return [
        f"{whose} {capacity:,} decisions; from {start:,} on, a gradient of "
        f"{count(batch, 'transition')} for every {every:g} decisions{of}"
    ]
