"""Which device MindSpore computes on, and with how many threads.

Input: the configuration's wish. Output: MindSpore's context, set before anything is built.
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
KERNEL = 2  # kthreadd, the parent of the kernel's threads


class DeviceError(RuntimeError):
    """The device that was asked for does not work."""


def set_thread_limits(threads):
    """Limit the compute threads of the libraries; to be called before they are imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def keep_to_cores(threads):
    """Keep this thread, and those it starts from now on, to so many cores.

    MindSpore's kernels on the CPU use two threads even where one is asked for. An actor's second
    thread would take the learner's core, and both would wait for each other. Cores that another
    process is kept to, of this job or of another one, are taken last.

    Args:
        threads: Compute threads of a rank.

    Returns:
        The cores; or None, with nothing done, on a host that has more ranks than cores for them.
    """
    rank, ranks = ranks_here() or (0, 1)
    cores = sorted(os.sched_getaffinity(0))
    if ranks * threads > len(cores):
        return None
    counts = kept_to(cores)
    start = rank * threads
    # sorted() keeps the order of equals: each rank begins at cores of its own
    chosen = sorted(cores[start:] + cores[:start], key=counts.get)[:threads]
    os.sched_setaffinity(0, chosen)
    return sorted(chosen)


def kept_to(cores):
    """``{core: how many other processes are kept to it, or to some with it}``."""
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
    """Whether the device multiplies two matrices, tried in a process of its own.

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
    """The device for a wish.

    Args:
        wanted: ``auto`` (Ascend, else GPU, else CPU: the first that works), or one of them.

    Raises:
        DeviceError: If the one that was asked for does not work.
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

    Compiled Cells in graph mode are used throughout: functions under ``ms.jit`` run in another
    thread, for which the calling one spins, and lose a time slice whenever cores are short.
    """
    ms = import_mindspore()
    ms.set_context(mode=ms.GRAPH_MODE, device_target=device, runtime_num_threads=threads)
