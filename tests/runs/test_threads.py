"""An actor keeps to ``actor_threads`` cores, by default one."""

import time

import psutil
import pytest

from tests.runs.run import FOR_EVER

SECONDS = 4.0
USED = 1.15  # cores, including the exchange with the learner


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(psutil.cpu_count() < 2, reason="needs two cores: with one there is no choice")
def test_actor_uses_one_core(start):
    run = start(2, *FOR_EVER)
    run.until_training()
    actor = psutil.Process(run.ranks()[1])
    assert len(actor.cpu_affinity()) == 1
    before, began = actor.cpu_times(), time.monotonic()
    time.sleep(SECONDS)
    after, took_s = actor.cpu_times(), time.monotonic() - began
    used = (after.user + after.system - before.user - before.system) / took_s
    assert 0.05 < used < USED
    assert run.stop()[0] == 130
