"""Python files of the user's own, named by their path.

Input: a file. Output: its module.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

FILE_MODULE = "impala_ms_file:"  # begins the name, in sys.modules, of such a module


def import_file(file: Path) -> Any:
    """The module in a file, run once; its folder comes last among those it imports from."""
    name = f"{FILE_MODULE}{file}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a Python file")
        add_import_folder(file.parent)
        sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def add_import_folder(folder: Path) -> None:
    """Import from this folder too, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
