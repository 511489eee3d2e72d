"""Import the user's own Python files and modules, by path or by name.

Input: a path or a name from the configuration. Output: the module.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

FILE_MODULE = "impala_ms_file_"  # prefix of a module's name; the path of its file follows in hex
_files: dict[str, str] = {}  # {name: file} of modules that were imported by path
_folders: list[str] = []  # the folders that are searched first for the user's modules
_said: set[str] = set()  # names of modules whose files are in the log


def import_file(file: Path) -> Any:
    """Import the module in a file, once; its folder is added at the end of the search path.

    Pickle finds a class by the name of its module. The name is that of the file, if importing that
    name gives this file; otherwise a name that ``find_files`` can resolve.

    Args:
        file: Absolute and resolved.
    """
    if not file.is_file():
        raise FileNotFoundError(f"No such file: {file}")
    _search(file.parent)
    name = file.stem
    if not _leads_to(name, file):
        name = f"{FILE_MODULE}{os.fsencode(file).hex()}"
        find_files()
    module = importlib.import_module(name)
    _files[name] = str(file)
    return module


def import_named(name: str) -> Any:
    """Import a module by the name that the user gave.

    The user's folders are searched first, but only for this name: a ``random.py`` in them must not
    replace Python's ``random`` for other code.

    Raises:
        ImportError: If it cannot be imported, or the name of its package is taken.
    """
    top = name.partition(".")[0]
    if top == __name__.partition(".")[0]:  # our own package, whatever the current folder holds
        return importlib.import_module(name)
    add_import_folder(Path.cwd())
    spec = PathFinder.find_spec(top, _folders)
    origin = spec and spec.origin  # also None for a folder without an __init__.py
    file = Path(origin).resolve() if origin else None
    if not spec or file is None or _leads_to(top, file):
        module = importlib.import_module(name)
    elif not spec.submodule_search_locations:
        module = import_file(file)
    elif top in sys.modules:
        used = getattr(sys.modules[top], "__file__", None)
        raise ImportError(f"{file.parent} has the name of a package in use, {used}: rename it")
    else:
        sys.path.insert(0, str(file.parents[1]))
        try:
            module = importlib.import_module(name)
        finally:
            sys.path.remove(str(file.parents[1]))
    if name not in _said:
        _said.add(name)
        _log.info("the module %s is that in %s", name, getattr(module, "__file__", None))
    return module


def file_of(module: str) -> str | None:
    """The file of a module that was imported by path, from its name; None for other modules."""
    if module.startswith(FILE_MODULE):
        return os.fsdecode(bytes.fromhex(module.removeprefix(FILE_MODULE)))
    return _files.get(module)


def add_import_folder(folder: Path) -> None:
    """Search this folder for the user's modules too, after folders that were added before.

    For other modules it is searched last.
    """
    if str(folder) not in _folders:
        _folders.append(str(folder))
    _search(folder)


def forget_script(script: str) -> None:
    """Remove the folder of the script that this process runs from the search path.

    It holds scripts, not modules, and a user's module may have the name of a script.
    """
    folder = Path(script).resolve().parent
    for entry in sys.path:
        if Path(entry).resolve() == folder:
            sys.path.remove(entry)  # only the first, which Python has added
            return


def find_files() -> None:
    """Let this process find modules of files by the names that ``import_file`` gives them."""
    if _FileFinder not in sys.meta_path:
        sys.meta_path.append(_FileFinder)


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()  # a file may be newer than the cache of its folder


def _leads_to(name: str, file: Path) -> bool:
    """Whether ``import name`` gives the module in ``file``."""
    if "." in name:  # find_spec would import the part before the dot
        return False
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a spec, such as __main__
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file


class _FileFinder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        file = file_of(name) if name.startswith(FILE_MODULE) and "." not in name else None
        return spec_from_file_location(name, file) if file else None
