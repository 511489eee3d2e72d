"""Import MindSpore without parts that a rank never uses: less memory, a faster start.

Input: names of modules. Output: MindSpore, with a stand-in for each of these modules. A stand-in
imports the real module when it is used, so nothing is missing.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

# MindSpore's data pipeline and profiler, and the SciPy that its segmentation metrics need: about
# 80 MB and a quarter of the time of ``import mindspore``.
UNUSED = (
    "mindspore.dataset",
    "mindspore.mindrecord",
    "mindspore.profiler",
    "scipy.io",
    "scipy.linalg",
    "scipy.ndimage",
    "scipy.sparse",
)


class StandIn(types.ModuleType):
    """Stands in for a module, or for an attribute of it, until it is used."""

    __path__ = ()
    _standing_in = True

    def _real(self):
        """The module or object of this name."""
        try:
            return importlib.import_module(self.__name__)
        except ModuleNotFoundError:
            parent, _, name = self.__name__.rpartition(".")
            return getattr(StandIn(parent)._real(), name)

    def __getattr__(self, name):
        """During the import of MindSpore another stand-in, later the real attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        if StandIn._standing_in:
            return StandIn(f"{self.__name__}.{name}")
        return getattr(self._real(), name)

    def __call__(self, *args, **kwargs):
        """During the import of MindSpore a decorator without effect, later the real call."""
        if not StandIn._standing_in:
            return self._real()(*args, **kwargs)
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __mro_entries__(self, bases):
        """Leave a stand-in out of the base classes of a class."""
        return ()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for ``UNUSED`` and their submodules."""

    def find_spec(self, name, path, target=None):
        if any(name == unused or name.startswith(f"{unused}.") for unused in UNUSED):
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def _stand_ins():
    """Import stand-ins for ``UNUSED`` inside this context, except for modules already imported."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    StandIn._standing_in = True
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        StandIn._standing_in = False
        for name in [name for name, module in sys.modules.items() if type(module) is StandIn]:
            del sys.modules[name]


def import_mindspore():
    """Import MindSpore, or return it if it is already imported.

    Returns:
        The module ``mindspore``.
    """
    if "mindspore" in sys.modules:
        return sys.modules["mindspore"]
    with _stand_ins():
        return importlib.import_module("mindspore")


def set_seed(seed):
    """Call ``mindspore.set_seed`` with stand-ins: it would import the data pipeline."""
    with _stand_ins():
        import_mindspore().set_seed(seed)
