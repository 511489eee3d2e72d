"""Who says what to whom: the messages between actors and learner, and both ends of them.

Input: unrolls of ``actor``, weights of ``learner``. Output: full batches of ``trajectory`` on
rank 0, the newest weights on the others; all of it over ``comm``.

    actor    HELLO (spaces)  ->  learner        once; the learner needs no environment
    learner  WEIGHTS         ->  actor          the newest only, at most one under way per actor
    actor    UNROLL          ->  learner        one receive posted for each; held if no room
    actor 1  EVALUATION      ->  learner        returns and the weights they were played with
    actor    ERROR           ->  learner        an exception on that rank; ends the run
    actor    BEAT            ->  learner        when it had nothing else to say for a while; what it
                                                does beside acting
    learner  STOP            ->  actor  BYE ->  learner
"""

import json
import logging
import os
import socket
import threading
import time
from collections import deque

import numpy as np

from impala_ms.algorithm.impala.roster import ALIVE, EXPECTED, Roster, RunError
from impala_ms.comm.transport import RankLostError
from impala_ms.session import replacement
from impala_ms.trajectory import non_finite

logger = logging.getLogger(__name__)

HELLO, WEIGHTS, UNROLL, EVALUATION, ERROR, STOP, BYE, BEAT = range(1, 9)

VERSION_BYTES = 8  # in front of weights: the version as int64
STOP_VERSION = -1  # of the broadcast that ends a synchronous run
SMALL_BYTES = 1 << 18  # room for a message of text, or for the returns of an evaluation
POLL_S = 0.0003  # between two looks for messages
STOP_S = 5.0  # that a message at the end of a run may take
REPORT_S = 120.0  # that an error may take: a learner that compiles listens to nobody
BEATS = 4  # within heartbeat_s
PAUSE_S = 1.0  # without a look at messages: this rank was busy or stopped, not the others silent
PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")  # what MPI says to a process of itself


def encode(content):
    """A JSON-able value as a message.

    Raises:
        RunError: If it is larger than the buffers for such messages.
    """
    text = json.dumps(content).encode()
    if len(text) > SMALL_BYTES:
        raise RunError(
            f"{', '.join(content)}: {len(text):,} bytes to be sent, but {SMALL_BYTES:,} are "
            "allowed; are the spaces of the environment listed number by number?"
        )
    return np.frombuffer(text, np.uint8)


def decode(data):
    """The value in a message of ``encode``."""
    return json.loads(data.tobytes())


def pack_weights(version, flat, more=()):
    """A message: the version, float32 weights and float64 numbers behind them."""
    parts = (np.array([version], np.int64), flat, np.asarray(more, np.float64))
    return np.concatenate([part.view(np.uint8) for part in parts])


def unpack_weights(data, size):
    """``(version, weights [size] float32, numbers behind them)`` of a message.

    Raises:
        ValueError: If it is not a message of so many weights.
    """
    end = VERSION_BYTES + 4 * size
    if len(data) < end or (len(data) - end) % 8:
        raise ValueError(
            f"weights came in {len(data):,} bytes, but {size:,}, as the network of this rank has, "
            f"are {end:,}: the network must be the same on every rank"
        )
    version = int(data[:VERSION_BYTES].view(np.int64)[0])
    return version, data[VERSION_BYTES:end].view(np.float32), np.frombuffer(data[end:].tobytes())


class ActorExchange:
    """The actor's end.

    Args:
        transport: This rank's end of the transport.
        heartbeat_s: An actor silent for so long is left out; None: it may be for ever.
    """

    def __init__(self, transport, heartbeat_s=None):
        self.transport = transport
        self._beat_s = heartbeat_s / BEATS if heartbeat_s and transport.concurrent else None
        self._beat, self._spoke = None, time.monotonic()
        self.stopped = False
        self._newest = None
        self._pending = deque()
        self._size = 0

    def hello(self, spaces, step_limit=None):
        """Say what this rank's environments look like; ``step_limit``: their time limit."""
        names = [f"OMPI_COMM_WORLD_{name}" for name in PLACE]
        content = {
            "spaces": spaces,
            "step_limit": step_limit,
            "host": socket.gethostname(),
            "variables": {name: os.environ[name] for name in names if name in os.environ},
        }
        self._pending.append((self.transport.send(0, HELLO, encode(content)), None))

    def begin(self, spec, unrolls_in_flight, weights_size):
        """Be ready for weights of that size, and send unrolls of that spec."""
        self._size = weights_size
        self._free = deque(spec.empty() for _ in range(unrolls_in_flight))
        self.transport.listen(0, VERSION_BYTES + 4 * weights_size)

    def drain(self):
        """Read what has arrived; whether the learner has said to stop."""
        while messages := self.transport.poll():
            if messages[0].tag == STOP:
                self.stopped = True
            elif messages[0].tag == WEIGHTS:
                self._newest = messages[0].data.copy()
            self.transport.release(0)
        if self.transport.lost():
            raise RunError("the learner (rank 0) is gone")
        now = time.monotonic()
        if self._beat_s and now > self._spoke + self._beat_s:
            if self._beat is None or self._beat.done():
                self._beat = self.transport.send(0, BEAT, encode({"doing": None}))
            self._spoke = now
        return self.stopped

    def newest_weights(self):
        """``(version, flat)`` that arrived last and were not taken yet, or None."""
        newest, self._newest = self._newest, None
        return None if newest is None else unpack_weights(newest, self._size)[:2]

    def free_buffer(self):
        """``(buffer, views)`` for the next unroll, or None while all are under way."""
        while self._pending and self._pending[0][0].done():
            _, buffer = self._pending.popleft()
            if buffer is not None:
                self._free.append(buffer)
        return self._free.popleft() if self._free else None

    def send_unroll(self, buffer):
        """Send a buffer of ``free_buffer``; it becomes free when the learner takes it."""
        self._pending.append((self.transport.send(0, UNROLL, buffer[0]), buffer))
        self._spoke = time.monotonic()

    def send(self, tag, data, wait=True):
        """Send another message and, if ``wait``, see it taken, but not for ever."""
        pending = self.transport.send(0, tag, data)
        deadline = time.monotonic() + (REPORT_S if tag == ERROR else STOP_S)
        while wait and not pending.done() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def say(self, doing):
        """Tell the learner what this rank does beside acting, such as ``evaluates``."""
        self.transport.send(0, BEAT, encode({"doing": doing}))

    def finish(self, pending):
        """Wait for a collective; False if the run ends instead (told to stop, or a rank gone)."""
        try:
            while not pending.done():
                if self.drain():
                    return False
                time.sleep(POLL_S)
        except RankLostError:
            logger.warning("a rank is gone: this one stops with the run")
            return False
        return True


