"""MindSpore without its unused parts; each case in a process of its own."""

import subprocess
import sys

import pytest

from impala_ms import lean

BEGIN = """
import sys
import impala_ms
from impala_ms.lean import import_mindspore, set_seed
ms = import_mindspore()
"""


def run(code):
    """The words that a program prints which imports MindSpore through ``lean``."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_leaves_out_unused_parts():
    loaded = set(run("print(*sys.modules)"))
    assert {"mindspore", "mindspore.nn", "mindspore.ops"} <= loaded
    for unused in lean.UNUSED:
        assert not [m for m in loaded if m == unused or m.startswith(f"{unused}.")]


def test_modules_of_a_rank_do_not_import_unused_parts():
    """These are networks, compiled steps and checkpoints."""
    loaded = run(
        "set_seed(1)\n"
        "from impala_ms import checkpoint, compat\n"
        "from impala_ms.agents import actor_critic, build\n"
        "from impala_ms.roles import session\n"
        "print(*sys.modules)"
    )
    assert "impala_ms.agents.learner" in loaded
    assert not [m for m in loaded if m.startswith("mindspore.dataset")]


def test_later_import_gives_the_real_module():
    code = """
import mindspore.dataset as dataset
data = dataset.NumpySlicesDataset([3, 1, 2], shuffle=False)
print(dataset.__file__ is not None, *[int(row[0].asnumpy()) for row in data])
"""
    assert run(code) == ["True", "3", "1", "2"]


def test_stand_in_that_mindspore_holds_works_when_it_is_used():
    """This metric uses scipy.ndimage, for which MindSpore holds a stand-in."""
    code = """
import numpy as np
from mindspore.train import HausdorffDistance
metric = HausdorffDistance()
a, b = np.zeros((2, 8, 8), np.int32)
a[2:5, 2:5] = 1
b[2:5, 4:7] = 1
metric.clear()
metric.update(ms.Tensor(a), ms.Tensor(b), 0)
print(float(metric.eval()))
"""
    assert run(code) == ["2.0"]


def test_module_imported_before_stays():
    code = """
import scipy.ndimage
print(scipy.ndimage.gaussian_filter([0.0, 1.0, 0.0], 1.0).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", "import scipy.ndimage as before" + BEGIN + code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(3,)\n"


@pytest.mark.parametrize("seeds", [(5, 5), (5, 6)])
def test_first_weights_depend_only_on_the_seed(seeds):
    code = f"""
import hashlib
from impala_ms.agents.network import ActorCriticPolicy
from impala_ms.ops.distributions import Categorical
for seed in {seeds}:
    set_seed(seed)
    space = {{"type": "Box", "shape": [4], "dtype": "float32"}}
    policy = ActorCriticPolicy(space, Categorical(2), hidden_sizes=[8], activation="tanh")
    data = b"".join(p.asnumpy().tobytes() for p in policy.get_parameters())
    print(hashlib.sha256(data).hexdigest())
"""
    first, second = run(code)
    assert (first == second) == (seeds[0] == seeds[1])


def test_set_seed_seeds_like_mindspore():
    """Operators and NumPy get the same seeds as from ``mindspore.set_seed``."""
    code = "import numpy as np\n{}.set_seed(5)\nprint(ms.get_seed(), np.random.rand())"
    assert run(code.format("ms")) == run("import impala_ms.lean as lean\n" + code.format("lean"))
