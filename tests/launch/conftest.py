"""Starts launchers, and ends what a failed test has left of them."""

import os
import signal

import pytest

from tests.launch.launched import Launched


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*args, **environment):
        started.append(Launched(tmp_path, *args, **environment))
        return started[-1]

    yield start
    for launched in started:
        launched.process.kill()
        launched.process.wait()
        for pid in launched.left():
            os.kill(pid, signal.SIGKILL)
