"""The configuration of IMPALA: what is trained, where, and with which numbers.

Edit the values here, or leave them and override them: from a file with ``--config FILE``, one by
one with ``--set learner.lr=0.001``, or by name (``--lr 0.001``). ``--help`` lists them all.
``schema`` below says what each key means and which values it takes. ``automatic`` at the end has
the values of keys that are None here and depend on the environment; any other value is yours.
"""

collect_env_params = {
    "id": "CartPole-v1",
    "num_envs": 32,
    "vectorization": "auto",
    "kwargs": {},
    "max_episode_steps": None,
    "action_repeat": None,
    "frame_stack": None,
    "scale_actions": True,
    "env_processes": 0,
}

# None: as in collect_env_params.
eval_env_params = {
    "id": None,
    "num_envs": 10,
    "vectorization": None,
    "kwargs": None,
    "max_episode_steps": None,
    "action_repeat": None,
    "frame_stack": None,
    "scale_actions": None,
    "env_processes": None,
}

network_params = {
    "torso": None,
    "hidden_sizes": [64, 64],
    "activation": "tanh",
    "core": "none",
    "core_size": 256,
    "last_action_reward": False,
    "separate_baseline": False,
    "normalize_observations": False,
    "options": {},
}

policy_params = {
    "eval_greedy": True,
}

learner_params = {
    "device": "auto",
    "threads": 0,
    "correction": "vtrace",
    "rho_bar": 1.0,
    "c_bar": 1.0,
    "pg_rho_bar": 1.0,
    "lambda_": 1.0,
    "epsilon": 1e-6,
    "gamma": 0.99,
    "baseline_cost": 0.5,
    "entropy_cost": 0.01,
    "loss_reduction": "mean",
    "reward_clip": None,
    "reward_scale": None,
    "optimizer": "adam",
    "lr": None,
    "lr_schedule": "linear",
    "adam_beta1": 0.5,  # the policy lag delays feedback already: less momentum does not overshoot
    "adam_beta2": 0.999,
    "rmsprop_decay": 0.99,
    "rmsprop_momentum": 0.0,
    "optimizer_epsilon": 1e-5,
    "max_grad_norm": 40.0,
}

trainer_params = {
    "seed": 1,
    "total_env_steps": None,
    "unroll_length": None,
    "batch_size": 32,
    "synchronous": False,
    "max_policy_lag": None,
    "unrolls_in_flight": 2,
    "replay_updates": 0,
    "replay_batches": 16,
    "min_actors": 1,
    "start_timeout_s": 120.0,
    "heartbeat_s": 60.0,
    "restart_actors": True,
    "actor_threads": 1,
    "pin_actors": True,
    "log_interval_s": 0.5,
    "checkpoint_interval_s": 30.0,
    "checkpoints_kept": 3,
    "eval_interval_updates": 0,
    "eval_episodes": 10,
    "eval_max_steps": 10_000,
    "tensorboard": True,
    "run_dir": None,
    "init_from": None,
}

# A type is a class, or "module:Class" or "file.py:Class", which only the ranks that need it import.
# number None: one actor per rank beside the learner.
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

