"""What each rank is: its role, whom it serves, and under whom it works.

Input: the number of ranks. Output: one ``Place`` for each. A wiring is a pure function, which an
algorithm's ``config.py`` names: ``wiring = "impala_ms.cluster.topology:star_of_unrolls"``.

    unrolls     0 learner; the others are actors, which send it unrolls
    gradients   0 parameter server; the others are workers, which send it gradients
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

ACTING = ("actor", "worker")  # roles that play in environments


class Place(NamedTuple):
    """What one rank is.

    Attributes:
        role: ``learner``, ``actor``, ``worker`` or ``server``.
        number: Among the ranks of its role, counted from 1. Seeds go by it.
        hub_of: Ranks that it serves.
        spoke_of: Ranks under which it works.
    """

    role: str
    number: int
    hub_of: tuple[int, ...] = ()
    spoke_of: tuple[int, ...] = ()


def star_of_unrolls(ranks: int) -> list[Place]:
    """One learner and N - 1 actors: IMPALA (Espeholt et al. 2018, figure 1 left)."""
    return _star("learner", "actor", ranks)


def star_of_gradients(ranks: int) -> list[Place]:
    """One parameter server and N - 1 workers: A3C (Mnih et al. 2016)."""
    return _star("server", "worker", ranks)


def _star(hub: str, spoke: str, ranks: int) -> list[Place]:
    """Rank 0 serves all others. With one rank, a process is both: it plays the places of two."""
    spokes = tuple(range(1, max(ranks, 2)))
    return [Place(hub, 1, hub_of=spokes), *(Place(spoke, n, spoke_of=(0,)) for n in spokes)]


def roles(places: Sequence[Place]) -> dict[str, int]:
    """How many ranks have each role, in the order of their ranks."""
    return dict(Counter(place.role for place in places))


def acting(places: Sequence[Place]) -> int:
    """How many ranks play in environments."""
    return sum(place.role in ACTING for place in places)
