"""The hub: it takes work from its spokes and gives them the newest weights.

Input: unrolls or gradients from ``cluster/spoke``, weights from ``roles/learning``. Output: full
batches of a store (``trajectory.Batches``); weights to each spoke. Lost spokes are replaced.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.messages import (
    ASK,
    BEAT,
    BYE,
    ERROR,
    EVALUATION,
    HELLO,
    POLL_S,
    SMALL_BYTES,
    STOP,
    STOP_S,
    WEIGHTS,
    WORK,
    decode,
    encode,
    pack_weights,
    unpack_weights,
    weights_bytes,
)
from impala_ms.cluster.replacing import start_again
from impala_ms.cluster.roster import ALIVE, EXPECTED, Roster
from impala_ms.comm.transport import Message, Pending
from impala_ms.errors import RunError
from impala_ms.trajectory import Batch, Batches, Layout

PAUSE_S = 1.0  # after a longer pause of this rank itself, the spokes do not count as silent


class Taken(NamedTuple):
    """What became of a piece of work.

    Attributes:
        actor_steps: Decisions so far of the process that made it.
        accepted: Whether it is in the store.
        problem: Which value in it is not finite, or None.
    """

    actor_steps: int
    accepted: bool
    problem: str | None = None


class Intake:
    """Puts work into a store, drops work that is too old or not finite, and counts both.

    Args:
        layout: Layout of the messages; it counts the valid rows of a piece of work.
        store: Where work is put: has ``has_room``, ``add``, ``take`` and ``completed``.
        max_policy_lag: Work with a larger policy lag is dropped, in updates; None: none is dropped.
        version: Version of the weights that the first batch updates.
    """

    def __init__(
        self, layout: Layout, store: Batches, *, max_policy_lag: int | None, version: int
    ) -> None:
        self.layout, self.store = layout, store
        self.max_policy_lag, self.first_version = max_policy_lag, version
        self.env_steps_received = 0  # all that arrived, including dropped ones
        self.env_steps_dropped = 0
        self.dropped = 0  # pieces of work
        self.withheld = 0  # pieces of work that the spokes themselves did not send
        # (returns, lengths, whether they count for the mean return), each [n]
        self.episodes: deque[tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]] = deque()

    def take(self, data: NDArray[np.uint8], stopping: bool) -> Taken | None:
        """Put a message into the store; None, with nothing changed, if there is no room.

        Raises:
            ValueError: If the message has another layout.
        """
        if not (stopping or self.store.has_room()):
            return None
        work = self.layout.views(data)
        rows, actor_steps = self.layout.valid_rows(work), int(work["env_steps"])
        self.env_steps_received += rows
        problem = None if stopping else self.layout.problem(work)
        used_at = self.first_version + self.store.completed
        lag = used_at - int(work["behaviour_version"])
        too_old = self.max_policy_lag is not None and lag > self.max_policy_lag
        accepted = not (stopping or problem or too_old)
        if accepted:
            self.store.add(work)
        else:
            self.dropped += 1
            if self.layout.kept_by_sender and not (stopping or problem):
                self.store.keep(rows)
            else:
                self.env_steps_dropped += rows
        self.withheld += int(work.get("withheld", 0))
        ended = work["episode_length"] > 0
        if not (stopping or problem) and ended.any():
            scored = np.broadcast_to(work.get("scored", np.True_), ended.shape)
            returns, lengths = work["episode_return"][ended], work["episode_length"][ended]
            self.episodes.append((returns, lengths, scored[ended]))
        return Taken(actor_steps, accepted, problem)


class Hub:
    """The end of a learner or a server.

    Until ``start`` the caller pumps the mailbox; then a thread does it, until ``stop``.

    Args:
        mailbox: The mailbox of this rank.
        peers: Ranks of the spokes.
        answers: Whether a spoke gets weights only as an answer, once its work was used or dropped.
        **limits: Arguments of ``Roster``: when a spoke is left out or replaced, or the run ends.
    """

    def __init__(
        self, mailbox: Mailbox, peers: Iterable[int], *, answers: bool = False, **limits: Any
    ) -> None:
        self.mailbox, self.transport, self.answers = mailbox, mailbox.transport, answers
        self._served = time.monotonic()  # when this rank last looked at its messages
        self.roster = Roster(peers, self._served, **limits)
        # (version, weights, returns), taken by the main thread
        self.evaluations: deque[tuple[int, NDArray[np.float32], NDArray[np.float64]]] = deque()
        self.intake: Intake | None = None
        self._spaces: tuple[int, dict[str, Any]] | None = None  # of the first rank that sent HELLO
        self._weights: tuple[int, NDArray[np.uint8]] | None = None
        self._weights_size = 0
        self._capacity = SMALL_BYTES
        self._sent: dict[int, tuple[int, Pending]] = {}  # by rank: version, the send
        # Rank and incarnation of those whose work is in the store, oldest first.
        self._accepted: deque[tuple[int, int]] = deque()
        self._owed: set[int] = set()  # ranks that must get an answer
        self._stopping = False
        mailbox.register(self, self.roster.members, SMALL_BYTES)

    # The loop of the role calls these, in this order.

    def await_hello(self, ranks: int, give_up: Callable[[], bool]) -> dict[str, Any] | None:
        """Serve until so many spokes have sent HELLO.

        Args:
            ranks: Number of spokes.
            give_up: Function that ends the wait early if it returns True.

        Returns:
            ``VectorEnvironment.spaces()`` of the spokes, or None after an early end.
        """
        roster = self.roster
        while len(roster.alive) < min(ranks, len(roster.of(ALIVE, EXPECTED) | roster.returning())):
            if give_up():
                return None
            if not self.mailbox.pump():
                time.sleep(POLL_S)
        return None if self._spaces is None else self._spaces[1]

    def has_step_limit(self) -> bool:
        """Whether the environments of the first rank that sent HELLO have a time limit."""
        if self._spaces is None:
            raise RuntimeError("no rank has sent HELLO yet")
        return self.roster.members[self._spaces[0]].about["step_limit"] is not None

    def begin(self, intake: Intake, weights_size: int) -> None:
        """Take work from now on."""
        self.intake, self._weights_size = intake, weights_size
        largest = max(intake.layout.nbytes, weights_bytes(weights_size))
        self._capacity = SMALL_BYTES + largest
        for peer in self.roster.alive:
            self.transport.release(peer, self._capacity)

    def publish(self, version: int, flat: NDArray[np.float32], env_steps: int = 0) -> None:
        """Make these the newest weights; ``flat`` must not change afterwards.

        ``env_steps`` are those of all spokes together so far. With ``answers``, the weights go to
        the spokes whose work is in the last batch.
        """
        self._weights = version, pack_weights(version, flat, [env_steps])
        if self.intake is not None:
            used = min(self.intake.store.unrolls, len(self._accepted))
            for peer, incarnation in [self._accepted.popleft() for _ in range(used)]:
                if self.roster.members[peer].incarnation == incarnation:  # not replaced since
                    self._owed.add(peer)

    def start(self) -> None:
        """Serve from a thread of its own."""
        self.mailbox.start()

    def take(self, timeout_s: float) -> Batch | None:
        """The next full batch, or None; an exception of the thread is raised here."""
        if self.intake is None:
            raise RuntimeError("begin was not called")
        batch = self.intake.store.take(timeout_s)
        if self.mailbox.error is not None:
            raise self.mailbox.error
        return batch

    def doing(self) -> dict[int, str]:
        """What spokes do instead of acting, ``{rank: text}``."""
        members = self.roster.members
        return {rank: members[rank].doing for rank in self.roster.alive if members[rank].doing}

    def stop(self) -> bool:
        """Tell the spokes to stop, and receive until all have answered or ``STOP_S`` has passed.

        Returns:
            Whether all have answered.
        """
        self._stopping = True
        self.mailbox.stop()
        if not self.transport.concurrent:
            return True  # the spoke is in this thread and ends with it
        deadline = time.monotonic() + STOP_S
        for peer in self._left():  # also those that have not sent HELLO
            self.transport.send(peer, STOP, encode({}))
        while self._left() and time.monotonic() < deadline:
            if not self.mailbox.pump():
                time.sleep(POLL_S)
        return not self._left()

    def _left(self) -> set[int]:
        return self.roster.of(ALIVE, EXPECTED)

    # The mailbox calls these.

    def handle(self, message: Message, now: float) -> bool:
        """Deal with a message; False if that is not possible yet: then it is held."""
        peer, tag, data = message
        self._note_pause(now)
        self.roster.hear(peer, now)
        if tag == HELLO:
            return self._take_hello(peer, data)
        if tag == WORK:
            try:
                if not self.take_work(peer, data):
                    return False
            except RunError:
                self.transport.release(peer)  # it was counted: it is not taken again at the end
                raise
        if tag == EVALUATION:
            version, flat, returns = unpack_weights(data, self._weights_size)
            self.evaluations.append((version, flat.copy(), returns))
        elif tag == ERROR:
            self.roster.leave(peer)
            if not self._stopping:
                said = f"rank {peer}: {decode(data)['reason']}"
                self.transport.release(peer)  # it is not taken again at the end
                raise RunError(f"{said} (worker_{peer}.txt has the traceback)")
        elif tag == BYE:
            self.roster.leave(peer)
        elif tag == ASK:
            self._owed.add(peer)
        elif tag == BEAT and (doing := decode(data)["doing"]) is not None:
            self.roster.members[peer].doing = doing
        self.transport.release(peer)
        return True

    def lose(self, peer: int, what: str, now: float) -> None:
        """Note that a spoke is dead."""
        if self._stopping:
            self.roster.leave(peer)
        else:
            self.roster.lose(peer, what, now)

    def tend(self, now: float) -> bool:
        """Leave out silent spokes, replace lost ones, send weights that are due."""
        self._note_pause(now)
        self._served = now
        if self._stopping:
            return False
        if self.transport.concurrent:
            self.roster.lose_silent(now)
            for peer in self.roster.due(now):
                self._sent.pop(peer, None)
                self._owed.discard(peer)
                start_again(self.transport, peer, self.roster.members[peer])
        if self._weights is not None:
            self._send_weights()
        return False

    def take_work(self, peer: int, data: NDArray[np.uint8]) -> bool:
        """Give work to the intake; False, with nothing changed, if it has no room.

        Raises:
            RunError: If the message has another layout, or too many in a row are not finite.
        """
        if self.intake is None:
            return False
        if self.answers:  # before the batch can be full: the loop may take it at once
            self._accepted.append((peer, self.roster.members[peer].incarnation))
        try:
            taken = self.intake.take(data, self._stopping)
        except ValueError as error:
            raise RunError(f"rank {peer}: {error}") from error
        if self.answers and not (taken and taken.accepted):
            self._accepted.pop()
        if taken is None:
            return False
        if self._stopping:
            return True
        if self.answers and not taken.accepted:
            self._owed.add(peer)
        self.roster.deliver(peer, taken.actor_steps, self._served)
        if taken.problem:
            who = f"rank {peer}" if self.transport.concurrent else "the actor"
            self.roster.refuse(who, peer, taken.problem)
        else:
            self.roster.members[peer].refused = 0
        return True

    def _send_weights(self) -> None:
        for peer in self.roster.alive:
            sent, pending = self._sent.get(peer, (None, None))
            due = peer in self._owed if self.answers else True
            newest = self._weights  # read after `_owed`: so the weights contain the work
            if newest is None or not due or (pending is not None and not pending.done()):
                continue
            if self.answers or sent != newest[0]:
                self._owed.discard(peer)
                self._sent[peer] = newest[0], self.transport.send(peer, WEIGHTS, newest[1])

    def _take_hello(self, peer: int, data: NDArray[np.uint8]) -> bool:
        if peer not in self.roster.alive:
            self._greet(peer, decode(data))
        if self.intake is None and not self._stopping:
            return False  # held until the sizes of later messages are known
        self.transport.release(peer, self._capacity)
        return True

    def _greet(self, peer: int, about: dict[str, Any]) -> None:
        spaces = about["spaces"]
        if self._spaces is None:
            self._spaces = peer, spaces
        first, expected = self._spaces
        self.roster.greet(peer, about)
        self._owed.add(peer)
        differing = [name for name in expected if spaces.get(name) != expected[name]]
        if differing and not self._stopping:
            raise RunError(
                "; ".join(
                    f"the {name} space of rank {peer} is {spaces.get(name)}, that of rank {first} "
                    f"is {expected[name]}"
                    for name in differing
                )
                + ": all ranks need the same environment"
            )

    def _note_pause(self, now: float) -> None:
        """If this rank itself has paused, do not count that time as silence of the spokes."""
        if now > self._served + PAUSE_S:
            self.roster.pause(now - self._served)
            self._served = now
