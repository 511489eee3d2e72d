"""Says what works on this machine: ``python -m impala_ms doctor``.

Input: the machine. Output: for each check what was found and, if need be, what to do; exit code 1
if a run would fail. Measurements are made in processes of their own, as those of a run would be.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from impala_ms import ENVIRONMENT_DEFAULTS, cpus, requirements
from impala_ms.envs import packages
from impala_ms.errors import ConfigError
from impala_ms.launching import mpirun

OK, OPTIONAL, BAD = "ok", "--", "BAD"  # OPTIONAL: not there, and only some need it
LIMIT_S = 120.0  # of one probe
RUN_STEPS = 40_000
SLOW_CONVOLUTION = 8.0  # times a matrix product of as many operations; 25 with the slow kernel
LITTLE_SPACE_GB = 1.0
ROOT = Path(__file__).resolve().parent.parent
PROBE = [sys.executable, "-m", "impala_ms.probes"]

USAGE = """\
Usage: python -m impala_ms doctor [--json] [--quick]
       python -m impala_ms doctor [--json] --hostfile FILE

  --json           one JSON array instead of lines
  --quick          without the checks that start MindSpore or ranks
  --hostfile FILE  look at these hosts instead, and whether they agree with this one
"""


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        name: Of what was looked at.
        state: ``OK``, ``OPTIONAL`` or ``BAD``.
        what: What was found.
        do: What to do about it; empty if nothing.
    """

    name: str
    state: str
    what: str
    do: str = ""


def main(argv: Sequence[str]) -> int:
    """Print what was found.

    Returns:
        The exit code: 1 if something is ``BAD``, 2 for options that are not understood.
    """
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(USAGE)
        return 0
    try:
        hostfile, options = mpirun.take_hostfile(argv)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not {"--json", "--quick"}.issuperset(options):
        sys.stderr.write(USAGE)
        return 2
    return examine("--json" in options, "--quick" in options, hostfile)


def examine(as_json: bool, quick: bool, hostfile: Path | None) -> int:
    """Print the findings as they come; returns the exit code.

    Args:
        as_json: One JSON array instead of lines.
        quick: Without what starts MindSpore or ranks.
        hostfile: Look at these hosts instead, and whether they agree.
    """
    findings = []
    checks: list[tuple[Any, ...]] = [(check,) for check in (CHECKS[:QUICK] if quick else CHECKS)]
    for check in checks if hostfile is None else [(hosts, hostfile)]:
        for finding in guarded(*check):
            findings.append(finding)
            if not as_json:
                sys.stdout.write(line(finding) + "\n")
                sys.stdout.flush()
    bad = sum(finding.state == BAD for finding in findings)
    if as_json:
        sys.stdout.write(json.dumps([f._asdict() for f in findings], indent=2) + "\n")
    else:
        sys.stdout.write(f"{bad} of {len(findings)} need attention\n" if bad else "all is well\n")
    return int(bad > 0)


def line(finding: Finding) -> str:
    """A finding on one line, and what to do on a second."""
    text = f"{finding.state:4}{finding.name:24}{finding.what}"
    return f"{text}\n{'':6}{finding.do}" if finding.do else text


def guarded(check: Callable[..., Iterator[Finding]], *arguments: Any) -> Iterator[Finding]:
    """The findings of a check; a check that fails is a finding too."""
    try:
        yield from check(*arguments)
    except Exception as error:
        name = check.__name__.replace("_", " ")
        yield Finding(name, BAD, f"could not be checked: {type(error).__name__}: {error}")


def hosts(hostfile: Path) -> Iterator[Finding]:
    """Whether the hosts of a file are reached, run the same code, and share this folder."""
    command = mpirun.mpirun_command(2, hostfile)
    command[command.index("-n") : command.index("-n") + 2] = ["--map-by", "ppr:1:node"]
    with (
        tempfile.TemporaryDirectory(prefix="impala_ms_") as scratch,
        tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".impala_ms_") as here,
    ):
        ask = [sys.executable, "-m", "impala_ms.doctor", here.name]
        done = probe([*command, *ask], mpirun.mpi_environment(scratch, hostfile))
    answers = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    if done.returncode or not answers:
        do = f"each must do this without a password: ssh HOST {sys.executable} --version"
        yield Finding("hosts", BAD, last_line(done), do)
        return
    own = about_host(here.name)
    for host in answers:
        other = [f"{key} {host[key]}, here {own[key]}" for key in COMPARED if host[key] != own[key]]
        if not host["sees"]:
            other.append(f"does not see {Path.cwd()}, where runs are kept")
        do = "all need the same versions, the same code, and a file system they share"
        what = "; ".join(other) or "as here"
        yield Finding(f"host {host['host']}", BAD if other else OK, what, do if other else "")
    names = len({text.split()[0] for text in hostfile.read_text().splitlines() if text.strip()})
    few = len(answers) < names
    what = f"{len(answers)} of {names} in {hostfile.name} answered"
    yield Finding("hosts", BAD if few else OK, what)


