"""How rank 0 works together with further parameter servers, and with a store.

Input: what a server begins with, and later what it has, as bytes. Output: the same at the other
end. Weights and gradients do not go this way: each server deals with the workers by itself.

    server  HELLO                  ->  rank 0   it knows how large its part is
    rank 0  HELLO, BEGIN (state)   ->  server   once
    rank 0  ASK                    ->  server   STATE, between two updates  ->  rank 0
    server  BEAT, ERROR            ->  rank 0
    rank 0  STOP                   ->  server   BYE  ->  rank 0
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.messages import (
    ASK,
    BEAT,
    BEGIN,
    BYE,
    ERROR,
    HELLO,
    POLL_S,
    SMALL_BYTES,
    STATE,
    STOP,
    STOP_S,
    decode,
    encode,
)
from impala_ms.cluster.spoke import BEATS, REPORT_S
from impala_ms.comm.transport import Message, Pending
from impala_ms.errors import RunError

State = NDArray[np.uint8]
SERVER, STORE = ("a parameter server", "weights"), ("the replay", "decisions")


class Collector:
    """The end of rank 0.

    Args:
        mailbox: The mailbox of this rank.
        servers: Ranks of the other servers.
        stores: Ranks that have no weights; they are only watched.
        start_timeout_s: The run ends if one of them is not ready by then.
        heartbeat_s: The run ends if one of them is silent for so long; None: it never does.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        servers: Iterable[int],
        stores: Iterable[int] = (),
        *,
        start_timeout_s: float,
        heartbeat_s: float | None,
    ) -> None:
        self.mailbox, self.transport = mailbox, mailbox.transport
        self.start_timeout_s, self.heartbeat_s = start_timeout_s, heartbeat_s
        self.servers, self.stores = set(servers), set(stores)
        self.heard = dict.fromkeys(self.servers | self.stores, time.monotonic())
        self._tended = time.monotonic()
        self._ready: set[int] = set()  # those whose parts are known there
        self._left: set[int] = set()  # those that have said BYE
        self._first: Mapping[int, State] | None = None  # what each begins with
        self._env_steps = 0
        self._begun: set[int] = set()
        self._to_ask: set[int] = set()
        self._states: dict[int, State] = {}
        self._answered = threading.Condition()
        self._stopping = False
        self._serving: set[int] = set()  # those that have been heard since they began
        self._failure: str | None = None  # why what a server has cannot be collected
        self._sent: list[Pending] = []  # until they are taken
        mailbox.register(self, self.heard, SMALL_BYTES)

    def begin(self, states: Mapping[int, State], env_steps: int = 0) -> None:
        """Let each server begin with its state, after so many steps, as soon as it is ready."""
        self._env_steps = env_steps
        self._first = {**dict.fromkeys(self.stores, np.zeros(0, np.uint8)), **states}

    def collect(self) -> dict[int, State]:
        """What each server has now.

        Raises:
            RunError: If one of them is lost.
        """
        with self._answered:
            self._states = {}
            self._to_ask = set(self.servers)
        while True:
            with self._answered:
                if self._answered.wait_for(lambda: self._states.keys() == self.servers, POLL_S):
                    return self._states
            if self._failure is not None:
                raise RunError(self._failure)
            self.mailbox.go_on()

    def close(self) -> None:
        """From now on a server that fails does not end the run, which ends already."""
        self._stopping = True

    def stop(self) -> bool:
        """Tell the servers to stop, once the mailbox has no thread; whether all have answered."""
        self.close()
        deadline = time.monotonic() + STOP_S
        waited = self.heard.keys() - self._left
        for server in waited:
            self.transport.send(server, STOP, encode({}))
        while waited - self._left and time.monotonic() < deadline:
            if not self.mailbox.pump():
                time.sleep(POLL_S)
        return not waited - self._left

    # The mailbox calls these.

    def handle(self, message: Message, now: float) -> bool:
        """Note what a server says."""
        server, tag, data = message
        self.heard[server] = now
        if tag == HELLO:
            self._ready.add(server)
            self.transport.release(server, SMALL_BYTES + decode(data)["bytes"])
            return True
        if tag == STATE:
            with self._answered:
                self._states[server] = data.copy()
                self._answered.notify()
        elif tag == BYE:
            self._left.add(server)
        elif tag == ERROR:
            self._left.add(server)
            reason = decode(data)["reason"]
            self.transport.release(server)
            self._fail(f"rank {server}: {reason} (worker_{server}.txt has the traceback)")
            return True
        if tag in (STATE, BEAT) and server in self._begun:
            self._serving.add(server)
        self.transport.release(server)
        return True

    def _fail(self, why: str) -> None:
        """End the run, unless it ends already."""
        if not self._stopping:
            self._failure = why
            raise RunError(why)

    def lose(self, peer: int, what: str, now: float) -> None:
        """End the run: what is only there is lost."""
        self._left.add(peer)
        kind, its = STORE if peer in self.stores else SERVER
        self._fail(f"rank {peer}, {kind}, {what}: its {its} are lost")

    def tend(self, now: float) -> bool:
        """Send what is due, and look who is silent."""
        if now > self._tended + 1.0:  # this rank itself has paused
            self.heard = {server: now for server in self.heard}
        self._tended = now
        self._sent = [pending for pending in self._sent if not pending.done()]
        if self._stopping:
            return False
        first = self._first or {}
        for server in (self._ready - self._begun) & first.keys():
            self._begun.add(server)
            self._send(server, HELLO, encode({"env_steps": self._env_steps}))
            self._send(server, BEGIN, first[server])
        with self._answered:
            asked = self._to_ask & self._begun
            self._to_ask -= asked
        for server in asked:
            self._send(server, ASK, encode({}))
        for server, heard in self.heard.items():
            limit = self.heartbeat_s if server in self._serving else self.start_timeout_s
            if limit is not None and now > heard + limit:
                self.lose(server, f"has not spoken in {limit:g} s", now)
        return False

    def _send(self, server: int, tag: int, data: State) -> None:
        self._sent.append(self.transport.send(server, tag, data))


