"""The device that MindSpore computes on, and its number of threads.

Input: the settings of the configuration. Output: MindSpore's context, set before networks are made.
"""

import glob
import logging
import os
import subprocess
import sys

import psutil

from impala_ms.cluster.place import ranks_here
from impala_ms.lean import import_mindspore

logger = logging.getLogger(__name__)

DEVICE_FILES = {"Ascend": "/dev/davinci[0-9]*", "GPU": "/dev/nvidia[0-9]*"}
PROBE = """
import mindspore as ms
ms.set_context(device_target={device!r})
x = ms.Tensor([[1.0, 2.0], [3.0, 4.0]], ms.float32)
assert ms.ops.matmul(x, x).asnumpy().tolist() == [[7.0, 10.0], [15.0, 22.0]]
"""
PROBE_S = 120.0
KERNEL = 2  # process id of kthreadd, the parent of the kernel's threads


class DeviceError(RuntimeError):
    """The device that was asked for does not work."""


def set_thread_limits(threads):
    """Limit the compute threads of the libraries; call it before they are imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def keep_to_cores(threads, reserved=0):
    """Keep this thread, and all threads that it starts later, to so many cores.

    MindSpore's kernels on the CPU use two threads even if one is set. An actor's second thread
    would take the learner's core, and both would wait for each other. Cores to which another
    process is kept, of this job or of another job, are taken last.

    Args:
        threads: Compute threads of a rank.
        reserved: Cores that are left to the learner on a host that has too few for its ranks.

    Returns:
        The cores; or None, with nothing changed, on a host that has too few cores for its ranks
        and none beside the reserved ones, or none reserved.
    """
    rank, ranks = ranks_here() or (0, 1)
    cores = sorted(os.sched_getaffinity(0))
    if ranks * threads > len(cores):
        rest = cores[reserved:] if reserved else []
        if rest:
            os.sched_setaffinity(0, rest)
        return rest or None
    counts = kept_to(cores)
    start = rank * threads
    # sorted() is stable: each rank begins at other cores
    chosen = sorted(cores[start:] + cores[:start], key=counts.get)[:threads]
    os.sched_setaffinity(0, chosen)
    return sorted(chosen)


def kept_to(cores):
    """``{core: number of other processes that are kept to a set of cores with this core}``."""
    counts = dict.fromkeys(cores, 0)
    for process in psutil.process_iter():
        try:
            own = process.pid == os.getpid() or process.ppid() == KERNEL
            allowed = set(cores).intersection(process.cpu_affinity())
        except psutil.Error:  # it has ended, or is another user's
            continue
        if len(allowed) < len(cores) and not own:
            for core in allowed:
                counts[core] += 1
    return counts


def works(device):
    """Whether the device can multiply two matrices, tested in a process of its own.

    Returns:
        ``(True, "")``, or ``(False, reason)``.
    """
    if not glob.glob(DEVICE_FILES[device]):
        return False, f"this machine has no {DEVICE_FILES[device]}"
    command = [sys.executable, "-c", PROBE.format(device=device)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        return False, f"a matrix product took more than {PROBE_S:g} s"
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    return done.returncode == 0, "" if done.returncode == 0 else last[0]


def choose(wanted):
    """Choose a device.

    Args:
        wanted: ``Ascend``, ``GPU`` or ``CPU``; or ``auto``: the first of these that works.

    Raises:
        DeviceError: If a device that was named does not work.
    """
    if wanted == "CPU":
        return "CPU"
    for device in DEVICE_FILES if wanted == "auto" else [wanted]:
        ok, reason = works(device)
        if ok:
            return device
        if wanted != "auto":
            raise DeviceError(
                f"learner.device = {wanted} does not work here: {reason}; auto takes the best "
                "device that works, CPU works everywhere"
            )
        if glob.glob(DEVICE_FILES[device]):
            logger.warning("%s is there but does not work: %s", device, reason)
    return "CPU"


def use(device, threads):
    """Set MindSpore's context.

    All compiled code is Cells in graph mode. A function under ``ms.jit`` runs in another thread,
    and the calling thread spins until it ends: this loses time slices when there are few cores.
    """
    ms = import_mindspore()
    ms.set_context(mode=ms.GRAPH_MODE, device_target=device, runtime_num_threads=threads)
