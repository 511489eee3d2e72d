"""MPICH instead of Open MPI, set by IMPALA_MS_MPIRUN: a run, a stop, a killed rank."""

import signal
import subprocess
import sys

import pytest

from impala_ms import doctor
from impala_ms.errors import ConfigError
from impala_ms.launching.mpirun import rank_command
from tests.runs.run import FOR_EVER
from tests.runs.test_faults import (
    FAILS_WHILE_THE_LEARNER_COMPILES,
    assert_failed,
    seconds_since_failure,
)

pytestmark = pytest.mark.mpi

WHEEL = "mpich==5.0.2"


@pytest.fixture(scope="module")
def mpirun(tmp_path_factory):
    """MPICH's mpirun in a folder of its own: in Python's folder it would overwrite Open MPI's."""
    folder = tmp_path_factory.mktemp("mpich")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed"]
    subprocess.run([*install, "--prefix", folder, WHEEL], check=True)
    (folder / "link").symlink_to(folder / "bin" / "mpirun")  # Debian has such links
    return folder / "link"


@pytest.mark.slow
def test_run_with_mpich_finishes(start, mpirun):
    run = start(3, "--total_env_steps", 4000, IMPALA_MS_MPIRUN=str(mpirun))
    run.until_training()
    assert "libmpi.so.12" in mapped(run.ranks()[1])  # Open MPI's is libmpi.so.40
    assert run.wait() == 0
    assert run.line("finished: ")
    assert run.rows()[-1]["ranks_alive"] == 3
    assert all(f"rank {rank} actor INFO" in run.log(rank) for rank in (1, 2))


def mapped(pid):
    """The files that a process has mapped."""
    with open(f"/proc/{pid}/maps") as file:
        return file.read()


@pytest.mark.slow
def test_synchronous_run_with_mpich_has_no_lag(start, mpirun):
    run = start(
        *[3, "--total_env_steps", 4000, "--synchronous", "true", "--num_envs", 8],
        *["--batch_size", 16],
        IMPALA_MS_MPIRUN=str(mpirun),
    )
    assert run.wait() == 0
    assert run.rows()[-1]["policy_lag_max"] == 0


@pytest.mark.slow
def test_ctrl_c_with_mpich_leaves_a_checkpoint(start, mpirun):
    run = start(3, *FOR_EVER, IMPALA_MS_MPIRUN=str(mpirun))
    run.until_training()
    code, took_s = run.stop(signal.SIGINT)
    assert code == 130
    assert took_s < 10
    assert len(run.checkpoints()) == 1
    assert run.line("go on with")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_killed_rank_with_mpich_ends_the_run_with_one_line(start, mpirun, rank):
    run = start(3, *FOR_EVER, IMPALA_MS_MPIRUN=str(mpirun))
    run.until_training()
    run.kill(rank)
    assert run.wait() == 1
    assert run.lines[-1].startswith(
        "failed: a rank was killed or crashed, and without fault tolerance (MPICH) all others end"
    )
    assert not any("APPLICATION" in line or line.startswith("=") for line in run.lines)


@pytest.mark.slow
def test_exception_in_an_actor_with_mpich_is_reported_while_the_learner_compiles(start, mpirun):
    """Its report must arrive before it ends, since its end would end all ranks at once."""
    options = FOR_EVER + FAILS_WHILE_THE_LEARNER_COMPILES
    run = start(2, *options, IMPALA_MS_MPIRUN=str(mpirun))
    run.wait()
    assert_failed(run, 1, "ValueError: the wheel came off")
    assert seconds_since_failure(run, 1) > 5.0


@pytest.mark.slow
def test_doctor_names_mpich(mpirun, monkeypatch):
    monkeypatch.setenv("IMPALA_MS_MPIRUN", str(mpirun))
    talked, tolerance = doctor.mpi()
    assert (talked.state, tolerance.state) == (doctor.OK, doctor.OPTIONAL)
    assert f"MPICH ({mpirun.resolve()}), 2 ranks started" in talked.what


def test_hostfile_with_mpich_is_refused(mpirun, monkeypatch, tmp_path):
    monkeypatch.setenv("IMPALA_MS_MPIRUN", str(mpirun))
    with pytest.raises(ConfigError, match=r"--hostfile needs Open MPI, and .*/mpirun is MPICH's"):
        rank_command(tmp_path / "train.py", 2, tmp_path / "hosts")
