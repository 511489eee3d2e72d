"""Classes that a configuration names: ``"module:Class"`` or ``"file.py:Class"``.

Input: what the configuration says. Output: the class, or an error in one line.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impala_ms.errors import ConfigError
from impala_ms.imports import file_of, import_file, import_named


def reference(ref: Any) -> str:
    """``module:Class`` or ``/folder/file.py:Class`` of a class or function, for `resolve`."""
    if isinstance(ref, str):
        return ref
    name, module = getattr(ref, "__qualname__", "<>"), getattr(ref, "__module__", "")
    if "<" in name:
        raise TypeError(f"{ref!r} is not a class or function of a module")
    return f"{file_of(module) or module}:{name}"


def resolve(ref: Any) -> Any:
    """The class or function that a configuration names.

    Args:
        ref: The class itself, ``"module:Class"`` or ``"file.py:Class"``. A module in the
            current folder comes before others of its name.

    Raises:
        ConfigError: If there is no such module, file or class.
    """
    if not isinstance(ref, str):
        return ref
    module_name, _, name = ref.rpartition(":")
    if not module_name or not name:
        raise ConfigError(f"{ref!r} is not a class: it is given as module:Class or file.py:Class")
    try:
        if module_name.endswith(".py"):
            module = import_file(Path(module_name).resolve())
        else:
            module = import_named(module_name)
        return operator.attrgetter(name)(module)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(f"{ref!r} cannot be imported: {error}") from error


def check_arguments(
    what: str, made_by: str, type_: Callable[..., Any], /, *arguments: Any, **settings: Any
) -> None:
    """Refuse arguments that a class of the user's does not take.

    Args:
        what: The class and where it is named, for the message.
        made_by: How such a class is made, for the message.
        type_: The class.
        *arguments: Of its constructor.
        **settings: Of its constructor.

    Raises:
        ConfigError: If it cannot be called so.
    """
    try:
        inspect.signature(type_).bind(*arguments, **settings)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}; {made_by}") from error
