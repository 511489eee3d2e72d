"""What each rank is: its role, which ranks it serves, and which ranks it works for.

Input: the number of ranks. Output: a ``Place`` for each. A wiring is a pure function; an algorithm
names it in its ``config.py``: ``wiring = "impala_ms.cluster.topology:star_of_unrolls"``.

    unrolls     rank 0 is the learner; the others are actors, which send it unrolls
    gradients   rank 0 is the parameter server; the others are workers, which send it gradients.
                With several servers, ranks 0 ... P - 1, each has a range of the weights. After
                them there may be a store, a rank with the replay of all workers
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

ACTING = ("actor", "worker")  # roles that act in environments


class Place(NamedTuple):
    """What one rank is.

    Attributes:
        role: ``learner``, ``actor``, ``worker``, ``server`` or ``store``.
        number: Its number among the ranks of its role, counted from 1. Seeds depend on it.
        hub_of: Ranks that it serves.
        spoke_of: Ranks that it works for.
        reports: Ranks of the other servers and the store, which tell it how they are; only on
            rank 0.
    """

    role: str
    number: int
    hub_of: tuple[int, ...] = ()
    spoke_of: tuple[int, ...] = ()
    reports: tuple[int, ...] = ()


def star_of_unrolls(ranks: int) -> list[Place]:
    """One learner and N - 1 actors: IMPALA (Espeholt et al. 2018, figure 1 left)."""
    return _star("learner", "actor", ranks)


def star_of_gradients(ranks: int, servers: int = 1, store: bool = False) -> list[Place]:
    """Parameter servers and workers: A3C (Mnih et al. 2016), Gorila (Nair et al. 2015).

    Args:
        ranks: N.
        servers: P.
        store: Whether the rank after the servers has a replay for all workers.

    Raises:
        ValueError: If there is no worker.
    """
    if servers == 1 and not store:
        return _star("server", "worker", ranks)
    hubs = tuple(range(servers + store))
    if ranks <= len(hubs):
        there = f"{servers} server{'s' * (servers > 1)}{' and the rank of the replay' * store}"
        raise ValueError(f"{there} need N = {len(hubs) + 1} or more, with one worker")
    spokes = tuple(range(len(hubs), ranks))
    first, *others = (Place("server", 1 + hub, hub_of=spokes) for hub in range(servers))
    stores = [Place("store", 1, hub_of=spokes)] * store
    workers = (Place("worker", n, spoke_of=hubs) for n in range(1, 1 + len(spokes)))
    return [first._replace(reports=hubs[1:]), *others, *stores, *workers]


def _star(hub: str, spoke: str, ranks: int) -> list[Place]:
    """Rank 0 serves all others. With N = 1 there are two places, both in the one process."""
    spokes = tuple(range(1, max(ranks, 2)))
    return [Place(hub, 1, hub_of=spokes), *(Place(spoke, n, spoke_of=(0,)) for n in spokes)]


def roles(places: Sequence[Place]) -> dict[str, int]:
    """The number of ranks in each role, in the order of the ranks."""
    return dict(Counter(place.role for place in places))


def acting(places: Sequence[Place]) -> int:
    """The number of ranks that act in environments."""
    return sum(place.role in ACTING for place in places)
