"""Ranks beside rank 0 that serve the workers: further parameter servers, and the store.

Input: gradients or unrolls of workers. Output: weights of a range, or batches; and to rank 0 what
it asks for.
"""

import logging
import time
from types import SimpleNamespace

from impala_ms.agents import build, choices
from impala_ms.cluster.hub import Intake
from impala_ms.cluster.messages import POLL_S
from impala_ms.metrics.recorder import Recorder
from impala_ms.roles.learning import Learning
from impala_ms.roles.shares import pack

logger = logging.getLogger(__name__)


def serve(run, work, ends, spaces):
    """Serve until rank 0 ends the run.

    Args:
        run: ``Run`` of this rank.
        work: What travels.
        ends: ``Ends`` of this rank.
        spaces: Of the workers' environments.
    """
    choices.settle_torso(run.config, spaces)
    policy = build.make_policy(run.config, spaces)
    spec = build.make_spec(run.config, spaces, policy, **work.recorded(policy))
    if run.place.role == "store":
        keep_replay(run, ends, *work.keeping(spec))
    else:
        apply_gradients(run, work, ends, *work.serving(spec, policy, run.place.number - 1))


def apply_gradients(run, work, ends, layout, server):
    """Be a further parameter server, of ``layout`` and ``ShareServer``."""
    hub, reporter, params = ends.hub, ends.reporter, run.config.trainer_params
    size = pack(server.own_parameters()).size
    state = reporter.await_state(size, lambda: run.stop_requested)
    if state is None:
        return
    server.take_state(state)
    workers = sorted(hub.roster.members)
    logger.info("serves %d weights to the workers, ranks %s", server.weights.size, workers)
    recorder = Recorder(time.monotonic(), {"env_steps": reporter.env_steps})
    store, lag = work.store(layout), params["max_policy_lag"]
    hub.begin(Intake(layout, store, max_policy_lag=lag, version=0), server.weights.size)
    hub.publish(0, server.weights.read(), recorder.env_steps)
    hub.mailbox.pump()
    server.warm_up(store.example())
    parts = SimpleNamespace(
        learner=server,
        hub=hub,
        store=store,
        recorder=recorder,
        process=run,
        partner=None,
        reporter=reporter,
    )
    Serving(parts, params).run()


def keep_replay(run, ends, layout, replay, draw, size):
    """Be the store: give batches to workers that ask.

    Args:
        run: ``Run`` of this rank.
        ends: ``Ends`` of this rank.
        layout: Of the unrolls.
        replay: ``TransitionReplay``.
        draw: See ``StoreHub``.
        size: Of a batch, in float32.
    """
    hub, reporter = ends.hub, ends.reporter
    hub.draw = draw
    if reporter.await_state(0, lambda: run.stop_requested) is None:
        return
    hub.begin(Intake(layout, replay, max_policy_lag=None, version=0), size)
    for line in replay.notes(False):
        logger.info(line)
    while not reporter.stopped:
        hub.intake.episodes.clear()
        if not hub.mailbox.pump():
            time.sleep(POLL_S)


class Reports:
    """In place of records: a further server keeps none, and answers rank 0.

    Args: those of ``Learning``; ``parts`` also has ``reporter``.
    """

    took_s = 0.0

    def __init__(self, parts, params):
        self.parts = parts

    def keep(self, finished):
        """After an update: answer, and forget what rank 0 keeps."""
        self.parts.hub.intake.episodes.clear()
        self.show_wait()

    def show_wait(self, what=""):
        """Answer rank 0 if it has asked."""
        if self.parts.reporter.asked:
            self.parts.reporter.tell(pack(self.parts.learner.own_parameters()))

    def end(self):
        """Nothing: rank 0 has what is needed."""


class Serving(Learning):
    """The loop of a further server: it learns until rank 0 sends STOP."""

    records_type = Reports

    def finished(self):
        """Whether rank 0 has sent STOP."""
        return self.records.parts.reporter.stopped
