"""The configuration of IMPALA: what it is made of, and with which numbers it learns.

Every dict below is a section of settings. It is built from groups, most of which are shared by
all algorithms: ``impala_ms/settings.py`` says what each key means, and its default. To change a
default here, give it by name: ``section(settings.TRAINING, seed=7)``. For one run, override it:
with ``--config FILE``, ``--set learner.lr=0.001`` or ``--lr 0.001``. The whole list of settings is
in ``docs/settings/impala.md``.
"""

from impala_ms import settings
from impala_ms.configuration.checks import (
    baseline_without_core,
    one_learner,
    one_unroll_of_each_actor,
    size_of_an_update,
    synchronous_rounds,
    whole_replayed_unrolls,
    whole_unrolls,
)
from impala_ms.configuration.values import Setting
from impala_ms.metrics.columns import ACTOR_CRITIC
from impala_ms.settings import section

wiring = "impala_ms.cluster.topology:star_of_unrolls"  # 1 learner, N - 1 actors
work = "impala_ms.roles.unrolls:Unrolls"

# Section 4.1 of the paper, Espeholt et al. 2018, arXiv:1802.01561.
VTRACE = {
    "correction": Setting(
        "vtrace",
        "str",
        "",
        ["vtrace", "one_step_is", "epsilon", "none"],
        "The policy lag is corrected in this way; the paper compares these four.",
    ),
    "rho_bar": Setting(
        1.0,
        "float | None",
        "",
        "> 0",
        "The importance weight of a temporal difference is clipped to this. None does not clip.",
    ),
    "c_bar": Setting(
        1.0,
        "float | None",
        "",
        "> 0",
        "The importance weight of the trace is clipped to this. None does not clip.",
    ),
    "pg_rho_bar": Setting(
        1.0,
        "float | None",
        "",
        "> 0",
        "The importance weight of an advantage is clipped to this. None does not clip.",
    ),
    "lambda_": Setting(
        1.0, "float", "", "[0, 1]", "The trace is multiplied by this factor at each step."
    ),
    "epsilon": Setting(
        1e-6, "float", "", "> 0", "Correction `epsilon` adds this to the probabilities."
    ),
}

# Section 5.2.2 of the paper; replay_updates are our own.
REPLAY = {
    "replay_updates": Setting(
        0,
        "int",
        "gradient steps",
        ">= 0",
        "Each update makes this many further gradient steps, each with an earlier batch.",
    ),
    "replay_batches": Setting(
        16, "int", "batches", ">= 1", "This many of the newest batches are kept for replay_updates."
    ),
    "replay_fraction": Setting(
        0.0,
        "float",
        "",
        "[0, 1)",
        "This part, f, of what an update learns from is replayed. Beside S new unrolls a batch has "
        "R = S f / (1 - f) unrolls of earlier trajectories, a whole number.",
    ),
    "replay_trajectories": Setting(
        10_000,
        "int",
        "trajectories of one environment",
        ">= 1",
        "So many of the newest trajectories are kept for replay_fraction.",
    ),
}

collect_env_params = section(settings.ENVIRONMENT)
eval_env_params = section(settings.EVALUATION_ENVIRONMENT)
network_params = section(settings.NETWORK)
policy_params = section(settings.POLICY)
learner_params = section(
    settings.LEARNER, VTRACE, settings.REWARDS, settings.ACTOR_CRITIC, settings.OPTIMIZER
)
trainer_params = section(
    settings.TRAINING,
    settings.BATCHES,
    REPLAY,
    settings.FAULTS,
    settings.ACTORS,
    settings.FILES,
    settings.EVALUATION,
)

# A type is a class, or "module:Class" or "file.py:Class", which only the ranks that need it import.
algorithm_config = {
    "actor": {
        "number": None,
        "type": "impala_ms.agents.actor:PolicyActor",
        "params": policy_params,
    },
    "learner": {
        "number": 1,
        "type": "impala_ms.agents.actor_critic:VTraceLearner",
        "params": learner_params,
    },
    "policy_and_network": {
        "type": "impala_ms.agents.network:ActorCriticPolicy",
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
    "other": {  # learns CartPole-v1 fastest
        "collect_env.frame_stack": 1,
        "learner.reward_clip": "none",
        "learner.reward_scale": 0.1,
        "learner.lr": 0.002,
        "trainer.unroll_length": 10,
        "trainer.total_env_steps": 600_000,
    },
    "atari": {  # the paper, table G.1
        "network.torso": "shallow",
        "collect_env.frame_stack": 4,
        "learner.reward_clip": "abs_one",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.0006,
        "trainer.unroll_length": 20,
        "trainer.total_env_steps": 10_000_000,
    },
}

# Of metrics.csv, beside those that all algorithms have.
columns = ACTOR_CRITIC | {
    "replay_trajectories": (
        "trajectories",
        "Trajectories in the replay. Empty without replay_fraction.",
    ),
    "replay_age_mean": (
        "updates",
        "How much older the weights behind a replayed trajectory are than those behind the newest "
        "one. Mean since the last row. Empty without replay_fraction.",
    ),
    "rho_mean": (
        "",
        "Mean ratio of the learner's to the actor's probability of the action taken, before "
        "clipping. 1 when the data is on-policy.",
    ),
    "rho_clipped_fraction": (
        "0-1",
        "Share of valid rows whose ratio was above `rho_bar` and was clipped to it.",
    ),
}


def check(values):
    """What does not fit together, one line for each problem."""
    return [
        *one_learner(values),
        *whole_unrolls(values),
        *synchronous_rounds(values),
        *whole_replayed_unrolls(values),
        *baseline_without_core(values),
    ]


derive = one_unroll_of_each_actor  # gives batch_size where it is None
sizes = size_of_an_update  # said at the start
