"""Which cores an actor computes on."""

import os
import subprocess
import sys

import pytest

from impala_ms import device

CORES = sorted(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core")


@pytest.fixture
def cores_of_ranks(monkeypatch):
    """A function: the cores that ranks of one host choose, one after the other."""
    processes = []

    def choose(ranks, threads):
        chosen = []
        for rank in range(ranks):
            environment = {
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks),
                "PYTHONPATH": os.pathsep.join(sys.path),
            }
            code = (
                "import os, sys; from impala_ms import device; "
                f"print(device.keep_to_cores({threads}), sorted(os.sched_getaffinity(0)), "
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


def test_each_rank_has_cores_of_its_own(cores_of_ranks):
    ranks = len(CORES)
    assert sorted(cores_of_ranks(ranks, 1)) == sorted(f"[{core}] [{core}]" for core in CORES)


@needs_two_cores
def test_a_core_that_another_job_has_is_taken_last(cores_of_ranks):
    assert cores_of_ranks(1, 1) == [f"[{CORES[0]}] [{CORES[0]}]"]
    assert cores_of_ranks(1, 1) == [f"[{CORES[1]}] [{CORES[1]}]"]


def test_with_more_ranks_than_cores_nothing_is_done(cores_of_ranks):
    assert cores_of_ranks(len(CORES) + 1, 1) == [f"None {CORES}"] * (len(CORES) + 1)
    assert cores_of_ranks(1, len(CORES) + 1) == [f"None {CORES}"]


def test_processes_that_may_use_all_cores_do_not_count():
    with subprocess.Popen(["sleep", "60"]) as process:
        before = device.kept_to(CORES)
        if len(CORES) > 1:
            os.sched_setaffinity(process.pid, CORES[:1])
            after = device.kept_to(CORES)
            assert after == before | {CORES[0]: before[CORES[0]] + 1}
        process.kill()
