"""Which rank a process is, from MPI's variables, and how a new process becomes a lost rank.

Input: environment variables that Open MPI or MPICH set. Output: numbers, and a command. The names
used here are Open MPI's; the values of MPICH are copied to them.
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
    """What a new process is told about the rank that it becomes.

    Attributes:
        incarnation: How many processes were this rank before.
        hub: The rank that has started it and that it works for.
    """

    incarnation: int = 0
    hub: int = 0


def rank() -> int:
    """The rank of this process; 0 without MPI."""
    return int(os.environ.get(f"{OPEN_MPI}RANK", "0"))


def size() -> int:
    """The number of ranks; 1 without MPI."""
    return int(os.environ.get(f"{OPEN_MPI}SIZE", "1"))


def ranks_here() -> tuple[int, int] | None:
    """``(number of this rank on its host, number of ranks on the host)``; None without MPI."""
    of_open_mpi = f"{OPEN_MPI}LOCAL_RANK", f"{OPEN_MPI}LOCAL_SIZE"
    for number, count in (of_open_mpi, (MPICH["LOCAL_RANK"], MPICH["LOCAL_SIZE"])):
        try:
            return int(os.environ[number]), int(os.environ[count])
        except (KeyError, ValueError):
            continue
    return None


def variables() -> dict[str, str]:
    """MPI's variables in this process."""
    names = [f"{OPEN_MPI}{name}" for name in NAMES]
    return {name: os.environ[name] for name in names if name in os.environ}


def replacement(
    peer: int, size: int, incarnation: int, hub: int, told: Mapping[str, str]
) -> list[str]:
    """The command that starts a new process for a lost rank.

    Args:
        peer: The lost rank.
        size: Number of ranks.
        incarnation: How many processes were this rank before.
        hub: The rank that starts it.
        told: ``variables`` of the process before; empty if that process never sent them.
    """
    numbers = dict(zip(NAMES, (peer, size) * 2, strict=True))
    known = {f"{OPEN_MPI}{name}": str(number) for name, number in numbers.items()} | dict(told)
    content = json.dumps({"incarnation": incarnation, "hub": hub, "variables": known})
    # SIGUSR1 must not kill it before it has a handler: MPI_Comm_spawn would wait for it for ever.
    shell = ["/bin/sh", "-c", 'trap "" USR1; exec "$@"', "sh"]
    # The same command as this process: a script, or `python -m`.
    return [*shell, sys.executable, *sys.orig_argv[1:], IN_PLACE_OF, content]


def take_place(argv: Sequence[str]) -> Replaced:
    """Set MPI's variables to those of the lost rank, if ``replacement`` started this process.

    For MPI the process is rank 0 of another job. But seeds, cores and the environments of users
    depend on the rank.
    """
    for name, of_mpich in MPICH.items():
        if value := os.environ.get(of_mpich):
            os.environ.setdefault(f"{OPEN_MPI}{name}", value)
    if IN_PLACE_OF not in argv:
        return Replaced()
    content = json.loads(argv[argv.index(IN_PLACE_OF) + 1])
    os.environ.update(content["variables"])
    return Replaced(content["incarnation"], content["hub"])