COMPARED = ("python", "mindspore", "mpi4py", "openmpi", "gymnasium", "numpy", "code")


def about_host(file: str) -> dict[str, Any]:
    """What must be the same on all hosts, and whether this host sees a file."""
    code = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(path for ending in ("py", "c", "h") for path in folder.rglob(f"*.{ending}")):
        code.update(path.read_bytes())
    found: dict[str, Any] = {"host": socket.gethostname(), "sees": Path(file).exists()}
    for name in COMPARED[1:-1]:
        found[name] = metadata.version(name)
    return found | {"python": platform.python_version(), "code": code.hexdigest()[:12]}


def versions() -> Iterator[Finding]:
    """The versions of Python and of the packages, and which are needed."""
    version = platform.python_version()
    fits = (3, 10) <= sys.version_info[:2] <= (3, 12)
    yield Finding(
        "Python",
        OK if fits else BAD,
        f"{version} ({sys.executable})",
        "" if fits else "MindSpore has wheels for 3.10 to 3.12: use one of these versions",
    )
    wanted = needed()
    if not wanted:
        what = "which versions are needed is not known: pip has not installed impala_ms"
        yield Finding("packages", OPTIONAL, what)
    installed = requirements.installed()
    for requirement in [*wanted, *requirements.NO_DEPS]:
        name, _ = requirements.split(requirement)
        found = installed.get(requirements.normalise(name))
        met = requirements.is_met(requirement, installed)
        do = packages.pip_install(requirement)
        if requirement in requirements.NO_DEPS:
            do = do.replace("install", "install --no-deps", 1)
        what = f"{found or 'not installed'}{'' if met else f', needed is {requirement}'}"
        yield Finding(name, OK if met else BAD, what, "" if met else do)


def needed() -> list[str]:
    """What pyproject.toml asks for in a clone, else what pip has noted down; empty if nothing."""
    file = Path(requirements.PYPROJECT)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if 'name = "impala_ms"' in text:
        return requirements.requirements(text, [])
    try:
        lines = metadata.requires("impala_ms") or []
    except metadata.PackageNotFoundError:
        return []
    return [line for line in lines if ";" not in line]  # those of the extras have a condition


def cores() -> Iterator[Finding]:
    """Cores, a good number of ranks, and what the user has set for threads and libraries."""
    usable, allowed = cpus.usable_cores(), len(os.sched_getaffinity(0))
    what = f"{usable} of {os.cpu_count()} for this process"
    if usable < allowed:
        what += f": a quota on CPU time allows no more, its affinity allows {allowed}"
    yield Finding("cores", OK, what)
    clone = (ROOT / "start_standalone.sh").is_file()
    start = "bash start_standalone.sh train.py" if clone else "python -m impala_ms train"
    what = f"{usable} or {usable + 1} (cores: {usable}): {start} {usable + 1}"
    yield Finding("good N", OK, what)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in os.environ:
            what = f"{name} = {os.environ[name]} is set, and holds for all ranks"
            do = f"unset {name}: each rank then has the threads that fit its cores"
            yield Finding("threads", OPTIONAL, what, do)
    for name, value in ENVIRONMENT_DEFAULTS.items():
        if os.environ[name] != value:
            what = f"{name} = {os.environ[name]}; the default is {value}"
            yield Finding("environment variables", OPTIONAL, what)


def optional_packages() -> Iterator[Finding]:
    """Packages that some environments and commands need, and the ROMs of Atari games."""
    for package in packages.OPTIONAL:
        name = re.sub(r"gymnasium\[(.+)\]", r"\1", package.pip)
        if lacking := packages.lacking(package.pip):
            what = f"not installed: {', '.join(lacking)}, for {package.purpose}"
            yield Finding(name, OPTIONAL, what, packages.pip_install(package.pip))
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:  # not by pip
            version = "installed"
        yield Finding(name, OK, f"{version}: {package.purpose}")
        if name == "ale-py":
            from ale_py import roms

            games = roms.get_all_rom_ids()
            state, do = (OK, "") if games else (BAD, "pip install --force-reinstall ale-py")
            yield Finding("ROMs", state, f"{len(games)} games come with ale-py", do)


def run_folder() -> Iterator[Finding]:
    """Whether runs/ in the current folder can be written, and how much room there is."""
    folder = Path.cwd()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        what = f"{folder} cannot be written: {error.strerror}"
        yield Finding("run folder", BAD, what, "work in another folder, or give --run_dir FOLDER")
        return
    free = shutil.disk_usage(folder).free / 1e9
    room = free >= LITTLE_SPACE_GB
    what = f"{folder}/runs can be written, {free:.0f} GB free"
    yield Finding("run folder", OK if room else BAD, what, "" if room else "make room")


