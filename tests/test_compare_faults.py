"""``compare`` under faults: edited files, files in the way, processes that are left or killed."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from io import BytesIO
from pathlib import Path

import pytest

from impala_ms import compare
from impala_ms.comparison import plan, request, running, runs
from impala_ms.comparison.process import Runner
from impala_ms.comparison.request import UsageError
from impala_ms.comparison.runs import RunError
from tests.made_up_runs import make_run
from tests.test_compare import LAST, ONE, commands, here, read_csv, started  # noqa: F401

WORDS = ["impala", "--ranks", "1", "--seeds", "1", "--output", "out"]
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def edit(change):
    """Edit comparison.json as a user would."""
    file = Path("out", plan.FILE)
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


class TestEdited:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda data: data["settings"][0].update(seeds=["1"]), "seeds is ['1']"),
            (lambda data: data["settings"][0].update(seeds=[]), "has ranks 1 and seeds []"),
            (lambda data: data["settings"][0].update(ranks="1"), "ranks is '1'"),
            (lambda data: data["settings"][0].update(ranks=True), "ranks is True"),
            (lambda data: data["settings"][0].update(options="--lr 1"), "options is '--lr 1'"),
            (lambda data: data["settings"][0].update(name="../runs"), "name is '../runs'"),
            (lambda data: data["outcomes"][f"{ONE}/seed_1"].update(took_s="x"), "took_s is 'x'"),
            (lambda data: data.update(scores={"": "high"}), "scores is {'': 'high'}"),
            (lambda data: data.update(limit_s="10"), "limit_s is '10'"),
            (lambda data: data["settings"][0].pop("env"), "TypeError"),
        ],
    )
    def test_a_value_of_another_type_is_one_line(self, here, capsys, change, says):  # noqa: F811
        assert compare.main(WORDS) == 0
        edit(change)
        capsys.readouterr()
        for words in (["--resume", "out"], ["--report", "out"], [*WORDS, "--lr", "0.1"]):
            assert compare.main(words) == 2
            said = capsys.readouterr().err
            assert said.startswith("out/comparison.json cannot be read: ")
            assert says in said
            assert said.count("\n") == 1
        assert len(started(here)) == 1

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"ranks": 2}, "ranks of impala_CartPole-v1_N-1 is 2 now and was 1 when"),
            (
                {"env": "Acrobot-v1"},
                "env of impala_CartPole-v1_N-1 is CartPole-v1 now and was Acro",
            ),
            ({"options": ["--lr", "9"]}, "learner.lr of impala_CartPole-v1_N-1 is 9 now and was "),
        ],
    )
    def test_a_setting_that_is_not_that_of_its_runs_is_refused(self, here, capsys, change, says):  # noqa: F811
        assert compare.main(WORDS) == 0
        config = here / "out" / "runs" / ONE / "seed_1" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"ranks": 1}))
        edit(lambda data: data["settings"][0].update(change))
        assert compare.main(["--resume", "out"]) == 2
        assert capsys.readouterr().err.startswith(says)

    def test_more_seeds_are_run(self, here):  # noqa: F811
        assert compare.main(WORDS) == 0
        edit(lambda data: data["settings"][0].update(seeds=[1, 4]))
        assert compare.main(["--resume", "out"]) == 0
        assert started(here) == [f"{ONE}/seed_1", f"{ONE}/seed_4"]


class TestReport:
    @pytest.mark.parametrize("name", ["table.md", "table.csv", "runs.csv", "report.html"])
    def test_a_file_of_the_users_is_kept(self, here, capsys, name):  # noqa: F811
        make_run(here / "runs" / "a", [1, 2])
        (here / "runs" / name).write_text("mine")
        assert compare.main(["--report", "runs"]) == 2
        said = capsys.readouterr().err
        assert said == (
            f"runs/{name} is there and is not of a report: move it away, or give another --output\n"
        )
        assert (here / "runs" / name).read_text() == "mine"
        assert len(list((here / "runs").iterdir())) == 2

    def test_a_report_is_made_anew(self, here):  # noqa: F811
        make_run(here / "runs" / "a", [1, 2])
        assert compare.main(["--report", "runs"]) == 0
        before = (here / "runs" / "report.html").read_text()
        assert compare.main(["--report", "runs", "--score", "2"]) == 0
        assert (here / "runs" / "report.html").read_text() != before

    def test_comparisons_with_different_limits_need_one(self, here, capsys):  # noqa: F811
        for name, seed, limit in (("a", "1", "50"), ("b", "2", "60")):
            words = ["impala", "--ranks", "1", "--seeds", seed, "--output", name]
            assert compare.main([*words, "--limit_s", limit]) == 0
        capsys.readouterr()
        assert compare.main(["--report", "a", "b", "--output", "both"]) == 2
        said = capsys.readouterr().err
        assert said == "--limit_s differs, a with 50, b with 60: give the one that is to count\n"
        words = ["--report", "a", "b", "--output", "both", "--score", "1000", "--limit_s", "60"]
        assert compare.main(words) == 0
        (row,) = read_csv(here / "both" / "table.csv")
        assert row["time_to_score_mean_s"] == "60"

    def test_a_score_of_another_environment_is_refused(self, here, capsys):  # noqa: F811
        make_run(here / "runs" / "a", [1, 2])
        assert compare.main(["--report", "runs", "--score", "Acrobot-v1=1"]) == 2
        assert "--score Acrobot-v1=1: Acrobot-v1 is not an environment of these runs" in (
            capsys.readouterr().err
        )

    def test_numbers_that_are_not_finite_are_left_out(self, here, capsys):  # noqa: F811
        columns = {"ranks_alive": ["inf", "nan"], "rss_mb": ["inf", 5.0]}
        for seed in (1, 2):
            make_run(here / "runs" / f"{seed}", ["inf", "-inf"], seed=seed, **columns)
        (here / "runs" / "1" / "greedy.json").write_text('{"return_mean": NaN, "episodes": "x"}')
        assert compare.main(["--report", "runs"]) == 0, capsys.readouterr()
        (row,) = read_csv(here / "runs" / "table.csv")
        assert (row["final_return_mean"], row["greedy_return_mean"]) == ("", "")
        assert (row["ranks"], row["rss_mb"]) == ("3", "5")


class TestEvaluation:
    def test_lines_that_an_environment_prints_are_not_the_result(self, here, monkeypatch):  # noqa: F811
        monkeypatch.setenv("FAKE_TRAIN", "chatty:1")
        assert compare.main(WORDS) == 0
        (row,) = read_csv(here / "out" / "runs.csv")
        assert row["greedy_return"] == "100"

    def test_an_evaluation_without_a_result_is_said(self, here, monkeypatch, capsys):  # noqa: F811
        monkeypatch.setenv("FAKE_TRAIN", "mute:1")
        assert compare.main(WORDS) == 1
        assert "its evaluation failed: it printed no result (see " in capsys.readouterr().out
        assert commands(here)[1:] == [f"{ONE}/seed_1 {LAST}"]

    def test_a_process_that_it_leaves_behind_is_ended(self, here, monkeypatch):  # noqa: F811
        monkeypatch.setattr("impala_ms.comparison.process.COPY_S", 0.3)
        monkeypatch.setenv("FAKE_TRAIN", "leaves:1")
        assert compare.main(WORDS) == 0
        (row,) = read_csv(here / "out" / "runs.csv")
        assert row["greedy_return"] == "100"
        assert ended(int(Path("left.txt").read_text()))


def ended(pid, patience_s=5.0):
    """Whether a process ends in time."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "a")
