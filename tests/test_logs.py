"""The log of a rank survives a user's changes of logging."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, logging.config, sys
import impala_ms.errors
from impala_ms import logs
before = logging.getLogger("impala_ms.metrics.sinks")
logs.begin(3, "actor")
logging.getLogger("impala_ms.envs.make").info("first %d", 1)
{act}
logging.getLogger("impala_ms.envs.make").info("second")
before.warning("third")
logging.getLogger("impala_ms.envs.make").debug("too fine")
logging.getLogger("users.own").info("theirs")
"""


@pytest.mark.parametrize(
    ("act", "theirs"),
    [
        ("", True),
        ("logging.disable()", False),
        ("logging.basicConfig(force=True, level=logging.ERROR)", False),
        ("logging.getLogger().handlers.clear(); logging.getLogger().setLevel(60)", False),
        ("logging.config.dictConfig({'version': 1})", True),
    ],
)
def test_log_of_the_package_survives_changes_of_logging(act, theirs):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(act=act)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert [line.split("  [")[0] for line in lines[:3]] == ["first 1", "second", "third"]
    assert lines[0].endswith(" rank 3 actor INFO]")
    assert lines[2].endswith(" rank 3 actor WARNING]")
    assert [line.split("  [")[0] for line in lines[3:]] == ["theirs"] * theirs