def mindspore() -> Iterator[Finding]:
    """Whether the device that ``learner.device = auto`` takes works."""
    done = probe([*PROBE, "best_device"])
    if done.returncode:
        yield Finding("MindSpore", BAD, last_line(done), "see the message")
        return
    target = done.stdout.split()[-1]
    began = time.perf_counter()
    done = probe([*PROBE, "matrix_product", target])
    right = done.stdout.split()[-1:] == ["8.0"]
    took = f"imported, with MindSpore RL, in {time.perf_counter() - began:.1f} s"
    what = f"device {target}; {took}" if right else last_line(done)
    yield Finding("MindSpore", OK if right else BAD, what, "" if right else "reinstall mindspore")


def convolutions() -> Iterator[Finding]:
    """Whether oneDNN's convolutions are fast: some versions have a slow kernel for AVX-512."""
    done = probe([*PROBE, "convolution"])
    if done.returncode:
        yield Finding("convolutions", BAD, last_line(done))
        return
    ratio = float(done.stdout.split()[-1])
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA")
    slow = ratio > SLOW_CONVOLUTION
    what = f"{ratio:.1f} times a matrix product of equal size (ONEDNN_MAX_CPU_ISA={isa})"
    do = "unset ONEDNN_MAX_CPU_ISA: the default here, AVX2, avoids a slow kernel"
    yield Finding("convolutions", BAD if slow else OK, what, do if slow else "")


def kernels() -> Iterator[Finding]:
    """Whether there is a C compiler, without which images and LSTMs are slow."""
    done = probe([*PROBE, "kernels"])
    if done.returncode:
        yield Finding(
            "kernels", OPTIONAL, "not compiled: images and LSTMs are slow", last_line(done)
        )
    else:
        yield Finding("kernels", OK, done.stdout.splitlines()[-1])


def mpi() -> Iterator[Finding]:
    """Whether two ranks start and talk, and whether the death of one is noticed."""
    try:
        command = [*mpirun.mpirun_command(2), *PROBE]
    except ConfigError as error:
        yield Finding("MPI", OPTIONAL, str(error))
        return
    with tempfile.TemporaryDirectory(prefix="impala_ms_") as folder:
        environment = mpirun.mpi_environment(folder)
        began = time.perf_counter()
        done = probe([*command, "talk"], environment)
        took = time.perf_counter() - began
        if "2 bytes of 1" not in done.stdout:
            yield Finding("MPI", BAD, last_line(done))
            return
        mpich = mpirun.is_mpich(Path(command[0]))
        library = f"MPICH ({command[0]})" if mpich else f"Open MPI {metadata.version('openmpi')}"
        yield Finding("MPI", OK, f"{library}, 2 ranks started and talked in {took:.1f} s")
        if mpich:
            yield Finding("fault tolerance", OPTIONAL, "MPICH has none: a lost rank ends the run")
            return
        done = probe([*command, "die"], environment)
        noticed = "noticed" in done.stdout
        what = "the death of a rank is noticed" if noticed else last_line(done)
        yield Finding("fault tolerance", OK if noticed else BAD, what)


def miniature_run() -> Iterator[Finding]:
    """Whether a run of a few seconds trains."""
    ranks = "2" if mpirun.find_mpirun().is_file() else "1"
    with tempfile.TemporaryDirectory(prefix="impala_ms_") as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "impala_ms", "train", ranks]
        options = ["--run_dir", str(run), "--total_env_steps", str(RUN_STEPS)]
        done = probe([*command, *options], folder=folder)
        if done.returncode:
            yield Finding("miniature run", BAD, last_line(done), " ".join([*command, *options]))
            return
        with open(run / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        first, last = rows[0], rows[-1]
        what = (
            f"N = {ranks}: first update after {float(first['wall_time_s']):.1f} s, "
            f"{float(last['env_steps']):,.0f} env steps in {float(last['wall_time_s']):.1f} s"
        )
        yield Finding("miniature run", OK, what)


CHECKS = (
    versions,
    cores,
    optional_packages,
    run_folder,
    mindspore,
    convolutions,
    kernels,
    mpi,
    miniature_run,
)
QUICK = 4  # checks that start nothing


def probe(
    command: list[str], environment: dict[str, str] | None = None, folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command for ``LIMIT_S`` at most; what it prints is kept."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=(environment or os.environ) | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        said = f"has not ended after {LIMIT_S:g} s"
        return subprocess.CompletedProcess(command, 124, str(error.stdout or ""), said)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a command printed."""
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return said[-1] if said else f"exit code {done.returncode}, no message"


if __name__ == "__main__":  # ``hosts`` has each host run this
    sys.stdout.write(json.dumps(about_host(sys.argv[1])) + "\n")
