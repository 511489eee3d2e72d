"""A new algorithm is a folder: no other file of the package has to change."""

import json
import os
import shutil
import subprocess
import sys

from tests.conftest import ROOT


def test_a_copy_of_a_folder_under_another_name_is_an_algorithm_that_runs(tmp_path):
    package = shutil.copytree(ROOT / "impala_ms", tmp_path / "impala_ms")
    own = shutil.copytree(package / "algorithm" / "a3c", package / "algorithm" / "mine")
    text = (own / "config.py").read_text()
    changed = "collect_env_params = section(settings.ENVIRONMENT, num_envs=16)"
    assert changed in text
    (own / "config.py").write_text(text.replace(changed, changed.replace("16", "4")))

    command = [sys.executable, "-m", "impala_ms", "train", "train.py", "1", "--algorithm", "mine"]
    options = ["--run_dir", "run", "--total_env_steps", "400", "--tensorboard", "false"]
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("mine on CartPole-v1: 1 server + 1 worker, 4 environments\n")
    run = tmp_path / "run"
    assert json.loads((run / "config.json").read_text())["algorithm"] == "mine"
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "finished"
    assert status["env_steps"] >= 400
    assert "gradients_dropped" in (run / "metrics.csv").read_text().partition("\n")[0]
