"""The command line, what is said first, and how output is shown."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms import launch
from impala_ms.errors import ConfigError
from impala_ms.metrics import progress
from tests.conftest import ROOT
from tests.launch.launched import RANK, line_with


class TestOutput:
    def test_progress_is_formatted_and_other_output_is_shown_unchanged(self, start):
        row = {"env_steps": 2000, "total_env_steps": 4000, "episode_return_mean": 21.5}
        job = start(
            f"print({progress.encode(row)!r}); print('as it is'); print('no newline', end='')", 1
        )
        job.wait()
        assert progress.format_line(row) in job.lines
        assert "as it is" in job.lines
        assert "no newline" in job.lines
        assert not any("\x1e" in line for line in job.lines)

    def test_ascii_console_shows_other_characters_as_question_marks(self, start):
        script = "sys.stdout.buffer.write('größer\\n'.encode() + b'\\xff\\n'); sys.stdout.flush()"
        job = start(script, 1, PYTHONIOENCODING="ascii")
        assert job.wait() == 1
        assert "gr??er" in job.lines

    def test_changed_settings_and_the_run_folder_are_shown_first(self, start):
        job = start("up()", 1, "--seed", "77")
        job.wait()
        assert "77" in line_with(job, "trainer.seed")
        assert line_with(job, "run folder").startswith("run folder: run;")
        assert json.loads((job.run_dir / "config.json").read_text())

    @pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-", ">/dev/full", "| head -0"])
    def test_output_that_cannot_be_written_is_one_line(self, tmp_path, closed):
        """Without a stream the run goes on unseen; with one that fails nothing is started."""
        (tmp_path / "script.py").write_text(RANK + "up(); write_status(state='finished')")
        command = f"{sys.executable} -m impala_ms train script.py 1 --run_dir run"
        # Only once the reader has gone is the pipe certain to fail.
        command = f"(sleep 1; {command})" if "|" in closed else command
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command} {closed}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        if "&-" in closed:
            assert done.returncode == 0
            assert json.loads((tmp_path / "run" / "status.json").read_text())
        else:
            assert done.returncode == 2
            assert done.stderr.startswith("what is printed cannot be written (")
            assert done.stderr.count("\n") == 1
            assert not (tmp_path / "run" / "worker_0.txt").exists()

    def test_current_folder_that_was_removed_is_one_line(self, tmp_path):
        script = tmp_path / "script.py"
        script.touch()
        (tmp_path / "here").mkdir()
        command = f"rmdir ../here; {sys.executable} -m impala_ms train {script} 1"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path / "here",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "the current folder was removed" in done.stderr

    def test_ranks_do_not_get_the_variables_of_an_outer_mpi_job(self, start):
        job = start(
            "print(sorted(name for name in os.environ if 'RANK' in name or 'PM' in name))",
            *[1],
            **dict.fromkeys(["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"], "1"),
        )
        job.wait()
        assert "[]" in job.lines

    def test_run_folder_whose_name_is_not_text_reaches_the_ranks(self, tmp_path):
        (tmp_path / "script.py").write_text(RANK + "write_status(state='finished')")
        folder = os.fsencode(tmp_path) + b"/run-\xff"
        command = [
            sys.executable,
            "-m",
            "impala_ms",
            "train",
            "script.py",
            "1",
            "--run_dir",
            folder,
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert os.path.exists(folder + b"/status.json")

    def test_one_rank_starts_without_mpi(self, start):
        job = start(
            "print('mpi4py' in sys.modules, any(name.startswith('OMPI_COMM') "
            "for name in os.environ), 'parent', os.getppid())",
            1,
        )
        job.wait()
        assert f"False False parent {job.process.pid}" in job.lines

    def test_launcher_imports_nothing_heavy(self):
        code = "import sys, impala_ms.launch; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        loaded = set(done.stdout.split())
        assert "impala_ms.launch" in loaded
        assert not loaded & {"mindspore", "mpi4py", "gymnasium", "numpy", "yaml", "rich"}


class TestCommandLine:
    def run(self, *argv, cwd=None):
        command = [sys.executable, "-m", "impala_ms", "train", *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd)

    @pytest.mark.parametrize("ranks", ["0", "-1", "four", "2.5", "", "³", "9" * 5000])
    def test_n_that_is_not_a_whole_number_is_refused(self, ranks, tmp_path):
        (tmp_path / "script.py").touch()
        done = self.run("script.py", ranks, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "N, the number of processes" in done.stderr
        assert repr(ranks[:40]) in done.stderr
        assert not (tmp_path / "runs").exists()

    def test_missing_n_is_refused(self, tmp_path):
        (tmp_path / "script.py").touch()
        done = self.run("script.py", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)

    def test_n_that_contradicts_the_configuration_is_refused(self, tmp_path):
        (tmp_path / "script.py").touch()
        done = self.run("script.py", "3", "--set", "actor.number=3", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "3 ranks" in done.stderr

    def test_script_that_is_not_there_is_named(self, tmp_path):
        done = self.run("nothing.py", "2", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "nothing.py" in done.stderr

    def test_empty_command_line_shows_the_usage(self):
        done = self.run()
        assert done.returncode == 2
        assert "Usage: bash start_standalone.sh SCRIPT N [--hostfile FILE] [options]" in done.stderr

    @pytest.mark.parametrize("argv", [["--help"], ["train.py", "--help=all"], ["3", "-h"]])
    def test_help_lists_usage_and_options(self, argv):
        done = self.run(*argv)
        assert done.returncode == 0
        assert "Usage: bash start_standalone.sh SCRIPT N [--hostfile FILE] [options]" in done.stdout
        assert "--total_env_steps" in done.stdout

    def test_help_for_an_algorithm_that_is_not_there_names_the_nearest(self):
        done = self.run("--help", "--algorithm", "impla")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "unknown algorithm 'impla': did you mean impala?" in done.stderr

    @pytest.fixture
    def examples(self, tmp_path, monkeypatch):
        """Scripts of two algorithms in example, and a current folder with one of the user's."""
        for name in (
            "examples/impala/a.py",
            "examples/impala/b.py",
            "examples/a3c/a.py",
            "here/a.py",
        ):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        monkeypatch.setattr(launch, "EXAMPLES", tmp_path / "examples")
        monkeypatch.chdir(tmp_path / "here")
        return tmp_path / "examples"

    def test_script_as_given_comes_before_one_of_the_examples(self, examples):
        assert launch.find_script("a.py", ["2"]) == examples.parent / "here" / "a.py"
        assert launch.find_script("b.py", ["2"]) == examples / "impala" / "b.py"
        assert launch.find_script("../examples/a3c/a.py", []) == examples / "a3c" / "a.py"
        with pytest.raises(ConfigError, match=r"there is no script 'c\.py', neither in .*here nor"):
            launch.find_script("c.py", ["2"])

    def test_script_is_looked_up_in_the_folder_of_the_algorithm(self, examples, monkeypatch):
        monkeypatch.chdir(examples)
        for words in (["2", "--algorithm", "a3c"], ["2", "--algorithm=impala", "--algorithm=a3c"]):
            assert launch.find_script("a.py", words) == examples / "a3c" / "a.py"
        with pytest.raises(ConfigError, match=r"there is no script 'b\.py', .*examples/a3c"):
            launch.find_script("b.py", ["--algorithm", "a3c"])

    def test_without_a_script_or_an_example_folder_the_ranks_run_the_packages_own(self, examples):
        own = ROOT / "impala_ms" / "train.py"
        assert own.is_file()
        assert launch.find_script(None, ["2"]) == own
        assert launch.find_script("train.py", ["2"]) == own

    @pytest.mark.parametrize("first", ["4", "0", "2.5", "", "-1", "--env"])
    def test_word_that_is_not_a_file_stands_for_n(self, first):
        assert launch.split_script([first, "4"]) == (None, [first, "4"])

    @pytest.mark.parametrize("first", ["train.py", "3d.py", "four", "/a/b"])
    def test_other_first_word_is_the_script(self, first):
        assert launch.split_script([first, "4"]) == (first, ["4"])

    def test_folder_of_a_script_names_the_algorithm_if_there_is_one(self):
        assert launch.algorithm_of(ROOT / "example" / "impala" / "train.py") == "impala"
        assert launch.algorithm_of(ROOT / "impala_ms" / "train.py") is None
        assert launch.algorithm_of(Path("/somewhere/nothing/train.py")) is None

    def test_n_without_a_script_is_checked(self, tmp_path):
        done = self.run("0", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "N, the number of processes, is a whole number of 1 or more, not '0'" in done.stderr


class TestHostfile:
    def test_hostfile_is_taken_out_of_the_options(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "hosts").write_text("node1 slots=4\n")
        hosts = tmp_path / "hosts"
        for given in (["--hostfile", "hosts"], ["--hostfile=hosts"], [f"--hostfile={hosts}"]):
            found = launch.take_hostfile(["--seed", "3", *given, "--lr=1"])
            assert found == (hosts, ["--seed", "3", "--lr=1"])
        assert launch.take_hostfile(["--seed", "3"]) == (None, ["--seed", "3"])

    @pytest.mark.parametrize("given", [["--hostfile"], ["--hostfile", "no"], ["--hostfile="]])
    def test_hostfile_that_is_not_there_is_refused(self, given):
        with pytest.raises(ConfigError, match="there is no such file; it holds a line for each"):
            launch.take_hostfile(given)


class TestLinks:
    @pytest.fixture
    def run_dir(self, tmp_path):
        folder = tmp_path / "runs" / "one"
        folder.mkdir(parents=True)
        return folder

    def test_links_point_to_the_logs_of_this_run(self, tmp_path, run_dir):
        assert launch.link_logs(run_dir, tmp_path, 2) == []
        (run_dir / "worker_1.txt").write_text("log of rank 1")
        assert (tmp_path / "worker_1.txt").read_text() == "log of rank 1"
        assert not (tmp_path / "worker_2.txt").is_symlink()

    def test_links_of_an_earlier_run_with_more_ranks_are_replaced(self, tmp_path, run_dir):
        earlier = tmp_path / "runs" / "earlier"
        earlier.mkdir()
        launch.link_logs(earlier, tmp_path, 4)
        launch.link_logs(run_dir, tmp_path, 2)
        links = sorted(path.name for path in tmp_path.glob("worker_*"))
        assert links == ["worker_0.txt", "worker_1.txt"]
        assert (tmp_path / "worker_0.txt").readlink() == run_dir / "worker_0.txt"

    def test_files_of_the_user_stay(self, tmp_path, run_dir):
        (tmp_path / "worker_0.txt").write_text("mine")
        (tmp_path / "worker_9.txt").write_text("mine too")
        problems = launch.link_logs(run_dir, tmp_path, 2)
        assert len(problems) == 1
        assert "worker_0.txt" in problems[0]
        assert (tmp_path / "worker_0.txt").read_text() == "mine"
        assert (tmp_path / "worker_9.txt").read_text() == "mine too"
        assert (tmp_path / "worker_1.txt").is_symlink()

    def test_links_of_the_user_stay(self, tmp_path, run_dir):
        (tmp_path / "data").write_text("mine")
        for rank in (0, 7):
            (tmp_path / f"worker_{rank}.txt").symlink_to("data")
        (problem,) = launch.link_logs(run_dir, tmp_path, 2)
        assert "worker_0.txt" in problem
        assert {(tmp_path / f"worker_{rank}.txt").read_text() for rank in (0, 7)} == {"mine"}

    def test_links_are_not_made_in_the_run_folder(self, run_dir):
        assert launch.link_logs(run_dir, run_dir, 2) == []
        assert list(run_dir.iterdir()) == []

    def test_links_that_cannot_be_made_are_one_line(self, tmp_path, run_dir, monkeypatch):
        def refuse(*_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "symlink_to", refuse)
        (problem,) = launch.link_logs(run_dir, tmp_path, 2)
        assert "Permission denied" in problem
