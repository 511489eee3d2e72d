"""``impala_ms.evaluate`` without a network: how it fails, and what it shows meanwhile."""

import io
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from impala_ms import evaluate
from impala_ms.config import ConfigError
from impala_ms.envs.errors import MakeError


class Environments:
    """In each step the episodes of the environments that ``ends`` names next have ended."""

    def __init__(self, num_envs, ends):
        self.num_envs, self.closed = num_envs, False
        self._ends = iter(ends)

    def step(self, action):
        self.finished = (np.array(next(self._ends), np.int64), None, None)
        return action

    def close(self):
        self.closed = True


@dataclass(frozen=True)
class Settings:
    algorithm_config: dict


def shown(stream):
    """The texts that were written one over the other."""
    return [text.strip("\r") for text in stream.getvalue().split("\r\x1b[K")[1:]]


class TestWatched:
    @pytest.fixture
    def now(self):
        return SimpleNamespace(s=100.0)

    def play(self, now, episodes, ends, seconds):
        """Play with two environments, each step taking so many seconds."""
        stream = io.StringIO()
        inner = Environments(2, ends)
        watched = evaluate.Watched(inner, episodes, stream, clock=lambda: now.s)
        for step in range(len(ends)):
            now.s += seconds
            assert watched.step(step) == step
        return watched, inner, stream

    def test_nothing_is_shown_of_a_short_evaluation(self, now):
        watched, inner, stream = self.play(now, 3, [[0], [1], [0]], seconds=0.6)
        assert stream.getvalue() == ""
        watched.close()
        assert inner.closed

    def test_long_evaluation_shows_how_many_episodes_have_ended(self, now):
        watched, _, stream = self.play(now, 5, [[], [0, 1], [1], []], seconds=1.0)
        assert shown(stream) == ["2 of 5 episodes", "3 of 5 episodes", "3 of 5 episodes"]
        watched.close()
        assert shown(stream)[-1] == ""

    def test_environment_that_has_played_its_share_counts_no_more(self, now):
        _, _, stream = self.play(now, 3, [[1], [1], [0], [1]], seconds=2.0)
        assert shown(stream) == [f"{n} of 3 episodes" for n in (1, 1, 2, 2)]

    def test_line_is_written_five_times_a_second_at_most(self, now):
        _, _, stream = self.play(now, 5, [[]] * 30, seconds=0.1)
        assert 3 <= len(shown(stream)) <= 6  # in the third second

    def test_other_attributes_are_those_of_the_environments(self, now):
        watched, _, _ = self.play(now, 3, [[1]], seconds=0.1)
        assert watched.num_envs == 2
        assert watched.finished[0].tolist() == [1]

    def test_configuration_gives_environments_that_are_watched(self):
        part = {"type": lambda id, num_envs: Environments(num_envs, [id]), "params": {}}
        config = Settings({"eval_environment": part, "actor": {}})
        changed = evaluate.watched(config, 4).algorithm_config
        environment = changed["eval_environment"]["type"]("x", num_envs=3)
        assert isinstance(environment, evaluate.Watched)
        assert environment.num_envs == 3
        assert changed["actor"] is config.algorithm_config["actor"]
        assert config.algorithm_config["eval_environment"] is part


class TestFail:
    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (
                ConfigError("a is 3", "b is 4"),
                "2 problems in the configuration:\n  a is 3\n  b is 4",
            ),
            (MakeError("there is no Nothing-v0"), "there is no Nothing-v0"),
        ],
    )
    def test_error_of_ours_is_its_message_alone(self, error, said, capsys):
        assert evaluate.fail(error) == 1
        assert capsys.readouterr().err == f"{said}\n"

    def test_error_of_a_users_class_is_shown_with_where_it_came_from(self, capsys):
        with pytest.raises(KeyError) as caught:
            {}["wheel"]
        assert evaluate.fail(caught.value) == 1
        said = capsys.readouterr().err.splitlines()
        assert said[0] == "Traceback (most recent call last):"
        assert __file__ in said[1]
        assert said[-1] == "failed: KeyError: 'wheel'"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["run", "--episodes", "0"], "--episodes is 1 or more, not 0"),
        (["run", "--greeedy"], "unrecognized arguments: --greeedy"),
        ([], "the following arguments are required: run_dir"),
    ],
)
def test_mistake_on_the_command_line_is_two_lines(argv, says, capsys):
    with pytest.raises(SystemExit) as caught:
        evaluate.main(argv)
    assert caught.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: python -m impala_ms evaluate RUN_DIR")
    assert error.endswith(says)
