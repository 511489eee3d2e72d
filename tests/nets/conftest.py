"""What computes the networks under test."""

import pytest

from impala_ms.nets.kernels import build


@pytest.fixture(params=["kernels", "MindSpore"])
def operators(request, monkeypatch):
    """The C kernels, or MindSpore's operators as without a C compiler."""
    if request.param == "MindSpore":
        monkeypatch.setenv("IMPALA_MS_CC", "")
    elif build.library("cc") is None:
        pytest.skip("there is no C compiler on this machine")
    return request.param
