"""The only importer of mindspore_rl: its base classes, made to work with newer MindSpore versions.

mindspore-rl 0.7.0 (2023) imports operators that MindSpore 2.7.2 and later do not have, and its
``__init__`` sleeps three seconds because of the version. So the package is imported without its
``__init__``, and placeholders for the missing names are set first. They only make imports work:
replay buffers and queues that need the operators still fail when they are made, and name them.
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
    """A class of that name; making an object of it raises an error that explains why."""

    def fail(self, *args, **kwargs):
        import mindspore

        raise NotImplementedError(
            f"MindSpore {mindspore.__version__} no longer has the operator {name} that "
            "mindspore-rl 0.7.0 asks for; MindSpore 2.7.0 is the last one that does"
        )

    return type(name, (), {"__init__": fail})


def _prepare():
    """Make ``import mindspore_rl`` and its submodules work; a second call does nothing."""
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
_actor = importlib.import_module("mindspore_rl.agent.actor")
_learner = importlib.import_module("mindspore_rl.agent.learner")
_trainer = importlib.import_module("mindspore_rl.agent.trainer")
_session = importlib.import_module("mindspore_rl.core.session")
_Cell = importlib.import_module("mindspore.nn").Cell
COLLECT, EVAL = _trainer.COLLECT, _trainer.EVAL


class _OftenCalled:
    """A Cell that is called very often.

    At each call MindSpore sets the phase of the compiled code in all inner cells, which takes
    longer than the rest of a call. Here they keep it while it is the same.
    """

    @property
    def compile_phase(self):
        """Name of the compiled code."""
        return self._compile_phase

    @compile_phase.setter
    def compile_phase(self, value):
        if value != self._compile_phase:
            _Cell.compile_phase.fset(self, value)


class Learner(_OftenCalled, _learner.Learner):
    """MindSpore RL's learner."""


class Actor(_OftenCalled, _actor.Actor):
    """MindSpore RL's actor; a subclass has the methods ``play`` and ``choose``."""

    def act(self, phase, params):
        """Play one unroll into ``params`` and return it; ``phase`` is ignored."""
        self.play(params)
        return params

    def get_action(self, phase, params):
        """Actions for the stream ``params``: the mode in the phase EVAL, else a sample."""
        return self.choose(params, greedy=phase == EVAL)


class Trainer(_trainer.Trainer):
    """MindSpore RL's trainer, around a plain loop.

    Args:
        msrl: First argument of the loop.
        params: ``trainer_params``.
    """

    loop_type = None  # set by the subclass

    def __init__(self, msrl, params):
        super().__init__(msrl)
        self.loop = self.loop_type(msrl, params)

    def train(self, episodes=0, callbacks=None, ckpt_path=None):
        """Run the loop until the end that the configuration sets; arguments are refused."""
        given = {"episodes": episodes, "callbacks": callbacks, "ckpt_path": ckpt_path}
        if wrong := [name for name, value in given.items() if value]:
            raise ValueError(
                f"train() was given {wrong[0]}, which it does not use: total_env_steps says when "
                "training ends, and --resume takes a run's checkpoint"
            )
        self.loop.run()

    def train_one_episode(self):
        """One turn of the loop: an update, or an unroll."""
        return self.loop.turn()


class Session(_session.Session):
    """MindSpore RL's session; a subclass has the method ``play``."""

    def run(self, class_type=None, is_train=True, episode=0, duration=0):
        """Do the work of this rank until the run ends; the arguments are ignored."""
        self.play()
