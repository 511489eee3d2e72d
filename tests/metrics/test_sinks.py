"""Sinks: the files, character by character."""

import contextlib
import io
import os
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from impala_ms.configuration import algorithms
from impala_ms.metrics import progress
from impala_ms.metrics.meters import EpisodeMeter
from impala_ms.metrics.sinks import ConsoleSink, CsvSink, SinkError, Sinks, TensorBoardSink

COLUMNS = list(algorithms.columns("impala"))
NAMES = ["wall_time_s", "updates", "env_steps", "loss_total"]
HEADER = "wall_time_s,updates,env_steps,loss_total\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


@pytest.fixture
def open_sink():
    """Make a CsvSink that is closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda path, columns=COLUMNS: stack.enter_context(
            contextlib.closing(CsvSink(path, columns))
        )


class TestCsv:
    def test_new_file_has_all_columns(self, open_sink, path):
        open_sink(path).close()
        assert path.read_text() == ",".join(COLUMNS) + "\n"

    def test_row_is_in_the_file_at_once(self, open_sink, path):
        sink = open_sink(path, NAMES)
        sink.write({"wall_time_s": 1.23456, "updates": 7, "env_steps": 1234567, "loss_total": 1.5})
        assert path.read_text() == HEADER + "1.235,7,1234567,1.5\n"

    @pytest.mark.parametrize(
        ("value", "field"),
        [
            (None, ""),
            (float("nan"), ""),
            (np.float32("nan"), ""),
            (0, "0"),
            (0.0, "0"),
            (12345678, "12345678"),
            (np.int64(12345678), "12345678"),
            (123456.7, "123457"),
            (0.000012345678, "1.23457e-05"),
            (np.float32(0.1), "0.1"),
            (float("inf"), "inf"),
        ],
    )
    def test_values_are_written_with_six_digits(self, open_sink, path, value, field):
        open_sink(path, NAMES).write({"loss_total": value})
        assert path.read_text() == HEADER + f",,,{field}\n"

    def test_missing_values_are_empty_fields(self, open_sink, path):
        meter = EpisodeMeter()
        sink = open_sink(path, ["episodes", "episode_return_mean", "episode_length_mean"])
        sink.write(
            {
                "episodes": meter.count,
                "episode_return_mean": meter.return_mean,
                "episode_length_mean": meter.length_mean,
            }
        )
        assert path.read_text().splitlines()[1] == "0,,"

    def test_unknown_column_is_refused(self, open_sink, path):
        with pytest.raises(SinkError, match=r"no column 'loss_totl'; did you mean 'loss_total'\?"):
            open_sink(path, NAMES).write({"loss_totl": 1.0})
        assert path.read_text() == HEADER

    def test_keys_of_the_progress_line_are_not_written(self, open_sink, path):
        open_sink(path, NAMES).write(
            {"updates": 1, "total_env_steps": 9, "eta_s": 2.0, "actors_expected": 3}
        )
        assert path.read_text() == HEADER + ",1,,\n"

    def test_file_with_the_same_header_is_continued(self, open_sink, path):
        for updates in (1, 2):
            sink = open_sink(path, NAMES)
            sink.write({"updates": updates})
            sink.close()
        assert path.read_text() == HEADER + ",1,,\n,2,,\n"

    @pytest.mark.parametrize("torn", [",2", "2.000,2,300,0.12345"])
    def test_incomplete_last_line_is_removed(self, open_sink, path, torn):
        path.write_text(HEADER + ",1,,\n" + torn)
        open_sink(path, NAMES).write({"updates": 2})
        assert path.read_text() == HEADER + ",1,,\n,2,,\n"

    @pytest.mark.parametrize("content", ["", "wall_ti"])
    def test_incomplete_header_is_written_again(self, open_sink, path, content):
        path.write_text(content)
        open_sink(path, NAMES).close()
        assert path.read_text() == HEADER

    def test_file_with_fewer_columns_gets_the_others_empty(self, open_sink, path):
        names = HEADER.rstrip().split(",")
        path.write_text(
            f"{names[1]},{names[0]}\n1,0.5\n2,0.7\n3,0"
        )  # in another order, last line incomplete
        open_sink(path, NAMES).write({"updates": 3})
        rest = "," * (len(names) - 2)
        assert path.read_text() == f"{HEADER}0.5,1{rest}\n0.7,2{rest}\n,3{rest}\n"

    @pytest.mark.parametrize("content", ["step,loss\n1,2\n", "something else", f"x,{HEADER}"])
    def test_file_with_unknown_columns_is_refused_and_not_changed(self, open_sink, path, content):
        path.write_text(content)
        with pytest.raises(SinkError, match=r"metrics\.csv has the unknown column"):
            open_sink(path, NAMES)
        assert path.read_text() == content

    def test_rewind_removes_rows_after_the_checkpoint(self, open_sink, path):
        sink = open_sink(path, NAMES)
        for updates in (10, 20, 30):
            sink.write({"updates": updates})
        sink.rewind_to(20)
        assert path.read_text() == HEADER + ",10,,\n,20,,\n"
        sink.write({"updates": 25})
        assert path.read_text() == HEADER + ",10,,\n,20,,\n,25,,\n"
        assert os.listdir(path.parent) == ["metrics.csv"]

    def test_rewind_without_later_rows_leaves_the_file(self, open_sink, path):
        sink = open_sink(path, NAMES)
        sink.write({"updates": 10})
        before = path.stat().st_ino
        sink.rewind_to(10)
        assert path.stat().st_ino == before
        sink.write({"updates": 11})
        assert path.read_text() == HEADER + ",10,,\n,11,,\n"

    def test_missing_folder_is_an_error_that_names_the_file(self, open_sink, tmp_path):
        with pytest.raises(SinkError, match=r"cannot write metrics to .*none/m\.csv: No such file"):
            open_sink(tmp_path / "none" / "m.csv")

    def test_full_disk_is_an_error_that_names_the_file(self, open_sink, path):
        sink = open_sink(path, NAMES)
        sink.close()
        sink._file = open("/dev/full", "w")
        with pytest.raises(SinkError, match=r"metrics to .*metrics\.csv: No space left on device"):
            sink.write({"updates": 1})
        with pytest.raises(SinkError, match="No space left"):
            sink.close()


def read_events(directory):
    """The events of the files in ``directory``, oldest file first."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    for file in sorted(directory.iterdir(), key=lambda f: f.stat().st_mtime_ns):
        content = file.read_bytes()
        while content:
            # A record: 8 bytes of length, 4 of checksum, the event, 4 of checksum.
            (length,) = struct.unpack("<Q", content[:8])
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[12 + length + 4 :]
    return events


