"""Synchronous runs with equal seeds have equal weights, bit for bit."""

import numpy as np
import pytest

from impala_ms import checkpoint

MPI, SLOW = pytest.mark.mpi, pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1, "impala"), marks=SLOW),
        pytest.param((3, "impala"), marks=MPI),
        pytest.param((3, "a3c"), marks=[MPI, SLOW]),
    ],
    ids=["alone", "mpi", "a3c-mpi"],
)
def runs(request, start_for_all):
    """Two with one seed and one with another; all at once, which must not matter."""
    ranks, algorithm = request.param
    options = ["--algorithm", algorithm, "--synchronous", "true", "--num_envs", "8"]
    options += ["--batch_size", "16"] if algorithm == "impala" else []  # else 2 workers x 8
    options += ["--total_env_steps", "8200", "--log_interval_s", "0.05", "--tensorboard", "false"]
    options += ["--set", "trainer.type=tests.runs.plugins:recording_trainer"]
    runs = [
        start_for_all(ranks, *options, "--seed", seed, name=f"{algorithm}{ranks}{number}")
        for number, seed in enumerate((7, 7, 8))
    ]
    for run in runs:
        assert run.wait() == 0, run.lines
    return runs


@pytest.fixture(scope="module")
def weights(runs):
    """The last checkpoint of each run, ``{name: bytes}``."""
    return [
        {
            name: values.tobytes()
            for name, values in checkpoint.latest(run.run_dir / "checkpoints")[1].items()
        }
        for run in runs
    ]


def test_equal_seeds_give_equal_weights(runs, weights):
    assert weights[0] == weights[1]
    assert len(weights[0]) > 10
    updates = {run.json("status.json")["updates"] for run in runs[:2]}
    assert len(updates) == 1
    assert updates.pop() > 50


def test_another_seed_gives_other_weights(weights):
    assert set(weights[0]) == set(weights[2])
    head = next(name for name in weights[0] if name.endswith("policy_head.weight"))
    assert weights[0][head] != weights[2][head]


def test_policy_lag_is_always_0(runs):
    for run in runs:
        assert len(run.rows()) > 1
        assert {row["policy_lag_max"] for row in run.rows()} == {0}
        assert {row["policy_lag_mean"] for row in run.rows()} == {0}
        assert {row["env_steps_dropped"] for row in run.rows()} == {0}


def test_first_weights_depend_on_the_seed(runs):
    first, same, other = (
        np.load(run.run_dir / "start_0.npz")["policy_head.weight"].tobytes() for run in runs
    )
    assert first == same
    assert first != other
