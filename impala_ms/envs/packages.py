"""Packages that are used where they are installed, by the names that pip knows them by.

Input: a name such as ``ale-py``. Output: the package, or the command that installs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def installed(package: str) -> bool:
    """Whether the package is there; it is not imported."""
    return importlib.util.find_spec(_module(package)) is not None


def register(package: str) -> Any:
    """Import an installed package, which registers its environments with gymnasium."""
    return importlib.import_module(_module(package))


def pip_install(*packages: str) -> str:
    """The command that installs ``packages`` beside what is there, NumPy 1 included."""
    constraints = Path(__file__).resolve().parents[2] / "constraints.txt"
    held = f"-c {constraints}" if constraints.is_file() else "'numpy<2'"
    return f"{sys.executable} -m pip install {held} {' '.join(packages)}"


def _module(package: str) -> str:
    return package.replace("-", "_")
