"""Build what this rank needs for IMPALA, run it, end it in order.

Input: a ``Run`` of ``impala_ms.session``: configuration, rank, transport. Output: a trained
network in the run folder. The classes are those that ``algorithm_config`` names, each resolved
only by the rank that needs it.
"""

import logging
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from impala_ms import checkpoint, compat, device
from impala_ms.algorithm.impala.actor import evaluate
from impala_ms.algorithm.impala.checks import check_policy
from impala_ms.algorithm.impala.choices import (
    automatic_torso,
    described,
    seen_space,
    settle_torso,
    warnings,
)
from impala_ms.algorithm.impala.exchange import BYE, ERROR, ActorExchange, LearnerExchange, encode
from impala_ms.algorithm.impala.roster import REFUSED_IN_A_ROW
from impala_ms.algorithm.impala.trainer import ActorTrainer
from impala_ms.config import (
    ConfigError,
    adopt,
    check_arguments,
    check_kept,
    nothing_left,
    record,
    resolve,
)
from impala_ms.envs.make import episode_seeds, frames_per_step
from impala_ms.lean import set_seed
from impala_ms.metrics.recorder import Recorder
from impala_ms.metrics.sinks import ConsoleSink, CsvSink, Sinks, TensorBoardSink
from impala_ms.ops.distributions import make_distribution
from impala_ms.trajectory import Batches, TrajectorySpec, leaf_array, leaves

logger = logging.getLogger(__name__)

# In the place of a rank, in the seeds of evaluations and of actions: larger than any rank.
EVALUATION, ACTIONS = 1 << 24, 1 << 25
RESTARTS = 3  # of an actor in a row, each of which comes to nothing


def make_policy(config, spaces):
    """The network for these spaces; its parameters have the same order on every rank.

    Raises:
        ConfigError: If a network of the user's takes other settings, or cannot be used.
    """
    name = config.algorithm_config["policy_and_network"]["type"]
    network = resolve(name)
    observation = seen_space(spaces)
    params = dict(config.network_params)
    params["torso"] = params["torso"] or automatic_torso(observation)[0]
    options = params.pop("options")
    normalize = params["normalize_observations"]
    if not normalize:  # a network of the user's need not know of it
        del params["normalize_observations"]
    arguments = observation, make_distribution(spaces["action"])
    check_arguments(
        f"the network {name}",
        "it is made by (observation_space, distribution, **all that is in network_params and its "
        "options)",
        network,
        *arguments,
        **options,
        **params,
    )
    policy = network(*arguments, **options, **params)
    check_policy(policy, name, params["core"])
    if params["separate_baseline"] and not hasattr(policy, "baseline_torso"):
        raise ConfigError(
            f"network.separate_baseline is true, but the network {name} has no baseline_torso: "
            "set it to false"
        )
    if normalize and getattr(policy, "normalizer", None) is None:
        raise ConfigError(
            f"network.normalize_observations is true, but the network {name} does not do that: "
            "set it to false"
        )
    return policy


def check_actions(state, spaces, path):
    """Refuse a checkpoint of a policy for other actions, though its weights may fit.

    Raises:
        CheckpointError: If the action space is another; older checkpoints do not say theirs.
    """
    there = state.get("spaces", spaces)["action"]
    if there != spaces["action"]:
        raise checkpoint.CheckpointError(
            f"the checkpoint {path} is of a policy for the actions {there}, and those here are "
            f"{spaces['action']}: give an environment with the same actions"
        )


def begin_with(config, learner, spaces):
    """Give a new run the weights of a checkpoint, or of the newest one in a run folder.

    Raises:
        CheckpointError: If it cannot be read, or is of another network.
        ConfigError: If its network was used in another way.
    """
    source = Path(config.trainer_params["init_from"])
    if source.is_dir():
        path, saved, state = checkpoint.latest(source / "checkpoints")
    else:
        path, (saved, state) = source, checkpoint.load(source)
    here = {parameter.name: parameter for parameter in learner.policy.get_parameters()}
    checkpoint.restore(here, checkpoint.of_network(saved, state), path)
    check_actions(state, spaces, path)
    bounded = spaces["action"]["type"] == "Box"
    without = () if bounded else ("collect_env.scale_actions",)
    check_kept(config, state["config"], f"the weights of {path} are taken, but there", without)
    return path


def make_actor(config, policy, environment, rng):
    """The actor that the configuration names."""
    actor = resolve(config.algorithm_config["actor"]["type"])
    return actor(policy, environment, config.trainer_params["unroll_length"], rng)


def make_spec(config, spaces, policy):
    """Layout of an unroll, the same on every rank."""
    parts = leaves(spaces["observation"])
    distribution = policy.distribution
    return TrajectorySpec(
        unroll_length=config.trainer_params["unroll_length"],
        num_envs=config.collect_env_params["num_envs"],
        observation={path: leaf_array(leaf) for path, leaf in parts.items()},
        action_shape=distribution.action_shape,
        action_dtype=distribution.action_dtype,
        policy_parameters=distribution.num_parameters,
        frame_stack=spaces["frame_stack"],
        mask_size=spaces["action_mask"],
        inputs=policy.inputs,
        state_size=policy.state_size,
    )


