"""Make the parts of a rank for its role, run it, end it in good order.

Input: a ``Run`` of ``impala_ms.process``: configuration, place, transport. Output: a trained
network in the run folder.
"""

import logging
import time
from functools import partial
from types import SimpleNamespace

import numpy as np

from impala_ms import checkpoint, compat, device, seeds, snapshots
from impala_ms.agents import build, choices
from impala_ms.classes import resolve
from impala_ms.cluster.hub import Intake
from impala_ms.cluster.messages import BYE, ERROR, encode
from impala_ms.cluster.place import ranks_here
from impala_ms.configuration import algorithms
from impala_ms.envs.make import frames_per_step
from impala_ms.lean import set_seed
from impala_ms.metrics.columns import together
from impala_ms.metrics.recorder import Recorder
from impala_ms.metrics.sinks import ConsoleSink, CsvSink, Sinks, TensorBoardSink
from impala_ms.roles.ends import make_ends
from impala_ms.roles.serving import serve
from impala_ms.run_dir import adopt, nothing_left, record

logger = logging.getLogger(__name__)


class RoleSession(compat.Session):
    """One rank of a run: it learns, acts, or with N = 1 does both.

    Args:
        run: ``impala_ms.process.Run``.
    """

    def __init__(self, run):
        super().__init__(None, params=run.config.trainer_params, callbacks=[])
        self.process, self.config = run, run.config
        self.environment = self.sinks = self.loop = None
        self.algorithm = algorithms.module_of(run.config.algorithm)
        self.work = resolve(self.algorithm.work)(run.config)
        self.ends = ends = make_ends(run, self.work)
        self.hub, self.spoke = ends.hub, ends.spoke

    def play(self):
        """Do the work of this rank until the run ends."""
        acting = None
        if self.spoke is not None:
            acting = self.build_acting()
        if self.hub is None:
            acting.train()
            self.spoke.send(BYE, encode({}))
            logger.info("told to stop after %d env steps", acting.loop.actor.env_steps)
            return
        wanted = self.config.actors if self.params.get("synchronous", False) else 1
        spaces = self.hub.await_hello(wanted, lambda: self.process.stop_requested)
        if spaces is None:
            return
        if self.process.rank == 0:
            self.build_learning(spaces, acting).train()
        else:
            serve(self.process, self.work, self.ends, spaces)

    def build_acting(self):
        """Make environment, network and compiled policy, while the learner prepares."""
        config, params, spoke, process = self.config, self.params, self.spoke, self.process
        epoch, envs, number = config.epoch, config.collect_env_params["num_envs"], process.number
        of_environments = seeds.episode_seeds(
            params["seed"], epoch, number, process.incarnation, envs
        )
        self.environment = build.make_environment(config, "collect", envs, of_environments)
        spaces = self.environment.spaces()
        spoke.hello(spaces, self.environment.step_limit)
        # After the environments are made: their threads and processes may use any core.
        if process.rank > 0 and params["pin_actors"]:
            learner_is_here = (ranks_here() or (0, 1))[0] == process.rank
            reserved = self.work.learner_cores if learner_is_here else 0
            cores = device.keep_to_cores(params["actor_threads"], reserved)
            logger.info("computes on %s", "any core" if cores is None else f"cores {cores}")
        policy = build.make_policy(config, spaces)
        of_actions = seeds.of_actions(params["seed"], epoch, number, process.incarnation)
        rng = np.random.default_rng(of_actions)
        actor = build.make_actor(config, policy, self.environment, rng)
        spec = build.make_spec(config, spaces, policy, **self.work.recorded(policy))
        parts = SimpleNamespace(
            actor=actor,
            spoke=spoke,
            number=number,
            incarnation=process.incarnation,
            evaluate=partial(
                build.evaluate_policy,
                config,
                episodes=params["eval_episodes"],
                greedy=config.policy_params.get("eval_greedy", True),
            ),
            meanwhile=lambda: False,
        )
        layout, trainer = self.work.acting(spec, policy, parts)
        spoke.begin([layout.empty() for _ in range(self.work.in_flight)], actor.weights.size)
        if process.rank > 0:
            what = self.work.name, layout.nbytes, layout.digest()
            logger.info("%s of %d bytes, layout %s", *what)
        actor.begin()
        return trainer

    def build_learning(self, spaces, partner):
        """Make network and learner, restore, send the first weights, compile the step."""
        config, params, process, hub = self.config, self.params, self.process, self.hub
        set_seed(params["seed"] % 2**32)  # for the first weights, which the actors get from here
        chosen = choices.settle_torso(config, spaces)
        for line in [*chosen, *choices.warnings(config, spaces, hub.has_step_limit())]:
            logger.info(line)
            process.console.write(f"{line}\n")
        policy = build.make_policy(config, spaces)
        spec = build.make_spec(config, spaces, policy, **self.work.recorded(policy))
        layout, learner = self.work.learning(spec, policy)
        state = self.restore(learner, spaces)
        size = sum(parameter.size for parameter in policy.get_parameters())
        process.console.write(f"{choices.described(config, spaces)}, {size:,} weights\n")
        recorder = Recorder(time.monotonic(), state.get("totals"))
        if config.resume:
            process.console.write(
                f"resumed from {state['path'].name}: {recorder.env_steps:,} env steps, "
                f"{recorder.updates:,} update{'s' * (recorder.updates != 1)}\n"
            )
        layout, learner = self.work.divide(layout, learner, self.ends.collector, recorder.env_steps)
        store = self.work.store(layout)
        for line in store.notes(config.resume is not None):
            logger.info(line)
            process.console.write(f"{line}\n")
        version = recorder.updates + recorder.updates_skipped
        lag = params.get("max_policy_lag")
        hub.begin(Intake(layout, store, max_policy_lag=lag, version=version), size)
        hub.publish(version, learner.weights.read(), recorder.env_steps)
        hub.mailbox.pump()  # sends the first weights before the step is compiled
        parts = SimpleNamespace(
            learner=learner,
            hub=hub,
            store=store,
            recorder=recorder,
            sinks=None,
            spaces=spaces,
            process=process,
            partner=partner and partner.loop,
            work=self.work,
            best_return=state.get("best_return"),
        )
        collect = config.collect_env_params
        frames = frames_per_step(collect["id"], collect["action_repeat"])
        trainer = resolve(config.algorithm_config["trainer"]["type"])(
            parts, params | {"action_repeat": frames, "actors": config.actors}
        )
        self.loop = trainer.loop
        if partner is not None:
            partner.loop.parts.meanwhile = self.loop.records.while_evaluating
        if nothing := nothing_left(recorder.env_steps, params["total_env_steps"]):
            process.console.write(f"{nothing}\n")
        elif not self.loop.finished():
            process.console.write("compiling the update, then it begins\n")
            began = time.perf_counter()
            learner.warm_up(store.example())
            logger.info("learner step compiled in %.1f s", time.perf_counter() - began)
        # A resume changes the run folder only from here on: everything that may fail was tried.
        parts.sinks = self.sinks = self.make_sinks(recorder, learner)
        record(process.run_dir, config)
        adopt(process.run_dir)
        return trainer

    def restore(self, learner, spaces):
        """Give the learner its saved state, or the first weights that the user wants.

        Returns:
            In a resumed run, the state in its checkpoint with the ``path``; else an empty dict.
        """
        if self.config.resume:
            path, saved, state = checkpoint.latest(self.process.checkpoints)
            checkpoint.restore(learner.parameters_dict(), saved, path)
            build.check_actions(state, spaces, path)
            self.process.wall_time_before_s = state["wall_time_s"]
            logger.info("resumed from %s", path)
            best = self.best_so_far(state.get("best_return"))
            return state | {"path": path, "best_return": best}
        if self.params["init_from"]:
            begun_with = build.begin_with(self.config, learner, spaces)
            learner.take_over()
            self.process.console.write(f"the first weights are those of {begun_with}\n")
        return {}

    def best_so_far(self, saved):
        """The best return of an evaluation so far; ``best.ckpt`` holds the weights that had it.

        That file may be newer than the checkpoint, and a worse evaluation must not be written over
        it.

        Args:
            saved: What the checkpoint says; None: there was no evaluation before it.
        """
        file = self.process.checkpoints / checkpoint.BEST
        if not file.exists():
            return saved
        try:
            _, state = checkpoint.load(file)
        except checkpoint.CheckpointError as error:
            logger.warning("%s", error)
            return saved
        found = [best for best in (saved, state.get("best_return")) if best is not None]
        return max(found, default=None)

    def make_sinks(self, recorder, learner):
        """Make the sinks; a resume removes rows and snapshots of updates that it makes again."""
        folder = self.process.run_dir
        columns = together(self.algorithm.columns, learner.columns)
        table = CsvSink(folder / "metrics.csv", columns)
        if self.config.resume:
            table.rewind_to(recorder.updates)
            snapshots.rewind_to(folder, recorder.updates)
        sinks = [table, ConsoleSink(self.process.console)]
        if self.params["tensorboard"]:
            resumed_at = recorder.env_steps if self.config.resume else None
            sinks.append(TensorBoardSink(folder, columns, resumed_at))
        return Sinks(sinks)

    def report(self, reason):
        """Tell rank 0 why this rank has failed."""
        if self.hub is not None:
            self.hub.mailbox.stop()  # only one thread may send
        (self.spoke or self.ends.reporter).send(ERROR, encode({"reason": reason}))

    def summary(self):
        """What ``status.json`` says about the run beside its state."""
        return {} if self.loop is None else self.loop.records.summary()

    def close(self):
        """On the rank that learns, stop the others; then close the files.

        Returns:
            Whether every other rank is known to end by itself.
        """
        if self.ends.collector is not None:
            self.ends.collector.close()
        answered = self.hub is None or self.hub.stop()
        if self.ends.reporter is not None:
            self.ends.reporter.send(BYE, encode({}))
        elif self.ends.collector is not None:
            answered &= self.ends.collector.stop()
        if self.sinks is not None:
            self.sinks.close()
        return answered

    def release(self):
        """Close the environments; if that fails, the result of the run stays the same."""
        if self.environment is not None:
            try:
                self.environment.close()
            except BaseException:
                logger.warning("closing the environments failed", exc_info=True)
