"""The only importer of mindspore_rl: its base classes, on a MindSpore that it was not made for.

mindspore-rl 0.7.0 (2023) imports operators that MindSpore 2.7.2 and later no longer have, and
its own ``__init__`` sleeps three seconds over the version. So the package is entered without
running its ``__init__``, and the names that are gone are put in place first. Only what imports
them at module level is served: replay buffers and queues that need the operators still fail
when they are made, and say which operator is missing.
"""

import importlib
import importlib.util
import sys
import types

GONE_OPERATORS = (
    "PriorityReplayBufferCreate",
    "PriorityReplayBufferDestroy",
    "PriorityReplayBufferPush",
    "PriorityReplayBufferSample",
    "PriorityReplayBufferUpdate",
    "BatchAssign",
    "EnvCreate",
    "EnvReset",
    "EnvStep",
)


def _gone(name):
    """A class of that name that explains itself when somebody makes one."""

    def fail(self, *args, **kwargs):
        import mindspore

        raise NotImplementedError(
            f"MindSpore {mindspore.__version__} no longer has the operator {name} that "
            "mindspore-rl 0.7.0 asks for; MindSpore 2.7.0 is the last one that does"
        )

    return type(name, (), {"__init__": fail})


def _prepare():
    """Make ``import mindspore_rl`` and its submodules possible; nothing happens the second time."""
    if "mindspore_rl" in sys.modules:
        return
    spec = importlib.util.find_spec("mindspore_rl")
    if spec is None:
        raise ModuleNotFoundError(
            "mindspore_rl is not installed: pip install --no-deps mindspore-rl==0.7.0 "
            "(its own requirements cannot be had for this Python)"
        )
    if importlib.util.find_spec("gymnasium") is not None:
        sys.modules.setdefault("gym", importlib.import_module("gymnasium"))

    operations = importlib.import_module("mindspore.ops.operations")
    operators = importlib.import_module("mindspore.ops.operations._rl_inner_ops")
    for name in GONE_OPERATORS:
        if not hasattr(operators, name):
            setattr(operators, name, _gone(name))
    arrays = "mindspore.ops.operations._tensor_array"
    if importlib.util.find_spec(arrays) is None:
        sys.modules[arrays] = operations._tensor_array = types.ModuleType(arrays)

    sys.modules["mindspore_rl"] = importlib.util.module_from_spec(spec)


_prepare()
Actor = importlib.import_module("mindspore_rl.agent.actor").Actor
Learner = importlib.import_module("mindspore_rl.agent.learner").Learner
Trainer = importlib.import_module("mindspore_rl.agent.trainer").Trainer
Session = importlib.import_module("mindspore_rl.core.session").Session
COLLECT = importlib.import_module("mindspore_rl.agent.trainer").COLLECT
EVAL = importlib.import_module("mindspore_rl.agent.trainer").EVAL
