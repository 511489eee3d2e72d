"""What A3C's configuration refuses, and what follows from the number of workers."""

import pytest

from impala_ms import config
from impala_ms.errors import ConfigError


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
