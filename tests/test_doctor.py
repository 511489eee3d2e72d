"""What the doctor finds, on this machine and where something is broken."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms import doctor
from impala_ms.envs import packages

ROOT = Path(__file__).resolve().parent.parent


def run(*options, cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, "-m", "impala_ms", "doctor", *options],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def only(check):
    (finding,) = doctor.guarded(check)
    return finding


def result(code=0, stdout="", stderr=""):
    """Every probe ends like this."""
    return lambda command, *_, **__: subprocess.CompletedProcess(command, code, stdout, stderr)


@pytest.mark.mpi
def test_this_machine_passes_all_checks(tmp_path):
    done = run("--json", cwd=tmp_path)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert findings["miniature run"]["what"].startswith("N = 2: first update after ")
    assert findings["fault tolerance"]["what"] == "the death of a rank is noticed"
    assert "device CPU" in findings["MindSpore"]["what"]
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_wrong_version_is_named_with_the_command_that_installs_another(tmp_path):
    (tmp_path / "numpy-2.1.0.dist-info").mkdir()
    done = run("--quick", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("BAD numpy"))
    assert "2.1.0, needed is numpy>=1.26,<2" in lines[at]
    assert "pip install" in lines[at + 1]
    assert "'numpy>=1.26,<2'" in lines[at + 1]
    assert lines[-1].endswith("need attention")


def test_installed_package_is_compared_with_what_pip_has_noted_down(monkeypatch, tmp_path):
    """Without the clone around it; a pyproject.toml beside it may be of another package."""
    monkeypatch.setattr(doctor.requirements, "PYPROJECT", str(tmp_path / "pyproject.toml"))
    lines = ["numpy<2,>=1.26", "mindspore>=99", 'pytest>=8; extra == "dev"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: lines)
    for text in ("", '[project]\nname = "another"\ndependencies = [\n"pytest>=99",\n]\n'):
        (tmp_path / "pyproject.toml").write_text(text)
        findings = {finding.name: finding for finding in doctor.versions()}
        assert list(findings) == ["Python", "numpy", "mindspore", "mindspore-rl"]
        assert findings["numpy"].state == doctor.OK
        assert findings["mindspore"].what.endswith(", needed is mindspore>=99")


def test_package_that_pip_does_not_know_has_no_versions_to_compare(monkeypatch, tmp_path):
    def requires(name):
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.requirements, "PYPROJECT", str(tmp_path / "pyproject.toml"))
    monkeypatch.setattr(doctor.metadata, "requires", requires)
    _, unknown, *others = doctor.versions()
    assert (unknown.name, unknown.state) == ("packages", doctor.OPTIONAL)
    assert [finding.name for finding in others] == ["mindspore-rl"]


def test_mindspore_rl_is_to_be_installed_without_its_dependencies(monkeypatch):
    monkeypatch.setattr(doctor.requirements, "installed", dict)
    findings = {finding.name: finding for finding in doctor.versions()}
    do = findings["mindspore-rl"].do
    assert do.startswith(f"{sys.executable} -m pip install --no-deps ")
    assert do.endswith(" mindspore-rl==0.7.0")
    assert "--no-deps" not in findings["numpy"].do


@pytest.mark.parametrize("options", [["--jsn"], ["--json", "x"]])
def test_misspelt_options_show_the_usage(options):
    done = run(*options)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: python -m impala_ms doctor")


def test_mindspore_that_cannot_be_imported_is_bad(tmp_path):
    (tmp_path / "mindspore.py").write_text("raise ImportError('libmindspore.so is not there')\n")
    code = (
        "from impala_ms import doctor; print(*doctor.guarded(doctor.mindspore), sep='\\n'); "
        "print(*doctor.guarded(doctor.convolutions), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    for line in done.stdout.splitlines():
        assert "state='BAD'" in line
        assert "libmindspore.so is not there" in line
    assert len(done.stdout.splitlines()) == 2, done.stderr


def test_slow_convolutions_are_bad(monkeypatch):
    monkeypatch.setattr(doctor, "probe", result(stdout="25.3\n"))
    found = only(doctor.convolutions)
    assert found.state == doctor.BAD
    assert found.what.startswith("25.3 times")
    assert "ONEDNN_MAX_CPU_ISA" in found.do


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler on this machine")
def test_kernels_need_a_compiler(monkeypatch):
    (found,) = doctor.kernels()
    assert found.state == doctor.OK
    assert found.what.endswith(".so")
    monkeypatch.setenv("IMPALA_MS_CC", "no-such-compiler")
    (found,) = doctor.kernels()
    assert found.state == doctor.OPTIONAL
    assert "no-such-compiler" in found.do
    assert "apt install gcc" in found.do
    assert "\n" not in found.do
    monkeypatch.setenv("IMPALA_MS_CC", "")
    (found,) = doctor.kernels()
    assert (found.state, found.do) == (
        doctor.OPTIONAL,
        "IMPALA_MS_CC is empty: no compiler is wanted",
    )


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_good_number_of_ranks_is_given_as_a_command(monkeypatch, cores):
    monkeypatch.setattr(doctor.cpus, "usable_cores", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    about_cores, good, *_ = doctor.cores()
    assert "quota" not in about_cores.what
    n = f"{cores} or {cores + 1} (cores: {cores})"
    assert good.what == f"{n}: bash start_standalone.sh train.py {cores + 1}"
    monkeypatch.setattr(doctor, "ROOT", Path("/nowhere"))  # where pip has put the package
    _, good, *_ = doctor.cores()
    assert good.what == f"{n}: python -m impala_ms train {cores + 1}"


def test_quota_on_cores_is_named(monkeypatch):
    monkeypatch.setattr(doctor.cpus, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    about_cores, good, *_ = doctor.cores()
    assert about_cores.what.startswith("2 of ")
    assert about_cores.what.endswith("quota on CPU time allows no more, its affinity allows 64")
    assert good.what.startswith("2 or 3 (cores: 2)")


def test_optional_packages_have_a_version_or_the_command_that_installs_them(monkeypatch):
    lacking = ("minigrid", "matplotlib", "gymnasium[mujoco]")
    monkeypatch.setattr(packages, "lacking", lambda pip: ["imageio"] if pip in lacking else [])
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1.2.3")
    findings = {finding.name: finding for finding in doctor.optional_packages()}
    assert {"envpool", "box2d", "mujoco", "minigrid", "matplotlib", "tensorboard"} < set(findings)
    for name, pip in (
        ("minigrid", "minigrid"),
        ("matplotlib", "matplotlib"),
        ("mujoco", re.escape("'gymnasium[mujoco]'")),
    ):
        finding = findings.pop(name)
        assert finding.state == doctor.OPTIONAL
        assert finding.what.startswith("not installed: imageio, for ")
        assert re.search(rf"-m pip install .*constraints.txt {pip}$", finding.do)
    assert all(finding.state == doctor.OK for finding in findings.values())
    assert findings["box2d"].what.startswith("1.2.3: ")


def test_missing_mpirun_is_optional(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = only(doctor.mpi)
    assert found.state == doctor.OPTIONAL
    assert "N = 1, which needs no MPI" in found.what


def test_ranks_that_do_not_talk_and_runs_that_fail_are_bad(monkeypatch):
    monkeypatch.setattr(doctor, "probe", result(1, stderr="x\nno route to host\n"))
    for check in (doctor.mpi, doctor.miniature_run):
        found = only(check)
        assert found.state == doctor.BAD
        assert found.what == "no route to host"


def test_folder_that_cannot_be_written_is_bad(monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    found = only(doctor.run_folder)
    assert found.state == doctor.BAD
    assert "Permission denied" in found.what
    assert "--run_dir" in found.do


def test_check_that_fails_is_a_finding():
    def broken_check():
        raise KeyError("x")
        yield

    found = only(broken_check)
    assert (found.name, found.state) == ("broken check", doctor.BAD)
    assert "KeyError" in found.what


def test_probe_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(doctor, "LIMIT_S", 0.2)
    done = doctor.probe([sys.executable, "-c", "import time; time.sleep(60)"])
    assert done.returncode == 124
    assert doctor.last_line(done) == "has not ended after 0.2 s"
