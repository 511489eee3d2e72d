"""Mistakes in the settings of replays: one line each, that says what to do."""

import pytest

from impala_ms import config
from impala_ms.errors import ConfigError


def problems(algorithm, *options, ranks=3):
    with pytest.raises(ConfigError) as caught:
        config.load(algorithm, options, ranks)
    return caught.value.problems


@pytest.mark.parametrize("algorithm", ["dqn", "apex_dqn"])
class TestTransitions:
    def test_a_ring_that_keeps_fewer_decisions_than_learning_waits_for_is_refused(self, algorithm):
        """Case 60: unrolls of 300 decisions, a ring that keeps 900 of 1,000."""
        options = ("--replay_capacity", "1000", "--replay_start", "1000")
        (line,) = problems(algorithm, *options, "--unroll_length", "30", "--num_envs", "10")
        assert "unroll_length x num_envs = 30 x 10 = 300 decisions keep 900 of them" in line
        assert "learning would not begin" in line

    def test_a_run_that_ends_before_it_learns_is_refused(self, algorithm):
        (line,) = problems(algorithm, "--total_env_steps", "1000", "--replay_start", "1000")
        assert "must be more than trainer.replay_start = 1000" in line

    def test_a_return_longer_than_an_unroll_is_refused(self, algorithm):
        (line,) = problems(algorithm, "--n_step", "6", "--unroll_length", "5")
        assert line.startswith("learner.n_step = 6 (--n_step): must be at most")

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            *(("priority_exponent", value) for value in ("-0.1", "1.5", "nan")),
            *(("importance_exponent", value) for value in ("-1", "2")),
            *(("n_step", value) for value in ("0", "1.5")),
            *(("replay_ratio", value) for value in ("0", "-1", "inf")),
            *(("target_period", "0"), ("replay_start", "-1"), ("error_clip", "0")),
        ],
    )
    def test_a_value_outside_its_range_is_refused(self, algorithm, option, value):
        (line,) = problems(algorithm, f"--{option}={value}")
        assert f"(--{option}): must be" in line


class TestTrajectories:
    def test_a_fraction_that_does_not_give_whole_unrolls_is_refused(self):
        (line,) = problems("impala", "--replay_fraction", "0.4", "--num_envs", "16")
        assert "= 32 / 16 = 2 new unrolls, R = S f / (1 - f) = 1.333 must be a whole number" in line
        assert line.endswith("as for 0.333333, 0.5, 0.75")

    @pytest.mark.parametrize("fraction", ["0", "0.5", "0.75", "0.6666666667"])
    def test_a_fraction_that_gives_whole_unrolls_is_taken(self, fraction):
        config.load("impala", ["--replay_fraction", fraction], 3)

    @pytest.mark.parametrize("fraction", ["1", "-0.5", "2"])
    def test_a_fraction_outside_its_range_is_refused(self, fraction):
        (line,) = problems("impala", f"--replay_fraction={fraction}")
        assert "must be float in [0, 1)" in line

    def test_a_replay_smaller_than_an_unroll_is_refused(self):
        (line,) = problems("impala", "--replay_fraction", "0.5", "--replay_trajectories", "31")
        assert "must be at least collect_env.num_envs = 32" in line


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [("impala", "lr_schedule"), ("dqn", "dueling"), ("apex_ddpg", "n_step")],
)
def test_none_is_refused_where_the_algorithm_chooses_no_value(algorithm, option):
    (line,) = problems(algorithm, f"--{option}=None")
    assert f"(--{option}): must be" in line


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [("dqn", "lr_schedule"), ("apex_dqn", "dueling"), ("apex_dqn", "n_step")],
)
def test_none_takes_the_value_that_the_algorithm_chooses(algorithm, option):
    given, untouched = (config.load(algorithm, o, 3) for o in ([f"--{option}=None"], []))
    assert given.values() == untouched.values()
    assert None not in [value for path, value in given.values().items() if path.endswith(option)]
