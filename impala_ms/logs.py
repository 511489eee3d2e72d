"""The log of a rank. It holds the messages of this package, whatever a user does to ``logging``.

Input: messages of the loggers ``impala_ms.*``. Output: lines on standard output, which is the
file ``worker_<rank>.txt``. An environment runs in the process of its actor. If it calls
``logging.disable()``, ``basicConfig(force=True)`` or ``dictConfig``, only other loggers change.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


class PackageLogger(logging.Logger):
    """A logger that only its own level can silence."""

    @property
    def disabled(self) -> bool:  # dictConfig sets it
        """Always False."""
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass

    def isEnabledFor(self, level: int) -> bool:
        """Whether a message of this level is logged; ``logging.disable`` is ignored."""
        return level >= self.getEffectiveLevel()


def begin(rank: int, role: str) -> None:
    """Log to standard output, each line with time, rank, role and level.

    Messages of other packages go there too, through a handler of the root logger.
    """
    form = f"%(message)s  [%(asctime)s rank {rank} {role} %(levelname)s]"
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stdout)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(form))
    for name in _names():
        logging.getLogger(name).__class__ = PackageLogger
    package = logging.getLogger(PACKAGE.name)
    package.setLevel(logging.INFO)
    package.addHandler(handler)
    package.propagate = False


def _names() -> list[str]:
    """Names of all modules of the package, imported or not."""
    modules = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = {".".join(module.parts).removesuffix(".__init__") for module in modules}
    return sorted(names)