fcntl.lockf(lock, fcntl.LOCK_EX)
lock.write("process 7")
print("locked", flush=True)
sys.stdin.read()
"""


class TestEarlierTry:
    """The run of a comparison that was killed is still ending when another goes on."""

    @pytest.fixture
    def holder(self, here):  # noqa: F811
        folder = here / "out" / "runs" / ONE / "seed_1"
        folder.mkdir(parents=True)
        comparison = plan.make(request.read(WORDS[:-2]), "")
        comparison.folder = here / "out"
        comparison.save()
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder / ".lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.communicate()

    def test_its_end_is_awaited(self, here, holder, monkeypatch):  # noqa: F811
        threading.Timer(0.5, holder.stdin.close).start()
        begun = time.monotonic()
        assert compare.main(["--resume", "out"]) == 0
        assert time.monotonic() - begun >= 0.5
        assert started(here) == [f"{ONE}/seed_1"]
        holder.stdin = None

    def test_it_is_named_if_it_goes_on(self, here, holder, monkeypatch, capsys):  # noqa: F811
        monkeypatch.setattr(running, "END_S", 0.2)
        assert compare.main(["--resume", "out"]) == 2
        said = capsys.readouterr().err
        assert f"out/runs/{ONE}/seed_1 is in use by a run that has not ended (" in said
        assert said.count("\n") == 1
        assert started(here) == []
        assert (here / "out" / "runs" / ONE / "seed_1" / ".lock").exists()

    def test_what_was_read_before_another_ended_is_refused(self, here):  # noqa: F811
        assert compare.main(WORDS) == 0
        old = plan.make(request.read(WORDS), "")
        assert compare.main([*WORDS[:4], "2", *WORDS[5:]]) == 0
        with pytest.raises(UsageError, match="another comparison has just ended in out: give the"):
            plan.check_current(old)
        plan.check_current(plan.make(request.read(WORDS), ""))


class TestRunner:
    def test_a_process_ends_before_an_error_is_raised(self, tmp_path):
        def look():
            raise BrokenPipeError

        with Runner() as runner, (tmp_path / "log").open("wb") as log:
            with pytest.raises(BrokenPipeError):
                runner.run([*SLEEP[:2], f"print({os.getpid()}); {SLEEP[2]}"], log, look=look)
            assert runner._process is None

    def test_a_log_that_cannot_be_written_is_named(self, tmp_path):
        class Full(BytesIO):
            name = "the.log"

            def write(self, line):
                raise OSError(errno.ENOSPC, "No space left on device")

        begun = time.monotonic()
        talks = "import time\nwhile True: print('x', flush=True); time.sleep(0.05)"
        with Runner() as runner, pytest.raises(OSError, match="No space left") as caught:
            runner.run([sys.executable, "-c", talks], Full(), look=lambda: None)
        assert caught.value.filename == "the.log"
        assert time.monotonic() - begun < 10

    def test_a_run_is_told_to_end_when_its_comparison_is_killed(self, tmp_path):
        code = (
            "import sys; from impala_ms.comparison.process import Runner\n"
            "from pathlib import Path\n"
            "run = \"import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)\"\n"
            "Runner().run([sys.executable, '-c', run], open('log', 'wb'), look=lambda: None)\n"
        )
        root = str(Path(compare.__file__).parents[1])
        killed = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}
        )
        file = tmp_path / "pid"
        deadline = time.monotonic() + 30
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert ended(int(file.read_text()))


def test_a_removed_current_folder_is_named(here, capsys):  # noqa: F811
    folder = here / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    assert compare.main(["impala", "--seeds", "1"]) == 2
    assert capsys.readouterr().err == "the current folder was removed: go to another\n"


def test_a_file_that_is_not_of_a_run_is_named(here):  # noqa: F811
    run = make_run(here / "a", [1, 2])
    (run / "metrics.csv").write_bytes(b"env_steps\n\xff\n")
    with pytest.raises(RunError, match=r"a/metrics.csv cannot be read: "):
        runs.read(run)


def test_a_run_whose_folder_was_removed_is_made_again(here):  # noqa: F811
    assert compare.main(WORDS) == 0
    shutil.rmtree(here / "out" / "runs" / ONE / "seed_1")
    assert compare.main(["--resume", "out"]) == 0
    assert commands(here) == [f"{ONE}/seed_1", f"{ONE}/seed_1 {LAST}"] * 2


def test_rows_are_not_added_while_runs_with_other_defaults_are_missing(here, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("FAKE_TRAIN", "fail:1")
    assert compare.main(WORDS) == 1
    edit(lambda data: data["settings"][0]["values"].update({"learner.gamma": 0.5}))
    capsys.readouterr()
    assert compare.main([*WORDS, "--lr", "0.1"]) == 2
    assert capsys.readouterr().err.startswith("learner.gamma of impala_CartPole-v1_N-1 is 0.99 now")


def test_a_run_that_was_killed_is_named_so(here, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FAKE_TRAIN", "killed:1")
    assert compare.main(WORDS) == 1
    (row,) = read_csv(here / "out" / "runs.csv")
    assert row["message"].startswith("it was killed by signal 9 (exit code -9, see out/runs/")


def test_a_config_of_another_program_is_not_a_run(here, capsys):  # noqa: F811
    make_run(here / "runs" / "a", [1, 2])
    (here / "runs" / "model").mkdir()
    (here / "runs" / "model" / "config.json").write_text('{"model_type": "bert"}')
    assert runs.find(here / "runs") == [here / "runs" / "a"]
    assert compare.main(["--report", "runs/model", "--output", "out"]) == 2
    assert capsys.readouterr().err.startswith("runs/model is not a run folder, and holds none: ")
