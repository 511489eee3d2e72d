"""Output of evaluate and doctor on a console that lacks some characters."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAYED = """
import sys
import numpy as np
from impala_ms import evaluate
from impala_ms.__main__ import main
evaluate.play_checkpoint = lambda _: evaluate.in_words(np.float32([1, 3]), False)
sys.exit(main(["evaluate", "run"]))
"""


def run(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_result_of_an_evaluation_is_printed_with_replacements(tmp_path):
    done = run(tmp_path, "-c", PLAYED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("return 2.00 ? 1.00 (mean ? standard error of 2 sampled episodes")


def test_doctor_prints_a_folder_name_with_replacements(tmp_path):
    folder = tmp_path / "größer"
    folder.mkdir()
    done = run(folder, "-m", "impala_ms", "doctor", "--quick", PYTHONUTF8="1")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/gr??er/runs can be written" in done.stdout
