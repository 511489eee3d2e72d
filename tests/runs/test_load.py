"""Very different speeds: memory does not grow, the lag is bounded, the bottleneck is named.

All runs of a test run at the same time; most of them mostly wait.
"""

import statistics
import time

import psutil
import pytest

from tests.runs.run import FOR_EVER

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

WARM_S, SECONDS, EVERY_S = 20.0, 180.0, 2.0
GROWTH = 1.05
OPTIONS = ("--num_envs", "4", "--batch_size", "4", "--unroll_length", "20", "--log_interval_s", "1")
SLOW_LEARNER = ("--set", "trainer.type=tests.runs.plugins:slow_trainer")
SLOW = ("--env", "tests.runs.plugins:Slow-v0")
IN_FLIGHT = 2
OLDEST = (
    2 * (IN_FLIGHT + 1) + 3
)  # updates: all unrolls of 2 actors that are under way, and two batches


def watch(runs, seconds):
    """Sample the resident memory of all ranks, ``{(run, rank): [bytes, ...]}``."""
    found = {}
    time.sleep(WARM_S)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for run in runs:
            for rank, pid in run.ranks().items():
                found.setdefault((run, rank), []).append(psutil.Process(pid).memory_info().rss)
        time.sleep(EVERY_S)
    return found


def assert_flat(memory, ranks):
    assert len(memory) == ranks
    for (run, rank), samples in memory.items():
        third = len(samples) // 3
        first, last = statistics.mean(samples[:third]), statistics.mean(samples[-third:])
        assert last < GROWTH * first, (run.run_dir, rank, first, last)


def settled(run):
    """The rows after the first seconds."""
    return [row for row in run.rows() if row["wall_time_s"] > WARM_S]


def last_progress(run):
    return [line for line in run.lines if " steps (" in line][-1]


def test_slow_learner_bounds_lag_and_memory_and_is_named(start):
    """Through shared memory and over TCP, which would buffer unrolls of 3 KB."""
    runs = [
        start(3, *FOR_EVER, *OPTIONS, *SLOW_LEARNER, name=name, OMPI_MCA_btl=transport)
        for name, transport in (("sm", "self,sm,tcp"), ("tcp", "self,tcp"))
    ]
    for run in runs:
        run.until_training()
    assert_flat(watch(runs, SECONDS), 2 * 3)
    for run in runs:
        rows = settled(run)
        assert statistics.mean(row["updates_per_s"] for row in rows) < 1.01
        assert max(row["policy_lag_max"] for row in rows) <= OLDEST
        assert min(row["policy_lag_mean"] for row in rows) > 2
        assert statistics.median(row["actor_wait_fraction"] for row in rows) > 0.9
        assert run.stop()[0] == 130
        assert last_progress(run).endswith("waiting for learner")


def test_slow_actors_are_named_and_one_slow_actor_does_not_age_the_other(start):
    """All actors are 100 times slower than the learner, or one 50 times slower than the other."""
    every = start(3, *FOR_EVER, *OPTIONS, *SLOW, name="every")
    one = start(3, *FOR_EVER, *OPTIONS, *SLOW, "--set", "collect_env.kwargs={rank: 2}", name="one")
    for run in (every, one):
        run.until_training()
    assert_flat(watch((every, one), SECONDS / 3), 2 * 3)
    rows = settled(every)
    assert statistics.median(row["learner_wait_fraction"] for row in rows) > 0.9
    assert max(row["policy_lag_max"] for row in rows) <= OLDEST
    rows = settled(one)
    assert {row["ranks_alive"] for row in rows} == {3}
    # unrolls of the fast actor are as new as without the other; those of the slow actor are old
    assert statistics.median(row["policy_lag_mean"] for row in rows) <= OLDEST
    assert max(row["policy_lag_max"] for row in rows) > 2 * OLDEST
    for run in (every, one):
        assert run.stop()[0] == 130
    assert last_progress(every).endswith("waiting for actors")


def test_thousands_of_updates_keep_speed_and_memory(start):
    run = start(3, *FOR_EVER, "--log_interval_s", "0.5")
    run.until_training()
    memory = watch([run], SECONDS / 3)
    assert_flat(memory, 3)
    rows = settled(run)
    assert rows[-1]["updates"] - rows[0]["updates"] > 2000
    third = len(rows) // 3
    rates = [row["updates_per_s"] for row in rows]
    assert statistics.median(rates[-third:]) > 0.8 * statistics.median(rates[:third])
    assert run.stop()[0] == 130
