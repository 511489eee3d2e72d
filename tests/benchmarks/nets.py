"""Networks beside the same ones in PyTorch: learner step, inference, LSTM; CPU, float32.

python tests/benchmarks/nets.py --torch PYTHON [--only nature] [--repeats 30] [--resnet_rows 672]

Each of the two has a process of its own, kept waiting while the other one is measured; calls
alternate, so that whatever else the machine does meets both. Ratio above 1: PyTorch is faster.
With 1 thread both are kept to one core, as actors are.

PyTorch is given stacks of frames. Ours begins where actor and learner begin: inference with the
newest frame and the stack before it, a step with the frames of unrolls, so making stacks counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROWS = 21 * 32  # T + 1 observations of 32 environments
CASES = {
    "shallow step, 672 rows": ("step", "shallow", ROWS, 2),
    "nature step, 672 rows": ("step", "nature", ROWS, 2),
    "resnet step, 168 rows": ("step", "resnet", ROWS // 4, 2),
    **{
        f"{net} inference, batch {rows}": ("inference", net, rows, threads)
        for threads in (2,)
        for net in ("shallow", "nature", "resnet")
        for rows in (16, 32, 64)
    },
    **{
        f"{net} inference, batch {rows}, 1 thread": ("inference", net, rows, 1)
        for net in ("shallow", "nature", "resnet")
        for rows in (16, 32, 64)
    },
    "lstm step, T 20, B 32": ("lstm", "lstm", 20, 2),
    "lstm step, T 80, B 32": ("lstm", "lstm", 80, 2),
}
SIZE, ENVS = 256, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="that has PyTorch; none: ours alone")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--repeats", type=int, default=30, help="calls of each (default 30)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker[0], CASES[arguments.worker[1]])
    import common

    rows = []
    for name in [name for name in CASES if arguments.only in name]:
        sides = {"ours": sys.executable} | ({"torch": arguments.torch} if arguments.torch else {})
        workers = {side: start(python, side, name) for side, python in sides.items()}
        first = {side: ask(worker) for side, worker in workers.items()}
        times = {side: [] for side in workers}
        for _ in range(arguments.repeats):
            for side, worker in workers.items():
                times[side].append(ask(worker))
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
        ours = statistics.median(times["ours"])
        row = [name, CASES[name][3], f"{ours:.2f} ({min(times['ours']):.2f})"]
        if arguments.torch:
            torch = statistics.median(times["torch"])
            pairs = zip(times["ours"], times["torch"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            low = min(times["ours"]) / min(times["torch"])
            row += [f"{torch:.2f} ({min(times['torch']):.2f})", f"{ratio:.2f} ({low:.2f})"]
        rows.append([*row, f"{first['ours'] / 1e3:.1f}"])
        print(*rows[-1], sep="  ", flush=True)
    header = ["case", "threads", "ours, ms"]
    header += ["PyTorch, ms", "ratio"] if arguments.torch else []
    print("\n" + common.markdown([*header, "first call, s"], rows))
    print("\nMedian (best) of the calls; the ratio is the median over pairs (best to best).")
    print(common.machine(), f"load {os.getloadavg()[0]:.1f}")


def start(python, side, name):
    threads = str(CASES[name][3])
    limits = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    return subprocess.Popen(
        [python, __file__, "--worker", side, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | limits,
    )


def ask(worker):
    """Milliseconds of one measurement."""
    worker.stdin.write("\n")
    worker.stdin.flush()
    for line in worker.stdout:
        if line.startswith("{"):
            return json.loads(line)["ms"]
    sys.exit(f"{worker.args} ended")


def work(side, case):
    """Answer each line of stdin with the time of one call; the first one's includes compiling.

    oneDNN in MindSpore tries numbers of threads in the first 25 calls: they are made before the
    second answer. Short calls are made several times, the fastest counts.
    """
    if case[3] == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    call = (ours if side == "ours" else torchs)(*case)
    answers = 0
    for _ in sys.stdin:
        if answers == 1:
            began, calls = time.perf_counter(), 0
            while calls < 26 or (time.perf_counter() - began < 1.0 and calls < 200):
                call()
                calls += 1
        seconds = []
        for _ in range(1 if answers == 0 or seconds_of(call) > 0.05 else 5):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        answers += 1
        print(json.dumps({"ms": 1e3 * min(seconds)}), flush=True)


def seconds_of(call):
    """Of one call, which also wakes the threads up."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def ours(kind, name, rows, threads):
    import common  # noqa: F401  sets the path
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    from impala_ms import device
    from impala_ms.agents.learner import stacked
    from impala_ms.frames import frame_rows, push_frame
    from impala_ms.nets.conv import Nature, Shallow
    from impala_ms.nets.lstm import LSTM
    from impala_ms.nets.resnet import ResNet
    from impala_ms.nets.rmsprop import RMSProp

    device.use("CPU", threads)
    rng = np.random.default_rng(0)
    if name == "lstm":
        net = LSTM(SIZE, SIZE)
        inputs = [
            rng.normal(size=(rows, ENVS, SIZE)).astype(np.float32),
            rng.random((rows, ENVS)) < 0.02,
            rng.normal(size=(ENVS, 2 * SIZE)).astype(np.float32),
        ]
    else:
        net = {"shallow": Shallow, "nature": Nature, "resnet": ResNet}[name]((4, 84, 84))
        envs = rows if kind == "inference" else rows // 21
        first = np.zeros((1, 21, envs), bool)
        inputs = [rng.integers(0, 256, (24, envs, 84, 84), dtype=np.uint8), frame_rows(first, 4)]
    share = ms.Tensor.from_numpy

    def infer():
        prepared = net.prepare(inputs[0][0])
        push_frame(stack, prepared, first[0, 0], stack)
        return net(share(stack)).asnumpy()

    if kind == "inference":
        stack = np.stack([net.prepare(inputs[0][0])] * 4, 1)
        return infer

    class Step(nn.Cell):
        def __init__(self):
            super().__init__()
            self.net = net
            weights = net.trainable_params()
            self.optimizer = RMSProp(weights, 1e-4, decay=0.99, momentum=0.0, epsilon=0.1)
            self.gradient = ms.value_and_grad(self.loss, None, self.optimizer.parameters)

        def loss(self, *inputs):
            if len(inputs) == 2:
                stacks = stacked(*inputs)
                inputs = (stacks.reshape((-1, *stacks.shape[3:])),)
            outputs = self.net(*inputs)
            if isinstance(outputs, tuple):
                return ops.square(outputs[0]).sum() + outputs[1].sum()
            return ops.square(outputs).sum()

        def construct(self, *inputs):
            loss, gradients = self.gradient(*inputs)
            squares = 0.0
            for gradient in gradients:
                squares = squares + ops.square(gradient).sum()
            scale = ops.minimum(40.0 / (ops.sqrt(squares) + 1e-12), ms.Tensor(1.0, ms.float32))
            scaled = ()
            for gradient in gradients:
                scaled += (gradient * scale,)
            self.optimizer(scaled)
            return loss

    step = Step().set_train()

    def learn():
        arrays = list(inputs)
        if kind == "step":
            frames = net.prepare(inputs[0].reshape(-1, 84, 84))
            arrays[0] = frames.reshape(1, 24, envs, *frames.shape[1:])
        return step(*map(share, arrays)).asnumpy()

    return learn


