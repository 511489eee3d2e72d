"""How the C kernels are compiled, kept and loaded, and what is said if that fails."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms.nets.kernels import build

pytestmark = pytest.mark.skipif(
    build.library("cc") is None, reason="there is no C compiler on this machine"
)


@pytest.fixture
def forgetful():
    """Forget the libraries that were loaded before the test, and those of the test."""
    build.library.cache_clear()
    yield
    build.library.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch, forgetful):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "impala_ms"


def test_library_is_compiled_once(cache):
    path = build.library("cc")
    assert [str(file) for file in cache.iterdir()] == [path]
    before = (cache / path).stat().st_mtime_ns
    build.library.cache_clear()
    assert build.library("cc") == path
    assert (cache / path).stat().st_mtime_ns == before


def other_process():
    code = "from impala_ms.nets.kernels import build; print(build.library('cc'))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def path_of(process):
    return process.communicate(timeout=100)[0].splitlines()[-1]


def test_truncated_library_is_compiled_again(cache):
    path = Path(path_of(other_process()))
    whole = path.read_bytes()
    path.write_bytes(whole[:20_000])
    assert path_of(other_process()) == str(path)
    assert path.stat().st_size == len(whole)


def test_two_ranks_that_compile_at_once_share_one_library(cache):
    paths = {path_of(process) for process in [other_process(), other_process()]}
    assert [str(file) for file in cache.iterdir()] == list(paths)


@pytest.fixture
def shell(tmp_path):
    def compiler(script):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return compiler


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("no-such-compiler", "No such file or directory"),
        ("cc '", "No closing quotation"),
        ("cc --no-such-option", "no-such-option"),
        ("echo; exit 1", "it says nothing"),
        ("echo >&2; exit 1", "it says nothing"),
        ("exit 0", "it says nothing"),
        ("echo an error >&2; exec sleep 9", "it has not ended after 1 s"),
    ],
)
def test_failed_compilation_is_one_line(cache, caplog, shell, monkeypatch, compiler, why):
    monkeypatch.setattr(build, "COMPILE_S", 1.0)
    compiler = shell(compiler) if "echo" in compiler or "exit" in compiler else compiler
    with caplog.at_level(logging.WARNING):
        assert build.library(compiler) is None
        assert build.library(compiler) is None
    (message,) = caplog.messages
    assert "\n" not in message
    assert f"`{compiler}` does not compile {build.FOLDER}/*.c" in message
    assert why in message
    assert "IMPALA_MS_CC" in message
    assert not list(cache.iterdir())


def test_hidden_functions_are_one_line(cache, caplog):
    assert build.library("cc -fvisibility=hidden") is None
    (message,) = caplog.messages
    assert "`cc -fvisibility=hidden` hides the functions" in message


def test_leftovers_of_killed_ranks_are_removed(cache):
    old = cache / "tmpold"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    new = cache / "tmpnew"
    new.mkdir()
    assert build.library("cc")
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("folder", ["a file", "with:colon"])
def test_unusable_cache_folder_is_one_line(tmp_path, caplog, monkeypatch, forgetful, folder):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
    assert build.library("cc") is None
    (message,) = caplog.messages
    assert "set XDG_CACHE_HOME to a folder" in message
    assert str(tmp_path / folder) in message
    assert "\n" not in message


def test_user_without_home_folder_is_one_line(monkeypatch, caplog, forgetful):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert build.library("cc") is None
    (message,) = caplog.messages
    assert "set XDG_CACHE_HOME to a folder" in message


@pytest.mark.parametrize("compiler", ["", " "])
def test_empty_compiler_means_no_kernels_and_no_warning(cache, caplog, compiler):
    assert build.library(compiler) is None
    assert not caplog.messages


@pytest.mark.parametrize("layers", [[(16, 3, 1), (24, 3, 1)], [(16, 5, 2)]])
def test_layers_that_the_kernels_cannot_compute_get_no_library(layers):
    assert build.library_for(layers) is None
    assert build.library_for([(16, 3, 1), (32, 4, 2)])
