"""The transport inside one process."""

import numpy as np
import pytest

from impala_ms.comm.local import LocalTransport
from tests.comm.contract import TransportContract


class TestLocal(TransportContract):
    @staticmethod
    def run(steps):
        """Play all ranks in turns until each has finished."""
        running = [steps(end) for end in LocalTransport.connect(3)]
        for _ in range(100_000):
            if not running:
                return
            for rank in list(running):
                if next(rank, "the end") == "the end":
                    running.remove(rank)
        raise AssertionError(f"{len(running)} ranks wait for ever")


def test_local_transport_is_not_concurrent_and_has_no_collectives():
    ends = LocalTransport.connect(2)
    assert [(end.rank, end.size, end.concurrent) for end in ends] == [(0, 2, False), (1, 2, False)]
    with pytest.raises(NotImplementedError, match="take turns"):
        ends[0].gather(None, np.zeros(1))
    with pytest.raises(NotImplementedError, match="take turns"):
        ends[1].broadcast(np.zeros(1))


def test_messages_of_several_peers_come_in_the_order_in_which_they_were_sent():
    learner, *actors = LocalTransport.connect(4)
    for peer in (1, 2, 3):
        learner.listen(peer, 1)
    for peer in (2, 3, 2, 1):
        actors[peer - 1].send(0, peer, np.zeros(1, np.uint8))
    assert [message.peer for message in learner.poll()] == [2, 3, 1]
    learner.release(2)
    assert [message.peer for message in learner.poll()] == [3, 2, 1]


def test_abort_ends_the_process_with_its_code():
    with pytest.raises(SystemExit, match="7"):
        LocalTransport.connect(1)[0].abort(7)
