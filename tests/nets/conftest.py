"""What computes the networks under test."""

import pytest

from impala_ms.nets import native


@pytest.fixture(params=["kernels", "MindSpore"])
def operators(request, monkeypatch):
    """The kernels of ``native.c``, or what is taken where there is no C compiler."""
    if request.param == "MindSpore":
        monkeypatch.setenv("IMPALA_MS_CC", "")
    elif native.library("cc") is None:
        pytest.skip("there is no C compiler on this machine")
    return request.param
