"""The number of cores that this process may use.

Input: the kernel's files. Output: a number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cores(root: str | Path = "/") -> int:
    """How many cores this process may use, by its affinity and its cgroup's quota; at least 1.

    ``docker --cpus``, Kubernetes and batch systems limit CPU time and not the set of cores.

    Args:
        root: Root of the file system.
    """
    quotas = [cores for folder in cpu_groups(Path(root)) if (cores := quota_of(folder)) is not None]
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def cpu_groups(root: Path) -> Iterator[Path]:
    """The folders of this process's cgroups for CPU time, version 1 and 2, and those above them.

    Some may not exist: in a container the path can be that of the host.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        controllers, path = line.split(":", 2)[1:]
        if not controllers or "cpu" in controllers.split(","):  # version 2 names no controllers
            group = PurePosixPath(path)
            for above in (group, *group.parents):
                yield root / "sys/fs/cgroup" / controllers / above.relative_to("/")


def quota_of(folder: Path) -> float | None:
    """The quota of a cgroup, in cores; None if there is no limit."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # ValueError: "max"
            quota, period = map(int, " ".join((folder / n).read_text() for n in names).split())
            if quota > 0:  # -1: no limit
                return quota / period
    return None