class TestTensorBoard:
    def test_scalars_are_written_by_env_steps_in_groups(self, tmp_path):
        sink = TensorBoardSink(tmp_path / "tb", COLUMNS)
        row = {
            "env_steps": 640,
            "updates": 1,
            "loss_total": 2.5,
            "env_steps_per_s": 1000.0,
            "eval_return_mean": 475.0,
            "entropy": None,
            "rho_mean": float("nan"),
            "eta_s": 3.0,
        }
        sink.write(row)
        sink.write({"env_steps": 1280, "loss_total": 1.5})
        sink.close()
        header, first, second = read_events(tmp_path / "tb")
        assert header.file_version == "brain.Event:2"
        assert first.step == 640
        assert {v.tag: v.simple_value for v in first.summary.value} == {
            "train/env_steps": 640,
            "train/updates": 1,
            "loss/loss_total": 2.5,
            "speed/env_steps_per_s": 1000,
            "eval/eval_return_mean": 475,
        }
        assert second.step == 1280
        assert [(v.tag, v.simple_value) for v in second.summary.value] == [
            ("train/env_steps", 1280),
            ("loss/loss_total", 1.5),
        ]
        assert second.wall_time >= first.wall_time > 1e9

    def test_row_is_in_the_event_file_before_close(self, tmp_path):
        # Import tensorboardX here: not while the thread of the sink imports it.
        assert read_events(tmp_path) == []
        sink = TensorBoardSink(tmp_path, COLUMNS)
        sink.write({"env_steps": 640})
        give_up = time.monotonic() + 30
        while [event.step for event in read_events(tmp_path)][-1:] != [640]:
            assert time.monotonic() < give_up, "the row does not appear"
            time.sleep(0.01)
        sink.close()

    def test_resumed_run_drops_events_after_the_checkpoint(self, tmp_path):
        from tensorboardX.proto.event_pb2 import SessionLog

        sink = TensorBoardSink(tmp_path, COLUMNS, resumed_at=640)
        sink.write({"env_steps": 700})
        sink.close()
        _, start, row = read_events(tmp_path)
        assert start.session_log.status == SessionLog.START
        # TensorBoard drops steps from this one on; those up to 640 stay.
        assert start.step == 641
        assert row.step == 700

    def test_nothing_is_made_or_imported_before_the_first_row(self, tmp_path):
        code = (
            "import sys\n"
            "from impala_ms.metrics.sinks import TensorBoardSink\n"
            f"sink = TensorBoardSink({str(tmp_path / 'tb')!r}, ['env_steps'])\n"
            "print('tensorboardX' in sys.modules)\n"
            "sink.write({'env_steps': 1})\n"
            "sink.close()\n"
            "print('tensorboardX' in sys.modules, 'mindspore' in sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == "False\nTrue False\n"
        assert len(list((tmp_path / "tb").iterdir())) == 1

    def test_close_without_rows_makes_no_file(self, tmp_path):
        TensorBoardSink(tmp_path / "tb", COLUMNS).close()
        assert not (tmp_path / "tb").exists()

    def test_failure_names_the_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        sink = TensorBoardSink(tmp_path / "file", COLUMNS)
        sink.write({"env_steps": 1})
        with pytest.raises(SinkError, match=r"cannot write metrics to .*file: File exists"):
            sink.close()

    def test_failure_is_raised_by_a_later_row(self, tmp_path):
        (tmp_path / "file").write_text("")
        sink = TensorBoardSink(tmp_path / "file", COLUMNS)
        sink.write({"env_steps": 1})
        sink._thread.join(timeout=30)
        with pytest.raises(SinkError, match="File exists"):
            sink.write({"env_steps": 2})


class TestConsole:
    def test_row_is_printed_as_one_line_that_can_be_decoded(self):
        stream = io.StringIO()
        ConsoleSink(stream).write({"updates": 3})
        line, rest = stream.getvalue().split("\n")
        assert rest == ""
        assert progress.decode(line) == {"updates": 3}

    def test_closed_console_is_an_error(self):
        read, write = os.pipe()
        os.close(read)
        stream = open(write, "w")
        with pytest.raises(SinkError, match=r"launcher.*Broken pipe"):
            ConsoleSink(stream).write({"updates": 3})
        with pytest.raises(BrokenPipeError):
            stream.close()


class Recorder:
    def __init__(self, fails=False):
        self.rows, self.closed, self._fails = [], False, fails

    def write(self, row):
        self.rows.append(row)

    def close(self):
        self.closed = True
        if self._fails:
            raise SinkError("it fails")


class TestSinks:
    def test_each_sink_gets_every_row(self):
        sinks = [Recorder(), Recorder()]
        both = Sinks(sinks)
        both.write({"updates": 1})
        both.close()
        assert [s.rows for s in sinks] == [[{"updates": 1}]] * 2
        assert all(s.closed for s in sinks)

    def test_all_sinks_are_closed_if_one_fails(self):
        sinks = [Recorder(), Recorder(fails=True), Recorder()]
        with pytest.raises(SinkError, match="it fails"):
            Sinks(sinks).close()
        assert all(s.closed for s in sinks)
