"""XuanCe's DQN on MindSpore, CartPole-v1: updates per second.

    PYTHON_OF_XUANCE tests/benchmarks/peers/xuance_dqn.py --seconds 30

Network 256-256, batches of 64, an update for every 2 steps (2 environments). The agent is made here
because XuanCe's own runner takes PyTorch whatever toolbox it is told; its TensorBoard records, one
at each update, are off. Prints one JSON line; compiling is not counted.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from types import SimpleNamespace

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
os.environ.setdefault("TQDM_DISABLE", "1")

from xuance.common import get_arguments
from xuance.environment import make_envs
from xuance.mindspore.agents import REGISTRY_Agents


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    given = {
        "dl_toolbox": "mindspore",
        "device": "CPU",
        "render": False,
        "seed": arguments.seed,
        "env_seed": arguments.seed,
        "static_graph": True,
        "parallels": 2,
        "batch_size": 64,
        "env_id": "CartPole-v1",
    }
    settings = get_arguments(
        "dqn", "classic_control", "CartPole-v1", None, SimpleNamespace(**given)
    )
    for name in vars(settings):
        if name.endswith("hidden_size"):
            setattr(settings, name, [256, 256])
    folder = tempfile.mkdtemp()
    os.chdir(folder)  # it writes a folder of logs where it runs
    environments = make_envs(settings)
    environments.reset()
    agent = REGISTRY_Agents[settings.agent](settings, environments)
    agent.log_infos = lambda *_, **__: None
    while agent.learner.iterations < 20:  # compiled by then
        agent.train(50)
    began, steps, updates = time.time(), agent.current_step, agent.learner.iterations
    while time.time() - began < arguments.seconds:
        agent.train(50)
    seconds = time.time() - began
    steps, updates = agent.current_step - steps, agent.learner.iterations - updates
    result = {"updates_per_s": updates / seconds, "updates_per_step": updates / steps}
    print(json.dumps(result), flush=True)
    shutil.rmtree(folder)
    os._exit(0)  # without the environments' own clearing up, which may hang


if __name__ == "__main__":
    main()
