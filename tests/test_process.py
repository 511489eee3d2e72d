"""One rank alone: its status and its exit code; scripts that are started by hand."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from impala_ms import config as configuration
from impala_ms import cpus, device, errors, process
from impala_ms.cluster import place
from impala_ms.cluster.topology import Place
from impala_ms.errors import ConfigError
from impala_ms.process import Run
from tests.conftest import ROOT

TRAIN = ROOT / "example" / "impala" / "train.py"


class FakeSession:
    """A session for tests; ``fails`` names the methods that raise."""

    fails = ()
    answered = True
    reported = None
    closed = 0

    def __init__(self, run):
        self.job = run
        type(self).made = self
        self.trouble("__init__")

    error = ValueError

    def trouble(self, name):
        if name in self.fails:
            raise self.error(f"trouble in {name}\nof the fake")

    def run(self):
        self.trouble("run")

    def close(self):
        self.closed += 1
        self.trouble("close")
        return self.answered

    def release(self):
        self.trouble("release")
        self.released = self.closed

    def report(self, reason):
        self.reported = reason

    def summary(self):
        return {"env_steps": 640, "checkpoint": None}


class FakeTransport:
    ended = None

    def close(self):
        self.ended = "close"

    def abort(self, code):
        self.ended = "abort", code


@pytest.fixture
def be_rank(tmp_path, monkeypatch):
    """``be_rank(rank, **attributes of the session)``: exit code, session and transport."""
    monkeypatch.setattr(device, "set_thread_limits", lambda threads: None)
    monkeypatch.setattr(device, "use", lambda target, threads: None)
    monkeypatch.setattr(device, "choose", lambda wanted: "CPU")

    def be_rank(rank=0, stop_requested=False, **attributes):
        config = configuration.load("impala", [], 3)
        fake = type("Fake", (FakeSession,), attributes)
        config.algorithm_config["session"]["type"] = fake
        transport = FakeTransport()
        monkeypatch.setattr(process, "connect", lambda run, size: transport)
        console = io.StringIO()
        run = Run(config, tmp_path, rank, Place("learner", 1), None, None, console, time.time())
        run.stop_requested = stop_requested
        code = process.be_rank(run, 3)
        return SimpleNamespace(
            code=code, session=fake.made, transport=transport, said=console.getvalue()
        )

    return be_rank


@pytest.fixture
def status(tmp_path):
    return lambda: json.loads((tmp_path / "status.json").read_text())


class TestRank:
    def test_finished_rank_writes_its_status_and_closes(self, be_rank, status):
        rank = be_rank()
        assert rank.code == 0
        assert status() == {
            "state": "finished",
            "exit_code": 0,
            "message": "",
            "env_steps": 640,
            "checkpoint": None,
        }
        assert rank.session.closed == 1
        assert rank.transport.ended == "close"

    def test_rank_stopped_by_the_user_has_the_state_stopped(self, be_rank, status):
        assert be_rank(stop_requested=True).code == 0
        assert (status()["state"], status()["exit_code"]) == ("stopped", 0)

    def test_failure_is_one_line_in_the_status_and_a_traceback_in_the_log(
        self, be_rank, status, caplog
    ):
        rank = be_rank(fails=["run"])
        assert rank.code == 1
        assert (status()["state"], status()["exit_code"]) == ("failed", 1)
        assert status()["message"] == "ValueError: trouble in run of the fake"
        assert status()["env_steps"] == 640
        assert rank.session.closed == 1
        assert rank.transport.ended == "close"
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info[0] is ValueError

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
    @pytest.mark.parametrize("rank", [0, 1])
    def test_any_exception_ends_the_rank_with_a_report(self, be_rank, rank, error):
        done = be_rank(rank, fails=["run"], error=error)
        assert done.code == 1
        assert done.session.closed == 1
        assert done.transport.ended == "close"
        if rank:
            assert "trouble in run" in done.session.reported

    def test_failed_report_still_ends_the_rank(self, be_rank):
        done = be_rank(1, fails=["run"], report=lambda self, reason: 1 / 0)
        assert (done.code, done.transport.ended) == (1, "close")

    def test_status_that_cannot_be_written_is_an_error_on_the_console(self, be_rank, tmp_path):
        (tmp_path / "status.tmp").mkdir()
        done = be_rank()
        assert done.code == 1
        assert f"failed: {tmp_path}/status.json cannot be written: Is a directory\n" in done.said

    def test_session_that_cannot_be_made_is_a_failure(self, be_rank, status):
        rank = be_rank(fails=["__init__"])
        assert rank.code == 1
        assert status() == {
            "state": "failed",
            "exit_code": 1,
            "message": "ValueError: trouble in __init__ of the fake",
        }

    def test_failed_close_is_a_failure(self, be_rank, status):
        done = be_rank(fails=["close"])
        assert (done.code, done.transport.ended) == (1, ("abort", 1))  # others may go on
        assert status()["message"] == "ValueError: trouble in close of the fake"
        assert be_rank(1, fails=["close"]).transport.ended == "close"

    def test_first_failure_is_the_reason(self, be_rank, status):
        assert be_rank(fails=["run", "close"]).code == 1
        assert status()["message"] == "ValueError: trouble in run of the fake"

    def test_abort_ends_ranks_that_do_not_answer(self, be_rank):
        assert be_rank(answered=False).transport.ended == ("abort", 0)

    def test_actor_reports_its_failure_and_writes_no_status(self, be_rank, tmp_path):
        rank = be_rank(rank=1, fails=["run"])
        assert rank.code == 1
        assert rank.session.reported == "ValueError: trouble in run of the fake"
        assert not (tmp_path / "status.json").exists()

    def test_status_is_written_without_leaving_other_files(self, be_rank, tmp_path):
        be_rank()
        assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


class TestExplain:
    def test_error_of_this_package_is_explained_by_its_text_alone(self):
        error = ConfigError("a is 1; it must be 2")
        assert process.explain(error) == "a is 1; it must be 2"

    def test_other_errors_are_explained_with_their_class(self):
        assert process.explain(KeyError("track")) == "KeyError: 'track'"
        assert process.explain(ZeroDivisionError()) == "ZeroDivisionError"

    def test_long_text_is_cut(self):
        """It is sent to the learner in a buffer of fixed size."""
        line = process.explain(ValueError("é" * 400_000))
        assert line.startswith("ValueError: ééé")
        assert line.endswith("é …")
        assert len(line) == errors.LONGEST + 2

    def test_notes_are_kept_after_a_long_text(self):
        error = ValueError("x" * 400_000)
        errors.add_note(error, "in step 7,\nenvironment 3")
        assert process.explain(error).endswith(" x … in step 7, environment 3"[3:])

    def test_exception_whose_str_fails_is_explained_by_its_class(self):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("in str")

        assert "Mute" in process.explain(Mute())

    def test_syntax_error_is_explained_in_one_line(self):
        with pytest.raises(SyntaxError) as caught:
            compile("a b", "mine.py", "exec")
        line = process.explain(caught.value)
        assert re.fullmatch(r"SyntaxError: invalid syntax.* \(mine\.py, line 1\)", line)

    def test_sys_exit_is_explained_with_its_code(self):
        said = process.explain(SystemExit(3))
        assert said == "it called sys.exit(3)"

    def test_exception_whose_methods_all_fail_is_explained(self):
        class Broken(Exception):
            def __getattribute__(self, name):
                raise RuntimeError(name)

            def __repr__(self):
                raise RuntimeError

        Broken.__module__ = None
        assert process.explain(Broken()).startswith("Broken")
        assert "whose repr() fails" in process.explain(SystemExit(Broken()))


class TestThreads:
    @pytest.fixture
    def config(self, monkeypatch):
        monkeypatch.setattr(place, "ranks_here", lambda: None)
        monkeypatch.setattr(cpus, "usable_cores", lambda: 8)
        return configuration.load("impala", ["--set", "trainer.actor_threads=2"], 4)

    def test_learner_gets_the_cores_that_the_actors_leave(self, config):
        assert process.threads_of(config, 0) == 8 - 3 * 2
        assert process.threads_of(config, 1) == 2

    @pytest.mark.parametrize(("ranks", "threads"), [(1, 8), (2, 6), (4, 2)])
    def test_actors_of_other_hosts_take_no_core_from_the_learner(
        self, config, monkeypatch, ranks, threads
    ):
        monkeypatch.setattr(place, "ranks_here", lambda: (0, ranks))
        assert process.threads_of(config, 0) == threads
        assert process.threads_of(config, 1) == 2

    def test_learner_gets_at_least_one_thread(self, config, monkeypatch):
        monkeypatch.setattr(cpus, "usable_cores", lambda: 2)
        assert process.threads_of(config, 0) == 1

    def test_learner_threads_of_the_user_are_kept(self, config):
        config.learner_params["threads"] = 5
        assert process.threads_of(config, 0) == 5


class TestByHand:
    """``python train.py`` without the launcher."""

    def train(self, folder, *options, **environment):
        kept = {name: v for name, v in os.environ.items() if not name.startswith("IMPALA_MS_")}
        return subprocess.run(
            [sys.executable, str(TRAIN), *options],
            cwd=folder,
            env=kept | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def test_run_in_one_process_finishes(self, tmp_path):
        done = self.train(tmp_path, "--total_env_steps", "1000", "--run_dir", "run")
        assert done.returncode == 0, done.stderr
        status = json.loads((tmp_path / "run" / "status.json").read_text())
        assert (status["state"], status["env_steps"] >= 1000) == ("finished", True)
        assert "Train from one actor, episode" in (tmp_path / "run" / "worker_0.txt").read_text()

    def test_help_lists_options_and_writes_nothing(self, tmp_path):
        done = self.train(tmp_path, "--help")
        assert done.returncode == 0
        assert "--total_env_steps" in done.stdout
        assert list(tmp_path.iterdir()) == []

    def test_failure_is_one_line_on_the_terminal(self, tmp_path):
        done = self.train(tmp_path, "--env", "CartPol-v1")
        assert done.returncode == 1
        assert done.stdout.startswith("failed: there is no environment 'CartPol-v1'")
        assert done.stdout.count("\n") == 1

    def test_misspelt_option_is_refused_with_the_nearest(self, tmp_path):
        done = self.train(tmp_path, "--batch_sise", "8")
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "did you mean --batch_size?" in done.stderr

    def test_several_ranks_without_the_launcher_are_refused(self, tmp_path):
        done = self.train(tmp_path, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4")
        assert done.returncode == 1
        assert done.stderr == "4 ranks are started by: bash start_standalone.sh train.py 4\n"
