"""A transport inside one process: no MPI, one rank after the other in the same thread.

Input and output as in ``comm/transport.py``. Messages are handed over by reference, so a buffer
that is sent must not change before the send is done, as with any transport.
"""

from collections import deque

import numpy as np

from impala_ms.comm.transport import Message


class LocalPending:
    """A send that is done when the receiver has released the message."""

    def __init__(self, tag, data):
        self.tag, self.data, self.taken = tag, data, False

    def done(self):
        """Whether the receiver has taken the message."""
        return self.taken


class LocalTransport:
    """One rank's end; ``connect`` makes all ends of a group at once."""

    concurrent = False

    def __init__(self, rank, queues):
        self.rank = rank
        self.size = len(queues)
        self._queues = queues
        self._capacity = {}

    @classmethod
    def connect(cls, size):
        """``size`` connected ends, rank 0 first."""
        queues = [[deque() for _ in range(size)] for _ in range(size)]
        return [cls(rank, queues) for rank in range(size)]

    def listen(self, peer, capacity_bytes):
        """Receive from a peer from now on."""
        self._capacity[peer] = capacity_bytes

    def poll(self):
        """The first waiting message of each peer."""
        messages = []
        for peer, capacity in self._capacity.items():
            if queue := self._queues[self.rank][peer]:
                data = queue[0].data
                if data.size > capacity:
                    raise ValueError(
                        f"rank {peer} sent {data.size} bytes, rank {self.rank} has room for "
                        f"{capacity}"
                    )
                messages.append(Message(peer, queue[0].tag, data))
        return messages

    def release(self, peer, capacity_bytes=None):
        """Be done with the peer's first message."""
        self._capacity[peer] = capacity_bytes or self._capacity[peer]
        self._queues[self.rank][peer].popleft().taken = True

    def send(self, peer, tag, data):
        """Queue a message at the peer."""
        pending = LocalPending(tag, np.frombuffer(data, np.uint8))
        self._queues[peer][self.rank].append(pending)
        return pending

    def lost(self):
        """Nobody dies alone in one process."""
        return []

    def gather(self, data, into):
        """Collectives need ranks that run at the same time."""
        raise NotImplementedError("a single process takes turns and needs no collectives")

    def broadcast(self, data):
        """Collectives need ranks that run at the same time."""
        raise NotImplementedError("a single process takes turns and needs no collectives")

    def close(self):
        """Nothing to leave."""

    def abort(self, code):
        """End the process."""
        raise SystemExit(code)
