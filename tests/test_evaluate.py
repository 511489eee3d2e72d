"""``impala_ms.evaluate`` without a network: how it fails, and what it shows meanwhile."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from impala_ms import evaluate
from impala_ms.config import ConfigError
from impala_ms.envs.errors import MakeError


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestShown:
    def show(self, counts, seconds, stream=None):
        """Texts written one over the other while so many have ended, every so many seconds."""
        now = SimpleNamespace(s=100.0)
        stream = stream or Terminal()
        shown = evaluate.Shown("{} of 5 episodes", stream, clock=lambda: now.s)
        for count in counts:
            now.s += seconds
            shown.ended(count)
        shown.clear()
        return [text.strip("\r") for text in stream.getvalue().split("\r\x1b[K")[1:]]

    def test_nothing_is_shown_of_a_short_evaluation(self):
        assert self.show([1, 2, 3], seconds=0.6) == [""]

    def test_long_evaluation_shows_how_many_episodes_have_ended(self):
        said = self.show([0, 2, 3, 3], seconds=1.0)
        assert said == [*(f"{n} of 5 episodes" for n in (2, 3, 3)), ""]

    def test_line_is_written_five_times_a_second_at_most(self):
        assert 4 <= len(self.show([0] * 30, seconds=0.1)) <= 7  # in the third second

    def test_nothing_is_written_where_there_is_no_terminal(self, monkeypatch):
        assert self.show([1, 2], seconds=5.0, stream=io.StringIO()) == []
        monkeypatch.setenv("TERM", "dumb")
        assert self.show([1, 2], seconds=5.0) == []


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
        (
            ["run", "--snapshots", "--json"],
            "--json is for one checkpoint, not for --snapshots: leave it out",
        ),
        (
            ["run", "--snapshots", "--checkpoint", "best"],
            "--checkpoint is for one checkpoint, not for --snapshots: leave it out",
        ),
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


PRINTING = """
import os, sys
from impala_ms import evaluate

def play(arguments):
    print("Hello from the pygame community.")
    os.write(1, b"from C\\n")
    if arguments.greedy:
        sys.exit("the sound card is gone")
    return '{"episodes": 1}'

evaluate.play_checkpoint = play
code = evaluate.main(sys.argv[1:])
print("more")
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [(["run", "--json"], 0, '{"episodes": 1}\nmore\n'), (["run", "--greedy"], 1, "more\n")],
)
def test_what_a_users_environment_prints_is_not_in_the_result(words, code, printed):
    done = subprocess.run(
        [sys.executable, "-c", PRINTING, *words], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (code, printed)
    assert {"Hello from the pygame community.", "from C"} <= set(done.stderr.splitlines())
