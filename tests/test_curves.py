"""``example/impala/curves.py``: metrics of runs as a picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms.metrics.columns import COLUMNS

CURVES = Path(__file__).parents[1] / "example" / "impala" / "curves.py"


def draw(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, str(CURVES), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def run(tmp_path):
    """A run that goes on: its last row is half written, and it has finished no episode at first."""
    folder = tmp_path / "run"
    folder.mkdir()
    lines = [",".join(COLUMNS)]
    for k in range(5):
        row = {"env_steps": 100 * k, "entropy": 0.5, "episode_return_mean": k if k > 1 else None}
        lines.append(",".join("" if row.get(n) is None else str(row[n]) for n in COLUMNS))
    folder.joinpath("metrics.csv").write_text("\n".join(lines) + "\n12.0,")
    return folder


def test_a_picture(tmp_path, run):
    done = draw(tmp_path, run, f"again={run}", "--output", "two.png", "--title", "Two")
    assert (done.returncode, done.stdout, done.stderr) == (0, "two.png\n", "")
    picture = tmp_path.joinpath("two.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert width > 2 * height > 400  # four panels side by side


@pytest.mark.parametrize("backend", ["module://not_there.backend_inline", "nonsense", "tkagg"])
def test_a_picture_whatever_a_notebook_or_desktop_has_set(tmp_path, run, backend):
    done = draw(tmp_path, run, MPLBACKEND=backend)
    assert (done.returncode, done.stdout, done.stderr) == (0, "curves.png\n", "")


@pytest.mark.parametrize("argument", ["--help", "grün=nothing"])
def test_a_console_that_knows_only_ascii_is_enough(tmp_path, argument):
    done = draw(tmp_path, argument, PYTHONIOENCODING="ascii")
    assert "Traceback" not in done.stderr
    assert "UnicodeEncodeError" not in done.stderr
    assert ("RUN_DIR ? --output" in done.stdout) == (argument == "--help")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nothing"], 1, "nothing is no run folder: it holds no metrics.csv"),
        (["run", "--metrics", "reward"], 2, "reward is no column of metrics.csv: wall_time_s, "),
        (["run", "--output", "nowhere/a.png"], 1, "No such file or directory"),
        (["run", "--output", "a.what"], 1, "'what' is not supported"),
    ],
)
def test_mistakes_are_one_line(tmp_path, run, arguments, code, says):
    done = draw(tmp_path, *arguments)
    assert done.returncode == code
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
