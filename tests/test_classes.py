"""Classes of a configuration: named, found, and refused."""

import importlib.util
import sys
from pathlib import Path

import pytest

from impala_ms import classes
from impala_ms.errors import ConfigError
from tests.configs import load, problem, write


def test_classes_become_references():
    assert classes.reference(Path) == "pathlib:Path"
    assert classes.resolve(classes.reference(Path)) is Path
    assert classes.resolve(Path) is Path
    assert classes.resolve("importlib.util:find_spec") is importlib.util.find_spec
    with pytest.raises(TypeError, match="not a class or function"):
        classes.reference(3)


def test_references_to_files_become_absolute(tmp_path, monkeypatch):
    write(tmp_path / "net.py", "class Net: pass")
    monkeypatch.chdir(tmp_path)
    loaded = load("--set", "policy_and_network.type=net.py:Net")
    assert loaded.algorithm_config["policy_and_network"]["type"] == f"{tmp_path}/net.py:Net"
    assert "gone.py:Net' (--set): No such file" in problem("--set=learner.type=gone.py:Net")


def test_modules_are_found_in_the_current_folder_and_files_see_their_neighbours(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path / "here_module_of_test_config.py", "class Net: pass")
    file = write(tmp_path / "far" / "net.py", "from neighbour_of_test_config import value")
    write(tmp_path / "far" / "neighbour_of_test_config.py", "def value(): pass")
    monkeypatch.chdir(tmp_path)
    assert classes.resolve("here_module_of_test_config:Net").__name__ == "Net"
    assert classes.resolve(f"{file}:value").__name__ == "value"


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("no_such_module_x:Net", "No module named 'no_such_module_x'"),
        ("pathlib:Paht", "has no attribute 'Paht'"),
        ("/no/such/file.py:Net", "No such file"),
        ("pathlib", "is not a class"),
        (":Net", "is not a class"),
        ("pathlib:", "is not a class"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(ref, says):
    with pytest.raises(ConfigError, match=says) as caught:
        classes.resolve(ref)
    assert repr(ref) in str(caught.value)
