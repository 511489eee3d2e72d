"""``python -m impala_ms COMMAND``: which commands there are, and how one is found."""

import os
import subprocess
import sys

import pytest

from impala_ms import __main__ as commands
from tests.conftest import ROOT

LIGHT = """
import sys
from impala_ms.__main__ import main
main(["--help"])
print(*sys.modules)
"""


def run(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["-h"], 0), (["--help"], 0)])
def test_without_a_command_each_has_one_line(argv, code, capsys):
    assert commands.main(argv) == code
    head, empty, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("Usage: python -m impala_ms COMMAND")
    assert empty == ""
    assert [line.split()[0] for line in lines] == [
        *("train", "evaluate", "curves", "compare", "doctor")
    ]
    assert all(len(line) < 80 for line in lines)


def test_help_loads_no_command(tmp_path):
    done = run(tmp_path, "-c", LIGHT)
    loaded = set(done.stdout.splitlines()[-1].split())
    ours = {name for name in loaded if name.startswith("impala_ms.")}
    assert ours == {"impala_ms.__main__", "impala_ms.metrics", "impala_ms.metrics.progress"}
    assert not loaded & {"numpy", "mindspore", "yaml", "argparse"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("trian", "there is no command 'trian': did you mean train?"),
        ("evaluate.py", "there is no command 'evaluate.py': did you mean evaluate?"),
        (
            "4",
            "there is no command '4': it is one of train, evaluate, curves, compare, doctor",
        ),
    ],
)
def test_unknown_command_names_the_nearest(name, says, capsys):
    assert commands.main([name]) == 2
    assert capsys.readouterr().err == f"{says}\n"


@pytest.mark.parametrize("name", ["train", "evaluate", "doctor"])
def test_help_of_a_command_needs_nothing_heavy(tmp_path, name):
    for heavy in ("mindspore", "numpy", "gymnasium"):
        (tmp_path / f"{heavy}.py").write_text("raise SystemExit('something heavy was imported')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run(tmp_path, "-m", "impala_ms", name, "--help", PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m impala_ms {name} " in done.stdout


@pytest.mark.parametrize(
    "command",
    [["-m", "impala_ms", "train"], [ROOT / "impala_ms" / "train.py"]],
    ids=["command", "rank"],
)
def test_file_in_the_current_folder_does_not_replace_a_module_of_python(tmp_path, command):
    for name in ("random", "selectors", "process"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    # PYTHONPATH finds the package for -m alone; a rank finds it by itself.
    path = str(ROOT) if "-m" in command else ""
    done = run(tmp_path, *command, "--help", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "--total_env_steps" in done.stdout
