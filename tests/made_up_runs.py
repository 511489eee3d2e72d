"""Run folders as training leaves them, with rows that a test gives."""

import copy
import json

import numpy as np

from impala_ms import snapshots
from impala_ms.algorithm.impala import config
from impala_ms.configuration import algorithms

SECTIONS = [name for name in vars(config) if name.endswith("_params")]

COLUMNS = tuple(algorithms.columns("impala"))


def make_run(
    folder,
    returns=(),
    steps=None,
    seconds=None,
    *,
    seed=1,
    env="CartPole-v1",
    algorithm="impala",
    ranks=3,
    state="finished",
    message="",
    columns=COLUMNS,
    settings=None,
    **values,
):
    """Write a run; row k has ``returns[k]`` at ``steps[k]`` (100 k) and ``seconds[k]`` (k).

    ``settings`` has values by path, such as ``{"learner.lr": 0.1}``. Other arguments are columns,
    with one value for all rows or a list.
    """
    folder.mkdir(parents=True)
    data = {"format": 2, "algorithm": algorithm, "actors": max(ranks - 1, 1)}
    data |= {name: copy.deepcopy(getattr(config, name)) for name in SECTIONS}
    data["collect_env_params"]["id"] = env
    data["trainer_params"] |= {"seed": seed, "total_env_steps": 1000, "run_dir": str(folder)}
    for path, value in (settings or {}).items():
        section, key = path.split(".")
        data[f"{section}_params"][key] = value
    data["algorithm_config"] = {"actor": {"number": None, "params": "policy_params"}}
    folder.joinpath("config.json").write_text(json.dumps(data))
    versions = {"python": "3.11.7", "mindspore": "2.10.0"}
    meta = {"started": "2026-12-01T03:47:10+00:00", "host": "vm", "cpus": 2, "versions": versions}
    meta["argv"] = ["launch.py", "train.py", str(ranks), "--seed", str(seed)]
    folder.joinpath("meta.json").write_text(json.dumps(meta))
    if state:
        status = {"state": state, "message": message}
        folder.joinpath("status.json").write_text(json.dumps(status))
    steps = [100 * k for k in range(len(returns))] if steps is None else steps
    seconds = list(range(len(returns))) if seconds is None else seconds
    lines = [",".join(columns)]
    for k, (at, time, returned) in enumerate(zip(steps, seconds, returns, strict=True)):
        row = {"env_steps": at, "wall_time_s": time, "episode_return_mean": returned}
        row |= {"updates": k + 1, "ranks_alive": ranks, "rss_mb": 400.0}
        row |= {name: v[k] if isinstance(v, list) else v for name, v in values.items()}
        lines.append(",".join("" if row.get(c) is None else str(row[c]) for c in columns))
    folder.joinpath("metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def make_snapshots(folder, seconds):
    """Write snapshots taken after so many seconds, and after 100, 200, … steps."""
    for number, at in enumerate(seconds, 1):
        taken = snapshots.Taken(at, 100 * number, number)
        snapshots.save(folder, np.zeros(1, np.float32), taken)


def play_snapshots(folder, returns, episodes=20):
    """Write the table that the snapshots would have if they returned this."""
    taken = [snapshots.load(path)[1] for path in snapshots.listing(folder)]
    rows = [
        snapshots.Played(*when, returned, 0.5, episodes)
        for when, returned in zip(taken, returns, strict=True)
    ]
    snapshots.write_table(folder, True, rows)
