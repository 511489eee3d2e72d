"""A3C over MPI: what differs from IMPALA. Whatever both do the same way is in the other files."""

import itertools

import pytest

from impala_ms import checkpoint
from tests.conftest import ROOT
from tests.runs.run import FOR_EVER

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
A3C = ("--algorithm", "a3c")
STEPS = 4000


def test_a_run_is_resumed_with_another_number_of_workers(start):
    options = "--total_env_steps", STEPS, "--max_policy_lag", 0, "--log_interval_s", "0.05"
    run = start(3, *A3C, *options, "--num_envs", 4)
    assert run.wait() == 0, run.lines
    before = run.rows()
    run = start(2, "--resume", "run", "--total_env_steps", 2 * STEPS)
    assert run.wait() == 0, run.lines
    rows = run.rows()
    assert rows[: len(before)] == before
    for name in ("wall_time_s", "updates", "env_steps", "env_steps_dropped", "episodes"):
        values = [row[name] for row in rows]
        assert values == sorted(values), name
    assert rows[len(before)]["updates"] == before[-1]["updates"] + 1
    assert sum(row["gradients_dropped"] for row in rows[len(before) :]) == 0  # one worker


def test_lag_goes_by_the_workers_and_not_by_buffers(start):
    run = start(4, *A3C, "--total_env_steps", 60000, "--log_interval_s", "0.2")
    assert run.wait() == 0, run.lines
    rows = run.rows()[1:]
    updates = [b["updates"] - a["updates"] for a, b in itertools.pairwise(rows)]
    lags = [row["policy_lag_mean"] for row in rows[1:]]
    mean = sum(lag * n for lag, n in zip(lags, updates, strict=True)) / sum(updates)
    assert 1.7 < mean < 2.3  # the gradients of two other workers


def test_a_killed_worker_is_started_again_and_its_gradients_are_applied(start):
    run = start(3, *A3C, *FOR_EVER, "--num_envs", 4, "--log_interval_s", "0.2")
    run.until_training()
    before = run.ranks()
    run.kill(2)
    run.until(lambda: "rank 2 takes part again" in run.log(0))
    row = run.until(lambda: next((r for r in run.rows()[-1:] if r["ranks_alive"] == 3), None))
    run.until(lambda: run.rows()[-1]["env_steps"] > row["env_steps"] + 5000)
    assert run.ranks().keys() == {0, 1, 2}
    assert run.ranks()[2] != before[2]
    assert run.rows()[-1]["policy_lag_mean"] < 1.5
    assert run.stop()[0] == 130
    assert "told to stop after" in run.log(2)


def test_fewer_workers_than_gradients_in_an_update_end_the_run(start):
    run = start(
        *(3, *A3C, *FOR_EVER, "--gradients_per_update", 2, "--num_envs", 4),
        *("--restart_actors", "false"),
    )
    run.until_training()
    run.kill(2)
    assert run.wait() == 1
    assert run.lines[-1].endswith("remain: 1, needed: 2")
    assert run.checkpoints() == [checkpoint.file_name(run.json("status.json")["updates"])]


def test_memory_is_trained_by_gradients(start):
    """Without memory the T-maze pays 0.5 at most."""
    run = start(3, *A3C, "--config", ROOT / "example/a3c/tmaze.yaml", "--seed", 1)
    assert run.wait(600.0) == 0, run.lines
    assert run.json("status.json")["episode_return_mean"] > 0.9


def test_the_default_reaches_475_on_cartpole(start):
    run = start(3, *A3C, "--seed", 1)
    assert run.wait(600.0) == 0, run.lines
    assert max(row["episode_return_mean"] or 0 for row in run.rows()) >= 475