class Reporter:
    """The end of a further server.

    Args:
        mailbox: The mailbox of this rank.
        heartbeat_s: Signs of life are sent several times in this time; None: none are sent.
    """

    def __init__(self, mailbox: Mailbox, *, heartbeat_s: float | None) -> None:
        self.mailbox, self.transport = mailbox, mailbox.transport
        self._beat_s = heartbeat_s / BEATS if heartbeat_s else None
        self._beat: Pending | None = None
        self._spoke = time.monotonic()
        self.stopped = False
        self.asked = False
        self.env_steps = 0  # so far, when it begins
        self._first: State | None = None
        self._capacity: int | None = None
        self._answer: State | None = None
        self._told: Pending | None = None
        mailbox.register(self, [0], SMALL_BYTES)

    def await_state(self, size: int, give_up: Callable[[], bool]) -> State | None:
        """Say how large this server's state is, and wait for it; None if the run ends instead."""
        self._capacity = SMALL_BYTES + size
        self.transport.send(0, HELLO, encode({"bytes": size}))
        while self._first is None and not self.stopped and not give_up():
            if not self.mailbox.pump():
                time.sleep(POLL_S)
        return self._first

    def tell(self, state: State) -> None:
        """Answer a question for the state."""
        self.asked = False
        self._answer = state

    def send(self, tag: int, data: State) -> None:
        """Send another message, and wait for a limited time until it is taken."""
        pending = self.transport.send(0, tag, data)
        deadline = time.monotonic() + (REPORT_S if tag == ERROR else STOP_S)
        while not pending.done() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    # The mailbox calls these.

    def handle(self, message: Message, now: float) -> bool:
        """Note what rank 0 says."""
        capacity = None
        if message.tag == HELLO:
            capacity, self.env_steps = self._capacity, decode(message.data)["env_steps"]
        elif message.tag == BEGIN:
            self._first = message.data.copy()
        elif message.tag == ASK:
            self.asked = True
        elif message.tag == STOP:
            self.stopped = True
        self.transport.release(0, capacity)
        return True

    def lose(self, peer: int, what: str, now: float) -> None:
        """End this rank."""
        raise RunError(f"the first parameter server (rank {peer}) is gone")

    def tend(self, now: float) -> bool:
        """Send an answer, or a BEAT if nothing else was sent for a while."""
        if self._answer is not None:
            answer, self._answer, self._spoke = self._answer, None, now
            self._told = self.transport.send(0, STATE, answer)
        if self._told is not None and self._told.done():
            self._told = None
        if self._beat_s and now > self._spoke + self._beat_s:
            if self._beat is None or self._beat.done():
                self._beat = self.transport.send(0, BEAT, encode({"doing": None}))
            self._spoke = now
        return False
