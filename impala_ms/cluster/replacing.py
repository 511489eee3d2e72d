"""A new process for a lost rank: it is started, and listened to.

Input: what the hub knows of the rank. Output: a process that becomes it, by ``cluster/place``.
"""

from __future__ import annotations

from impala_ms.cluster import place
from impala_ms.cluster.messages import SMALL_BYTES, STOP, encode
from impala_ms.cluster.roster import Member
from impala_ms.comm.transport import Transport


def start_again(transport: Transport, peer: int, member: Member) -> None:
    """Start a new process for a lost rank, and listen to it."""
    transport.send(peer, STOP, encode({}))  # the old process may wake up, or start late
    # MPI's variables of the first process, if it sent them
    told = member.about.get("variables", {})
    command = place.replacement(peer, transport.size, member.incarnation, transport.rank, told)
    transport.replace(peer, command)
    transport.listen(peer, SMALL_BYTES)
