"""Optional packages, by the names that pip knows.

Input: a name such as ``ale-py``. Output: the package, or the command that installs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from impala_ms.errors import text_of


class Package(NamedTuple):
    """An optional package.

    Attributes:
        purpose: What it is for.
        pip: Its name for pip.
        modules: Names of its modules, the main module first.
    """

    purpose: str
    pip: str
    modules: tuple[str, ...]


OPTIONAL = (
    Package("Atari games, Procgen and others, many at once", "envpool", ("envpool",)),
    Package("Atari games", "ale-py", ("ale_py",)),
    Package("MiniGrid and BabyAI", "minigrid", ("minigrid",)),
    Package("LunarLander, BipedalWalker, CarRacing", "gymnasium[box2d]", ("Box2D", "pygame")),
    Package("HalfCheetah, Ant and others of MuJoCo", "gymnasium[mujoco]", ("mujoco", "imageio")),
    Package("pictures of learning curves", "matplotlib", ("matplotlib",)),
    Package("looking at a run in TensorBoard", "tensorboard", ("tensorboard",)),
)


def installed(package: str) -> bool:
    """Whether the package is installed; it is not imported."""
    return not lacking(package)


def lacking(package: str) -> list[str]:
    """The modules of a package that are not installed."""
    return [name for name in _modules(package) if importlib.util.find_spec(name) is None]


def missing(error: BaseException) -> str | None:
    """What to do if the exception says that an optional package is not installed; else None.

    Environments say so in two ways: by an ImportError, or by a text that begins with the name.
    """
    name, says_so, _ = text_of(error).partition(" is not installed")
    if isinstance(error, ImportError):
        name = error.name or ""
    elif not says_so:
        return None
    for package in OPTIONAL:
        for module in package.modules:
            if name.lower() == module.lower() and importlib.util.find_spec(module) is None:
                return f"needs {module}, which is not installed: {pip_install(package.pip)}"
    return None


def register(package: str) -> Any:
    """Import an installed package; it then registers its environments with gymnasium."""
    return importlib.import_module(_modules(package)[0])


def pip_install(*packages: str) -> str:
    """The command that installs ``packages`` and keeps NumPy 1 and the other versions."""
    constraints = Path(__file__).resolve().parents[2] / "constraints.txt"
    held = ["-c", str(constraints)] if constraints.is_file() else ["numpy<2"]
    return shlex.join([sys.executable, "-m", "pip", "install", *held, *packages])


def _modules(package: str) -> tuple[str, ...]:
    modules = {known.pip: known.modules for known in OPTIONAL}
    return modules.get(package, (package.replace("-", "_"),))
