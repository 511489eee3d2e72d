"""Python files and modules of the user's own, named by their path or by their name.

Input: what the configuration says. Output: the module.
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

FILE_MODULE = "impala_ms_file_"  # begins the name of a file's module; its path follows in hex
_files: dict[str, str] = {}  # of modules that were asked for by their file: {name: file}
_folders: list[str] = []  # where the user's modules are looked for before anywhere else
_said: set[str] = set()


def import_file(file: Path) -> Any:
    """The module in a file, run once; its folder comes last among those it imports from.

    Pickle looks for a class by the name of its module. That is the file's own name if an import of
    it leads to this file; else a name that ``find_files`` makes known.

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
    """The module of a name that the user gave.

    His folders come first, but for this name alone: a ``random.py`` that lies there must not
    become Python's own for everybody else.

    Raises:
        ImportError: If it cannot be imported, or the name of its package is taken.
    """
    top = name.partition(".")[0]
    if top == __name__.partition(".")[0]:  # ours, whatever lies in the current folder
        return importlib.import_module(name)
    add_import_folder(Path.cwd())
    spec = PathFinder.find_spec(top, _folders)
    origin = spec and spec.origin  # None also of a folder without an __init__.py
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
    """The file of a module that was asked for by its file, from the module's name; else None."""
    if module.startswith(FILE_MODULE):
        return os.fsdecode(bytes.fromhex(module.removeprefix(FILE_MODULE)))
    return _files.get(module)


def add_import_folder(folder: Path) -> None:
    """Look for the user's modules in this folder too, after those that were added before.

    All others are looked for there after everywhere else.
    """
    if str(folder) not in _folders:
        _folders.append(str(folder))
    _search(folder)


def forget_script(script: str) -> None:
    """Import nothing from the folder of the script that this process runs.

    What lies there are scripts, not modules, but a user's module may have the name of one.
    """
    folder = Path(script).resolve().parent
    for entry in sys.path:
        if Path(entry).resolve() == folder:
            sys.path.remove(entry)  # the first is the one that Python has put there
            return


def find_files() -> None:
    """Let this process find the modules of files whose own name is taken."""
    if _FileFinder not in sys.meta_path:
        sys.meta_path.append(_FileFinder)


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()  # a file may be younger than the last look into its folder


def _leads_to(name: str, file: Path) -> bool:
    """Whether ``import name`` gives the module in ``file``."""
    if "." in name:  # the search would import what is before the dot
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