class LearnerExchange:
    """The learner's end: fills batches, hands out weights, notices who is gone.

    Until ``start`` the caller serves it; from then on a thread of its own does, and owns the
    transport until ``stop``.

    Args:
        transport: Rank 0's end.
        max_policy_lag: Unrolls that would be used later than this are dropped; or None.
        **limits: Of ``Roster``: when an actor is left out, replaced, and the run ended.
    """

    def __init__(self, transport, *, max_policy_lag, **limits):
        self.transport, self.max_policy_lag = transport, max_policy_lag
        self._served = time.monotonic()
        self.roster = Roster(range(1, transport.size), self._served, **limits)
        self.env_steps_received = 0  # all that arrived, those dropped too
        self.env_steps_dropped = 0
        self.episodes = deque()  # (returns, lengths), for the main thread
        self.evaluations = deque()  # (version, weights, returns), for the main thread
        self._spaces = None  # (rank, spaces) of the rank that spoke first
        self._spec = self._batches = self._weights = None
        self._first_version = 0
        self._capacity = SMALL_BYTES
        self._sent = {}  # by rank: (version, pending)
        self._stopping = False
        self._error = None
        self._thread = None
        for peer in self.roster.members:
            transport.listen(peer, SMALL_BYTES)

    def await_hello(self, ranks, give_up):
        """Serve until so many actors have spoken.

        Args:
            ranks: Number of actors.
            give_up: Function that ends the wait early by returning True.

        Returns:
            ``VectorEnvironment.spaces()`` of the actors, or None if given up.
        """
        roster = self.roster
        while len(roster.alive) < min(ranks, len(roster.of(ALIVE, EXPECTED) | roster.returning())):
            if give_up():
                return None
            if not self.serve():
                time.sleep(POLL_S)
        return self._spaces[1]

    def begin(self, spec, batches, weights_size, version):
        """Take unrolls of that spec from now on; the first batch is used at ``version``."""
        self._spec, self._batches, self._first_version = spec, batches, version
        self._weights_size = weights_size
        self._capacity = SMALL_BYTES + max(spec.nbytes, VERSION_BYTES + 4 * weights_size)
        for peer in self.roster.alive:
            self.transport.release(peer, self._capacity)

    def publish(self, version, flat):
        """Make these the newest weights; ``flat`` must not change afterwards."""
        self._weights = version, pack_weights(version, flat)

    def start(self):
        """Serve from a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def take(self, timeout_s):
        """The next full batch, or None; raises what went wrong in the thread."""
        batch = self._batches.take(timeout_s)
        if self._error is not None:
            raise self._error
        return batch

    def doing(self):
        """What actors do beside acting, ``{rank: text}``."""
        members = self.roster.members
        return {rank: members[rank].doing for rank in self.roster.alive if members[rank].doing}

    def has_step_limit(self):
        """Whether the environments of the rank that spoke first have a time limit."""
        return self.roster.members[self._spaces[0]].about["step_limit"] is not None

    def finish(self, pending, meanwhile=None):
        """Wait for a collective, served meanwhile: evaluations arrive, deaths are noticed.

        Args:
            pending: The collective.
            meanwhile: None, or a function that ends the wait early by returning True.

        Returns:
            Whether it was completed.

        Raises:
            RunError: If a rank is lost.
        """
        deadline = None
        while True:
            try:
                if deadline is None and pending.done():
                    return True
            except RankLostError as error:
                failure, deadline = error, time.monotonic() + 1.0  # until it is known which
            if deadline is not None and time.monotonic() > deadline:
                raise RunError(f"synchronous round: {failure}") from failure
            if not self.serve():
                if meanwhile is not None and meanwhile():
                    return False
                time.sleep(POLL_S)

    def stop(self):
        """Tell the actors to stop and receive until each has answered, or ``STOP_S`` are over.

        Returns:
            Whether all have answered.
        """
        self._stopping = True
        if self._thread is not None:
            self._thread.join()
        if not self.transport.concurrent:
            return True  # the actor is in this thread and has been left alone
        deadline = time.monotonic() + STOP_S
        for peer in self._left():  # also those that have not spoken yet
            self.transport.send(peer, STOP, encode({}))
        while self._left() and time.monotonic() < deadline:
            if not self.serve():
                time.sleep(POLL_S)
        return not self._left()

    def _left(self):
        return self.roster.of(ALIVE, EXPECTED)

    def _run(self):
        try:
            while not self._stopping:
                if not self.serve():
                    time.sleep(POLL_S)
        except Exception as error:
            self._error = error

    def serve(self):
        """Handle what has arrived and send weights that are due; whether anything was done."""
        busy, now, roster = False, time.monotonic(), self.roster
        if now > self._served + PAUSE_S:
            roster.pause(now - self._served)
        self._served = now
        for message in self.transport.poll():
            roster.hear(message.peer, now)
            busy |= self._handle(message)
        for peer, what in self.transport.lost().items():
            if self._stopping:
                roster.leave(peer)
            else:
                roster.lose(peer, what, now)
        if self._stopping:
            return busy
        if self.transport.concurrent:
            roster.lose_silent(now)
            for peer in roster.due(now):
                self._replace(peer)
        if self._weights is not None:
            self._send_weights()
        return busy

    def _replace(self, peer):
        """Start a new process in the place of a rank."""
        member, place = self.roster.members[peer], (peer, self.transport.size) * 2
        variables = {
            f"OMPI_COMM_WORLD_{name}": str(value) for name, value in zip(PLACE, place, strict=True)
        } | member.about.get("variables", {})  # as MPI said to the first, if it came to tell
        self.transport.send(peer, STOP, encode({}))  # it may wake up, or start after all
        self._sent.pop(peer, None)
        self.transport.replace(peer, replacement(member.incarnation, variables))
        self.transport.listen(peer, SMALL_BYTES)

    def _send_weights(self):
        version, message = self._weights
        for peer in self.roster.alive:
            sent, pending = self._sent.get(peer, (None, None))
            if sent != version and (pending is None or pending.done()):
                self._sent[peer] = version, self.transport.send(peer, WEIGHTS, message)

    def _handle(self, message):
        """Whether the message could be dealt with; one that could not is held."""
        peer, tag, data = message
        if tag == HELLO:
            if peer not in self.roster.alive:
                self._greet(peer, decode(data))
            if self._spec is None and not self._stopping:
                return False  # held until the sizes of further messages are known
            self.transport.release(peer, self._capacity)
            return True
        if tag == UNROLL and not self.take_unroll(peer, data):
            return False
        if tag == EVALUATION:
            version, flat, returns = unpack_weights(data, self._weights_size)
            self.evaluations.append((version, flat.copy(), returns))
        elif tag == ERROR:
            self.roster.leave(peer)
            if not self._stopping:
                reason = decode(data)["reason"]
                raise RunError(f"rank {peer}: {reason} (worker_{peer}.txt has the traceback)")
        elif tag == BYE:
            self.roster.leave(peer)
        elif tag == BEAT and (doing := decode(data)["doing"]) is not None:
            self.roster.members[peer].doing = doing
        self.transport.release(peer)
        return True

    def _greet(self, peer, about):
        spaces = about["spaces"]
        if self._spaces is None:
            self._spaces = peer, spaces
        first, expected = self._spaces
        self.roster.greet(peer, about)
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

    def take_round(self, gathered):
        """Put the unrolls of a synchronous round into the batch.

        Args:
            gathered: ``[actors, unrolls of each, bytes of an unroll]`` uint8, in rank order.
        """
        for rank, unrolls in enumerate(gathered, 1):
            self.roster.hear(rank, time.monotonic())
            for data in unrolls:
                self.take_unroll(rank, data)

    def take_unroll(self, peer, data):
        """Put an unroll into the batch; False, with nothing done, while there is no room.

        Raises:
            RunError: If the message cannot be read as an unroll.
        """
        try:
            unroll = self._spec.views(data)
        except ValueError as error:
            raise RunError(f"rank {peer}: {error}") from error
        steps = int((~unroll["first"][1:]).sum())
        if self._stopping:
            self.env_steps_received += steps
            self.env_steps_dropped += steps
            return True
        if not self._batches.has_room():
            return False
        self.env_steps_received += steps
        self.roster.deliver(peer, int(unroll["env_steps"]), self._served)
        if problem := non_finite(unroll):
            self.env_steps_dropped += steps
            who = f"rank {peer}" if self.transport.concurrent else "the actor"
            self.roster.refuse(who, peer, problem)
            return True
        self.roster.members[peer].refused = 0
        used_at = self._first_version + self._batches.completed
        if (
            self.max_policy_lag is not None
            and used_at - int(unroll["behaviour_version"]) > self.max_policy_lag
        ):
            self.env_steps_dropped += steps
        else:
            self._batches.add(unroll)
        ended = unroll["episode_length"] > 0
        if ended.any():
            self.episodes.append((unroll["episode_return"][ended], unroll["episode_length"][ended]))
        return True
