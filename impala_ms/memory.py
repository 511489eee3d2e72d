"""How much memory is free on this host, or in the group of processes that this one is in."""

from __future__ import annotations

import re
from pathlib import Path

from impala_ms.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # of a container


def free_bytes() -> int:
    """Bytes that a process may still take."""
    found = re.search(r"MemAvailable: *(\d+) kB", MEMINFO.read_text())
    free = int(found[1]) * 1024 if found else 1 << 62
    try:
        limit = (GROUP / "memory.max").read_text().strip()
        used = int((GROUP / "memory.current").read_text())
        files = re.search(
            r"^inactive_file (\d+)", (GROUP / "memory.stat").read_text(), re.MULTILINE
        )
        used -= int(files[1]) if files else 0  # the system takes these back when it needs memory
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def in_words(size: float) -> str:
    """``1.4 GiB``, ``3.0 MiB``."""
    gib = size / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{size / 2**20:.1f} MiB"


def check_room(needed: int, path: str, value: int) -> None:
    """Refuse a replay that does not fit into the memory that is free.

    Args:
        needed: Bytes of the full replay.
        path: The setting that it follows from.
        value: Its value.

    Raises:
        ConfigError: If it does not fit.
    """
    free = free_bytes()
    if needed > free:
        raise ConfigError(
            f"{path} = {value:,}: such a replay takes {in_words(needed)}, and {in_words(free)} are "
            f"free: give at most {int(value * free / needed):,}"
        )
