"""mindspore_rl's classes with newer versions of MindSpore."""

import subprocess
import sys
import textwrap

import pytest

from impala_ms import compat


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
