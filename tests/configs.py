"""What the tests of configurations share: loading, what is wrong, and runs to be resumed."""

import copy
import importlib
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

import impala_ms.algorithm
from impala_ms import config, run_dir
from impala_ms.configuration import algorithms
from impala_ms.configuration.sections import SECTIONS
from impala_ms.errors import ConfigError

defaults = importlib.import_module("impala_ms.algorithm.impala.config")
OTHER, ATARI = defaults.automatic["other"], defaults.automatic["atari"]
STARTED = datetime(2026, 3, 4, 5, 6, 7)


def load(*argv, ranks=3):
    return config.load("impala", argv, ranks)


def problems(*argv, ranks=3):
    with pytest.raises(ConfigError) as caught:
        load(*argv, ranks=ranks)
    assert caught.value.problems
    return caught.value.problems


def problem(*argv, ranks=3):
    found = problems(*argv, ranks=ranks)
    assert len(found) == 1, found
    assert "\n" not in found[0]
    return found[0]


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


def edited_defaults(monkeypatch):
    """A copy of config.py to be edited, which is what is loaded."""
    # In one go: the parts' params stay the sections.
    copied = copy.deepcopy(
        {name: getattr(defaults, name) for name in (*SECTIONS, "algorithm_config", "automatic")}
    )
    module = SimpleNamespace(**vars(defaults) | copied)
    monkeypatch.setattr(algorithms, "module_of", lambda algorithm: module)
    return module


def a_run(folder, *argv):
    """A run folder with a checkpoint, to be resumed."""
    made = run_dir.prepare_run_dir(load(*argv, "--run_dir", str(folder)), started=STARTED)
    write(made / "checkpoints" / "update_1.ckpt", "weights")
    release(made)
    return made


def release(folder):
    """As if the process of a run had ended."""
    run_dir._locks.pop(folder).close()


def another_algorithm(monkeypatch, folder, name, *replacements):
    """An algorithm that is found in ``folder``: a copy of IMPALA's config.py, with replacements."""
    text = Path(defaults.__file__).read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    write(folder / name / "config.py", text)
    monkeypatch.setattr(
        impala_ms.algorithm, "__path__", [*impala_ms.algorithm.__path__, str(folder)]
    )
    for module in (f"impala_ms.algorithm.{name}", f"impala_ms.algorithm.{name}.config"):
        monkeypatch.delitem(sys.modules, module, raising=False)
