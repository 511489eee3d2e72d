"""The algorithms that there are, and what the ``config.py`` of each says.

Input: the folders of ``impala_ms/algorithm``. Output: sections, parts and keys of an algorithm.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import impala_ms.algorithm
from impala_ms.classes import reference, resolve
from impala_ms.cluster.topology import Place, acting
from impala_ms.configuration.messages import closest
from impala_ms.configuration.sections import SECTIONS, Section, section_of
from impala_ms.configuration.values import Setting, Values
from impala_ms.errors import ConfigError, describe
from impala_ms.metrics.columns import Columns, together
from impala_ms.settings import PART

DEFAULT = "impala"
T = TypeVar("T")
NEEDED = (*SECTIONS, "algorithm_config", "wiring", "work", "automatic", "columns")
PARTS = (
    *("actor", "learner", "policy_and_network", "trainer", "session"),
    *("collect_environment", "eval_environment"),
)


class Algorithm:
    """What the ``config.py`` of an algorithm says.

    Attributes:
        name: Of its folder.
        module: Its ``config.py``.
        parts: ``algorithm_config``.
        sections: The name of the section that is the ``params`` of each part, by the part's name.
        keys: What is known of each key, by its path.
        options: The path of each key that has an option of its own, by the option's name.
    """

    def __init__(self, name: str) -> None:
        """Read its ``config.py``.

        Raises:
            ConfigError: If there is none, or it cannot be used.
        """
        self.name, self.module = name, module_of(name)
        defined = vars(self.module)
        if missing := [key for key in NEEDED if key not in defined]:
            raise ConfigError(f"config.py of {name} lacks {', '.join(missing)}")
        self.parts: Mapping[str, Mapping[str, Any]] = defined["algorithm_config"]
        if missing := [part for part in PARTS if part not in self.parts]:
            raise ConfigError(f"algorithm_config of {name} lacks {', '.join(missing)}")
        self.sections = {part: section_of(values, defined) for part, values in self.parts.items()}
        self.keys = dict(_keys(defined, self.parts))
        self.options = _options(self.keys)

    def places(self, ranks: int, values: Mapping[str, Any] | None = None) -> list[Place]:
        """What each rank is.

        Args:
            ranks: N.
            values: By path; the wiring gets those that ``wired_by`` of config.py names.

        Raises:
            ValueError: If there are too few.
            ConfigError: If the wiring cannot be used.
        """
        try:
            wired_by = getattr(self.module, "wired_by", ())
            there = values if values and all(path in values for path in wired_by) else {}
            numbers = [there[path] for path in wired_by if there]
            places = list(resolve(self.module.wiring)(ranks, *numbers))
            serves = {(hub, spoke) for hub, place in enumerate(places) for spoke in place.hub_of}
            served = {(hub, spoke) for spoke, place in enumerate(places) for hub in place.spoke_of}
        except ValueError:  # by the wiring itself, or there is no such function
            raise
        except Exception as error:  # users write wirings
            raise ConfigError(f"the wiring of {self.name}: {describe(error)}") from error
        if len(places) != max(ranks, 2) or serves != served or not places[0].hub_of:
            raise ConfigError(
                f"the wiring of {self.name} does not fit N = {ranks}: it gives a Place for each "
                "rank (two for N = 1), rank 0 has hub_of, and a rank in a hub_of has that hub in "
                "its spoke_of"
            )
        return places

    def places_for(self, actors: int, values: Mapping[str, Any] | None = None) -> list[Place]:
        """The places of the fewest ranks among which so many act; empty if there are no such."""
        for ranks in range(1, actors + 1000):
            with contextlib.suppress(ValueError):
                if acting(places := self.places(ranks, values)) >= actors:
                    return places
        return []

    def check(self, values: Values) -> list[str]:
        """What does not fit together, one line each: ``check`` of config.py."""
        return self._call("check", _lines, values)

    def derive(self, values: Values) -> dict[str, Any]:
        """Values of keys that are None and follow from others: ``derive`` of config.py."""
        return self._call("derive", dict, values, values.places)

    def sizes(self, values: Values) -> list[str]:
        """Lines for the start about what follows from the values: ``sizes`` of config.py."""
        return self._call("sizes", _lines, values)

    def _call(self, name: str, as_: Callable[[Any], T], *arguments: Any) -> T:
        """What a function of config.py returns; users edit that file."""
        try:
            return as_(getattr(self.module, name, _nothing)(*arguments))
        except Exception as error:
            raise ConfigError(f"{name} in config.py of {self.name}: {describe(error)}") from error

    def examples(self) -> Path:
        """The folder of its ready settings, which need not be there."""
        return Path(__file__).parents[2] / "example" / self.name

    def option_of(self, path: str) -> str:
        """How a key is given on the command line: ``--lr``, ``--set eval_env.id=VALUE``."""
        named = [name for name, other in self.options.items() if other == path]
        return f"--{named[0]}" if named else f"--set {path}=VALUE"

    def default_type(self, part: str) -> Any:
        """The class of a part, as config.py names it."""
        return self.parts.get(part, {}).get("type")

    def saved_type(self, part: str, type_: Any) -> str | None:
        """How a run saves the class of a part: as None where config.py names it and it is ours.

        Our own classes may move; a run that is read later takes those that config.py names then.
        """
        saved, default = reference(type_), self.default_type(part)
        ours = saved.startswith("impala_ms.") and default is not None
        return None if ours and reference(default) == saved else saved


def names() -> list[str]:
    """Every folder of ``impala_ms/algorithm`` with a ``config.py``."""
    folders = map(Path, impala_ms.algorithm.__path__)
    return sorted(file.parent.name for folder in folders for file in folder.glob("*/config.py"))


def module_of(name: str) -> Any:
    """The ``config.py`` of an algorithm, imported.

    Raises:
        ConfigError: If there is no such algorithm, or its config.py fails.
    """
    if name not in names():
        near = _also(name.lower()) or closest(name.lower(), names())
        meant = f"did you mean {near}? " if near else ""
        raise ConfigError(f"unknown algorithm {name!r}: {meant}allowed: {', '.join(names())}")
    try:
        return importlib.import_module(f"impala_ms.algorithm.{name}.config")
    except BaseException as error:  # users edit this file
        raise ConfigError(f"config.py of {name}: {describe(error)}") from error


def _also(name: str) -> str:
    """How a system is started that is an algorithm with other settings: ``also`` of config.py."""
    for other in names():
        with contextlib.suppress(ConfigError):
            if found := dict(getattr(module_of(other), "also", ())).get(name):
                return str(found)
    return ""


def others_with(name: str, key: str) -> list[str]:
    """The other algorithms that have a key of this path, or an option of this name."""
    found = []
    for other in names():
        with contextlib.suppress(ConfigError):
            if other != name and key in ((read := Algorithm(other)).keys | read.options):
                found.append(other)
    return found


def _nothing(*_: Any) -> Any:
    return ()


def _lines(found: Any) -> list[str]:
    return [found] if isinstance(found, str) else list(found)


def _keys(
    defined: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Setting]]:
    """Path and setting of everything that can be set."""
    for name in SECTIONS:
        section = defined[name]
        if not isinstance(section, Section):
            raise ConfigError(f"config.py: {name} must be made by settings.section(...)")
        for key, setting in section.settings.items():
            yield f"{name.removesuffix('_params')}.{key}", setting
    for name, part in parts.items():
        for key, setting in PART.items():
            if key in part or key == "type":
                yield f"{name}.{key}", setting


def _options(keys: Mapping[str, Setting]) -> dict[str, str]:
    """The keys that only one section has; eval_env has the same keys as collect_env."""
    split = [path.split(".") for path in keys if not path.startswith("eval_env.")]
    settings = [(head, key) for head, key in split if key not in PART]
    sections = [(head, key) for head, key in settings if f"{head}_params" in SECTIONS]
    names = [key for _, key in sections]
    options = {key: f"{head}.{key}" for head, key in sections if names.count(key) == 1}
    return {"env" if key == "id" else key: path for key, path in options.items()}


def columns(*chosen: str) -> Columns:
    """The columns of ``metrics.csv`` of these algorithms, or of all."""
    found = []
    for name in chosen or names():
        try:
            found.append(module_of(name).columns)
        except (ConfigError, AttributeError):  # of a folder that nobody has asked for
            if chosen:
                raise
    return together(*found)
