"""Compiles the C kernels on the machine that needs them and loads them.

Input: the C files of this folder and a compiler. Output: the path of a library, to
``operators.py``; or None, and then the networks use MindSpore's operators.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import mindspore as ms

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES, HEADERS = sorted(FOLDER.glob("*.c")), sorted(FOLDER.glob("*.h"))
OPTIONS = "-O3 -march=native -std=gnu11 -shared -fPIC -pthread"
OUTPUT_BLOCK = 16  # as in kernels.h: the number of outputs must be a multiple of it
COMPILE_S = 120.0
COMPLETE = b"complete"  # marks the end of a library that was written to its end


def library_for(layers):
    """The library, if the kernels can compute these layers on this device.

    Args:
        layers: ``(outputs, kernel, stride)`` of each convolution.

    Returns:
        The path of the library, or None: use MindSpore's operators.
    """
    if ms.get_context("device_target") != "CPU":
        return None
    if any(outputs % OUTPUT_BLOCK or kernel % stride for outputs, kernel, stride in layers):
        return None
    path = library(wanted_compiler())
    if path:
        threads = ms.get_context("runtime_num_threads")
        ctypes.CDLL(path).set_threads(min(threads, len(os.sched_getaffinity(0))))
    return path


def wanted_compiler():
    """The command of the C compiler; empty if the user wants no kernels."""
    return os.environ.get("IMPALA_MS_CC", "cc").strip()


class NoKernels(Exception):
    """Why there are no kernels and what to do, in one line."""


@functools.cache
def library(compiler):
    """The path of ``load``; None without a compiler, or, with a warning, if loading fails."""
    try:
        return load(compiler) if compiler.strip() else None
    except NoKernels as error:
        logger.warning("images and LSTMs take up to three times as long: %s", error)
        return None


def load(compiler):
    """Load the library into this process; compile it first if this kind of machine has none yet.

    Args:
        compiler: The command. The library is kept in the user's cache folder.

    Returns:
        The path of the library.

    Raises:
        NoKernels: If it cannot be compiled, written or loaded.
    """
    path = library_path(compiler)
    elsewhere = "set XDG_CACHE_HOME to a folder that you can write to"
    if path is None:
        raise NoKernels(f"the user has no home folder for the compiled kernels; {elsewhere}")
    if ":" in str(path):
        raise NoKernels(f"MindSpore loads no library from {path.parent}, with a colon; {elsewhere}")
    try:
        if not (path.exists() and path.read_bytes().endswith(COMPLETE)):
            compile_into(path, compiler)
        ctypes.CDLL(str(path)).set_threads(1)
    except OSError as error:
        raise NoKernels(f"{path} cannot be written or loaded ({error}); {elsewhere}") from None
    except AttributeError as error:
        raise NoKernels(
            f"`{compiler}` hides the functions of the kernels ({error}): remove options such as "
            "-fvisibility from IMPALA_MS_CC"
        ) from None
    return str(path)


def library_path(compiler):
    """Where the library lies; None if the user has no home folder."""
    parts = [file.read_text() for file in (*HEADERS, *SOURCES)]
    parts += [OPTIONS, compiler, platform.machine(), processor()]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if cache.startswith("~"):
        return None
    return Path(cache).absolute() / "impala_ms" / f"kernels-{name}.so"


def processor():
    """The instructions of the processor: machines that differ in them may share a home folder."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def compile_into(path, compiler):
    """Compile beside ``path``, then rename: several ranks may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob("tmp*"):  # left by ranks that were killed while they compiled
        if time.time() - old.stat().st_mtime > 10 * COMPILE_S:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        run_compiler(compiler, made)
        # The loader ignores what follows the library; it would crash on a truncated one.
        made.write_bytes(made.read_bytes() + COMPLETE)
        made.replace(path)


def run_compiler(compiler, made):
    """Compile all C files into the library ``made``.

    Raises:
        NoKernels: If that fails.
    """
    try:
        command = [*shlex.split(compiler), *OPTIONS.split(), *map(str, SOURCES), "-o", str(made)]
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMPILE_S
        )
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        if done.returncode == 0 and made.exists():
            return
        why = next((line for line in said if "error" in line), said[0])
    except subprocess.TimeoutExpired:
        why = f"it has not ended after {COMPILE_S:g} s"
    except (OSError, ValueError) as error:  # ValueError: a quote is missing
        why = getattr(error, "strerror", None) or str(error)
    raise NoKernels(
        f"`{compiler}` does not compile {FOLDER}/*.c: {why}; install a C compiler (apt install "
        "gcc), or name one in IMPALA_MS_CC (pip install ziglang: python -m ziglang cc)"
    )