def make_environment(config, kind, num_envs, seeds):
    """The environment of ``collect`` or ``eval``."""
    params = dict(getattr(config, f"{kind}_env_params"))
    params.pop("num_envs")
    make = resolve(config.algorithm_config[f"{kind}_environment"]["type"])
    return make(params.pop("id"), num_envs=num_envs, seeds=seeds, **params)


def evaluate_policy(config, actor, *, episodes, greedy, stop=None):
    """Play evaluation episodes: equal weights, episodes and seed give equal returns.

    Args:
        config: ``Config``; the environment is ``eval_env_params``.
        actor: ``IMPALAActor`` with the weights to play with.
        episodes: Number of episodes.
        greedy: Whether to take the most likely action instead of a sample.
        stop: None, or a function that ends it early by returning True.

    Returns:
        ``[episodes]`` float64 raw returns, or None if stopped early.
    """
    envs, seed = min(config.eval_env_params["num_envs"], episodes), config.trainer_params["seed"]
    environment = make_environment(
        config, "eval", envs, episode_seeds(seed, 0, EVALUATION, 0, envs)
    )
    try:
        limit = config.trainer_params["eval_max_steps"]
        return evaluate(
            actor, environment, episodes, greedy=greedy, seed=seed, max_steps=limit, stop=stop
        )
    finally:
        environment.close()


