"""The state of each spoke: alive, silent or lost, and when a lost one is started again.

Input: what a hub hears from each rank. Output: which ranks to serve, to leave out, to replace.
Nothing is sent or received here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from impala_ms.errors import RunError

logger = logging.getLogger(__name__)

PATIENCE = 3.0  # times the longest silence so far, if that is more than heartbeat_s
RESTART_S = 1.0  # until a lost spoke is started again; twice as long after each try
LIVED_S = 10.0  # after this time of sending work, the tries are counted from 0 again
REFUSED_IN_A_ROW = 10  # so many unrolls with a NaN or an infinity from one spoke end the run

# expected: it has not sent HELLO yet. silent: left out, but perhaps alive. left: it has said BYE.
EXPECTED, ALIVE, SILENT, LOST, LEFT = "expected", "alive", "silent", "lost", "left"


@dataclass
class Member:
    """What is known about one spoke. Times are those of ``time.monotonic()``."""

    heard: float  # when its last message came
    patience_s: float  # how long it may be silent
    state: str = EXPECTED
    about: Mapping[str, Any] = field(default_factory=dict)  # the content of its HELLO
    doing: str = ""  # what it does instead of acting, such as "evaluates"
    env_steps: int = 0  # decisions of its present process
    incarnation: int = 0  # how many processes were this rank before
    tries: int = 0  # restarts in a row that did not live long
    learned_since: float | None = None  # when the first work of its present process came
    lost_at: float = 0.0
    replace_at: float | None = None  # when a new process will be started
    refused: int = 0  # unrolls in a row that were not finite


class Roster:
    """The spokes of one hub.

    Args:
        ranks: Ranks of the spokes.
        now: The time.
        min_actors: The run ends if there are fewer.
        start_timeout_s: A spoke that has not sent any work by then is left out.
        heartbeat_s: Later, a spoke is left out if it is silent for so long, and also for
            ``PATIENCE`` times its longest silence so far. It is taken back when it speaks again.
            None: it may be silent for ever.
        restarts: How often in a row a lost spoke is replaced by a new process.
        refusals: So many unrolls in a row with a NaN or an infinity from one spoke end the run.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        now: float,
        *,
        min_actors: int,
        start_timeout_s: float,
        heartbeat_s: float | None = None,
        restarts: int = 0,
        refusals: int = REFUSED_IN_A_ROW,
    ) -> None:
        self.min_actors, self.restarts, self.refusals = min_actors, restarts, refusals
        self.start_timeout_s, self.heartbeat_s = start_timeout_s, heartbeat_s
        self.members = {rank: Member(now, start_timeout_s) for rank in ranks}

    def of(self, *states: str) -> set[int]:
        """Ranks in one of these states."""
        return {rank for rank, member in self.members.items() if member.state in states}

    @property
    def alive(self) -> set[int]:
        """Ranks that take part."""
        return self.of(ALIVE)

    def returning(self) -> set[int]:
        """Ranks for which a new process will be started."""
        return {rank for rank, member in self.members.items() if member.replace_at is not None}

    def greet(self, rank: int, about: Mapping[str, Any]) -> None:
        """Note that a rank has sent HELLO."""
        member = self.members[rank]
        member.state, member.about = ALIVE, about

    def hear(self, rank: int, now: float) -> None:
        """Note that a message has come; a silent rank is taken back."""
        member = self.members[rank]
        back = member.state == SILENT
        if self.heartbeat_s and (back or member.learned_since is not None):
            member.patience_s = max(member.patience_s, PATIENCE * (now - member.heard))
        member.heard = now
        if back:
            member.state, member.replace_at = ALIVE if member.about else EXPECTED, None
            logger.warning("rank %d speaks again: taken back", rank)

    def pause(self, seconds: float) -> None:
        """Do not count a pause of the hub itself as silence of the spokes."""
        for member in self.members.values():
            member.heard += seconds

    def deliver(self, rank: int, env_steps: int, now: float) -> None:
        """Note that a rank has sent work, after so many decisions of its own."""
        member = self.members[rank]
        member.env_steps = env_steps
        if member.learned_since is None:
            member.learned_since = now
            member.patience_s = self.heartbeat_s or float("inf")
            if member.incarnation:
                after_s = now - member.lost_at
                logger.info("rank %d takes part again, %.1f s after it was lost", rank, after_s)

    def refuse(self, who: str, rank: int, problem: str) -> None:
        """Warn of an unroll with a NaN or an infinity; too many in a row end the run."""
        member = self.members[rank]
        member.refused += 1
        said = f"{who}, at {member.env_steps} env steps of its own: {problem}"
        if member.refused == self.refusals:
            row = f", in {self.refusals} unrolls in a row" if self.refusals > 1 else ""
            raise RunError(f"{said}{row}")
        logger.warning("%s: the unroll is left out", said)

    def leave(self, rank: int) -> None:
        """Note that a rank has said BYE."""
        self.members[rank].state, self.members[rank].replace_at = LEFT, None

    def lose(self, rank: int, what: str, now: float, silent: bool = False) -> None:
        """Leave a rank out.

        Args:
            rank: The rank.
            what: What happened, such as ``was lost``.
            now: The time.
            silent: Whether it may be alive and come back.

        Raises:
            RunError: If too few remain; ranks that will be started again count.
        """
        member = self.members[rank]
        if member.state == LEFT:
            return
        said = f"rank {rank} {what}"
        if member.about:
            said += f" after {member.env_steps} env steps on host {member.about['host']}"
        if member.learned_since is not None and now - member.learned_since > LIVED_S:
            member.tries = 0
        member.state, member.lost_at, again = SILENT if silent else LOST, now, ""
        if member.tries < self.restarts:
            # A silent rank may come back: it has the same time again before it is replaced.
            delay_s = RESTART_S * 2**member.tries + (member.patience_s if silent else 0.0)
            member.replace_at = now + delay_s
            again = f", to be started again in {delay_s:g} s"
        left = len(self.of(ALIVE, EXPECTED))
        logger.warning("%s: left out%s, actors that remain: %d", said, again, left)
        if left + len(self.returning()) < self.min_actors:
            raise RunError(f"{said}; actors that remain: {left}, needed: {self.min_actors}")

    def lose_silent(self, now: float) -> None:
        """Leave out ranks that have been silent for too long."""
        for rank in sorted(self.of(EXPECTED, *([ALIVE] if self.heartbeat_s else []))):
            member = self.members[rank]
            if now > member.heard + member.patience_s:
                self.lose(rank, f"has not spoken in {member.patience_s:g} s", now, silent=True)

    def due(self, now: float) -> list[int]:
        """Ranks for which a new process must be started now; their state becomes expected."""
        times = {rank: self.members[rank].replace_at for rank in sorted(self.returning())}
        ranks = [rank for rank, at in times.items() if at is not None and now > at]
        for rank in ranks:
            member = self.members[rank]
            member.replace_at, member.learned_since, member.state = None, None, EXPECTED
            member.env_steps, member.doing = 0, ""
            member.incarnation += 1
            member.tries += 1
            member.heard, member.patience_s = now, self.start_timeout_s
            logger.warning("rank %d is started again (try %d)", rank, member.tries)
        return ranks
