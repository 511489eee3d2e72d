"""The transport over MPI: every case is a job of three processes that do not import MindSpore."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.comm.contract import TransportContract

pytestmark = pytest.mark.mpi

MPIRUN = Path(sys.executable).parent / "mpirun"
OPTIONS = ["--with-ft", "ulfm", "--oversubscribe", "--allow-run-as-root"]


# Messages above 1 KiB are sent in pieces, after the receiver has said that it is ready.
SMALL_LIMITS = {
    f"OMPI_MCA_btl_{btl}_{limit}": "1024"
    for btl in ("sm", "tcp")
    for limit in ("eager_limit", "rndv_eager_limit", "max_send_size")
}


def mpi(name, survivors=(0, 1, 2), exit_code=0, **variables):
    """Run a case of ``mpi_rank``; the ranks that survive must have finished it."""
    command = [MPIRUN, "-n", "3", *OPTIONS, sys.executable, "-m", "tests.comm.mpi_rank", name]
    with tempfile.TemporaryDirectory(prefix="mpi-") as folder:
        # Jobs that start at the same time sometimes fail on files that they share in /tmp.
        settings = {"PRTE_MCA_prte_tmpdir_base": folder, "OMPI_MCA_mpi_yield_when_idle": "1"}
        settings |= variables
        try:
            done = subprocess.run(
                command, env=os.environ | settings, capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired as error:
            pytest.fail(f"mpirun has not ended after 60 s; it said {error.stdout} {error.stderr}")
    said = done.stdout + done.stderr
    well = sorted(line for line in done.stdout.splitlines() if line.endswith("is well"))
    assert well == [f"rank {rank} is well" for rank in survivors], said
    if exit_code is not None:
        assert done.returncode == exit_code, said


class TestMPI(TransportContract):
    @staticmethod
    def run(case):
        mpi(case.__name__)


def test_broadcast_reaches_all_and_gather_is_in_rank_order():
    mpi("collectives")


@pytest.mark.parametrize("btl", ["self,sm", "self,tcp"])
def test_messages_that_mpi_sends_in_pieces_arrive_whole(btl):
    """Through shared memory, and through sockets."""
    mpi("whole_and_in_order", **SMALL_LIMITS, OMPI_MCA_btl=btl, OMPI_MCA_pml="ob1")


def test_killed_actor_is_reported_while_traffic_goes_on():
    mpi("a_killed_actor", survivors=[0, 1])


def test_actors_notice_a_killed_learner():
    mpi("a_killed_learner", survivors=[1, 2])


def test_peer_that_died_before_it_is_listened_to_is_reported():
    mpi("a_dead_peer_before_it_is_listened_to", survivors=[0, 1])


def test_dead_rank_makes_a_collective_fail_without_a_hang():
    mpi("a_death_before_or_in_a_collective", survivors=[0, 1])


def test_lost_actor_is_replaced_and_its_replacement_too():
    mpi("a_replaced_actor", exit_code=None)  # mpirun returns the exit code of the replacement


def test_replacements_that_do_not_start_are_given_up_and_told_to_leave():
    mpi("replacements_that_do_not_start", survivors=[0, 1, 2, 2], exit_code=None)


def test_replacement_notices_a_killed_learner():
    mpi("a_learner_lost_to_a_replaced_actor", survivors=[1, 2])


def test_abort_ends_all_ranks_with_its_code():
    mpi("abort_ends_all_ranks", survivors=[], exit_code=7)
