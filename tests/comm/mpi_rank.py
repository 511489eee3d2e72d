"""One rank of an MPI test: ``mpirun -n 3 python -m tests.comm.mpi_rank CASE``.

CASE is a generator of ``tests/comm/contract.py`` or of this file.
"""

import os
import signal
import sys
import time

import numpy as np

from impala_ms.comm import mpi
from impala_ms.comm.mpi import MPITransport
from impala_ms.comm.transport import RankLostError
from tests.comm import contract
from tests.comm.contract import check, payload, received, sent, until

TIMEOUT_S = 15.0


def loss_noticed(transport, heard=()):
    """Wait until ranks are lost; returns ``{peer: what happened}``. Only ``heard`` may send."""
    while True:
        check([message for message in transport.poll() if message.peer not in heard], [])
        if lost := transport.lost():
            return lost
        yield


def collectives(transport):
    """As in a synchronous run: broadcast, then gather. Twice, so that buffers are used again."""
    for number in range(2):
        wanted = np.arange(1000, dtype=np.float32) + number
        data = wanted.copy() if transport.rank == 0 else np.full(1000, np.nan, np.float32)
        yield from until(transport.broadcast(data).done)
        check(data, wanted)
        if transport.rank == 0:
            into = np.full((transport.size - 1, 40), 0xA5, np.uint8)
            yield from until(transport.gather(None, into).done)
            check(into, np.stack([payload(1, number, 40), payload(2, number, 40)]))
        else:
            if transport.rank == 1:
                time.sleep(0.05)  # rank 1 sends last, but comes first
            pending = transport.gather(payload(transport.rank, number, 40), None)
            yield from until(pending.done)


def a_killed_actor(transport):
    """Rank 2 dies; ``lost`` tells rank 0 once, and rank 0 goes on with rank 1."""
    if transport.rank == 2:
        yield from sent(transport, 0, 1, payload(2, 0, 100))
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank == 1:
        transport.listen(0, 100)
        number = 0
        while True:  # until rank 0 says that it has seen the death
            yield from sent(transport, 0, 1, payload(1, number, 100))
            message = yield from received(transport, 0)
            transport.release(0)
            number += 1
            if message.tag == 9:
                return
    for peer in (1, 2):
        transport.listen(peer, 100)
    message = yield from received(transport, 2)
    check(message.data, payload(2, 0, 100))
    transport.release(2)
    number, seen_at, lost = 0, None, {}
    while seen_at is None or number < seen_at + 50:
        message = yield from received(transport, 1)
        check(message.data, payload(1, number, 100))
        transport.release(1)
        lost |= transport.lost()
        if lost and seen_at is None:
            seen_at = number
            yield from until(transport.send(2, 1, payload(0, 0, 1_000_000)).done)  # no hang
        over = seen_at is not None and number == seen_at + 49
        yield from sent(transport, 1, 9 if over else 1, np.zeros(1, np.uint8))
        number += 1
    check(lost, {2: "was lost"})
    check(transport.lost(), {})


def a_killed_learner(transport):
    """Rank 0 dies; the others notice by the receive that they have posted."""
    if transport.rank == 0:
        for peer in (1, 2):
            transport.listen(peer, 1)
        for peer in (1, 2):
            yield from received(transport, peer)
        os.kill(os.getpid(), signal.SIGKILL)
    transport.listen(0, 100)
    yield from sent(transport, 0, 1, np.zeros(1, np.uint8))
    lost = yield from loss_noticed(transport)
    check(lost, {0: "was lost"})


def a_dead_peer_before_it_is_listened_to(transport):
    """Listening to a dead rank is not an error: the rank is reported as lost."""
    if transport.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank == 0:
        time.sleep(0.5)
        transport.listen(2, 100)
        lost = yield from loss_noticed(transport)
        check(lost, {2: "was lost"})


def a_death_before_or_in_a_collective(transport):
    """The others get an error; nobody waits for ever."""
    if transport.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank == 0:  # it knows before the collective begins; rank 1 may not
        transport.listen(2, 1)
        yield from loss_noticed(transport)
    into = np.zeros((2, 40), np.uint8) if transport.rank == 0 else None
    data = None if transport.rank == 0 else payload(1, 0, 40)
    for begin in (
        lambda: transport.gather(data, into),
        lambda: transport.broadcast(payload(0, 0, 9)),
    ):
        try:
            yield from until(begin().done)
        except RankLostError:
            return
    # only rank 1 may have sent its part without noticing
    check(transport.rank, 1)


