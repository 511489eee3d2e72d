"""Who imports whom, read from the source and compared with the table of layers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "impala_ms"
HEAVY = {"mindspore", "mindspore_rl", "mpi4py", "gymnasium", "envpool", "matplotlib"}

# What each layer may import beside the standard library: other packages, and layers.
BASE = {"config", "cpus", "errors", "imports", "seeds", "spaces", "trajectory"}
ALLOWED = {
    "classes": (set(), {"errors", "imports"}),
    "configuration": (
        {"yaml"},
        {"algorithm", "classes", "cluster", "envs", "errors", "imports", "metrics", "settings"},
    ),
    "settings": (set(), {"configuration", "errors"}),
    "pages": (set(), {"configuration", "metrics", "settings"}),
    "config": (
        set(),
        {"classes", "cluster", "configuration", "envs", "errors", "imports"},
    ),
    "run_dir": (set(), {"config", "cpus", "errors"}),
    "errors": (set(), set()),
    "cpus": (set(), set()),
    "imports": (set(), set()),
    "logs": (set(), set()),
    "seeds": ({"numpy"}, set()),
    "snapshots": ({"numpy"}, {"errors"}),
    "spaces": ({"numpy"}, set()),
    "frames": ({"numpy"}, set()),
    "finite": ({"numpy"}, set()),
    "store": (set(), set()),
    "trajectory": ({"numpy"}, {"finite", "store"}),
    "memory": (set(), {"errors"}),
    "replay": ({"numpy"}, {"frames", "memory", "store", "trajectory"}),
    "metrics": ({"numpy", "tensorboardX"}, set()),
    "comm": ({"numpy"}, set()),
    "cluster": ({"numpy"}, {"comm", "errors", "trajectory"}),
    "envs": ({"gymnasium", "envpool", "numpy"}, {"cluster", "cpus", "errors", "imports"}),
    "ops": ({"mindspore", "numpy"}, set()),
    "nets": ({"mindspore", "numpy"}, {"ops"}),
    "checkpoint": ({"mindspore", "numpy"}, set()),
    "device": ({"psutil"}, {"cluster", "lean"}),
    "lean": ({"mindspore"}, set()),
    "compat": ({"mindspore", "mindspore_rl", "gymnasium"}, set()),
    "agents": (
        {"mindspore", "numpy"},
        {*BASE, "checkpoint", "classes", "compat", "envs", "frames", "nets", "ops", "replay"},
    ),
    "roles": (
        {"mindspore", "numpy"},
        {*BASE, "agents", "checkpoint", "cluster", "compat", "device", "envs", "lean", "metrics"}
        | {"classes", "configuration", "memory", "replay", "run_dir", "snapshots"},
    ),
    "process": (
        set(),
        {"classes", "cluster", "comm", "config", "cpus", "device", "errors"}
        | {"imports", "logs", "metrics", "run_dir"},
    ),
    "launching": (set(), {"config", "errors", "metrics", "run_dir"}),
    "launch": (
        set(),
        {"config", "configuration", "envs", "errors", "launching", "metrics", "run_dir"},
    ),
    "train": (set(), {"process"}),
    "evaluate": (
        set(),
        {"agents", "checkpoint", "config", "device", "errors", "metrics", "seeds", "snapshots"},
    ),
    "comparison": (
        {"matplotlib", "numpy"},
        {"config", "configuration", "envs", "errors", "launch", "launching", "metrics"}
        | {"run_dir", "snapshots"},
    ),
    "compare": (set(), {"comparison", "errors", "metrics"}),
    "curves": (set(), {"comparison", "errors", "metrics"}),
    "requirements": (set(), set()),
    "doctor": ({"ale_py"}, {"cpus", "envs", "errors", "launching", "requirements"}),
    "probes": ({"mindspore", "mpi4py", "numpy"}, {"compat", "device", "nets"}),
    "__main__": (set(), {"metrics"}),
}
# Modules that start runs, look at them or at the machine: a rank needs none of them.
COMMANDS = {
    *("launching", "launch", "train", "evaluate", "comparison"),
    *("compare", "curves", "requirements", "doctor", "probes", "__main__"),
}
ALGORITHM = (
    {"mindspore", "numpy"},
    {*ALLOWED, "algorithm"} - COMMANDS - {"process"},
)
EXCEPTIONS = {"comm/mpi.py": {"mpi4py"}}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """``(other packages, dotted names inside impala_ms)`` that a file imports anywhere."""
    packages, inside = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                names = [argument.value]
        for name in names:
            top = name.split(".")[0]
            if top == "impala_ms":
                inside.add(name)
            elif top not in sys.stdlib_module_names:
                packages.add(top)
    return packages, inside


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_layer_may(path):
    layer = layer_of(path)
    allowed_packages, allowed_layers = ALGORITHM if layer == "algorithm" else ALLOWED[layer]
    packages, inside = imported(path)
    allowed_packages = allowed_packages | EXCEPTIONS.get(str(path.relative_to(PACKAGE)), set())
    assert packages <= allowed_packages
    layers = {name.split(".")[1] for name in inside} - {"__version__", "ENVIRONMENT_DEFAULTS"}
    assert layers <= allowed_layers | {layer}
    if layer == "algorithm":
        own = path.relative_to(PACKAGE).parts[1]
        others = {name.split(".")[2] for name in inside if name.startswith("impala_ms.algorithm.")}
        assert others <= {own}, "one algorithm never imports another"


def test_only_compat_imports_mindspore_rl():
    importers = {layer_of(path) for path in modules() if "mindspore_rl" in imported(path)[0]}
    assert importers == {"compat"}


def test_the_walk_sees_imports_of_every_kind(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import os, yaml.nodes\n"
        "from numpy import typing\n"
        "from impala_ms import device\n"
        "def f():\n"
        "    import mpi4py.MPI as MPI\n"
        "    from impala_ms.ops.vtrace import vtrace\n"
        "    importlib.import_module('mindspore.ops')\n"
    )
    assert imported(path) == (
        {"yaml", "numpy", "mpi4py", "mindspore"},
        {"impala_ms.device", "impala_ms.ops.vtrace.vtrace"},
    )
    assert len(modules()) > 25


def loaded_by(*names):
    """Which heavy packages are loaded after imports, and how many threads run then."""
    code = (
        "import importlib, sys, threading\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"watched = {sorted(HEAVY | {'numpy'})!r}\n"
        "print([name for name in watched if name in sys.modules], threading.active_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("names", "loaded"),
    [
        (
            ["impala_ms.config", "impala_ms.launch", "impala_ms.process", "impala_ms.device"],
            "[] 1",
        ),
        (["impala_ms.algorithm.impala.config"], "[] 1"),
        (["impala_ms.trajectory", "impala_ms.metrics.recorder"], "['numpy'] 1"),
        (["impala_ms.cluster.hub", "impala_ms.cluster.rounds"], "['numpy'] 1"),
        (["impala_ms.compare", "impala_ms.curves"], "['numpy'] 1"),
        (["impala_ms.comm.local", "impala_ms.envs.make"], "['numpy'] 1"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_processes_that_need_nothing_heavy_load_nothing_heavy(names, loaded):
    assert loaded_by(*names) == loaded


# Statements that only say what there is; a call is allowed where a name is given to its value.
DECLARATIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)
# Operators that are gone must be in place before mindspore_rl is imported.
WORKS_AT_IMPORT = {
    "compat.py": ["_prepare()"],
    # what module:ID is for: importing the module registers the id
    "envs/tmaze.py": ["gymnasium.register('TMaze-v0', f'{__name__}:TMaze', max_episode_steps=100)"],
}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_works_at_import_time(path):
    works = []
    for node in ast.parse(path.read_text()).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        script = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        if not (docstring or script or isinstance(node, DECLARATIONS)):
            works.append(ast.unparse(node))
    assert works == WORKS_AT_IMPORT.get(str(path.relative_to(PACKAGE)), [])


def test_the_package_only_sets_the_variables_that_are_not_set():
    code = (
        "import os, sys\n"
        "os.environ.pop('GLOG_v', None)\n"
        "os.environ['ONEDNN_MAX_CPU_ISA'] = 'AVX'\n"
        "before, modules = dict(os.environ), set(sys.modules)\n"
        "import impala_ms\n"
        "new = {k: v for k, v in os.environ.items() if before.get(k) != v}\n"
        "print(new, sorted(set(sys.modules) - modules), os.environ['ONEDNN_MAX_CPU_ISA'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "{'GLOG_v': '3'} ['impala_ms'] AVX", done.stderr
