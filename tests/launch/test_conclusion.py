"""The exit code and the last lines of a run, whatever end it comes to."""

import sys
import tempfile
import time
from types import SimpleNamespace

import pytest

from impala_ms.launching import conclusion
from tests.launch.launched import line_with


class TestExitCode:
    @pytest.mark.parametrize(
        ("state", "written", "code"),
        [
            ("finished", 0, 0),
            ("failed", 3, 3),
            ("failed", 0, 1),  # a failure is never a success, whatever was written
            ("stopped", 0, 0),  # by itself, no signal came
        ],
    )
    def test_exit_code_is_that_of_the_status_file(self, start, state, written, code):
        script = f"write_status(state={state!r}, exit_code={written}, message='why'); sys.exit(5)"
        assert start(script, 1).wait() == code

    def test_finished_run_names_its_score_and_its_files(self, start):
        job = start(
            "(run_dir / 'worker_0.txt').touch()\n"
            "write_status(state='finished', env_steps=1500000, episode_return_mean=481.25, "
            "checkpoint=str(run_dir / 'checkpoints' / '9'))",
            1,
        )
        assert job.wait() == 0
        assert line_with(job, "finished").startswith("finished: 1,500,000 env steps in ")
        assert "return 481.2 (mean of the last 20 episodes)" in line_with(job, "finished")
        assert line_with(job, "logs").endswith("run/worker_0.txt")
        assert not any("curves" in line for line in job.lines)  # there are none
        assert line_with(job, "checkpoint  ").endswith("run/checkpoints/9")

    @pytest.mark.parametrize(
        ("episodes", "says"),
        [
            (0, "none ended"),
            (7, "only 7 ended"),
            (52, "fewer count so far: those since a resume, of environments that explore least"),
        ],
    )
    def test_finished_run_says_why_it_has_no_return(self, start, episodes, says):
        job = start(f"write_status(state='finished', env_steps=5, episodes={episodes})", 1)
        assert job.wait() == 0
        said = f", no return: it is the mean of 20 episodes, and {says}"
        assert line_with(job, "finished").endswith(said)

    def test_finished_run_names_its_best_evaluation(self, start):
        job = start("write_status(state='finished', best_eval_return=481.25)", 1)
        assert job.wait() == 0
        assert "; best evaluation 481.2 (evaluate --checkpoint best)" in line_with(job, "finished")

    def test_failed_run_says_why_in_the_last_line(self, start):
        job = start("write_status(state='failed', exit_code=1, message='rank 2: KeyError: 7')", 1)
        assert job.wait() == 1
        assert job.lines[-1] == "failed: rank 2: KeyError: 7"

    def test_run_without_a_status_failed_and_shows_the_end_of_its_log(self, start):
        job = start(
            "(run_dir / 'worker_0.txt').write_text(''.join(f'line {i}\\n' for i in range(50)))", 1
        )
        assert job.wait() == 1
        assert job.lines[-1].startswith("failed: rank 0 ended and did not say why")
        assert [line.strip() for line in job.lines if line.startswith("  line ")] == [
            f"line {i}" for i in range(30, 50)
        ]

    def test_killed_script_is_a_failure(self, start):
        job = start("os.kill(os.getpid(), signal.SIGKILL)", 1)
        assert job.wait() == 137
        assert "killed by signal 9" in job.lines[-1]

    def test_status_of_an_earlier_run_does_not_count(self, start):
        assert start("write_status(state='finished')", 1).wait() == 0
        assert start("up()", 1).wait() == 1

    def test_failure_that_was_printed_but_not_written_is_the_last_line(self, start):
        job = start("print('failed: no space'); print('and more'); sys.exit(3)", 1)
        assert job.wait() == 3
        assert job.lines[-1] == "failed: no space"

    @pytest.mark.mpi
    def test_killed_rank_0_is_a_failure_and_ends_the_others(self, start):
        job = start(
            "up(); connected()\ntime.sleep(1)\n"
            "(run_dir / 'worker_0.txt').touch()\n"
            "if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "time.sleep(120)",
            3,
            LIMITS="ORPHANED_S=1",
        )
        began = time.monotonic()
        assert job.wait() == 1
        assert time.monotonic() - began < 10
        assert "rank 0 ended and did not say why" in job.lines[-1]
        assert not job.left()

    @pytest.mark.mpi
    @pytest.mark.parametrize("lost", [0, 2])
    def test_rank_that_dies_before_all_are_connected_ends_the_others(self, start, lost):
        job = start(
            "(run_dir / f'worker_{rank}.txt').write_text(f'the log of {rank}\\n')\n"
            f"up(); time.sleep(1)\nif rank == {lost}: os.kill(os.getpid(), signal.SIGKILL)\n"
            "time.sleep(120)",
            3,
        )
        began = time.monotonic()
        assert job.wait() == 1
        assert time.monotonic() - began < 10
        who = f"rank {lost} ended before all ranks were connected"
        assert (who if lost else "rank 0 ended and did not say why") in job.lines[-1]
        assert job.lines[-1].endswith(f"its log is run/worker_{lost}.txt")
        assert f"  the log of {lost}" in job.lines
        assert not job.left()

    @pytest.mark.mpi
    @pytest.mark.parametrize("halted", [0, 2])
    def test_rank_that_is_stopped_before_all_are_connected_ends_the_others(self, start, halted):
        job = start(
            f"up(); time.sleep(1)\nif rank == {halted}: os.kill(os.getpid(), signal.SIGSTOP)\n"
            "time.sleep(120)",
            3,
            LIMITS="HALTED_S=1",
        )
        began = time.monotonic()
        assert job.wait() == 1
        assert time.monotonic() - began < 10
        said = f"rank {halted} was stopped (SIGSTOP) before all ranks were connected"
        assert said in job.lines[-1]
        assert not job.left()

    @pytest.mark.mpi
    def test_rank_that_is_stopped_for_a_moment_is_waited_for(self, start):
        job = start(
            "import subprocess\nup()\nif rank == 2:\n"
            "    subprocess.Popen(['sh', '-c', f'sleep 2; kill -CONT {os.getpid()}'])\n"
            "    os.kill(os.getpid(), signal.SIGSTOP)\n"
            "time.sleep(3 if rank == 2 else 5)\n"
            "if rank == 0: write_status(state='finished')",
            3,
            LIMITS="HALTED_S=4",
        )
        assert job.wait() == 0, job.lines

    @pytest.mark.mpi
    def test_rank_that_dies_once_all_are_connected_does_not_end_the_job(self, start):
        job = start(
            "up(); connected(); time.sleep(1)\nif rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
            "time.sleep(3)\nif rank == 0: write_status(state='finished')",
            3,
            LIMITS="ORPHANED_S=1 UNCONNECTED_S=1",
        )
        assert job.wait() == 0, job.lines

    @pytest.mark.mpi
    @pytest.mark.parametrize(("number", "reason"), [(9, ""), (7, ": is /room full?")])
    def test_killed_mpirun_is_named(self, start, number, reason):
        job = start(
            f"up(); time.sleep(1)\nif rank == 0: os.kill(os.getppid(), {number})\ntime.sleep(120)",
            2,
        )
        assert job.wait() == 128 + number
        reason = reason.replace("/room", tempfile.gettempdir())
        assert job.lines[-1].endswith(
            f"mpirun, which holds the ranks together, was killed by signal {number}{reason}"
        )

    @pytest.mark.mpi
    def test_mpirun_that_starts_no_rank_is_named_with_the_settings_of_mpi(self, start):
        job = start("", 2, OMPI_MCA_pml="ob1", PRTE_MCA_plm="nothing_of_that_name")
        assert job.wait() > 0
        assert job.lines[-1].startswith("failed: no rank was started: exit code ")
        settings = "OMPI_MCA_pml=ob1, PRTE_MCA_plm=nothing_of_that_name"
        assert line_with(job, "MPI follows").endswith(
            f"settings of yours: try it without {settings}"
        )

    @pytest.mark.mpi
    def test_settings_of_mpi_are_not_named_once_all_are_connected(self, start):
        job = start("connected(); time.sleep(1.5)", 2, OMPI_MCA_pml="ob1")
        assert job.wait() == 1
        assert not any("MPI follows" in line for line in job.lines)

    def test_run_folder_that_is_gone_is_named(self, start):
        job = start("import shutil; shutil.rmtree(run_dir)", 1)
        assert job.wait() == 1
        assert job.lines[-1] == "failed: the run folder run is gone"

    @pytest.mark.mpi
    def test_ranks_that_stay_after_the_status_are_killed(self, start):
        job = start(
            "up()\n"
            "if rank == 0: write_status(state='finished', exit_code=0)\n"
            "else: time.sleep(120)",
            3,
            LIMITS="LINGER_S=1",
        )
        began = time.monotonic()
        assert job.wait() == 0
        assert time.monotonic() - began < 10
        assert not job.left()

    def test_process_that_a_rank_has_started_ends_with_the_job(self, start):
        job = start(
            "import subprocess\n"
            "child = subprocess.Popen(['sleep', '120'], start_new_session=True)\n"
            "print('child', child.pid); write_status(state='finished')",
            1,
        )
        began = time.monotonic()
        assert job.wait() == 0
        assert time.monotonic() - began < 10
        assert line_with(job, "child")
        assert not job.left()


