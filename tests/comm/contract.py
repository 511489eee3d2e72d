"""Tests for every transport.

Each case is a generator that plays one rank of three and yields whenever it waits. So it can run in
a process of its own, or in turns with the other ranks. Checks raise exceptions, because a rank of
an MPI job does not run under pytest.
"""

import numpy as np

CAPACITY = 4096


def check(got, wanted):
    """Raise unless two values, or arrays, are equal."""
    same = got == wanted if not isinstance(got, np.ndarray) else np.array_equal(got, wanted)
    if not same:
        raise AssertionError(f"got {got}, wanted {wanted}")


def payload(rank, number, size):
    """Bytes that are different for each message."""
    return np.random.default_rng((rank, number)).integers(0, 256, size, np.uint8)


def until(condition):
    """Yield until the condition is true."""
    while not condition():
        yield


def sent(transport, peer, tag, data):
    """Send and wait until the message is taken."""
    pending = transport.send(peer, tag, data)
    yield from until(pending.done)


def received(transport, peer):
    """Wait for the peer's next message; it is not released."""
    while True:
        for message in transport.poll():
            if message.peer == peer:
                return message
        yield


def whole_and_in_order(transport):
    """Ranks 1 and 2 send messages of many sizes to rank 0, which sends some float arrays back."""
    sizes = [1, 0, 100, CAPACITY, 3, 1024, 64]
    if transport.rank == 0:
        for peer in (1, 2):
            transport.listen(peer, CAPACITY)
        arrived = {1: 0, 2: 0}
        while min(arrived.values()) < len(sizes):
            for peer, tag, data in transport.poll():
                number = arrived[peer]
                check(tag, 10 * peer + number)
                check(data.dtype, np.uint8)
                check(data, payload(peer, number, sizes[number]))
                arrived[peer] += 1
                transport.release(peer)
            yield
        for number in range(3):
            for peer in (1, 2):
                data = np.full((2, 3), number + 0.5, np.float32)
                yield from sent(transport, peer, 5 + number, data)
    else:
        transport.listen(0, 50)
        for number, size in enumerate(sizes):
            tag = 10 * transport.rank + number
            yield from sent(transport, 0, tag, payload(transport.rank, number, size))
        for number in range(3):
            message = yield from received(transport, 0)
            check(message.peer, 0)
            check(message.tag, 5 + number)
            check(message.data.view(np.float32), np.full(6, number + 0.5, np.float32))
            transport.release(0)


def nobody_receives(transport):
    """Not even a small message completes before the other side listens."""
    if transport.rank == 0:
        transport.listen(2, 1)
        yield from received(transport, 2)  # rank 2 says when rank 1 has waited
        transport.release(2)
        transport.listen(1, 100)
        message = yield from received(transport, 1)
        check(message.data, payload(1, 0, 100))
        transport.release(1)
    elif transport.rank == 1:
        transport.listen(2, 1)
        pending = transport.send(0, 1, payload(1, 0, 100))
        for _ in range(50):
            check(pending.done(), False)
            yield
        yield from sent(transport, 2, 1, np.zeros(1, np.uint8))
        yield from until(pending.done)
    else:
        transport.listen(1, 1)
        yield from received(transport, 1)
        transport.release(1)
        yield from sent(transport, 0, 1, np.zeros(1, np.uint8))


def a_held_message_holds_its_sender_up(transport):
    """Before a message is released, the peer's next is not taken; those of other peers are."""
    if transport.rank == 0:
        for peer in (1, 2):
            transport.listen(peer, 100)
        held = yield from received(transport, 1)
        for number in range(3):  # from rank 2, which is not held up
            message = yield from received(transport, 2)
            check(message.data, payload(2, number, 100))
            transport.release(2)
            check([m.peer for m in transport.poll() if m.peer == 1], [1])
        check(held.data, payload(1, 0, 100))
        yield from sent(transport, 1, 1, np.zeros(1, np.uint8))  # rank 1 looks now
        yield from received(transport, 2)  # rank 1 has looked
        check(held.data, payload(1, 0, 100))
        transport.release(2)
        transport.release(1)
        message = yield from received(transport, 1)
        check(message.data, payload(1, 1, 100))
        transport.release(1)
    elif transport.rank == 1:
        transport.listen(0, 1)
        first, second = (transport.send(0, 1, payload(1, number, 100)) for number in range(2))
        yield from received(transport, 0)
        transport.release(0)
        for _ in range(50):
            check(second.done(), False)
            yield
        yield from sent(transport, 2, 1, np.zeros(1, np.uint8))
        yield from until(second.done)
        yield from until(first.done)
    else:
        transport.listen(1, 1)
        for number in range(3):
            yield from sent(transport, 0, 1, payload(2, number, 100))
        yield from received(transport, 1)
        transport.release(1)
        yield from sent(transport, 0, 1, np.zeros(1, np.uint8))


def another_capacity(transport):
    """A release with ``capacity_bytes`` sets the size limit of all later messages."""
    if transport.rank == 0:
        transport.listen(1, 10)
        for number, capacity in enumerate([1000, None, 2000]):
            message = yield from received(transport, 1)
            check(message.data, payload(1, number, [10, 1000, 1000][number]))
            transport.release(1, capacity)
        message = yield from received(transport, 1)
        check(message.data, payload(1, 3, 2000))
        transport.release(1)
    elif transport.rank == 1:
        for number, size in enumerate([10, 1000, 1000, 2000]):
            yield from sent(transport, 0, 1, payload(1, number, size))


def a_message_that_is_too_long(transport):
    """The receiver gets an error that names the sender and the limit."""
    if transport.rank == 0:
        transport.listen(1, 99)
        while True:
            try:
                check(transport.poll(), [])
            except ValueError as error:
                check("rank 1 sent" in str(error) and "99" in str(error), True)
                return
            yield
    elif transport.rank == 1:
        pending = transport.send(0, 1, payload(1, 0, 100))
        for _ in range(20):
            pending.done()
            yield


class TransportContract:
    """A subclass has ``run(case)``: it plays a case on three ranks and raises its errors."""

    def test_messages_arrive_whole_and_in_order(self):
        self.run(whole_and_in_order)

    def test_send_does_not_complete_without_a_receiver(self):
        self.run(nobody_receives)

    def test_message_that_is_not_released_holds_its_sender_up(self):
        self.run(a_held_message_holds_its_sender_up)

    def test_release_may_change_the_size_limit(self):
        self.run(another_capacity)

    def test_message_above_the_limit_is_an_error(self):
        self.run(a_message_that_is_too_long)
