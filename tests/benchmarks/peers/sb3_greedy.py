"""stable-baselines3 with RL Zoo's values: time until its greedy policy holds a score.

    PYTHON_OF_SB3 tests/benchmarks/peers/sb3_greedy.py CartPole-v1 475 --seed 1 --limit_s 300
    PYTHON_OF_SB3 tests/benchmarks/peers/sb3_greedy.py Pendulum-v1 -200 --algorithm TD3

The weights are kept every 2 s while it trains. Afterwards each plays 20 greedy episodes: the time
is that of the first weights at the score whose successor is at the score too. As for our own runs
(`compare --greedy_score`), time counts from the start of the process. Prints one JSON line.
"""

import argparse
import copy
import json
import time

BEGAN = time.time()

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import DDPG, DQN, TD3  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402

EVERY_S = 2.0
EPISODES = 20
EVALUATION_SEED = 1_000_000
# RL Zoo, hyperparams/dqn.yml. Its exploration schedule runs over the zoo's number of steps.
OF_DQN = {
    "CartPole-v1": {
        "steps": 50_000,
        "net": [256, 256],
        "exploration_fraction": 0.16,
        "settings": {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_final_eps": 0.04,
        },
    },
    "LunarLander-v3": {
        "steps": 100_000,
        "net": [256, 256],
        "exploration_fraction": 0.12,
        "settings": {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_final_eps": 0.1,
        },
    },
}
# RL Zoo, hyperparams/ddpg.yml, Pendulum; td3.yml has the same numbers for it, with an update for
# every step. The zoo has none for InvertedPendulum of MuJoCo: there the numbers are those of DDPG
# for tasks of PyBullet, with an update for every step.
CONTINUOUS = {
    "learning_rate": 1e-3,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "gamma": 0.98,
    "policy_kwargs": {"net_arch": [400, 300]},
}
EACH_EPISODE = {"train_freq": (1, "episode"), "gradient_steps": -1}
EACH_STEP = {"train_freq": 1, "gradient_steps": 1}
NOISE = 0.1
STEPS = 10**9  # the limit is one of time


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("env")
    parser.add_argument("--algorithm", choices=("DQN", "DDPG", "TD3"), default="DQN")
    parser.add_argument("score", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit_s", type=float, default=300.0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make = make_dqn if arguments.algorithm == "DQN" else make_continuous
    model = make(arguments)
    kept, ended = [], time.time()

    def keep(*_):
        nonlocal ended
        ended = time.time()
        if not kept or ended - BEGAN >= kept[-1][0] + EVERY_S:
            state = copy.deepcopy(model.policy.state_dict())
            kept.append((ended - BEGAN, model.num_timesteps, model._n_updates, state))
        return ended - BEGAN < arguments.limit_s

    model.learn(STEPS, callback=keep, log_interval=None)
    result = {
        "algorithm": arguments.algorithm,
        "env": arguments.env,
        "seed": arguments.seed,
        "trained_s": ended - BEGAN,
        "steps": model.num_timesteps,
        "updates": model._n_updates,
        "updates_per_s": (kept[-1][2] - kept[0][2]) / (kept[-1][0] - kept[0][0]),
        "time_s": None,
    }
    before = None
    for seconds, steps, _, state in kept:
        model.policy.load_state_dict(state)
        reached = play(model, arguments.env) >= arguments.score
        if reached and before is not None:
            result |= {"time_s": before[0], "steps_to_score": before[1]}
            break
        before = (seconds, steps) if reached else None
    print(json.dumps(result))


def make_dqn(arguments):
    zoo = OF_DQN[arguments.env]
    return DQN(
        "MlpPolicy",
        gymnasium.make(arguments.env),
        seed=arguments.seed,
        device="cpu",
        policy_kwargs={"net_arch": zoo["net"]},
        exploration_fraction=zoo["exploration_fraction"] * zoo["steps"] / STEPS,
        **zoo["settings"],
    )


def make_continuous(arguments):
    environment = gymnasium.make(arguments.env)
    of_pendulum = arguments.algorithm == "DDPG" and arguments.env.startswith("Pendulum")
    noise = np.zeros(environment.action_space.shape), np.full(environment.action_space.shape, NOISE)
    return {"DDPG": DDPG, "TD3": TD3}[arguments.algorithm](
        "MlpPolicy",
        environment,
        seed=arguments.seed,
        device="cpu",
        action_noise=NormalActionNoise(*noise),
        **CONTINUOUS | (EACH_EPISODE if of_pendulum else EACH_STEP),
    )


def play(model, env):
    """Mean return of 20 greedy episodes."""
    returns = []
    environment = gymnasium.make(env)
    for episode in range(EPISODES):
        observation, _ = environment.reset(seed=EVALUATION_SEED + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    main()