@pytest.mark.parametrize(
    ("name", "goes_on"),
    [("best.ckpt", False), (".unfinished.ckpt", False), ("update_000000007.ckpt", True)],
)
def test_a_run_that_was_killed_says_how_to_go_on_only_if_it_has_a_checkpoint(
    tmp_path, name, goes_on
):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / name).touch()
    job = SimpleNamespace(stopped_by=2, ranks=1)
    code, lines = conclusion.conclusion(tmp_path, -9, job, ["1"], 1.0)
    assert code == 130
    assert any("go on with" in line for line in lines) == goes_on


class TestCommand:
    """What the last lines say to go on with is what the user can type."""

    def test_command_calls_the_script_that_started_the_run(self, monkeypatch):
        monkeypatch.setenv("IMPALA_MS_COMMAND", "a clone/start_standalone.sh")
        script = "bash 'a clone/start_standalone.sh'"
        assert conclusion.command("train", "train.py", "4") == f"{script} train.py 4"
        assert conclusion.command("evaluate", "run") == f"{script} evaluate run"

    def test_command_calls_the_package_otherwise(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("IMPALA_MS_COMMAND", raising=False)
        python = f"{sys.executable} -m impala_ms"
        assert conclusion.command("train", "4") == f"{python} train 4"
        assert conclusion.command("evaluate", "my run") == f"{python} evaluate 'my run'"