def a_replaced_actor(transport):
    """Rank 2 dies; a new process replaces it, dies too, and is replaced again."""
    if transport.rank == 2 and not incarnation():
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank:
        transport.listen(0, 100)
        while True:
            number = incarnation()
            yield from sent(transport, 0, 1, payload(transport.rank, number, 90_000))
            message = yield from received(transport, 0)
            transport.release(0)
            if message.tag == 8 and transport.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if message.tag == 9:
                return
    for peer in (1, 2):
        transport.listen(peer, 100_000)
    for number in (1, 2):
        lost = yield from loss_noticed(transport, heard=(1,))
        check(lost, {2: "was lost"})
        transport.replace(2, [sys.executable, "-m", "tests.comm.mpi_rank", NAME, str(number)])
        transport.listen(2, 100_000)
        for peer, rounds in ((2, 5), (1, 5)):
            for turn in range(rounds):
                message = yield from received(transport, peer)
                check(message.data, payload(peer, number if peer == 2 else 0, 90_000))
                transport.release(peer)
                last = turn == rounds - 1 and (peer == 2 or number == 2)
                tag = (8 if number == 1 else 9) if last else 1
                yield from sent(transport, peer, tag, np.zeros(1, np.uint8))


NAME = "a_replaced_actor"


def incarnation():
    """How many processes were rank 2 before this one."""
    return int(sys.argv[2]) if len(sys.argv) > 2 else 0


def replacements_that_do_not_start(transport):
    """MPI does not report a process that dies at once; a slow one may start too late."""
    if transport.rank == 2 and not incarnation():
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank:
        transport.listen(0, 100)
        if incarnation() != SLOW:
            yield from sent(transport, 0, 1, payload(transport.rank, incarnation(), 90_000))
        message = yield from received(transport, 0)
        check(message.tag, 10 if incarnation() == SLOW else 9)
        return
    mpi.SPAWN_S = 1.5
    begin = f"{sys.executable} -m tests.comm.mpi_rank {sys.argv[1]}"
    for command in ("kill -9 $$", f"sleep 3; exec {begin} {SLOW}"):
        transport.replace(2, ["/bin/sh", "-c", command])
        transport.listen(2, 100_000)
        lost = yield from loss_noticed(transport)
        check(lost, {2: "has not started in 1.5 s"})
        transport.send(2, 10, np.zeros(1, np.uint8))
    mpi.SPAWN_S = 30.0
    transport.replace(2, ["/bin/sh", "-c", f"exec {begin} 1"])
    transport.listen(2, 100_000)
    transport.listen(1, 100_000)
    for peer in (1, 2):
        message = yield from received(transport, peer)
        check(message.data, payload(peer, 1 if peer == 2 else 0, 90_000))
        transport.release(peer)
        yield from sent(transport, peer, 9, np.zeros(1, np.uint8))
    while len(transport._starting) > 1:  # the slow one
        transport.poll()
        yield
    end = time.monotonic() + 1.0  # it takes its message
    while time.monotonic() < end:
        transport.poll()
        yield


SLOW = 2  # incarnation of the process that starts late


def a_learner_lost_to_a_replaced_actor(transport):
    """A replacement notices, too, that rank 0 is gone."""
    if transport.rank == 1:
        return
    if transport.rank == 2 and not incarnation():
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank == 0:
        command = [sys.executable, "-m", "tests.comm.mpi_rank", sys.argv[1], "1"]
        transport.replace(2, command)
        transport.listen(2, 1)
        yield from received(transport, 2)
        os.kill(os.getpid(), signal.SIGKILL)
    transport.listen(0, 100)
    yield from sent(transport, 0, 1, np.zeros(1, np.uint8))
    yield from loss_noticed(transport)


def abort_ends_all_ranks(transport):
    """Ranks that would wait for ever end too."""
    if transport.rank == 1:
        transport.abort(7)
    while True:
        yield


def main(name):
    """Play the case; exit code 1 and a line if it fails or takes too long."""
    transport = MPITransport(replacement=(2, 3, 0) if incarnation() else None)
    check(transport.size, 3)
    check(transport.concurrent, True)
    case = globals().get(name) or getattr(contract, name)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        for _ in case(transport):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {transport.rank} has waited for {TIMEOUT_S:g} s")
            time.sleep(1e-3)
    except (AssertionError, TimeoutError) as error:
        sys.stderr.write(f"rank {transport.rank}: {error}\n")
        transport.abort(1)
    sys.stdout.write(f"rank {transport.rank} is well\n")
    sys.stdout.flush()
    transport.close()


if __name__ == "__main__":
    main(sys.argv[1])
