"""The replay of transitions at Atari's size: how long draws and additions take, and its memory.

python tests/benchmarks/replaying.py
"""

import argparse
import time

import common
import numpy as np
from common import number, spread

from impala_ms.metrics.recorder import rss_mb
from impala_ms.replay.limiter import RateLimiter
from impala_ms.replay.rewards import Rewards
from impala_ms.replay.sampling import Prioritized
from impala_ms.replay.transitions import TransitionReplay, ring_bytes
from impala_ms.trajectory import TrajectorySpec


def make_replay(spec, capacity, batch):
    """A prioritised replay with n = 3 whose rate is not limited."""
    return TransitionReplay(
        spec,
        capacity=capacity,
        batch_size=batch,
        n=3,
        gamma=0.99,
        rewards=Rewards("abs_one", 1.0),
        sampler=Prioritized(capacity, np.random.default_rng(1), alpha=0.6, beta=0.4),
        limiter=RateLimiter(None, 1, 0.0),
    )


def unrolls(spec, kinds=8):
    """Unrolls of random frames, in turn: so no frame stays in the processor's cache."""
    rng, made = np.random.default_rng(1), []
    for _ in range(kinds):
        _, unroll = spec.empty()
        unroll["observation"][...] = rng.integers(256, size=unroll["observation"].shape)
        unroll["reward"][...] = rng.normal(size=unroll["reward"].shape)
        unroll["error"][...] = rng.random(unroll["error"].shape)
        unroll["terminated"][10] = rng.random(spec.num_envs) < 0.1
        unroll["first"][12] = unroll["terminated"][10]
        made.append(unroll)
    return made


def seconds(function, repeats):
    """How long each of so many calls took."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--capacity", type=int, default=200_000, help="decisions (default 200,000)")
    add("--batch", type=int, default=512, help="transitions in a draw (default 512)")
    add("--repeats", type=int, default=200, help="draws that are timed (default 200)")
    arguments = parser.parse_args()
    steps, envs = 20, 16
    spec = TrajectorySpec(
        unroll_length=steps,
        num_envs=envs,
        observation={"": ((84, 84), np.uint8)},
        action_shape=(),
        action_dtype=np.int32,
        policy_parameters=0,
        frame_stack=4,
        recorded={"error": ((steps, envs), np.dtype(np.float32))},
    )
    replay = make_replay(spec, arguments.capacity, arguments.batch)
    made, before = unrolls(spec), rss_mb()
    fill = iter(range(10**9))
    added = seconds(lambda: replay.add(made[next(fill) % len(made)]), replay.kept)
    again = seconds(lambda: replay.add(made[next(fill) % len(made)]), replay.kept // 2)
    rows = steps * envs

    def draw():
        batch = replay.take(0.0)
        replay.give_back(batch, np.random.default_rng(1).random(arguments.batch))

    seconds(draw, 20)
    drawn = [1e3 * taken for taken in seconds(draw, arguments.repeats)]
    computed = ring_bytes(spec, arguments.capacity) / 2**20
    table = [
        [f"draw of {arguments.batch} and write-back, ms", spread(drawn), "<= 12"],
        ["decisions/s added, empty ring", number(rows * len(added) / sum(added)), ">= 20,000"],
        ["decisions/s added, full ring", number(rows * len(again) / sum(again)), ">= 20,000"],
        ["memory computed, MiB", number(computed), "-"],
        ["memory taken, MiB", number(rss_mb() - before), "as computed"],
    ]
    print(common.markdown(["what", "median (lowest to highest)", "to reach"], table))
    print(f"\nA ring of {arguments.capacity:,} decisions, 84 x 84 x 4. {common.machine()}.")


if __name__ == "__main__":
    main()
