"""Tests of the doctor in processes of their own: ``python -m impala_ms.probes NAME``.

Input: the name of a function, and its arguments. Output: a line on stdout, and the exit code. The
last line on stderr says what is wrong.
"""

import os
import signal
import sys
import time


def say(what):
    """Write a line at once, since the process may be killed."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def best_device():
    """Print the device that ``learner.device = auto`` chooses."""
    from impala_ms import device

    say(device.choose("auto"))


def matrix_product(target):
    """Print 8.0, computed by MindSpore, which is imported as ranks import it."""
    from impala_ms import device

    device.use(target, 1)
    import mindspore as ms

    from impala_ms import compat  # noqa: F401  imports MindSpore RL

    x = ms.ops.ones((2, 2))
    say((x @ x).asnumpy().sum())


def convolution():
    """Print the time of a convolution, relative to a matrix product with as many operations."""
    from impala_ms import device

    device.use("CPU", 1)
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    def seconds(cell, *shapes):
        inputs = [ms.Tensor(np.ones(shape, np.float32)) for shape in shapes]
        times = []
        for _ in range(6):
            began = time.perf_counter()
            cell(*inputs).asnumpy()
            times.append(time.perf_counter() - began)
        return min(times[1:])

    convolved = nn.Conv2d(64, 64, 3, pad_mode="valid")
    multiplied = nn.Dense(576, 64, has_bias=False)
    say(seconds(convolved, (64, 64, 22, 22)) / seconds(multiplied, (64 * 20 * 20, 576)))


def kernels():
    """Print the path of the compiled kernels."""
    from impala_ms.nets.kernels import build

    command = build.wanted_compiler()
    if not command:
        sys.exit("IMPALA_MS_CC is empty: no compiler is wanted")
    try:
        say(build.load(command))
    except build.NoKernels as error:
        sys.exit(str(error))


def talk():
    """Rank 1 sends a message; rank 0 prints that it has arrived."""
    import numpy as np
    from mpi4py import MPI

    comm, data = MPI.COMM_WORLD, np.zeros(2, np.uint8)
    if comm.Get_rank() == 1:
        comm.Send(data, 0)
    else:
        comm.Recv(data, 1)
        say(f"{data.nbytes} bytes of 1")
    MPI.Finalize()


def die():
    """Rank 1 dies; rank 0 prints that it has noticed."""
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    if comm.Get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    request = comm.Irecv(np.zeros(2, np.uint8), 1)
    try:
        while not request.Test():
            time.sleep(0.01)
    except MPI.Exception:
        say("noticed")
    os._exit(0)


if __name__ == "__main__":
    PROBES = best_device, matrix_product, convolution, kernels, talk, die
    {probe.__name__: probe for probe in PROBES}[sys.argv[1]](*sys.argv[2:])
