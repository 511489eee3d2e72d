"""How many cores there are for this process.

Input: the kernel's files. Output: a number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cores(root: str | Path = "/") -> int:
    """How many cores' time this process may use: whole ones of its cgroup's quota, 1 at least.

    ``docker --cpus``, Kubernetes and batch systems limit the time without naming cores.

    Args:
        root: Of the file system.
    """
    quotas = [cores for folder in cpu_groups(Path(root)) if (cores := quota_of(folder)) is not None]
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def cpu_groups(root: Path) -> Iterator[Path]:
    """The folders of this process's cgroups for CPU time, version 1 and 2, and those above them.

    Some may not be there: in a container the path can be as the host sees it.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        controllers, path = line.split(":", 2)[1:]
        if not controllers or "cpu" in controllers.split(","):  # none named: version 2
            group = PurePosixPath(path)
            for above in (group, *group.parents):
                yield root / "sys/fs/cgroup" / controllers / above.relative_to("/")


def quota_of(folder: Path) -> float | None:
    """Cores' worth of time that a cgroup has; None without a limit."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # ValueError: max
            quota, period = map(int, " ".join((folder / n).read_text() for n in names).split())
            if quota > 0:  # -1: none
                return quota / period
    return None