def torchs(kind, name, rows, threads):
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            sections, inputs = [], 4
            for size in (16, 32, 32):
                sizes = [inputs, *[size] * 4]
                sections.append(nn.ModuleList(nn.Conv2d(i, size, 3, padding=1) for i in sizes))
                inputs = size
            self.sections = nn.ModuleList(sections)
            self.full = nn.Linear(32 * 11 * 11, 256)

        def forward(self, x):
            for conv, *block in self.sections:
                x = nn.functional.max_pool2d(conv(x), 3, 2, 1)
                for first, second in (block[:2], block[2:]):
                    x = x + second(torch.relu(first(torch.relu(x))))
            return torch.relu(self.full(torch.relu(x).flatten(1)))

    class LSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(SIZE, SIZE)

        def forward(self, features, first, state):
            outputs, hidden, cells = [], *state.split(SIZE, 1)
            keep = 1.0 - first.float().unsqueeze(-1)
            for t in range(len(features)):
                hidden, cells = self.cell(features[t], (keep[t] * hidden, keep[t] * cells))
                outputs.append(hidden)
            return torch.stack(outputs), torch.cat((hidden, cells), 1)

    def plain(channels, strides, side, outputs):
        layers, inputs = [], 4
        for size, (kernel, stride) in zip(channels, strides, strict=True):
            layers += [nn.Conv2d(inputs, size, kernel, stride), nn.ReLU()]
            inputs = size
        full = nn.Linear(inputs * side * side, outputs)
        return nn.Sequential(*layers, nn.Flatten(), full, nn.ReLU())

    if name == "lstm":
        net = LSTM()
        inputs = [torch.randn(rows, ENVS, SIZE), torch.rand(rows, ENVS) < 0.02]
        inputs.append(torch.randn(ENVS, 2 * SIZE))
    else:
        net = {
            "shallow": lambda: plain((16, 32), ((8, 4), (4, 2)), 9, 256),
            "nature": lambda: plain((32, 64, 64), ((8, 4), (4, 2), (3, 1)), 7, 512),
            "resnet": ResNet,
        }[name]()
        inputs = [torch.randint(0, 256, (rows, 4, 84, 84), dtype=torch.uint8)]

    def forward():
        return net(*inputs) if name == "lstm" else net(inputs[0].float() * (1.0 / 255.0))

    if kind == "inference":

        def infer():
            with torch.inference_mode():
                return forward().numpy()

        return infer
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-4, alpha=0.99, eps=0.1)

    def step():
        optimizer.zero_grad()
        outputs = forward()
        if isinstance(outputs, tuple):
            loss = outputs[0].square().sum() + outputs[1].sum()
        else:
            loss = outputs.square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 40.0)
        optimizer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
