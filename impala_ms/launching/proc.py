"""What the kernel shows of processes, in /proc.

Input: a process id. Output: its parent, its state, its environment variables. A hardened system
may show less of a process than there is, or nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """What the kernel shows of every process.

    Attributes:
        state: One letter: ``T`` is stopped, ``Z`` and ``X`` have ended.
        parent: Process id of the parent.
        session: Id of the session.
    """

    state: str
    parent: int
    session: int


def look(pid: int) -> Process | None:
    """A process; None if it is not there or not shown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(fields[0].decode(), int(fields[1]), int(fields[3]))


def parent(pid: int) -> int | None:
    """The parent of a process; None if it is not shown."""
    process = look(pid)
    return process and process.parent


def state(pid: int) -> str:
    """The letter of `Process`, ``?`` if it is not shown; empty if there is no such process."""
    if process := look(pid):
        return process.state
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "?"


def variables(pid: int) -> list[bytes]:
    """The environment of a process, ``name=value`` each; empty if it is not shown."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def hides_processes() -> bool:
    """Whether /proc may leave out some processes of this user."""
    try:
        mounts = Path("/proc/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return True
    options = [fields[3] for fields in map(str.split, mounts) if fields[1:3] == ["/proc", "proc"]]
    return any(re.search(r"hidepid=(?!0|off)", given) for given in options)
