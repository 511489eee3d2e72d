"""Settings for all tests: the clone's own package is tested, wherever pytest is started."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What starts several ranks, under "tests".
RUNS = ("runs", "comm", "launch", "test_doctor.py", "test_session.py")

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
# Scripts that tests start import the package too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Runs of several processes stay in one worker: beside each other they take twice as long."""
    from xdist.scheduler import LoadScopeScheduling

    # xdist's own groups (xdist_group, --dist loadgroup) have no effect with pytest 9.2.
    class OneRunAtATime(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.partition("::")[0].removeprefix("tests/")
            return "runs" if path.partition("/")[0] in RUNS else nodeid

    return OneRunAtATime(config, log)
