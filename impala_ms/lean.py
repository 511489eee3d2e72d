"""Import MindSpore without the parts that a rank never uses: less memory, a faster start.

Input: names of modules. Output: MindSpore, with a stand-in where it imported one of them. A
stand-in imports the real module when something of it is used, so nothing is missing.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

# MindSpore's own data pipeline and profiler, and what metrics of image segmentation need:
# about 80 MB and a quarter of the time of ``import mindspore``.
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
    """In the place of a module, or of something in it, until it is used."""

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
        """While MindSpore is imported, another stand-in; later, the real attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        if StandIn._standing_in:
            return StandIn(f"{self.__name__}.{name}")
        return getattr(self._real(), name)

    def __call__(self, *args, **kwargs):
        """Later: the real call. While MindSpore is imported: a decorator that changes nothing."""
        if not StandIn._standing_in:
            return self._real()(*args, **kwargs)
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __mro_entries__(self, bases):
        """A class that derives from a stand-in derives from nothing."""
        return ()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for ``UNUSED`` and everything below."""

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
    """Within, what is in ``UNUSED`` and was not imported before is imported as a stand-in."""
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
    """Import MindSpore, or return it if it is there already.

    Returns:
        The module ``mindspore``.
    """
    if "mindspore" in sys.modules:
        return sys.modules["mindspore"]
    with _stand_ins():
        return importlib.import_module("mindspore")


def set_seed(seed):
    """``mindspore.set_seed`` for weights and operators; it would import the data pipeline."""
    with _stand_ins():
        import_mindspore().set_seed(seed)
