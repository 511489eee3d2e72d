"""Where the time of an unroll and of an update goes, in one process with nothing beside it.

python tests/benchmarks/breakdown.py --num_envs 32 --unrolls 1 [--config FILE] [--set KEY=VALUE]
"""

import argparse
import time

import common
import mindspore as ms
import numpy as np

from impala_ms import compat, config, device
from impala_ms.agents import build
from impala_ms.agents.actor import Stream
from impala_ms.agents.actor_critic import VTraceLearner
from impala_ms.seeds import episode_seeds
from impala_ms.trajectory import Batches
from tests.compiled import FunctionCell


class Clock:
    """Times of calls, by name."""

    def __init__(self):
        self.seconds = {}

    def __call__(self, name, function, *inputs):
        """Call a function and put its time down."""
        began = time.perf_counter()
        result = function(*inputs)
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def us(self, name):
        """Median in microseconds, without the first call, which may compile."""
        return 1e6 * common.median(self.seconds[name][1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num_envs", type=int, default=32, help="E (default 32)")
    parser.add_argument("--unrolls", type=int, default=1, help="S (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads (default 1)")
    parser.add_argument("--repeats", type=int, default=100, help="unrolls, updates (default 100)")
    arguments, rest = parser.parse_known_args()
    envs, unrolls, repeats = arguments.num_envs, arguments.unrolls, arguments.repeats
    sizes = ["--num_envs", str(envs), "--batch_size", str(envs * unrolls)]
    settings = config.load("impala", [*rest, *sizes], None)
    device.use("CPU", arguments.threads)
    environment = build.make_environment(settings, "collect", envs, episode_seeds(1, 0, 1, 0, envs))
    policy, learned = (build.make_policy(settings, environment.spaces()) for _ in range(2))
    actor = build.make_actor(settings, policy, environment, np.random.default_rng(1))
    spec = build.make_spec(settings, environment.spaces(), policy)
    learner = VTraceLearner(learned, settings.learner_params, 1)
    steps = spec.unroll_length * envs
    print(f"T {spec.unroll_length}, E {envs}, S {unrolls}, compute threads {arguments.threads}\n")

    clock = Clock()
    unroll = act(clock, actor, spec, repeats)
    parts = {"noise of all steps": clock.us("noise")}
    for name in ("policy call", "environment step"):
        parts[name] = spec.unroll_length * clock.us(name)
    parts["bookkeeping (the rest)"] = clock.us("unroll") - sum(parts.values())
    print(table("one unroll", parts, steps))

    learn(clock, learner, actor, Batches(spec, unrolls), unroll, repeats)
    parts = {
        "unrolls into the batch": unrolls * clock.us("copy"),
        "batch to tensors": clock.us("tensors"),
        "forward and loss": clock.us("forward"),
        "backward and optimiser": clock.us("step") - clock.us("forward"),
        "weights to be sent": clock.us("read"),
    }
    print(table("one update", parts, steps * unrolls))
    print(f"New weights into an actor: {clock.us('write'):.0f} µs. {common.machine()}.")


def act(clock, actor, spec, repeats):
    """Time whole unrolls, then the parts of a step as ``PolicyActor.act`` has them."""
    _, unroll = spec.empty()
    for _ in range(repeats + 1):
        clock("unroll", actor.act, compat.COLLECT, unroll)
    stream, shape = Stream(actor.environment, actor.policy), (spec.unroll_length, spec.num_envs)
    for _ in range(repeats + 1):
        for noise in clock("noise", actor.distribution.noise, actor.rng, shape):
            action, _, state = clock("policy call", actor.decide, stream, noise)
            clock("environment step", stream.step, action, state)
    return unroll


def learn(clock, learner, actor, batches, unroll, repeats):
    """Time the parts of an update as ``VTraceLearner.learn`` has them."""
    forward = FunctionCell(loss_of(learner))
    rate = new = ms.Tensor(0.0, ms.float32)  # the weights stay
    for version in range(repeats + 1):
        for _ in range(batches.unrolls):
            clock("copy", batches.add, unroll)
        batch = batches.take(0.0)
        inputs = clock("tensors", learner.tensors, batch)
        clock("forward", lambda inputs: forward(*inputs)[0].asnumpy(), inputs)
        clock("step", lambda inputs: learner(rate, new, *inputs).asnumpy().tolist(), inputs)
        clock("write", actor.set_weights, version, clock("read", learner.weights.read))
        batches.give_back(batch)


def loss_of(learner):
    """The loss of tensors as ``learner.tensors`` gives them."""

    def loss(*tensors):
        return learner.loss(*learner.arguments(tensors))

    return loss


def table(title, parts, steps):
    """Microseconds of each part, its share of the whole, and for each environment step."""
    total = sum(parts.values())
    rows = [
        [name, f"{us:,.0f}", f"{us / total:.0%}", f"{us / steps:.2f}"]
        for name, us in (parts | {"all": total}).items()
    ]
    return common.markdown([title, "µs", "share", "µs per env step"], rows) + "\n"


if __name__ == "__main__":
    main()
