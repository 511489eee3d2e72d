"""Ctrl-C and SIGTERM at every stage: all ranks end within ten seconds, with one checkpoint."""

import os
import signal

import pytest

from impala_ms import checkpoint
from tests.runs.run import FOR_EVER

pytestmark = pytest.mark.mpi

OVER_S = 10.0
SYNCHRONOUS = ("--synchronous", "true", "--num_envs", "8", "--batch_size", "16")

INT, TERM = (signal.SIGINT, 130), (signal.SIGTERM, 143)
# each run takes ten seconds, and there are many stages
one = pytest.mark.parametrize(
    ("number", "code"), [INT, pytest.param(*TERM, marks=pytest.mark.slow)], ids=["INT", "TERM"]
)


@one
def test_stop_while_the_ranks_start_leaves_no_checkpoint(start, number, code):
    run = start(3, *FOR_EVER)
    run.until(lambda: len(run.ranks()) == 3)
    assert_stopped_before_training(run, number, code)


@one
def test_stop_before_the_first_weights_leaves_no_checkpoint(start, number, code):
    run = start(3, *FOR_EVER)
    run.until(lambda: "unrolls of" in run.log(1))
    assert_stopped_before_training(run, number, code)


@one
def test_stop_during_a_restart_leaves_a_checkpoint(start, number, code):
    run = start(3, *FOR_EVER)
    run.until_training()
    run.kill(2)
    run.until(lambda: "rank 2 is started again" in run.log(0))
    assert_stopped_with_a_checkpoint(run, number, code)


@pytest.mark.slow
def test_stop_while_a_replacement_never_starts_leaves_a_checkpoint(start):
    """MPI_Comm_spawn does not return; the run must still end and name its checkpoint."""
    run = start(2, *FOR_EVER)
    run.until_training()
    run.kill(1)
    for pid in run.until(run.replacements):
        os.kill(pid, signal.SIGKILL)
    assert_stopped_with_a_checkpoint(run, *INT)


@one
def test_stop_during_an_evaluation_leaves_a_checkpoint(start, number, code):
    run = start(3, *FOR_EVER, "--eval_interval_updates", 20, "--eval_episodes", 1000)
    run.until(lambda: "Evaluating" in run.log(1))
    assert_stopped_with_a_checkpoint(run, number, code)
    assert "avg_reward" not in run.log(1)


def assert_stopped_with_a_checkpoint(run, number, code):
    returned, took_s = run.stop(number)
    assert returned == code, run.lines
    assert took_s < OVER_S
    assert run.checkpoints() == [checkpoint.file_name(run.json("status.json")["updates"])]
    assert "Traceback" not in "".join(run.log(rank) for rank in range(3))


def assert_stopped_before_training(run, number, code):
    returned, took_s = run.stop(number)
    assert (returned, run.rows(), run.checkpoints()) == (code, [], []), run.lines
    assert took_s < OVER_S
    assert run.line("stopped")
    assert not any("go on with" in line for line in run.lines)  # there is no checkpoint
    assert "Traceback" not in "".join(run.log(rank) for rank in range(3))


@pytest.mark.parametrize(
    ("ranks", "options", "number", "code"),
    [
        (1, (), signal.SIGINT, 130),
        (3, (), signal.SIGTERM, 143),
        pytest.param(3, SYNCHRONOUS, signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
    ids=["alone", "asynchronous", "synchronous"],
)
def test_stop_during_training_leaves_the_last_update_in_a_checkpoint(
    start, ranks, options, number, code
):
    run = start(ranks, *FOR_EVER, *options)
    run.until_training()
    assert run.checkpoints() == []  # no checkpoint is due yet
    returned, took_s = run.stop(number)
    assert returned == code, run.lines
    assert took_s < OVER_S
    status = run.json("status.json")
    assert (status["state"], status["exit_code"]) == ("stopped", 0)
    assert run.checkpoints() == [checkpoint.file_name(status["updates"])]
    _, state = checkpoint.load(status["checkpoint"])
    assert state["totals"]["env_steps"] == status["env_steps"] >= run.rows()[-1]["env_steps"]
    assert run.line("stopped: ").startswith(f"stopped: {status['env_steps']:,} env steps in ")
    assert run.line("go on with").endswith(f"train.py {ranks} --resume run")
    assert "Traceback" not in "".join(run.log(rank) for rank in range(ranks))
