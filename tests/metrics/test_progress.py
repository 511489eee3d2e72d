"""The progress line and its display, character by character."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from impala_ms.metrics.progress import Display, decode, encode, format_line

ROW = {
    "env_steps": 1_230_000,
    "total_env_steps": 1_500_000,
    "env_steps_per_s": 241_234.4,
    "episode_return_mean": 432.12,
    "policy_lag_mean": 1.24,
    "eta_s": 42.1,
    "loss_total": 12.3456,
    "ranks_alive": 4,
    "actors_expected": 3,
    "learner_wait_fraction": 0.5,
    "actor_wait_fraction": 0.1,
}
LINE = (
    "1.23M/1.50M steps (82%)  241K/s  return 432.1  lag 1.2  0:42 left  loss 12.35  3/3 actors  "
    "waiting for actors"
)


def test_wait_is_the_second_field_and_replaces_the_bottleneck():
    row = ROW | {"env_steps_per_s": None, "eta_s": None, "waiting_for": "an evaluation (3 s)"}
    assert format_line(row) == (
        "1.23M/1.50M steps (82%)  waiting for an evaluation (3 s)  return 432.1  lag 1.2  "
        "loss 12.35  3/3 actors"
    )


def test_evaluation_follows_the_return():
    assert "return 432.1  eval 401.5  lag 1.2" in format_line(ROW | {"eval_return_mean": 401.5})


def test_plain_lines_about_a_wait_come_every_ten_seconds():
    stream, now = io.StringIO(), [0.0]
    display = Display(stream, clock=lambda: now[0])
    display.progress(ROW)
    for second in range(1, 31):
        now[0] = float(second)
        display.progress(ROW | {"waiting_for": f"unrolls ({second} s)"})
    said = [line.partition("waiting for ")[2][:12] for line in stream.getvalue().splitlines()[1:]]
    assert said == ["unrolls (10 ", "unrolls (20 ", "unrolls (30 "]


class TestEncoding:
    def test_decode_returns_what_encode_was_given(self):
        row = {"env_steps": 5, "loss_total": 0.25, "entropy": None}
        line = encode(row)
        assert line == '\x1eprogress {"env_steps": 5, "loss_total": 0.25, "entropy": null}'
        assert decode(line) == row
        assert decode(line + "\n") == row

    def test_numpy_and_non_finite_values_become_json_values(self):
        row = {
            "a": float("nan"),
            "b": np.float32("inf"),
            "c": np.int64(3),
            "d": np.float32(0.5),
            "e": np.array(2),
        }
        assert decode(encode(row)) == {"a": None, "b": None, "c": 3, "d": 0.5, "e": 2}

    @pytest.mark.parametrize(
        "line", ["", "progress {}", "text", "\x1eprogress", "\x1eprogress {", "\x1eprogress [1]"]
    )
    def test_other_lines_decode_to_none(self, line):
        assert decode(line) is None

    def test_full_row_fits_into_one_write_to_a_pipe(self):
        from impala_ms.configuration import algorithms
        from impala_ms.metrics.columns import PROGRESS_KEYS

        line = encode(
            dict.fromkeys([*algorithms.columns("impala"), *PROGRESS_KEYS], -1.2345678901234567e-300)
        )
        assert len(line.encode()) < 4096  # PIPE_BUF


class TestFormat:
    def test_full_row_shows_every_field(self):
        assert format_line(ROW) == LINE

    @pytest.mark.parametrize(
        ("width", "line"),
        [
            (len(LINE), LINE),
            (len(LINE) - 1, LINE[: LINE.index("  waiting")]),
            (79, LINE[: LINE.index("  3/3")]),
            (31, "1.23M/1.50M steps (82%)  241K/s"),
            (30, "1.23M/1.50M steps (82%)"),
            (10, "1.23M/1.50"),
        ],
    )
    def test_fields_are_dropped_from_the_right(self, width, line):
        assert format_line(ROW, width=width) == line

    def test_80_columns_show_the_main_fields(self):
        line = format_line(ROW, width=79)
        for part in ("steps", "241K/s", "return", "lag", "left"):
            assert part in line

    def test_missing_values_are_left_out(self):
        assert format_line({"env_steps": 950}) == "950 steps"
        assert format_line({}) == ""
        row = ROW | {"eta_s": None, "episode_return_mean": None}
        assert format_line(row) == LINE.replace("  return 432.1", "").replace("  0:42 left", "")

    @pytest.mark.parametrize(
        ("steps", "text"),
        [
            (0, "0"),
            (999, "999"),
            (1000, "1.00K"),
            (9994, "9.99K"),
            (9996, "10.0K"),
            (99_960, "100K"),
            (999_499, "999K"),
            (999_500, "1.00M"),
            (50_000_000, "50.0M"),
            (2_000_000_000, "2.00G"),
            (5_000_000_000_000, "5000G"),
        ],
    )
    def test_steps_have_three_digits_and_a_suffix(self, steps, text):
        assert format_line({"env_steps": steps}) == f"{text} steps"

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0, "0:00"), (59.6, "1:00"), (725, "12:05"), (3599, "59:59"), (11220, "3:07:00")],
    )
    def test_time_left_is_in_minutes_or_hours(self, seconds, text):
        assert format_line({"eta_s": seconds}) == f"{text} left"

    @pytest.mark.parametrize(
        ("learner", "actor", "text"),
        [
            (0.5, 0.1, "waiting for actors"),
            (0.1, 0.5, "waiting for learner"),
            (0.19, 0.1, "balanced"),
            (0.3, None, "waiting for actors"),
            (None, 0.0, "balanced"),
            (None, None, ""),
        ],
    )
    def test_larger_wait_names_the_bottleneck(self, learner, actor, text):
        row = {"learner_wait_fraction": learner, "actor_wait_fraction": actor}
        assert format_line(row) == text

    def test_lost_actors_are_counted(self):
        assert format_line({"ranks_alive": 3, "actors_expected": 3}) == "2/3 actors"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def steps(number):
    return {"env_steps": number}


class TestTerminal:
    @pytest.fixture
    def terminal(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        return Terminal()

    def test_progress_line_is_rewritten_in_place(self, terminal):
        display = Display(terminal)
        display.progress(steps(1))
        display.progress(steps(2))
        assert terminal.getvalue() == "\r1 steps\x1b[K\r2 steps\x1b[K"

    def test_other_lines_go_above_the_progress_line(self, terminal):
        display = Display(terminal)
        display.line("before\n")
        display.progress(steps(1))
        display.line("hello")
        display.close()
        assert terminal.getvalue() == "before\n\r1 steps\x1b[K\r\x1b[Khello\n1 steps\n"

    def test_close_leaves_the_last_progress_line(self, terminal):
        display = Display(terminal)
        display.progress(steps(1))
        display.close()
        display.close()
        display.line("after")
        assert terminal.getvalue() == "\r1 steps\x1b[K\nafter\n"

    @pytest.mark.parametrize(("columns", "width"), [(60, 59), (0, 79)])
    def test_last_column_of_the_terminal_stays_free(self, terminal, monkeypatch, columns, width):
        monkeypatch.setattr(terminal, "fileno", lambda: 1)
        monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 24)))
        Display(terminal).progress({"env_steps": 10**100, "total_env_steps": 1})
        assert len(terminal.getvalue()) == len("\r\x1b[K") + width

    def test_terminal_of_unknown_width_gets_79_characters(self, terminal):
        Display(terminal).progress({"env_steps": 10**100, "total_env_steps": 1})
        assert len(terminal.getvalue()) == len("\r\x1b[K") + 79

    def test_dumb_terminal_gets_plain_lines(self, terminal, monkeypatch):
        monkeypatch.setenv("TERM", "dumb")
        Display(terminal).progress(steps(1))
        assert terminal.getvalue() == "1 steps\n"


class TestPipe:
    def test_plain_lines_come_once_a_second_with_the_first_and_the_last(self):
        times = iter([100.0, 100.5, 101.0, 101.9, 101.99])
        stream = io.StringIO()
        display = Display(stream, clock=lambda: next(times))
        for number in (1, 2, 3, 4, 5):
            display.progress(steps(number))
        assert stream.getvalue() == "1 steps\n3 steps\n"
        display.close()
        assert stream.getvalue() == "1 steps\n3 steps\n5 steps\n"
        display.close()
        assert stream.getvalue() == "1 steps\n3 steps\n5 steps\n"

    def test_close_does_not_repeat_the_last_line(self):
        stream = io.StringIO()
        display = Display(stream, clock=lambda: 0.0)
        display.progress(steps(1))
        display.close()
        assert stream.getvalue() == "1 steps\n"

    def test_other_lines_are_printed_as_they_are(self):
        stream = io.StringIO()
        display = Display(stream, clock=lambda: 0.0)
        display.progress(steps(1))
        display.line("hello\n")
        display.line("")
        assert stream.getvalue() == "1 steps\nhello\n\n"


def test_character_that_the_console_lacks_is_replaced():
    code = (
        "import sys\n"
        "from impala_ms.metrics import progress\n"
        "progress.open_streams()\n"
        "print('2 \\xb1 1')\n"
        "print('2 \\xb1 1', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 ? 1\n", "2 \\xb1 1\n")


def test_import_needs_neither_numpy_nor_mindspore():
    code = (
        "import sys, json\n"
        "import impala_ms.metrics.progress\n"
        "print(json.dumps(sorted({'numpy', 'rich', 'tensorboardX', 'mindspore'} "
        "& set(sys.modules))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == []
