"""Environments of envpool and of optional packages, made by their id alone."""

import importlib.util
import re
import sys

import gymnasium
import numpy as np
import pytest

from impala_ms.envs.external import EnvpoolVectorEnvironment
from impala_ms.envs.make import MakeError, make_vec
from impala_ms.envs.sync import SyncVectorEnvironment
from tests.envs.contract import EnvironmentContract
from tests.envs.test_atari import hide, needs


def make(id, vectorization="auto", num_envs=2, **kwargs):
    return make_vec(
        id, num_envs=num_envs, seeds=range(num_envs), vectorization=vectorization, **kwargs
    )


@needs("envpool")
class TestEnvpoolCartPole(EnvironmentContract):
    def make(self, num_envs, seeds):
        return make_vec("CartPole-v1", num_envs=num_envs, seeds=seeds, vectorization="envpool")


@needs("envpool")
class TestEnvpool:
    def test_step_limit_reaches_envpool(self):
        env = make("CartPole-v1", "envpool", max_episode_steps=5)
        env.reset()
        rows = [env.step(np.full(2, s % 2)) for s in range(12)]
        assert [int(row[3][0]) for row in rows] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
        assert env.step_limit == 5
        assert make("CartPole-v1", "envpool").step_limit == 500

    def test_continuous_actions_reach_envpool(self):
        env = make("Pendulum-v1", "envpool")
        env.reset()
        observation, reward, *_ = env.step(np.array([[-9.0], [0.5]], np.float32))
        assert observation.shape == (2, 3)
        assert (reward < 0).all()

    def test_structured_observation_comes_without_the_mission(self):
        env = make("MiniGrid-DoorKey-5x5-v0", "envpool")
        observation = env.reset()
        assert {k: (v.shape, v.dtype) for k, v in observation.items()} == {
            "direction": ((2,), np.int64),
            "image": ((2, 7, 7, 3), np.uint8),
        }
        assert env.step_limit == 250

    def test_mujoco_environment_is_made_by_its_id(self):
        env = make("HalfCheetah-v5", "envpool")
        assert env.reset().dtype == np.float64
        assert env.step(np.zeros((2, 6), np.float32))[0].shape == (2, 17)

    def test_auto_takes_envpool_if_gymnasium_lacks_the_id(self):
        assert "LunarLander-v2" not in gymnasium.registry or pytest.skip("gymnasium has it")
        env = make("Acrobot-v1")
        assert not isinstance(env, EnvpoolVectorEnvironment)
        assert isinstance(make("CliffWalking-v0"), EnvpoolVectorEnvironment)

    @pytest.mark.skipif(importlib.util.find_spec("Box2D") is not None, reason="Box2D is there")
    def test_auto_takes_envpool_if_gymnasium_lacks_a_package(self):
        env = make("LunarLander-v3")
        assert isinstance(env, EnvpoolVectorEnvironment)
        assert env.reset().shape == (2, 8)
        with pytest.raises(MakeError, match=r"LunarLander-v3 needs Box2D, .*pip install") as caught:
            make("LunarLander-v3", "sync")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("id", "kwargs", "says"),
        [
            ("CartPol-v1", {}, "CartPol-v1 is not among the environments of envpool"),
            ("CartPole-v1", {"gravty": 1}, "cannot be made by envpool with .*gravty"),
        ],
    )
    def test_unknown_task_or_option_is_refused_in_one_line(self, id, kwargs, says):
        with pytest.raises(MakeError, match=says) as caught:
            make(id, "envpool", kwargs=kwargs)
        assert "\n" not in str(caught.value)


@needs("minigrid")
class TestMiniGrid:
    def test_minigrid_environment_is_made_by_its_id(self):
        env = make("MiniGrid-DoorKey-5x5-v0")
        assert isinstance(env, SyncVectorEnvironment)
        assert env.observation_leaves == {
            "direction": ((), np.int64),
            "image": ((7, 7, 3), np.uint8),
        }
        assert env.step_limit is None or env.step_limit == 250

    @needs("envpool")
    def test_sync_and_envpool_have_equal_spaces(self):
        one, other = (make("MiniGrid-MemoryS7-v0", v).spaces() for v in ("sync", "envpool"))
        assert one == other


def test_missing_package_is_named_in_one_line(monkeypatch):
    hide(monkeypatch, "minigrid", "envpool")
    with pytest.raises(MakeError, match=r"needs minigrid, which is not installed: .*pip") as caught:
        make("MiniGrid-NotYetRegistered-v0")
    assert "\n" not in str(caught.value)


class _Hidden:
    """An import finder that hides a package, as if it was not installed."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {self.name!r}", name=self.name)


@pytest.mark.parametrize(
    ("id", "module", "pip"),
    [
        ("LunarLander-v3", "Box2D", "'gymnasium[box2d]'"),
        ("CarRacing-v3", "pygame", "'gymnasium[box2d]'"),
        ("HalfCheetah-v5", "mujoco", "'gymnasium[mujoco]'"),
        ("HalfCheetah-v5", "imageio", "'gymnasium[mujoco]'"),
    ],
)
def test_package_that_gymnasium_lacks_is_named_with_the_pip_command(id, module, pip, monkeypatch):
    for other in {"pygame": ["Box2D"], "imageio": ["mujoco"]}.get(module, []):
        pytest.importorskip(other)  # without it, it would be named instead
    for name in list(sys.modules):
        if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco", module)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Hidden(module), *sys.meta_path])
    hide(monkeypatch, module)
    with pytest.raises(MakeError) as caught:
        make(id, "sync")
    assert re.fullmatch(
        rf"{id} needs {module}, which is not installed: \S+ -m pip install -c \S+ {re.escape(pip)}",
        str(caught.value),
    )


@pytest.mark.parametrize("where", ["module", "constructor"])
def test_package_that_an_own_environment_lacks_is_named_with_the_pip_command(
    where, monkeypatch, tmp_path
):
    hide(monkeypatch, "tensorboard")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", [_Hidden("tensorboard"), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    indent = "" if where == "module" else "    "
    file = tmp_path / f"needs_tensorboard_in_{where}.py"
    file.write_text(
        "import gymnasium\ndef make():\n    pass\n"
        f"{indent}import tensorboard\n"
        "gymnasium.register('NeedsTensorBoard-v0', make)\n"
    )
    with pytest.raises(MakeError, match=r"needs tensorboard, which is not installed: .* -m pip"):
        make(f"{file}:NeedsTensorBoard-v0", "sync")


def test_broken_package_is_not_called_missing(monkeypatch):
    def make_one():
        raise gymnasium.error.DependencyNotInstalled(
            "Matplotlib is not installed"
        ) from ImportError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("Broken-v0", make_one)
    with pytest.raises(
        MakeError, match=r"Broken-v0 cannot be made: Matplotlib is .* \(libGL.so.1: can"
    ):
        make("Broken-v0", "sync")


@needs("envpool")
def test_envpool_is_taken_for_a_missing_minigrid(monkeypatch):
    hide(monkeypatch, "minigrid")
    for id in [id for id in gymnasium.registry if id.startswith("MiniGrid-DoorKey")]:
        monkeypatch.delitem(gymnasium.registry, id)
    assert isinstance(make("MiniGrid-DoorKey-5x5-v0"), EnvpoolVectorEnvironment)
