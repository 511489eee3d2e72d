"""A user's modules: which module a name or a file means, and that its classes can be pickled."""

import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from impala_ms import classes, imports, process
from impala_ms.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
STATE = "class State:\n    def __eq__(self, other): return type(self) is type(other)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder; imports of the test are undone afterwards."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name, empty in (("_files", {}), ("_folders", []), ("_said", set())):
        monkeypatch.setattr(imports, name, empty)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield here
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file.resolve()


FILES = ["ti_state.py", "random.py", "ti_main.py", "ti.state.py", "2 envs.py", "ä/ti_state.py"]


class TestFiles:
    @pytest.mark.parametrize("name", FILES)
    def test_classes_of_a_file_can_be_pickled_and_referenced(self, folder, name):
        write(folder / "ti_state.py", "the other")  # another file with the same name
        sys.modules["ti_main"] = types.ModuleType("ti_main")  # has no spec, like __main__
        file = write(folder / name, STATE)
        module = imports.import_file(file)
        assert pickle.loads(pickle.dumps(module.State())) == module.State()
        assert classes.reference(module.State) == f"{file}:State"
        assert classes.resolve(classes.reference(module.State)) is module.State

    def test_files_run_once_and_the_first_has_the_plain_name(self, folder):
        one, other = (write(folder / f / "ti_net.py", f"name = '{f}'") for f in ("a", "b"))
        modules = [imports.import_file(file) for file in (one, other, one, other)]
        assert [module.name for module in modules] == ["a", "b", "a", "b"]
        assert modules[0] is modules[2]
        assert modules[1] is modules[3]
        assert modules[0].__name__ == "ti_net"

    def test_failing_file_fails_again(self, folder):
        file = write(folder / "ti_bad.py", "1 / 0")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                imports.import_file(file)

    def test_spawned_process_finds_the_module_of_a_file(self, folder):
        write(folder / "ti_state.py", STATE + "def same(x): return x == State()\n")
        module = imports.import_file((folder / "ti_state.py").resolve())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(module.same, [module.State(), 1]) == [True, False]

    @pytest.mark.parametrize("name", ["ti_walk.py", "random.py", "ti.walk.py"])
    def test_worker_processes_find_the_module_of_a_file(self, folder, name):
        write(
            folder / name,
            """
            import pickle
            import gymnasium
            from tests.envs.fakes import SpacesEnv

            class Choice(gymnasium.spaces.Discrete):
                pass

            class Walk(SpacesEnv):
                def __init__(self, space):
                    super().__init__(action_space=space)
                def step(self, action):
                    pickle.loads(pickle.dumps(self))
                    return super().step(action)

            gymnasium.register("Walk-v0", Walk, kwargs={"space": Choice(2)})
            """,
        )
        script = f"""
            import sys
            sys.path.remove("")
            from impala_ms.envs.make import make_vec
            env = make_vec({name + ":Walk-v0"!r}, num_envs=2, seeds=[0, 0],
                           vectorization="processes", env_processes=2)
            env.reset()
            print(env.step([0, 1])[0].tolist())
            env.close()
            """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == "[[1.0], [1.0]]\n", done.stderr


class TestNames:
    def test_current_folder_is_searched_first(self, folder, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        sys.path.insert(0, str(tmp_path / "product"))
        write(tmp_path / "product" / "ti_corridor.py", "whose = 'ours'")
        file = write(folder / "ti_corridor.py", "whose = 'mine'")
        assert imports.import_named("ti_corridor").whose == "mine"
        assert imports.import_named("ti_corridor").whose == "mine"
        assert caplog.messages == [f"the module ti_corridor is that in {file}"]

    def test_folders_of_the_start_come_before_the_current_folder(self, folder, tmp_path):
        write(tmp_path / "start" / "ti_corridor.py", "whose = 'start'")
        write(folder / "ti_corridor.py", "whose = 'here'")
        imports.add_import_folder(tmp_path / "start")
        assert imports.import_named("ti_corridor").whose == "start"

    @pytest.mark.parametrize("name", ["random", "types", "wave"])
    def test_file_with_the_name_of_a_library_is_imported_only_by_import_named(self, folder, name):
        sys.modules.pop("wave", None)
        write(folder / f"{name}.py", "whose = 'mine'")
        assert imports.import_named(name).whose == "mine"
        assert not hasattr(__import__(name), "whose")

    def test_file_with_the_name_of_a_library_does_not_replace_it_for_a_users_module(self, folder):
        sys.modules.pop("wave", None)
        write(folder / "wave.py", "1 / 0")
        write(folder / "ti_mine.py", "import wave")
        assert imports.import_named("ti_mine").wave.__file__ != str(folder / "wave.py")

    def test_package_in_the_current_folder_is_found_first(self, folder, tmp_path):
        sys.path.insert(0, str(tmp_path / "product"))
        write(tmp_path / "product" / "ti_pack" / "__init__.py", "")
        write(folder / "ti_pack" / "__init__.py", "from . import other")
        write(folder / "ti_pack" / "other.py", "whose = 'mine'")
        write(folder / "ti_pack" / "env.py", "from ti_pack.other import whose")
        path = list(sys.path)
        assert imports.import_named("ti_pack.env").whose == "mine"
        assert sys.path == [*path, str(folder)]

    def test_folder_without_init_is_a_package_too(self, folder):
        write(folder / "ti_envs" / "corridor.py", "whose = 'mine'")
        assert imports.import_named("ti_envs.corridor").whose == "mine"

    def test_package_with_the_name_of_a_package_in_use_is_refused(self, folder):
        write(folder / "json" / "__init__.py", "")
        with pytest.raises(ConfigError, match=r"has the name of a package in use.*rename"):
            classes.resolve("json.mine:Net")

    def test_folder_named_impala_ms_does_not_replace_this_package(self, folder, caplog):
        caplog.set_level(logging.INFO)
        write(folder / "impala_ms" / "__init__.py", "1 / 0")
        assert imports.import_named("impala_ms.process") is process
        assert caplog.messages == []

    def test_missing_module_is_an_import_error(self):
        with pytest.raises(ModuleNotFoundError, match="ti_nowhere"):
            imports.import_named("ti_nowhere.env")


def test_folder_of_the_script_is_not_searched(tmp_path, monkeypatch):
    scripts, other = str(tmp_path / "scripts"), str(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{scripts}/train.py"])
    sys.path[:0] = [other, scripts]
    monkeypatch.setattr(process.place, "take_place", lambda argv: sys.exit("as far as this"))
    with pytest.raises(SystemExit, match="as far as this"):
        process.main("impala")
    assert scripts not in sys.path
    assert sys.path[0] == other
