"""A run of an earlier version is read, evaluated and resumed.

``tests/data`` has a small run of each format of ``config.json`` before this one.
"""

import json
import shutil
from pathlib import Path

import pytest

from impala_ms import config
from impala_ms.config import Config
from impala_ms.metrics.sinks import read_rows
from tests.configs import defaults
from tests.runs.test_evaluation import evaluate

DATA = Path(__file__).parents[1] / "data"
HIDDEN_SIZES = [4]
SOME = ("wall_time_s", "updates", "env_steps", "episode_return_mean", "loss_total")


@pytest.fixture(params=[1, 2])
def old(request, tmp_path):
    """A copy of a run that has made 2,159 env steps."""
    folder = shutil.copytree(DATA / f"run_of_format_{request.param}", tmp_path / "run")
    written = json.loads((folder / "config.json").read_text())
    assert written.get("format", 1) == request.param
    assert all(":" in part["type"] for part in written["algorithm_config"].values())
    return folder


def test_old_run_is_read_with_its_values_and_the_present_classes(old):
    scales = json.loads((old / "config.json").read_text())["collect_env_params"].get(
        "scale_actions"
    )
    for loaded in (
        config.of_run(old),
        Config.read(old / "config.json"),
        config.load("impala", ["--resume", str(old)], 2),
    ):
        assert loaded.network_params["hidden_sizes"] == HIDDEN_SIZES
        assert loaded.collect_env_params["scale_actions"] is bool(scales)
        for name, part in defaults.algorithm_config.items():
            assert loaded.algorithm_config[name]["type"] == part["type"], name
        assert [place.role for place in loaded.places] == ["learner", "actor"]
    assert "changed" not in loaded.summary()  # settings that did not exist do not count as changed


def test_old_run_is_evaluated(old):
    done = evaluate(old, "--episodes", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("return ")


def test_old_run_is_resumed(old, start):
    rows = read_rows(old / "metrics.csv")
    run = start(1, "--resume", "run", "--total_env_steps", "4000")
    assert run.wait() == 0, run.lines
    assert len(run.rows()) > len(rows) > 0
    for row, now in zip(rows, run.rows(), strict=False):  # columns may have been added since
        assert [now[name] for name in SOME] == [row[name] for name in SOME]
    assert run.rows()[-1]["env_steps"] >= 4000
    assert run.json("config.json")["format"] == 3
    assert run.json("config.1.json").get("format", 1) < 3
