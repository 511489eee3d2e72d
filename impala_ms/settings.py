"""Every setting that algorithms share: its default, type, unit, bounds and meaning, once.

An algorithm's ``config.py`` builds its dicts from these groups, with defaults of its own:

    trainer_params = section(TRAINING, BATCHES, FAULTS, FILES, EVALUATION, unroll_length=20)

What only one algorithm has is a group in its own ``config.py``. A default of None that stands in
``automatic`` there depends on the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impala_ms.configuration.messages import nearest
from impala_ms.configuration.sections import Section
from impala_ms.configuration.values import Setting
from impala_ms.errors import ConfigError

# What `--help` shows of an algorithm that has it; `--help all` shows the rest too.
USUAL = (
    "env",
    "num_envs",
    "core",
    "normalize_observations",
    "lr",
    "entropy_cost",
    "gamma",
    "seed",
    "total_env_steps",
    "unroll_length",
    "batch_size",
    "eval_interval_updates",
    "run_dir",
)


def section(*groups: Mapping[str, Setting], **defaults: Any) -> Section:
    """A dict of settings for users to edit.

    Args:
        *groups: Their keys, in this order.
        **defaults: Where the algorithm's default is another than the common one. With None, the
            key may be None: ``automatic`` has a value for it.

    Raises:
        ConfigError: If there is no such key.
    """
    settings = {key: setting for group in groups for key, setting in group.items()}
    for key, value in defaults.items():
        if key not in settings:
            raise ConfigError(f"unknown setting {key}: {nearest(key, settings)}")
        if value is None and not settings[key].type.endswith(" | None"):
            settings[key] = settings[key]._replace(type=f"{settings[key].type} | None")
    values = Section(settings)
    values.update(defaults)
    return values


ENVIRONMENT = {
    "id": Setting(
        "CartPole-v1",
        "reference",
        "",
        "",
        "The environment is named by its gymnasium or envpool id. `module:ID` or `file.py:ID` "
        "first imports what registers the id.",
    ),
    "num_envs": Setting(
        32,
        "int",
        "environments per actor",
        ">= 1",
        "E: each actor steps this many environments together, in one call.",
    ),
    "vectorization": Setting(
        "auto",
        "str",
        "",
        ["auto", "vector_entry_point", "sync", "processes", "envpool"],
        "An actor steps its environments in this way. `vector_entry_point`: by the "
        "environment's own vector version; `sync`: one after the other; `processes`: in worker "
        "processes, for a step slower than about 1 ms; `envpool`: by envpool. `auto` takes "
        "envpool for Atari games and for what gymnasium lacks, else the vector version if there"
        " is one, else `sync`.",
    ),
    "kwargs": Setting(
        {},
        "dict",
        "",
        "",
        "The environment's constructor, or envpool, gets these arguments. Atari games take "
        "episodic_life, noop_max, repeat_action_probability, full_action_space, fire_reset and "
        "size.",
    ),
    "max_episode_steps": Setting(
        None,
        "int | None",
        "decisions",
        ">= 1",
        "An episode is cut off after this many decisions. None keeps the environment's own limit.",
    ),
    "action_repeat": Setting(
        None,
        "int | None",
        "frames per decision",
        ">= 1",
        "An Atari game repeats each action this often. For other environments it is only counted:"
        " env_frames = env_steps x action_repeat. None takes 4 for an Atari game, else 1.",
    ),
    "frame_stack": Setting(
        None,
        "int | None",
        "frames",
        ">= 1",
        "An observation is made of this many of the newest frames; for images.",
    ),
    "scale_actions": Setting(
        True,
        "bool",
        "",
        "",
        "If true, continuous actions of -1 ... 1 are mapped to the bounds of the action space. "
        "If false, the policy's numbers are only clipped to the bounds.",
    ),
    "env_processes": Setting(
        0,
        "int",
        "worker processes per actor",
        ">= 0",
        "This many worker processes step the environments with vectorization `processes`. 0 takes"
        " one for each core of the actor, and at least 2.",
    ),
}

EVALUATION_ENVIRONMENT = {
    key: Setting(
        10 if key == "num_envs" else None,
        setting.type.removesuffix(" | None") + " | None",
        setting.unit.removesuffix(" per actor"),
        setting.allowed,
        f"The same in evaluation; None takes collect_env.{key}.",
    )
    for key, setting in ENVIRONMENT.items()
}

TORSO = {
    "torso": Setting(
        None,
        "reference | None",
        "",
        "",
        "The torso turns observations into features: `mlp`; for images `shallow`, `nature` or "
        "`resnet`; or a class of your own, `module:Class` or `file.py:Class`. None takes "
        "`shallow` for images of 20 x 20 pixels or more, else `mlp`.",
    ),
    "hidden_sizes": Setting(
        [64, 64], "list of int", "units", ">= 1", "Each hidden layer of an mlp has this width."
    ),
    "activation": Setting(
        "tanh", "str", "", ["tanh", "relu"], "This function follows each hidden layer of an mlp."
    ),
    "options": Setting(
        {},
        "dict",
        "",
        "",
        "A torso or network gets these further arguments. Torsos for images take black and "
        "scale: uint8 x becomes (x - black) / scale, by default x / 255; and channels: first, "
        "last or auto, which decides by the shape and writes it to the log.",
    ),
}

NETWORK = TORSO | {
    "core": Setting("none", "str", "", ["none", "lstm"], "The core is a memory behind the torso."),
    "core_size": Setting(256, "int", "units", ">= 1", "The core has this width."),
    "last_action_reward": Setting(
        False, "bool", "", "", "If true, the last action and reward are inputs too."
    ),
    "separate_baseline": Setting(
        False,
        "bool",
        "",
        "",
        "If true, the baseline has a torso of its own, beside the policy's. This is not "
        "possible with a core, nor in a network of your own.",
    ),
    "normalize_observations": Setting(
        False,
        "bool",
        "",
        "",
        "If true, numbers in observations get mean 0 and variance 1. The mean and the variance "
        "are running statistics. Images and Discrete parts stay as they are.",
    ),
}

WITH_HEADS = TORSO | {
    "head_sizes": Setting(
        [], "list of int", "units", ">= 1", "Each head has hidden layers of these widths."
    ),
}

Q_NETWORK = WITH_HEADS | {
    "dueling": Setting(
        False,
        "bool",
        "",
        "",
        "If true, the value of a state and the advantages of its actions have heads of their own.",
    ),
}

POLICY = {
    "eval_greedy": Setting(
        True,
        "bool",
        "",
        "",
        "If true, evaluations during training take the most likely action, else they sample it.",
    ),
}

EPSILON = {
    "epsilon_begin": Setting(
        1.0, "float", "", "[0, 1]", "At the beginning, an action is random with this probability."
    ),
    "epsilon_end": Setting(
        None, "float | None", "", "[0, 1]", "From epsilon_steps on, it is this probability."
    ),
    "epsilon_steps": Setting(
        None,
        "int | None",
        "decisions",
        ">= 0",
        "The probability falls linearly over so many steps of all actors together.",
    ),
}

LEARNER = {
    "device": Setting(
        "auto",
        "str",
        "",
        ["auto", "CPU", "GPU", "Ascend"],
        "The learner computes on this device. `auto` takes the best that works.",
    ),
    "threads": Setting(
        0,
        "int",
        "compute threads",
        ">= 0",
        "The learner has this many compute threads. 0 takes the cores that the actors on its host"
        " leave.",
    ),
    "options": Setting({}, "dict", "", "", "A learner of your own gets these further arguments."),
}

REWARDS = {
    "gamma": Setting(
        0.99, "float", "", "[0, 1]", "Later rewards are discounted by this factor per decision."
    ),
    "reward_clip": Setting(
        None,
        "str | None",
        "",
        ["none", "abs_one", "soft_asymmetric"],
        "Rewards are clipped in this way for learning. Reported returns are of the raw rewards.",
    ),
    "reward_scale": Setting(
        None,
        "float | None",
        "",
        "> 0",
        "Rewards are multiplied by this after reward_clip, for learning only.",
    ),
}

TRANSITIONS = {
    "n_step": Setting(
        1,
        "int",
        "steps",
        ">= 1",
        "n: a return sums so many rewards, where the episode and the unroll are long enough.",
    ),
    "target_period": Setting(
        None,
        "int | None",
        "updates",
        ">= 1",
        "The target network becomes a copy of the learned one every so many updates.",
    ),
    "error_clip": Setting(
        1.0,
        "float | None",
        "",
        "> 0",
        "The derivative of half the squared TD error is clipped to this. None does not clip.",
    ),
}

CALLS = {
    "updates_per_call": Setting(
        None,
        "int | None",
        "updates",
        ">= 1",
        "So many updates are made in one call of compiled code, which is quicker if the network is "
        "small. Their batches are drawn before the first of them.",
    ),
}

Q_LEARNING = TRANSITIONS | {
    "double": Setting(
        False,
        "bool",
        "",
        "",
        "If true, the learned network chooses the next action and the target network gives its "
        "value; else the target network does both.",
    ),
}

ACTOR_CRITIC = {
    "baseline_cost": Setting(0.5, "float", "", ">= 0", "The baseline loss has this weight."),
    "entropy_cost": Setting(0.01, "float", "", ">= 0", "The entropy bonus has this weight."),
    "loss_reduction": Setting(
        "mean",
        "str",
        "",
        ["sum", "mean"],
        "The loss is the sum or the mean over the valid rows of a batch.",
    ),
}

OPTIMIZER = {
    "optimizer": Setting(
        "adam",
        "str",
        "",
        ["adam", "rmsprop", "adagrad"],
        "The learner takes its steps with this optimizer.",
    ),
    "lr": Setting(None, "float | None", "", "> 0", "The learning rate begins with this value."),
    "lr_schedule": Setting(
        "linear",
        "str",
        "",
        ["linear", "constant"],
        "The learning rate falls to 0 at total_env_steps (`linear`), or stays (`constant`).",
    ),
    # 0.5: the policy lag delays feedback already; with less momentum updates do not overshoot.
    "adam_beta1": Setting(0.5, "float", "", "[0, 1)", "Adam averages gradients with this decay."),
    "adam_beta2": Setting(
        0.999, "float", "", "[0, 1)", "Adam averages squared gradients with this decay."
    ),
    "rmsprop_decay": Setting(
        0.99, "float", "", "[0, 1)", "RMSProp averages squared gradients with this decay."
    ),
    "rmsprop_start": Setting(
        1.0, "float", "", ">= 0", "RMSProp's running mean square begins with this value."
    ),
    "rmsprop_momentum": Setting(0.0, "float", "", "[0, 1)", "RMSProp has this momentum."),
    "adagrad_start": Setting(
        0.1, "float", "", "> 0", "AdaGrad's sum of squared gradients begins with this value."
    ),
    "optimizer_epsilon": Setting(
        1e-5,
        "float",
        "",
        "> 0",
        "The optimizer adds this to what it divides by. AdaGrad does not: its sum is above 0.",
    ),
    "max_grad_norm": Setting(
        40.0,
        "float | None",
        "",
        "> 0",
        "A gradient with a larger global norm is clipped to this norm. None does not clip.",
    ),
}

TRAINING = {
    "seed": Setting(1, "int", "", ">= 0", "All random numbers follow from this seed."),
    "total_env_steps": Setting(
        None,
        "int | None",
        "decisions",
        ">= 1",
        "Training ends after this many steps. Those of all actors count.",
    ),
    "unroll_length": Setting(
        None,
        "int | None",
        "env steps",
        ">= 1",
        "T: an unroll has this many steps of each environment.",
    ),
}

BATCHES = {
    "batch_size": Setting(
        32,
        "int | None",
        "trajectories of one environment",
        ">= 1",
        "B: each update learns from this many trajectories. A batch is S = B / num_envs unrolls, "
        "so that B is a multiple of num_envs. None takes one unroll of each actor.",
    ),
    "synchronous": Setting(
        False,
        "bool",
        "",
        "",
        "If true, every update waits for all actors, so that there is no policy lag. S is then "
        "a multiple of the number of actors.",
    ),
    "max_policy_lag": Setting(
        None,
        "int | None",
        "updates",
        ">= 0",
        "An unroll with a larger policy lag is dropped. None drops nothing.",
    ),
    "unrolls_in_flight": Setting(
        2, "int", "unrolls per actor", ">= 1", "An actor sends this many unrolls before it waits."
    ),
}

# Of systems whose workers compute gradients.
STALE_GRADIENTS = {
    "max_policy_lag": Setting(
        None,
        "int | None",
        "updates",
        ">= 0",
        "A gradient that is older than this is dropped. None drops none.",
    ),
}

REPLAY = {
    "batch_size": Setting(
        None, "int | None", "transitions", ">= 1", "B: each update learns from so many transitions."
    ),
    "replay_capacity": Setting(
        None,
        "int | None",
        "decisions",
        ">= 1",
        "The replay keeps so many of the newest decisions, in whole unrolls.",
    ),
    "replay_start": Setting(
        None,
        "int | None",
        "decisions",
        ">= 0",
        "Learning begins when so many decisions are in the replay.",
    ),
    "replay_ratio": Setting(
        None,
        "float | None",
        "",
        "> 0",
        "So many transitions are learned from for each decision that arrives: actors and learner "
        "wait for one another. In Ape-X, None lets both run freely; with N = 1, updates_per_call "
        "updates follow each unroll then.",
    ),
    "priority_exponent": Setting(
        0.0,
        "float",
        "",
        "[0, 1]",
        "Transitions are drawn in proportion to their absolute TD error to this power. 0 draws "
        "all alike.",
    ),
    "importance_exponent": Setting(
        0.4,
        "float",
        "",
        "[0, 1]",
        "The loss of a transition is divided by the probability of its draw to this power.",
    ),
    "unrolls_in_flight": Setting(
        2, "int", "unrolls per actor", ">= 1", "An actor sends so many unrolls before it waits."
    ),
}

FAULTS = {
    "min_actors": Setting(1, "int", "actors", ">= 1", "Training ends when fewer actors are alive."),
    "start_timeout_s": Setting(
        120.0, "float", "s", "> 0", "An actor that has sent nothing by then is left out."
    ),
    "heartbeat_s": Setting(
        60.0, "float", "s", "> 0", "An actor that is silent for this long, later, is left out."
    ),
    "restart_actors": Setting(
        True,
        "bool",
        "",
        "",
        "If true, a new process takes the place of an actor that is lost. A synchronous run "
        "cannot do that.",
    ),
}

ACTORS = {
    "actor_threads": Setting(
        1, "int", "compute threads", ">= 1", "Each actor has this many compute threads."
    ),
    "pin_actors": Setting(
        True,
        "bool",
        "",
        "",
        "If true, each actor is kept to actor_threads cores. A host with more ranks than cores "
        "does not do that; but actors that never wait, as in Ape-X, leave the learner a core.",
    ),
}

FILES = {
    "log_interval_s": Setting(
        0.5, "float", "s", "> 0", "This is the time between two rows of metrics.csv."
    ),
    "checkpoint_interval_s": Setting(
        30.0, "float", "s", "> 0", "This is the time between two checkpoints."
    ),
    "checkpoints_kept": Setting(
        3,
        "int",
        "checkpoints",
        ">= 1",
        "This many of the newest checkpoints are kept, beside the best.",
    ),
    "snapshot_interval_s": Setting(
        0.0,
        "float",
        "s",
        ">= 0",
        "The weights are also saved at intervals of this length, and at the end, in `snapshots`. "
        "`evaluate --snapshots` plays them after the run. All are kept. 0 saves none.",
    ),
    "tensorboard": Setting(True, "bool", "", "", "If true, TensorBoard events are written."),
    "run_dir": Setting(
        None,
        "str | None",
        "",
        "",
        "The run writes its files into this folder. None takes `runs/<algorithm>_<env>_<time>`.",
    ),
    "init_from": Setting(
        None,
        "path | None",
        "",
        "",
        "A new run begins with the weights of this checkpoint, or of this folder of a run. The "
        "network must be the same.",
    ),
}

EVALUATION = {
    "eval_interval_updates": Setting(
        0,
        "int",
        "updates",
        ">= 0",
        "This is the number of updates between two evaluations. 0 never evaluates.",
    ),
    "eval_episodes": Setting(
        10, "int", "episodes", "[1, 10000]", "One evaluation plays this many episodes."
    ),
    "eval_max_steps": Setting(
        10_000,
        "int",
        "decisions",
        ">= 1",
        "An evaluation episode in an environment without a time limit is cut off after this many "
        "decisions, and counts with its return so far.",
    ),
}

# Of each part of algorithm_config.
PART = {
    "number": Setting(
        None,
        "int | None",
        "ranks",
        ">= 1",
        "This many ranks have this role. None takes what the number of processes gives.",
    ),
    "type": Setting(
        None,
        "class",
        "",
        "",
        "This part is an object of this class. Only the ranks that need it import it.",
    ),
}
