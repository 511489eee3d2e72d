"""What MPI says to a process of its place, and how a new process takes the place of a lost one.

Input: environment variables that Open MPI or MPICH set. Output: numbers, and a command. The names
used here are Open MPI's; what MPICH says is kept under them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

IN_PLACE_OF = "--in-place-of"
OPEN_MPI = "OMPI_COMM_WORLD_"
NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
MPICH = {
    "RANK": "PMI_RANK",
    "SIZE": "PMI_SIZE",
    "LOCAL_RANK": "MPI_LOCALRANKID",
    "LOCAL_SIZE": "MPI_LOCALNRANKS",
}


class Replaced(NamedTuple):
    """What a new process is told of the rank that it becomes.

    Attributes:
        incarnation: How many processes were this rank before.
        hub: The rank that has started it, and under which it works.
    """

    incarnation: int = 0
    hub: int = 0


def rank() -> int:
    """Of this process; 0 without MPI."""
    return int(os.environ.get(f"{OPEN_MPI}RANK", "0"))


def size() -> int:
    """How many ranks there are; 1 without MPI."""
    return int(os.environ.get(f"{OPEN_MPI}SIZE", "1"))


def ranks_here() -> tuple[int, int] | None:
    """``(number among the ranks of this host, how many these are)``, or None without MPI."""
    of_open_mpi = f"{OPEN_MPI}LOCAL_RANK", f"{OPEN_MPI}LOCAL_SIZE"
    for number, count in (of_open_mpi, (MPICH["LOCAL_RANK"], MPICH["LOCAL_SIZE"])):
        try:
            return int(os.environ[number]), int(os.environ[count])
        except (KeyError, ValueError):
            continue
    return None


def variables() -> dict[str, str]:
    """What MPI has said to this process of its place."""
    names = [f"{OPEN_MPI}{name}" for name in NAMES]
    return {name: os.environ[name] for name in names if name in os.environ}


def replacement(
    peer: int, size: int, incarnation: int, hub: int, told: Mapping[str, str]
) -> list[str]:
    """The command of a process that takes the place of a rank.

    Args:
        peer: The rank.
        size: How many ranks there are.
        incarnation: How many processes were this rank before.
        hub: The rank that starts it.
        told: ``variables`` of the process before; empty if it did not come to say them.
    """
    numbers = dict(zip(NAMES, (peer, size) * 2, strict=True))
    known = {f"{OPEN_MPI}{name}": str(number) for name, number in numbers.items()} | dict(told)
    place = json.dumps({"incarnation": incarnation, "hub": hub, "variables": known})
    # A request to stop must not kill it before it has a handler: who spawned it would wait for it.
    shell = ["/bin/sh", "-c", 'trap "" USR1; exec "$@"', "sh"]
    # As this process was started: by a script, or by `python -m`.
    return [*shell, sys.executable, *sys.orig_argv[1:], IN_PLACE_OF, place]


def take_place(argv: Sequence[str]) -> Replaced:
    """Be the rank that ``replacement`` says, if that started this process.

    MPI takes the process for rank 0 of another job, which it must not be: seeds, cores and the
    environments of users go by the rank.
    """
    for name, of_mpich in MPICH.items():
        if value := os.environ.get(of_mpich):
            os.environ.setdefault(f"{OPEN_MPI}{name}", value)
    if IN_PLACE_OF not in argv:
        return Replaced()
    place = json.loads(argv[argv.index(IN_PLACE_OF) + 1])
    os.environ.update(place["variables"])
    return Replaced(place["incarnation"], place["hub"])
