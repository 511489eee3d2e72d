"""What A3C's configuration refuses, and what follows from the number of workers."""

from pathlib import Path

import pytest

from impala_ms import config, run_dir
from impala_ms.errors import ConfigError
from tests.configs import STARTED, release, write


def load(*words, ranks=3):
    return config.load("a3c", words, ranks)


@pytest.mark.parametrize(
    ("words", "ranks", "gradients"),
    [
        ([], 3, 1),
        (["--synchronous", "true"], 3, 2),
        (["--synchronous", "true"], 1, 1),
        (["--gradients_per_update", "2"], 3, 2),
    ],
)
def test_gradients_in_an_update(words, ranks, gradients):
    loaded = load(*words, ranks=ranks)
    assert loaded.trainer_params["gradients_per_update"] == gradients
    said = f"an update applies {gradients} gradient{'s' * (gradients > 1)}, each of "
    assert loaded.summary().splitlines()[1].startswith(said)


@pytest.mark.parametrize(
    ("words", "ranks", "says"),
    [
        (["--gradients_per_update", "2"], 1, "must be at most 1, the number of workers"),
        (["--gradients_per_update", "3"], 3, "must be at most 2, the number of workers"),
        (["--gradients_per_update", "1", "--synchronous", "true"], 3, "2 workers: None or 2"),
        (["--normalize_observations", "true"], 3, "do not share running statistics"),
    ],
)
def test_what_no_run_can_do_is_refused_in_one_line(words, ranks, says):
    with pytest.raises(ConfigError) as caught:
        load(*words, ranks=ranks)
    (line,) = caught.value.problems
    assert says in line
    assert line.startswith(("trainer.gradients_per_update = ", "network.normalize_observations = "))
    assert "\n" not in line


@pytest.fixture
def synchronous(tmp_path):
    """A synchronous run of two workers."""
    words = ["--synchronous", "true", "--run_dir", str(tmp_path / "run")]
    made = run_dir.prepare_run_dir(load(*words), started=STARTED)
    write(made / "checkpoints" / "update_1.ckpt", "weights")
    release(made)
    return str(made)


def test_a_run_of_several_workers_is_evaluated(synchronous, tmp_path):
    assert config.of_run(Path(synchronous)).trainer_params["gradients_per_update"] == 2
    words = ["--gradients_per_update", "2", "--run_dir", str(tmp_path / "two")]
    made = run_dir.prepare_run_dir(load(*words), started=STARTED)
    release(made)
    assert config.of_run(made).actors == 2


@pytest.mark.parametrize(
    ("words", "ranks", "gradients"),
    [([], 4, 3), ([], 1, 1), (["--synchronous", "false"], 4, 1)],
)
def test_gradients_follow_the_ranks_of_a_resumed_run(synchronous, words, ranks, gradients):
    resumed = load("--resume", synchronous, *words, ranks=ranks)
    assert resumed.trainer_params["gradients_per_update"] == gradients


def test_gradients_that_were_given_are_kept_by_a_resumed_run(tmp_path):
    words = ["--gradients_per_update", "2", "--run_dir", str(tmp_path / "run")]
    made = run_dir.prepare_run_dir(load(*words), started=STARTED)
    write(made / "checkpoints" / "update_1.ckpt", "weights")
    release(made)
    assert load("--resume", str(made), ranks=4).trainer_params["gradients_per_update"] == 2
    with pytest.raises(ConfigError, match="must be at most 1, the number of workers"):
        load("--resume", str(made), ranks=2)
