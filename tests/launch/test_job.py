"""The processes of a run: what is seen of them, and how they are stopped."""

import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from impala_ms.launching import job as impala_job
from impala_ms.launching import proc
from tests.launch.launched import DEAF, OBEDIENT, both_sizes, line_with


class TestBlind:
    """A hardened system does not show processes, or not their environments: they are not gone."""

    blind = pytest.mark.parametrize("blind", ["environments", "processes"])

    @pytest.mark.mpi
    @blind
    def test_healthy_run_goes_on(self, start, blind):
        job = start(
            "up(); time.sleep(1.5); connected(); time.sleep(1.2)\n"
            "if rank == 0: write_status(state='finished')",
            3,
            BLIND=blind,
            LIMITS="START_S=0.5 TOGETHER_S=0.5 UNCONNECTED_S=0.5 ORPHANED_S=0.5",
        )
        assert job.wait() == 0, job.lines

    @pytest.mark.parametrize("hides", [True, False])
    def test_ranks_that_proc_hides_are_not_late(self, monkeypatch, hides):
        monkeypatch.setattr(proc, "hides_processes", lambda: hides)
        job = object.__new__(impala_job.Job)
        job.ranks, job._pids, job._guessed = 3, {}, set()
        job.mpich = job.connected = False
        job._process = SimpleNamespace(pid=1)
        job._members = lambda: {1: {b"of": b"mpirun"}}
        assert job._look_for_ranks() == (not hides)

    @pytest.mark.mpi
    def test_rank_that_dies_before_all_are_connected_is_noticed(self, start):
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
    def test_rank_that_dies_once_all_are_connected_is_not_taken_for_rank_0(self, start):
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
    def test_end_of_the_job_leaves_no_process(self, start, ranks, blind):
        job = start(DEAF, ranks, BLIND=blind, LIMITS="STOP_S=0.5")
        job.read_until("is up", ranks)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 143
        assert not job.left()

    def test_process_that_a_rank_has_started_is_killed(self, start):
        job = start(
            "import subprocess\nsubprocess.Popen(['sleep', '120'])\nwrite_status(state='finished')",
            1,
            BLIND="environments",
        )
        assert job.wait() == 0
        assert not job.left()

    def test_process_whose_name_is_not_text_is_read(self):
        comm = Path("/proc/self/comm")
        before = comm.read_bytes()
        comm.write_bytes(b"\xff) T 1 (\xd0")
        try:
            process = proc.look(os.getpid())
        finally:
            comm.write_bytes(before)
        assert process == (process.state, os.getppid(), os.getsid(0))
        assert process.state in "RS"

    def test_state_of_a_living_process_is_never_empty(self, monkeypatch):
        ended = subprocess.Popen(["true"])
        assert proc.state(os.getpid()) in "RS"
        monkeypatch.setattr(proc, "look", lambda pid: None)
        assert proc.state(os.getpid()) == "?"
        ended.wait()
        assert proc.state(ended.pid) == ""

    @pytest.mark.parametrize(
        ("options", "hides"),
        [("rw", False), ("rw,hidepid=0", False), ("rw,hidepid=invisible", True), (None, True)],
    )
    def test_proc_that_hides_processes_is_recognised(self, monkeypatch, options, hides):
        def read(path, **_):
            if options is None:
                raise PermissionError
            return f"/dev/vda / ext4 rw,hidepid=2 0 0\nproc /proc proc {options} 0 0\n"

        monkeypatch.setattr(Path, "read_text", read)
        assert proc.hides_processes() == hides


class TestStop:
    @both_sizes
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_first_signal_reaches_every_rank_once(self, start, ranks, number, code):
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
        assert go_on.endswith(f" -m impala_ms train script.py {ranks} --resume run")
        assert not job.left()

    def test_run_that_is_stopped_before_the_first_update_has_no_checkpoint(self, start):
        job = start(OBEDIENT.replace(', checkpoint=str(run_dir / "last")', ""), 1)
        job.read_until("is up")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
        assert job.lines[-1] == "  no checkpoint: it was stopped before the first update"

    def test_ctrl_c_in_a_terminal_reaches_only_the_launcher(self, start):
        job = start(OBEDIENT, 1)
        job.read_until("is up")
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.wait() == 130
        assert line_with(job, "stopped: 1,234")

    @both_sizes
    def test_second_signal_ends_the_job_at_once(self, start, ranks):
        job = start(DEAF, ranks, LIMITS="STOP_S=60")
        job.read_until("is up", ranks)
        job.process.send_signal(signal.SIGINT)
        job.read_until("stopping: ")
        time.sleep(impala_job.REPEATED_S + 0.1)
        job.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert job.wait() == 130
        assert time.monotonic() - began < 5
        assert "without a final checkpoint" in job.lines[-1]
        assert not job.left()

    @both_sizes
    def test_ranks_that_ignore_the_first_signal_are_killed_in_time(self, start, ranks):
        job = start(DEAF, ranks, LIMITS="STOP_S=1")
        job.read_until("is up", ranks)
        job.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert job.wait() == 143
        assert 0.9 < time.monotonic() - began < 5
        assert not job.left()

    def test_same_signal_twice_in_a_moment_is_one_request(self, start):
        job = start(OBEDIENT, 1, CHECKPOINT_S="1")
        job.read_until("is up")
        job.process.send_signal(signal.SIGTERM)
        job.read_until("stopping: ")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 143
        assert line_with(job, "stopped: 1,234")

    @both_sizes
    def test_killed_launcher_leaves_no_process(self, start, ranks):
        job = start(DEAF, ranks)
        job.read_until("is up", ranks)
        job.process.kill()
        job.process.wait()
        until = time.monotonic() + 10
        while job.left() and time.monotonic() < until:
            time.sleep(0.1)
        assert not job.left()

    def test_reader_that_does_not_read_does_not_delay_ctrl_c(self, start):
        """As a terminal that was halted by Ctrl-S."""
        job = start("up()\nprint('x' * 3_000_000, flush=True)\n" + OBEDIENT, 1)
        job.read_until("is up")
        time.sleep(impala_job.UNREAD_S + 1.0)
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(timeout=20) in (128 + signal.SIGINT, 128 + signal.SIGHUP)
        assert not job.left()

    def test_reader_that_is_gone_is_a_hang_up(self, start):
        job = start(OBEDIENT.replace("    time.sleep(0.02)", "    up(); time.sleep(0.02)"), 1)
        job.read_until("is up")
        job.process.stdout.close()
        assert job.process.wait(timeout=20) == 128 + signal.SIGHUP
        assert (job.run_dir / "asked_0").exists()
