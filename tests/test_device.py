"""The number of cores for a process, and the cores that an actor keeps to."""

import os
import subprocess
import sys

import pytest

from impala_ms import cpus, device
from impala_ms.cluster import place

CORES = sorted(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core")


@pytest.fixture
def quota(tmp_path, monkeypatch):
    """A function: usable cores of a process with 64 cores in its affinity and these files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))

    def cores(cgroup, **files):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(cgroup)
        for name, text in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return cpus.usable_cores(tmp_path)

    return cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("100000 25000\n", 4),
        ("max 100000\n", 64),
        ("6500000 100000\n", 64),
        ("", 64),
        ("nonsense\n", 64),
        ("100000 0\n", 64),
    ],
)
def test_quota_of_cgroup_2_limits_the_cores(quota, text, cores):
    assert quota("0::/\n", **{"cpu.max": text}) == cores


@pytest.mark.parametrize(
    ("quota_us", "period_us", "cores"),
    [("300000\n", "100000\n", 3), ("-1\n", "100000\n", 64), ("5000\n", "10000\n", 1)],
)
@pytest.mark.parametrize("group", ["", "docker/abc/"])
def test_quota_of_cgroup_1_limits_the_cores(quota, quota_us, period_us, cores, group):
    """In a container the path is the host's, but the files are at the top of the mount."""
    files = {
        f"cpu,cpuacct/{group}cpu.cfs_quota_us": quota_us,
        f"cpu,cpuacct/{group}cpu.cfs_period_us": period_us,
        "cpuset/cpu.cfs_quota_us": "100000",
        "cpuset/cpu.cfs_period_us": "100000",
    }
    groups = "3:cpuset:/\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n"
    assert quota(groups, **files) == cores


def test_smallest_quota_of_a_cgroup_and_its_parents_holds(quota):
    files = {
        "a/b/cpu.max": "800000 100000",
        "a/cpu.max": "400000 100000",
        "cpu.max": "max 100000",
        "other/cpu.max": "100000 100000",
    }
    assert quota("0::/a/b\n", **files) == 4


def test_cores_without_cgroups_are_those_of_the_affinity(tmp_path, monkeypatch):
    assert cpus.usable_cores(tmp_path) == len(CORES)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert cpus.usable_cores(tmp_path) == 3


def test_cgroup_files_of_this_machine_are_read():
    assert 1 <= cpus.usable_cores() <= len(CORES)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, (1, 3)),
        ({"MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, None),
    ],
)
def test_ranks_of_this_host_are_read_from_mpi_variables(monkeypatch, environment, wanted):
    for name in (*(f"{place.OPEN_MPI}{name}" for name in place.NAMES), *place.MPICH.values()):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place.ranks_here() == wanted


@pytest.fixture
def cores_of_ranks(monkeypatch):
    """A function: the cores that the ranks of a host choose, one rank after the other."""
    processes = []

    def choose(ranks, threads, reserved=0):
        chosen = []
        for rank in range(ranks):
            environment = {
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks),
                "PYTHONPATH": os.pathsep.join(sys.path),
            }
            code = (
                "import os, sys; from impala_ms import device; "
                f"print(device.keep_to_cores({threads}, {reserved}), "
                "sorted(os.sched_getaffinity(0)), "
                "flush=True); sys.stdin.read()"
            )
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            chosen.append(process.stdout.readline().strip())
        return chosen

    yield choose
    for process in processes:
        process.communicate()


def test_each_rank_keeps_to_other_cores(cores_of_ranks):
    ranks = len(CORES)
    assert sorted(cores_of_ranks(ranks, 1)) == sorted(f"[{core}] [{core}]" for core in CORES)


@needs_two_cores
def test_core_of_another_job_is_taken_last(cores_of_ranks):
    assert cores_of_ranks(1, 1) == [f"[{CORES[0]}] [{CORES[0]}]"]
    assert cores_of_ranks(1, 1) == [f"[{CORES[1]}] [{CORES[1]}]"]


def test_more_ranks_than_cores_are_not_kept_to_cores(cores_of_ranks):
    assert cores_of_ranks(len(CORES) + 1, 1) == [f"None {CORES}"] * (len(CORES) + 1)
    assert cores_of_ranks(1, len(CORES) + 1) == [f"None {CORES}"]


@needs_two_cores
def test_with_more_ranks_than_cores_the_reserved_ones_are_left_to_the_learner(cores_of_ranks):
    ranks, rest = len(CORES) + 1, CORES[1:]
    assert cores_of_ranks(ranks, 1, reserved=1) == [f"{rest} {rest}"] * ranks
    assert cores_of_ranks(1, ranks, reserved=len(CORES)) == [f"None {CORES}"]


def test_only_processes_kept_to_some_cores_count():
    with subprocess.Popen(["sleep", "60"]) as process:
        before = device.kept_to(CORES)
        if len(CORES) > 1:
            os.sched_setaffinity(process.pid, CORES[:1])
            after = device.kept_to(CORES)
            assert after == before | {CORES[0]: before[CORES[0]] + 1}
        process.kill()
