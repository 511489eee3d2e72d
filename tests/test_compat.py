"""mindspore_rl's classes with newer versions of MindSpore."""

import subprocess
import sys
import textwrap

import pytest

from impala_ms import compat, device


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


def test_import_does_not_run_the_init_of_mindspore_rl_or_sleep():
    done = run(
        """
        import sys, time
        import impala_ms, mindspore, gymnasium
        slept = []
        time.sleep = slept.append
        from impala_ms import compat
        package = sys.modules["mindspore_rl"]
        print(slept, hasattr(package, "__version__"), sys.modules["gym"] is gymnasium)
        """
    )
    assert done.stdout.splitlines()[-1] == "[] False True"
    assert "Gym has been unmaintained" not in done.stdout + done.stderr


def test_base_classes_are_those_of_mindspore_rl():
    names = {
        "Actor": "mindspore_rl.agent.actor",
        "Learner": "mindspore_rl.agent.learner",
        "Trainer": "mindspore_rl.agent.trainer",
        "Session": "mindspore_rl.core.session",
    }
    for name, module in names.items():
        bases = getattr(compat, name).__mro__
        base = next(base for base in bases if base.__module__.startswith("mindspore_rl."))
        assert (base.__name__, base.__module__) == (name, module)
    assert compat.COLLECT != compat.EVAL


def test_agents_and_roles_derive_from_the_base_classes():
    from impala_ms.agents import actor, learner
    from impala_ms.roles import acting, learning, session

    assert issubclass(actor.PolicyActor, compat.Actor)
    assert issubclass(learner.GradientLearner, compat.Learner)
    assert issubclass(learning.LearnerTrainer, compat.Trainer)
    assert issubclass(acting.ActorTrainer, compat.Trainer)
    assert issubclass(session.RoleSession, compat.Session)


@pytest.mark.parametrize("base", [compat.Actor, compat.Learner])
def test_inner_cells_follow_the_phase_of_an_agent_only_when_it_changes(base):
    import mindspore as ms
    from mindspore import nn

    device.use("CPU", 1)
    set_phases = []

    class Inner(nn.Cell):
        @property
        def compile_phase(self):
            return self._compile_phase

        @compile_phase.setter
        def compile_phase(self, value):
            set_phases.append(value)
            nn.Cell.compile_phase.fset(self, value)

        def construct(self, x):
            return x + 1.0

    class Agent(base):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def construct(self, x):
            return self.inner(x)

    agent, phases = Agent(), []
    for rows in (2, 2, 3, 3, 2):
        assert agent(ms.Tensor([1.0] * rows)).asnumpy().tolist() == [2.0] * rows
        assert agent.inner.compile_phase == agent.compile_phase
        phases.append(agent.compile_phase)
    assert phases[0] == phases[1] == phases[4] != phases[2] == phases[3]
    assert set_phases == [phases[0], phases[2], phases[0]]


@pytest.mark.parametrize("name", compat.GONE_OPERATORS)
def test_placeholder_names_the_missing_operator(name):
    from mindspore.ops.operations import _rl_inner_ops

    operator = getattr(_rl_inner_ops, name)
    assert operator.__name__ == name
    placeholder = compat._gone(name)
    with pytest.raises(NotImplementedError, match=f"no longer has the operator {name} that"):
        placeholder(1, key=2)


def test_existing_operator_is_not_replaced():
    done = run(
        """
        import impala_ms
        from mindspore.ops.operations import _rl_inner_ops
        _rl_inner_ops.EnvStep = marker = type("EnvStep", (), {})
        from impala_ms import compat
        print(_rl_inner_ops.EnvStep is marker)
        """
    )
    assert done.stdout.splitlines()[-1] == "True"


def test_missing_mindspore_rl_is_named_with_the_pip_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "mindspore_rl")
    monkeypatch.setattr(compat.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps mindspore-rl"):
        compat._prepare()
    assert "mindspore_rl" not in sys.modules
