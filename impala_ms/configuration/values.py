"""What a setting takes: its type, its bounds, and the conversion of what was given.

Input: a value from Python, YAML or the command line. Output: the value in the setting's type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_ms.classes import reference
from impala_ms.cluster.topology import Place, acting
from impala_ms.errors import text_of


class Setting(NamedTuple):
    """What is known of one key.

    A meaning is a whole sentence; it may go on with what None and each choice stand for.
    """

    default: Any
    # bool, int, float, str, dict, class, path, reference (perhaps file.py:NAME), "list of <type>";
    # also with " | None"
    type: str
    unit: str
    allowed: list[str] | str  # choices, a bound such as ">= 1", an interval such as "(0, 1]", ""
    meaning: str

    @property
    def takes(self) -> str:
        """The allowed values in words."""
        type_, _, optional = self.type.partition(" | ")
        type_ = "str" if type_ in ("reference", "path") else type_
        type_ = "true or false" if type_ == "bool" else type_
        words = f"{type_} {'in ' * str(self.allowed).startswith(('[', '('))}{self.allowed}".rstrip()
        if type_ == "class":
            words = "a class, module:Class or file.py:Class"
        elif isinstance(self.allowed, list):
            words = f"one of {', '.join(self.allowed)}"
        return words + " or None" * bool(optional)

    def convert(self, value: Any) -> Any:
        """The value in the key's type, or an exception if it is not allowed."""
        type_, _, optional = self.type.partition(" | ")
        chosen = isinstance(self.allowed, list) and value in self.allowed  # it may be named "none"
        if optional and not chosen and (value is None or value in ("None", "none", "null")):
            return None
        item_type = type_.removeprefix("list of ")
        if item_type == type_:
            return self._within(_convert(value, type_))
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is not a list")
        return [self._within(_convert(item, item_type)) for item in value]

    def _within(self, value: Any) -> Any:
        """The value, if it is among the allowed ones."""
        if isinstance(self.allowed, list):
            within = value in self.allowed
        elif self.allowed.startswith(("[", "(")):
            low, high = (float(limit) for limit in self.allowed[1:-1].split(","))
            at_low, at_high = self.allowed.startswith("["), self.allowed.endswith("]")
            within = low < value < high or (value == low and at_low) or (value == high and at_high)
        elif self.allowed:
            relation, limit = self.allowed.split()
            within = value > float(limit) or (relation == ">=" and value == float(limit))
        else:
            within = True
        if not within:
            raise ValueError(f"{value!r} is not {self.takes}")
        return value


def _convert(value: Any, type_: str) -> Any:
    """The value in the type, if it is of that type, or a text or number that says the same."""
    if type_ == "bool" and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if type_ in ("int", "float") and not isinstance(value, bool):
        if isinstance(value, str):
            value = int(value) if re.fullmatch(r"[-+]?[\d_]+", value) else float(value)
        if math.isfinite(value) and (type_ == "float" or value == int(value)):  # 1e6 is an int
            return float(value) if type_ == "float" else int(value)
    if type_ == "path" and isinstance(value, str) and value:
        return str(Path(value).absolute())
    if type_ in ("str", "reference") and isinstance(value, str) and value:
        return _from_anywhere(value) if type_ == "reference" else value
    if type_ == "dict" and isinstance(value, Mapping):
        return _plain(value)
    if type_ == "class":
        module, _, name = reference(value).rpartition(":")
        if module and name:
            return _from_anywhere(value) if isinstance(value, str) else value
    raise TypeError(f"{value!r} is not {type_}")


def _from_anywhere(value: str) -> str:
    """The same with the path of a file in full, so that it is found from any folder."""
    module, _, name = value.rpartition(":")
    return f"{Path(module).resolve(strict=True)}:{name}" if module.endswith(".py") else value


def _plain(value: Any) -> Any:
    """The value as JSON will give it back to the ranks.

    Raises:
        TypeError: If JSON has nothing for it.
    """
    value = value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        wrong = [key for key in value if not (isinstance(key, str) and key)]
        if wrong:
            raise Unfit(f"must be a dict whose keys are texts, not {text_of(wrong[0], repr)}")
        return {key: _plain(item) for key, item in value.items()}
    raise Unfit(
        f"{text_of(value, repr)} in it is of the type {type(value).__name__}: it may hold texts, "
        "finite numbers, true, false, null, lists and dicts"
    )


class Unfit(TypeError):
    """Its text says what is wrong with a value."""


class Values(dict[str, Any]):
    """All values by path, as the ``check`` of an algorithm gets them.

    A value that is wrong in itself is missing.

    Attributes:
        origins: Where each value was given, by path.
        places: What each rank is.
    """

    def __init__(self, values: Mapping[str, Any] = {}, places: Sequence[Place] = ()) -> None:
        """Begin with these."""
        super().__init__(values)
        self.origins: dict[str, str] = {}
        self.places = list(places)

    @property
    def actors(self) -> int:
        """How many ranks play in environments."""
        return max(acting(self.places), 1)

    def given(self, path: str) -> str:
        """How a message shows a value: ``learner.lr = '0' (--lr)``."""
        return f"{path} = {text_of(self[path], repr)} ({self.origins.get(path, 'config.py')})"
