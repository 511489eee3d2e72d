"""The files of docs/custom.md work as they stand there."""

import csv
import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from impala_ms import classes, config
from impala_ms.configuration import algorithms
from impala_ms.configuration.algorithms import NEEDED
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "custom.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = ("corridor.py", "squares.py", "wide.py", "a2c.py", "solved.py", "play.py")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the files of the page in it."""
    for name, text in re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", TEXT, re.M | re.S):
        tmp_path.joinpath(name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(folder, *options):
    """Train for a moment in one process; the rows of metrics."""
    command = ["bash", str(ROOT / "start_standalone.sh"), "train.py", "1", *options]
    command += ["--run_dir", "run", "--total_env_steps", "3000", "--tensorboard", "false"]
    environment = os.environ | {"VIRTUAL_ENV": sys.prefix, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished: " in done.stdout
    with (folder / "run" / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def options(name, text=TEXT):
    """The options of the first command of the page that names a file or module."""
    lines = re.findall(r"^bash start_standalone.sh train.py 3 (.*)$", text, re.MULTILINE)
    return shlex.split(next(line for line in lines if name in line))


def test_every_file_of_the_page_is_there(folder):
    assert {file.name for file in folder.glob("*.py")} == set(FILES)


@pytest.mark.parametrize("name", [*FILES[1:5], "corridor:"])
def test_commands_of_the_page_are_accepted(folder, name):
    loaded = config.load(None, options(name), 3)
    for part in loaded.algorithm_config.values():
        classes.resolve(part["type"])


def test_own_environment_and_network(folder):
    row = train(folder, *options("corridor:"), *options("wide.py"))[-1]
    assert float(row["env_steps"]) >= 3000
    assert 0.0 <= float(row["episode_return_mean"]) <= 1.0  # it pays 1 at the end of the corridor
    assert 10.0 <= float(row["episode_length_mean"]) <= 50.0
    assert "wide.py:Wide" in (folder / "run" / "config.json").read_text()
    command = [sys.executable, "play.py", "run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    played = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert played.returncode == 0, played.stderr
    assert re.fullmatch(r"(return [01] after \d+ steps\n){3}", played.stdout)


def test_own_learner_takes_an_option_and_has_a_column(folder):
    """With a torso and a trainer of one's own beside it."""
    given = ["--set", "learner.type=a2c.py:A2C", "--set", "learner.options.limit=0.05"]
    rows = train(folder, *given, *options("squares.py"), *options("solved.py"))
    shares = [float(row["advantage_clipped_fraction"]) for row in rows]
    assert all(0.0 < share < 1.0 for share in shares)
    assert all(row["rho_mean"] == "" for row in rows)
    assert float(rows[-1]["env_steps"]) >= 3000


@pytest.mark.parametrize(("mean", "ends"), [(None, False), (474.0, False), (475.0, True)])
def test_own_trainer_ends_at_the_score(folder, mean, ends):
    loop = classes.resolve("solved.py:UntilSolved")
    recorder = SimpleNamespace(env_steps=1, episodes=SimpleNamespace(return_mean=mean))
    loop = loop.__new__(loop)
    loop.recorder, loop.params = recorder, {"total_env_steps": 10}
    loop.process = SimpleNamespace(stop_requested=False)
    assert loop.finished() is ends


@pytest.mark.parametrize("name", algorithms.names())
def test_the_table_of_an_algorithm_has_what_config_py_has(name):
    section = TEXT.partition("## A whole algorithm")[2]
    stated = set(re.findall(r"^\| .*?\|", section, re.MULTILINE))
    words = {word for cell in stated for word in re.findall(r"`(\w+)", cell)}
    defined = vars(algorithms.module_of(name))
    assert {"wiring", "algorithm_config"} <= words & set(NEEDED)
    assert words - {"check", "derive", "sizes"} <= defined.keys()  # these may be left out
    wanted = ("work", "automatic", "columns", "check", "derive", "sizes")
    assert set(wanted) <= words
