"""How fast unrolls of Atari's shape arrive in batches when nothing is learned from them.

python tests/benchmarks/receiving.py [--senders 3] [--seconds 10]

Senders send the same unrolls again and again, with the exchange, transport and batches of a run;
the receiving rank gives every batch back at once. The floor is printed beside it: how fast the
same bytes are copied within one process.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import numpy as np

from impala_ms.launching import mpirun
from impala_ms.trajectory import Batches, TrajectorySpec

SIZE = 1_000_000  # weights, as those of a convolutional network
SPACES = {"observation": "as agreed", "action": "as agreed"}


def spec():
    """T = 20, E = 32, frames of 84 x 84, stacks of 4, 6 actions."""
    return TrajectorySpec(
        unroll_length=20,
        num_envs=32,
        observation={"": ((84, 84), np.uint8)},
        action_shape=(),
        action_dtype=np.int64,
        policy_parameters=6,
        frame_stack=4,
    )


def unrolls(count):
    """Random frames; an episode begins about every 800 steps."""
    layout, rng = spec(), np.random.default_rng(1)
    for _ in range(count):
        buffer, views = layout.empty()
        views["observation"][...] = rng.integers(0, 255, views["observation"].shape, np.uint8)
        views["first"][...] = rng.random(views["first"].shape) < 1 / 800
        yield buffer, views


def rank(seconds):
    """One rank of the job."""
    from impala_ms.cluster.hub import Hub, Intake
    from impala_ms.cluster.mailbox import Mailbox
    from impala_ms.cluster.messages import BYE, encode
    from impala_ms.cluster.spoke import Spoke
    from impala_ms.comm.mpi import MPITransport

    transport = MPITransport()
    if transport.rank:
        spoke = Spoke(Mailbox(transport))
        spoke.hello(SPACES)
        # filled before, so that sending is all there is to do
        spoke.begin(unrolls(2), SIZE)
        while turn := spoke.turn():
            spoke.send_work(turn[1])
        spoke.send(BYE, encode({}))
    else:
        hub = Hub(Mailbox(transport), range(1, transport.size), min_actors=1, start_timeout_s=60.0)
        hub.await_hello(transport.size - 1, lambda: False)
        batches = Batches(spec(), 1)
        hub.begin(Intake(spec(), batches, max_policy_lag=None, version=0), SIZE)
        hub.publish(0, np.zeros(SIZE, np.float32))
        hub.start()
        rates = receive(hub, batches, seconds)
        hub.stop()
        print(*rates, flush=True)
    transport.close()


def receive(hub, batches, seconds):
    """Batches per second, second by second, without the first one."""
    rates, count, until = [], 0, time.monotonic() + 1.0
    while len(rates) < seconds + 1:
        batch = hub.take(0.2)
        if batch is not None:
            batches.give_back(batch)
            count += 1
        now = time.monotonic()
        if now >= until:
            rates.append(count / (now - until + 1.0))
            count, until = 0, now + 1.0
    return rates[1:]


def copies(seconds=2.0):
    """Unrolls per second by ``Batches.add`` alone, and by one plain copy of the buffer."""
    batches, (buffer, views) = Batches(spec(), 1), next(unrolls(1))
    other = np.empty_like(buffer)

    def add():
        batches.add(views)
        batches.give_back(batches.take(0.0))

    rates = []
    for call in (add, lambda: np.copyto(other, buffer)):
        call()
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            call()
            count += 1
        rates.append(count / (time.perf_counter() - began))
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--senders", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=int, default=10, help="default 10")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(arguments.seconds)
    add, copy = copies()
    command = mpirun.rank_command(Path(__file__), arguments.senders + 1)
    with tempfile.TemporaryDirectory(prefix="impala_ms_") as folder:
        done = subprocess.run(
            [*command, "--rank", "--seconds", str(arguments.seconds)],
            env=mpirun.mpi_environment(folder) | common.environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    rates = [float(rate) for rate in done.stdout.split()]
    layout = spec()
    steps, sent = layout.unroll_length * layout.num_envs, layout.nbytes
    rows = [
        [what, f"{rate:.0f}", f"{rate * sent / 1e9:.2f}"]
        for what, rate in (
            (f"received from {arguments.senders} senders", common.median(rates)),
            ("put into batches, one process", add),
            ("one plain copy, one process", copy),
        )
    ]
    print(common.markdown(["what", "unrolls/s", "GB/s"], rows))
    print(f"\nUnrolls of {steps} steps, {sent / steps:,.0f} bytes a step. {common.machine()}")


if __name__ == "__main__":
    sys.exit(main())
