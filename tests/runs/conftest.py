"""Fixtures that start runs, and end those that a failed test has left."""

import pytest

from tests.runs.run import Run


def _starter(folder):
    started = []

    def start(*args, **kwargs):
        started.append(Run(folder, *args, **kwargs))
        return started[-1]

    yield start
    for run in started:
        run.end()


@pytest.fixture
def start(tmp_path):
    """``start(ranks, *options)``: a ``Run`` in the test's folder."""
    yield from _starter(tmp_path)


@pytest.fixture(scope="module")
def start_for_all(tmp_path_factory):
    """Like ``start``, for runs that several tests share."""
    yield from _starter(tmp_path_factory.mktemp("runs"))