class IMPALASession(compat.Session):
    """One rank of a run: the learner, an actor, or with N = 1 both.

    Args:
        run: ``impala_ms.session.Run``.
    """

    def __init__(self, run):
        super().__init__(None, params=run.config.trainer_params, callbacks=[])
        self.job, self.config = run, run.config
        self.learner_exchange = self.actor_exchange = None
        self.environment = self.sinks = self.trainer = None
        if run.learner_end is not None:
            every_actor = self.config.actors if self.params["synchronous"] else None
            self.learner_exchange = LearnerExchange(
                run.learner_end,
                max_policy_lag=self.params["max_policy_lag"],
                min_actors=every_actor or self.params["min_actors"],
                start_timeout_s=self.params["start_timeout_s"],
                heartbeat_s=self.params["heartbeat_s"],
                restarts=0 if every_actor else self.params["restart_actors"] * RESTARTS,
                refusals=1 if every_actor else REFUSED_IN_A_ROW,  # a round needs all its unrolls
            )
        if run.actor_end is not None:
            self.actor_exchange = ActorExchange(run.actor_end, self.params["heartbeat_s"])

    def run(self, class_type=None, is_train=True, episode=0, duration=0):
        """Play the part of this rank until the run ends."""
        actor = None
        if self.actor_exchange is not None:
            actor = self.build_actor()
        if self.learner_exchange is None:
            self.trainer = actor
        else:
            wanted = self.config.actors if self.params["synchronous"] else 1
            spaces = self.learner_exchange.await_hello(wanted, lambda: self.job.stop_requested)
            if spaces is None:
                return
            self.trainer = self.build_learner(spaces, actor)
        self.trainer.train()
        if self.learner_exchange is None:
            self.actor_exchange.send(BYE, encode({}))
            logger.info("told to stop after %d env steps", actor.actor.env_steps)

    def build_actor(self):
        """Environment, network, compiled policy; the learner prepares at the same time."""
        config, params, exchange = self.config, self.params, self.actor_exchange
        rank, epoch, envs = self.job.rank, config.epoch, config.collect_env_params["num_envs"]
        actor_rank, incarnation = exchange.transport.rank, self.job.incarnation
        seeds = episode_seeds(params["seed"], epoch, actor_rank, incarnation, envs)
        self.environment = make_environment(config, "collect", envs, seeds)
        spaces = self.environment.spaces()
        exchange.hello(spaces, self.environment.step_limit)
        if rank > 0 and params["pin_actors"]:  # not the environment's own threads and processes
            cores = device.keep_to_cores(params["actor_threads"])
            logger.info("computes on %s", "any core" if cores is None else f"cores {cores}")
        policy = make_policy(config, spaces)
        rng = np.random.default_rng((params["seed"], epoch, actor_rank, incarnation, ACTIONS))
        actor = make_actor(config, policy, self.environment, rng)
        per_round = config.unrolls_per_batch // config.actors
        buffers = per_round if params["synchronous"] else params["unrolls_in_flight"]
        spec = make_spec(config, spaces, policy)
        exchange.begin(spec, buffers, actor.weights.size)
        if rank > 0:
            logger.info("unrolls of %d bytes, layout %s", spec.nbytes, spec.digest())
        actor.begin()
        parts = SimpleNamespace(
            actor=actor,
            exchange=exchange,
            evaluate=partial(
                evaluate_policy,
                config,
                episodes=params["eval_episodes"],
                greedy=config.policy_params["eval_greedy"],
            ),
            meanwhile=lambda: False,
        )
        return ActorTrainer(parts, params | {"unrolls_per_round": per_round})

    def build_learner(self, spaces, partner):
        """Network, saved state, first weights to the actors, compiled step."""
        config, params, job, exchange = self.config, self.params, self.job, self.learner_exchange
        set_seed(params["seed"] % 2**32)  # of the first weights; actors get theirs from here
        chosen = settle_torso(config, spaces)
        for line in [*chosen, *warnings(config, spaces, exchange.has_step_limit())]:
            logger.info(line)
            job.console.write(f"{line}\n")
        policy = make_policy(config, spaces)
        learner = resolve(config.algorithm_config["learner"]["type"])(
            policy, config.learner_params, params["total_env_steps"]
        )
        state = {}
        if config.resume:
            path, saved, state = checkpoint.latest(job.checkpoints)
            checkpoint.restore(learner.parameters_dict(), saved, path)
            check_actions(state, spaces, path)
            job.wall_time_before_s = state["wall_time_s"]
            logger.info("resumed from %s", path)
        elif params["init_from"]:
            begun_with = begin_with(config, learner, spaces)
            job.console.write(f"the first weights are those of {begun_with}\n")
        size = sum(parameter.size for parameter in policy.get_parameters())
        job.console.write(f"{described(config, spaces)}, {size:,} weights\n")
        recorder = Recorder(time.monotonic(), state.get("totals"))
        if config.resume:
            job.console.write(
                f"resumed from {path.name}: {recorder.env_steps:,} env steps, "
                f"{recorder.updates:,} update{'s' * (recorder.updates != 1)}\n"
            )
        spec = make_spec(config, spaces, policy)
        batches = Batches(spec, config.unrolls_per_batch)
        version = recorder.updates + recorder.updates_skipped
        exchange.begin(spec, batches, learner.weights.size, version)
        if not (params["synchronous"] and exchange.transport.concurrent):
            exchange.publish(version, learner.weights.read())
            exchange.serve()  # the first weights are under way while the step is compiled
        parts = SimpleNamespace(
            learner=learner,
            exchange=exchange,
            batches=batches,
            recorder=recorder,
            sinks=None,
            spaces=spaces,
            job=job,
            partner=partner,
            best_return=state.get("best_return"),
        )
        collect = config.collect_env_params
        frames = frames_per_step(collect["id"], collect["action_repeat"])
        trainer = resolve(config.algorithm_config["trainer"]["type"])(
            parts, params | {"action_repeat": frames, "actors": config.actors}
        )
        if partner is not None:
            partner.msrl.meanwhile = trainer.while_evaluating
        if nothing := nothing_left(recorder.env_steps, params["total_env_steps"]):
            job.console.write(f"{nothing}\n")
        elif not trainer.finished():
            job.console.write("compiling the learner's step, then it begins\n")
            began = time.perf_counter()
            learner.warm_up(spec.batch(config.unrolls_per_batch))
            logger.info("learner step compiled in %.1f s", time.perf_counter() - began)
        # Until here a resume has changed nothing of the run: all that may not fit was tried.
        parts.sinks = self.sinks = self.make_sinks(recorder)
        record(job.run_dir, config)
        adopt(job.run_dir)
        return trainer

    def make_sinks(self, recorder):
        """Where rows go; rows of updates that are made again after a resume are dropped."""
        folder = self.job.run_dir
        table = CsvSink(folder / "metrics.csv")
        if self.config.resume:
            table.rewind_to(recorder.updates)
        sinks = [table, ConsoleSink(self.job.console)]
        if self.params["tensorboard"]:
            resumed_at = recorder.env_steps if self.config.resume else None
            sinks.append(TensorBoardSink(folder, resumed_at))
        return Sinks(sinks)

    def report(self, reason):
        """Tell the learner why this actor rank fails."""
        self.actor_exchange.send(ERROR, encode({"reason": reason}))

    def summary(self):
        """What ``status.json`` says of the run beside its state."""
        if self.trainer is None or self.learner_exchange is None:
            return {}
        recorder = self.trainer.recorder
        saved = self.trainer.saved or next(iter(checkpoint.listing(self.job.checkpoints)), None)
        return {
            "env_steps": recorder.env_steps,
            # what has not become a whole batch by now is left over
            "env_steps_dropped": self.trainer.env_steps_waiting() + recorder.env_steps_dropped,
            "episodes": recorder.episodes.count,
            "best_eval_return": self.trainer.best_return,
            "updates": recorder.updates,
            "episode_return_mean": recorder.episodes.return_mean,
            "checkpoint": str(saved) if saved else None,
        }

    def close(self):
        """Learner: have the actors stop; then close the files.

        Returns:
            Whether every other rank is known to end by itself.
        """
        answered = self.learner_exchange is None or self.learner_exchange.stop()
        if self.sinks is not None:
            self.sinks.close()
        return answered

    def release(self):
        """Close the environments; what they do then changes nothing about the run."""
        if self.environment is not None:
            try:
                self.environment.close()
            except BaseException:
                logger.warning("closing the environments failed", exc_info=True)
