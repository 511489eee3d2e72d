"""The configuration of A3C: what it is made of, and with which numbers it learns.

Every dict below is a section of settings, built from groups: ``impala_ms/settings.py`` says what
each key means, and its default. To change a default here, give it by name:
``section(settings.TRAINING, seed=7)``. For one run, override it: with ``--config FILE``,
``--set learner.lr=0.001`` or ``--lr 0.001``. The whole list is in ``docs/settings/a3c.md``.
"""

from impala_ms import settings
from impala_ms.cluster.topology import acting
from impala_ms.configuration.checks import baseline_without_core
from impala_ms.configuration.messages import count
from impala_ms.configuration.values import Setting
from impala_ms.metrics.columns import ACTOR_CRITIC, GRADIENTS_DROPPED
from impala_ms.settings import section

also = (("a2c", "a3c --synchronous true"),)  # systems that are this one with other settings
wiring = "impala_ms.cluster.topology:star_of_gradients"  # 1 server, N - 1 workers
work = "impala_ms.roles.shares:SharedGradients"

# Mnih et al. 2016, arXiv:1602.01783, algorithm S3 and section 4.
RETURNS = {
    "lambda_": Setting(
        1.0,
        "float",
        "",
        "[0, 1]",
        "Returns of different lengths are mixed by this factor. 1 takes the longest, as the paper "
        "does; 0 takes one step.",
    ),
}

GRADIENTS = {
    "gradients_per_update": Setting(
        None,
        "int | None",
        "gradients",
        ">= 1",
        "An update applies this many gradients together, weighted by their valid rows. None takes "
        "1, or, when synchronous, one of each worker, which is A2C.",
    ),
    "synchronous": Setting(
        False,
        "bool",
        "",
        "",
        "If true, every update waits for one gradient of each worker, and no gradient is old.",
    ),
}

collect_env_params = section(settings.ENVIRONMENT, num_envs=16)
eval_env_params = section(settings.EVALUATION_ENVIRONMENT)
network_params = section(settings.NETWORK)
policy_params = section(settings.POLICY)
learner_params = section(
    settings.LEARNER,
    RETURNS,
    settings.REWARDS,
    settings.ACTOR_CRITIC,
    settings.OPTIMIZER,
    optimizer="rmsprop",
    rmsprop_start=0.0,
)
trainer_params = section(
    settings.TRAINING,
    GRADIENTS,
    settings.STALE_GRADIENTS,
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
    "learner": {  # its loss, on the workers; the server applies the gradients
        "type": "impala_ms.agents.actor_critic:ActorCriticLearner",
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
    "other": {
        "collect_env.frame_stack": 1,
        "learner.reward_clip": "none",
        "learner.reward_scale": 0.1,
        "learner.lr": 0.002,
        "trainer.unroll_length": 10,
        "trainer.total_env_steps": 1_000_000,
    },
    "atari": {  # the paper, section 8 of its supplement; lr: within the range of figure S2
        "network.torso": "nature",
        "collect_env.frame_stack": 4,
        "learner.reward_clip": "abs_one",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.0007,
        "trainer.unroll_length": 5,
        "trainer.total_env_steps": 10_000_000,
    },
}

# Of metrics.csv, beside those that all algorithms have.
columns = ACTOR_CRITIC | GRADIENTS_DROPPED


def check(values):
    """What does not fit together, one line for each problem."""
    return [
        *baseline_without_core(values),
        *enough_workers(values),
        *one_gradient_of_each_worker(values),
        *no_running_statistics(values),
    ]


def enough_workers(values):
    """Every worker has one gradient under way: an update of more would never be full."""
    gradients, workers = values.get("trainer.gradients_per_update"), values.actors
    if values.get("trainer.synchronous") or (gradients or 1) <= workers:
        return []
    return [
        f"{values.given('trainer.gradients_per_update')}: must be at most {workers}, the number of "
        "workers, since each waits until its gradient was applied"
    ]


def one_gradient_of_each_worker(values):
    """When synchronous, every worker gives one gradient to an update."""
    gradients, workers = values.get("trainer.gradients_per_update"), values.actors
    if not values.get("trainer.synchronous") or gradients == workers:
        return []
    return [
        f"{values.given('trainer.gradients_per_update')}: when synchronous, an update takes one "
        f"gradient of each of the {count(workers, 'worker')}: None or {workers}"
    ]


def no_running_statistics(values):
    """Workers would each have statistics of their own."""
    if not values.get("network.normalize_observations"):
        return []
    return [
        f"{values.given('network.normalize_observations')}: A3C's workers do not share running "
        "statistics yet: set it to false, or scale the observations in the environment"
    ]


def derive(values, places):
    """How many gradients there are in an update, where the number is None."""
    if values.get("trainer.gradients_per_update", 0) is not None:
        return {}
    every = max(acting(places), 1)
    return {"trainer.gradients_per_update": every if values.get("trainer.synchronous") else 1}


def sizes(values):
    """The sizes of an update in a line."""
    gradients, unroll = values["trainer.gradients_per_update"], values["trainer.unroll_length"]
    envs = values["collect_env.num_envs"]
    return [
        f"an update applies {count(gradients, 'gradient')}, each of unroll_length x num_envs = "
        f"{unroll} x {envs} = {unroll * envs:,} env steps"
    ]