# key: (type, unit, allowed, meaning). `allowed` is a list of choices, a bound such as ">= 1", an
# interval such as "[0, 1)", or "" for anything of the type. Defaults are the values above.
schema = {
    "collect_env_params": {
        "id": (
            "reference",
            "",
            "",
            "gymnasium or envpool id; module:ID or file.py:ID imports what registers the id",
        ),
        "num_envs": ("int", "environments per actor", ">= 1", "E, stepped together in one call"),
        "vectorization": (
            "str",
            "",
            ["auto", "vector_entry_point", "sync", "processes", "envpool"],
            "auto: envpool for Atari games and for what gymnasium lacks, else the environment's "
            "own vector version where it has one, else sync (one after the other); processes: "
            "worker processes, for a step slower than about 1 ms, never chosen by auto",
        ),
        "kwargs": (
            "dict",
            "",
            "",
            "passed to the environment's constructor, or to envpool; of Atari games: "
            "episodic_life, noop_max, repeat_action_probability, full_action_space, fire_reset, "
            "size",
        ),
        "max_episode_steps": (
            "int | None",
            "decisions",
            ">= 1",
            "time limit; None: the environment's own",
        ),
        "action_repeat": (
            "int | None",
            "frames per decision",
            ">= 1",
            "env_frames = env_steps x action_repeat; only counted, except for Atari games, which "
            "repeat actions so often; None: 4 for an Atari game, else 1",
        ),
        "frame_stack": (
            "int | None",
            "frames",
            ">= 1",
            "newest frames that are one observation; for images",
        ),
        "scale_actions": (
            "bool",
            "",
            "",
            "continuous actions: -1 ... 1 of the policy are mapped to the bounds of the action "
            "space; false: the policy's numbers are only clipped to the bounds",
        ),
        "env_processes": (
            "int",
            "worker processes per actor",
            ">= 0",
            "of vectorization processes; 0: one for each core of the actor, at least 2",
        ),
    },
    "network_params": {
        "torso": (
            "reference | None",
            "",
            "",
            "mlp; for images shallow, nature or resnet; module:Class or file.py:Class; None: for "
            "images of 20 x 20 pixels or more shallow, else mlp",
        ),
        "hidden_sizes": ("list of int", "units", ">= 1", "width of each hidden layer of an mlp"),
        "activation": ("str", "", ["tanh", "relu"], "after each hidden layer of an mlp"),
        "core": ("str", "", ["none", "lstm"], "memory behind the torso"),
        "core_size": ("int", "units", ">= 1", "of the core"),
        "last_action_reward": ("bool", "", "", "last action and reward are inputs too"),
        "separate_baseline": (
            "bool",
            "",
            "",
            "the baseline has a torso of its own, beside the policy's; not with a core, nor of a "
            "network of your own",
        ),
        "normalize_observations": (
            "bool",
            "",
            "",
            "scale the numbers of an observation to mean 0 and variance 1 by their running "
            "statistics; images and Discrete parts stay as they are",
        ),
        "options": (
            "dict",
            "",
            "",
            "further arguments for a torso or network of your own; those for images take black and "
            "scale: uint8 x becomes (x - black) / scale, by default x / 255; and channels: first, "
            "last or auto, which goes by the shape and is logged",
        ),
    },
    "policy_params": {
        "eval_greedy": (
            "bool",
            "",
            "",
            "evaluations during training take the likeliest action instead of a sample",
        ),
    },
    "learner_params": {
        "device": (
            "str",
            "",
            ["auto", "CPU", "GPU", "Ascend"],
            "of the learner; auto: the best that works",
        ),
        "threads": (
            "int",
            "compute threads",
            ">= 0",
            "0: the cores that the actors on its host leave over",
        ),
        "correction": (
            "str",
            "",
            ["vtrace", "one_step_is", "epsilon", "none"],
            "of the policy lag, as compared in the paper",
        ),
        "rho_bar": (
            "float | None",
            "",
            "> 0",
            "threshold of the temporal difference; None: not clipped",
        ),
        "c_bar": ("float | None", "", "> 0", "threshold of the trace; None: not clipped"),
        "pg_rho_bar": ("float | None", "", "> 0", "threshold of the advantage; None: not clipped"),
        "lambda_": ("float", "", "[0, 1]", "factor of the trace"),
        "epsilon": ("float", "", "> 0", "added to probabilities under correction epsilon"),
        "gamma": ("float", "", "[0, 1]", "discount per decision"),
        "baseline_cost": ("float", "", ">= 0", "weight of the baseline loss"),
        "entropy_cost": ("float", "", ">= 0", "weight of the entropy bonus"),
        "loss_reduction": ("str", "", ["sum", "mean"], "over the valid rows of a batch"),
        "reward_clip": (
            "str | None",
            "",
            ["none", "abs_one", "soft_asymmetric"],
            "for learning only; reported returns are raw",
        ),
        "reward_scale": ("float | None", "", "> 0", "factor after reward_clip, for learning only"),
        "optimizer": ("str", "", ["adam", "rmsprop"], "of the learner"),
        "lr": ("float | None", "", "> 0", "learning rate at the start"),
        "lr_schedule": (
            "str",
            "",
            ["linear", "constant"],
            "linear: to 0 at total_env_steps",
        ),
        "adam_beta1": ("float", "", "[0, 1)", "decay of the mean, adam"),
        "adam_beta2": ("float", "", "[0, 1)", "decay of the mean square, adam"),
        "rmsprop_decay": ("float", "", "[0, 1)", "decay of the mean square, rmsprop"),
        "rmsprop_momentum": ("float", "", "[0, 1)", "rmsprop"),
        "optimizer_epsilon": ("float", "", "> 0", "keeps the optimizer's division finite"),
        "max_grad_norm": ("float | None", "", "> 0", "global norm clip; None: not clipped"),
    },
    "trainer_params": {
        "seed": ("int", "", ">= 0", "of everything random"),
        "total_env_steps": (
            "int | None",
            "decisions",
            ">= 1",
            "of all actors, until training ends",
        ),
        "unroll_length": ("int | None", "env steps", ">= 1", "T, rows learned from in one unroll"),
        "batch_size": (
            "int | None",
            "trajectories of one environment",
            ">= 1",
            "B per update; S = B / num_envs unrolls, so a multiple of num_envs; "
            "None: one unroll of each actor",
        ),
        "synchronous": (
            "bool",
            "",
            "",
            "every update waits for all actors: no lag; S a multiple of the actors",
        ),
        "max_policy_lag": (
            "int | None",
            "updates",
            ">= 0",
            "older unrolls are dropped; None: none are",
        ),
        "unrolls_in_flight": ("int", "unrolls per actor", ">= 1", "sent before an actor waits"),
        "replay_updates": (
            "int",
            "gradient steps",
            ">= 0",
            "more of them in every update, each with an earlier batch, which V-trace corrects",
        ),
        "replay_batches": ("int", "batches", ">= 1", "kept for that: the newest"),
        "min_actors": ("int", "actors", ">= 1", "training ends when fewer are alive"),
        "start_timeout_s": ("float", "s", "> 0", "an actor without an unroll by then is left out"),
        "heartbeat_s": ("float", "s", "> 0", "later, an actor silent for so long is left out"),
        "restart_actors": (
            "bool",
            "",
            "",
            "start a new process for an actor that is lost; not when synchronous",
        ),
        "actor_threads": ("int", "compute threads", ">= 1", "of each actor"),
        "pin_actors": (
            "bool",
            "",
            "",
            "keep each actor to actor_threads cores, unless a host has more ranks than cores",
        ),
        "log_interval_s": ("float", "s", "> 0", "between two rows of metrics.csv"),
        "checkpoint_interval_s": ("float", "s", "> 0", "between two checkpoints"),
        "checkpoints_kept": ("int", "checkpoints", ">= 1", "the newest, beside the best"),
        "eval_interval_updates": ("int", "updates", ">= 0", "between two evaluations; 0: never"),
        "eval_episodes": ("int", "episodes", "[1, 10000]", "of one evaluation"),
        "eval_max_steps": (
            "int",
            "decisions",
            ">= 1",
            "of an evaluation episode where the environment has no time limit: it is cut off, and "
            "counts with its return so far",
        ),
        "tensorboard": ("bool", "", "", "write TensorBoard events"),
        "run_dir": ("str | None", "", "", "of this run; None: `runs/<env>_<time>`"),
        "init_from": (
            "path | None",
            "",
            "",
            "checkpoint, or folder of a run, whose weights a new run begins with; the network must "
            "be the same",
        ),
    },
}

schema["eval_env_params"] = {
    key: (
        type_.removesuffix(" | None") + " | None",
        unit.removesuffix(" per actor"),
        allowed,
        "in evaluation; None: as in collect_env",
    )
    for key, (type_, unit, allowed, _) in schema["collect_env_params"].items()
}

# What keys that are None stand for, by the kind of environment. network.torso depends on the
# observations, which are known later.
automatic = {
    "other": {  # learns CartPole-v1 fastest
        "collect_env.frame_stack": 1,
        "learner.reward_clip": "none",
        "learner.reward_scale": 0.1,
        "learner.lr": 0.002,
        "trainer.unroll_length": 10,
        "trainer.total_env_steps": 600_000,
    },
    "atari": {  # Espeholt et al. 2018, arXiv:1802.01561, table G.1
        "network.torso": "shallow",
        "collect_env.frame_stack": 4,
        "learner.reward_clip": "abs_one",
        "learner.reward_scale": 1.0,
        "learner.lr": 0.0006,
        "trainer.unroll_length": 20,
        "trainer.total_env_steps": 10_000_000,
    },
}
