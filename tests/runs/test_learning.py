"""The default settings learn CartPole, with a fixed seed and a score."""

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.mpi
def test_default_settings_reach_475_and_the_last_checkpoint_plays_450(start):
    run = start(2, "--seed", "1")
    assert run.wait() == 0, run.lines
    assert max(row["episode_return_mean"] or 0 for row in run.rows()) >= 475
    command = [sys.executable, ROOT / "example/impala/evaluate.py", run.run_dir]
    done = subprocess.run(
        [*map(str, command), "--episodes", "100", "--greedy"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert float(re.match(r"return (\d+\.\d+) ", done.stdout)[1]) >= 450
