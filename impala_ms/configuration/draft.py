"""The values of a configuration while it is read: defaults, files, options, then the checks.

Input: an algorithm's ``config.py``, files and options. Output: the fields of a checked ``Config``,
or all problems, one line each.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_ms.cluster.topology import Place, acting, roles
from impala_ms.configuration import algorithms
from impala_ms.configuration.algorithms import Algorithm
from impala_ms.configuration.command_line import Option
from impala_ms.configuration.messages import closest, count, nearest, ranks_in_words, show
from impala_ms.configuration.sections import SECTIONS, dicts, nest
from impala_ms.configuration.values import Unfit, Values
from impala_ms.configuration.yaml_text import parse_yaml
from impala_ms.envs import ids
from impala_ms.errors import ConfigError, describe
from impala_ms.imports import import_file
from impala_ms.settings import PART

log = logging.getLogger(__name__)

COMMANDS = ("algorithm", "config", "set", "resume", "help")  # options that are not settings


class Draft:
    """Values by path, where each came from, and the problems so far; begins with config.py."""

    def __init__(self, algorithm: str) -> None:
        """Begin with the defaults of an algorithm."""
        self.algorithm = Algorithm(algorithm)
        self.keys = self.algorithm.keys
        self.problems: list[str] = []
        self.values = Values()
        self.chosen: dict[str, str] = {}
        self.following: list[str] = []  # keys of eval_env that are as in collect_env
        self.resume: Path | None = None
        self.resumed: dict[str, Any] | None = None  # values of the run that is resumed
        self.run_files: list[str] = []  # config.json of runs: of another version, perhaps
        self.automatic: dict[str, dict[str, Any]] = {}
        self.put_all(dicts(vars(self.algorithm.module)), "config.py")
        self.default_id = self.values.get("collect_env.id")

    def put(self, path: str, value: Any, origin: str) -> None:
        """Take a value; a path may go on below a dict, as in ``collect_env.kwargs.size``."""
        head, key, *below = path.split(".") if "." in path else (path, "")
        if key == "params" and below:
            head, key, *below = self.algorithm.sections.get(head) or head, *below
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
                value = parse_yaml(value)
            except ConfigError as error:
                self.problems.append(f"{path} = {value!r} ({origin}): {error}")
                return
        self.values[path] = nest(self.values.get(path), below, value)
        self.values.origins[path] = origin
        self.chosen.pop(path, None)

    def put_all(self, given: Any, origin: str) -> None:
        """Take sections, by their name with or without ``_params``, and ``algorithm_config``."""
        for name, entries in self._entries("the file", given, origin):
            if name == "algorithm_config":
                for part, values in self._entries(name, entries, origin):
                    self._put_part(part, values, origin)
            elif name == "automatic":
                for kind, values in self._entries(name, entries, origin):
                    self.automatic[kind] = self.automatic.get(kind, {}) | values
            elif f"{name.removesuffix('_params')}_params" in SECTIONS:
                for key, value in self._entries(name, entries, origin):
                    self.put(f"{name}.{key}", value, origin)
            else:
                near = nearest(name, [*SECTIONS, "algorithm_config"])
                self.problems.append(f"unknown section {name} ({origin}): {near}")

    def _put_part(self, part: str, values: Any, origin: str) -> None:
        """Take a part of ``algorithm_config``; its params are those of its section."""
        section = self.algorithm.sections.get(part)
        for key, value in self._entries(f"algorithm_config.{part}", values, origin):
            if key != "params":
                self.put(f"{part}.{key}", value, origin)
            elif section is not None:
                self.put_all({section: value}, origin)
            elif value is not None:
                where = f"algorithm_config.{part}.params ({origin})"
                self.problems.append(f"{where}: must be one of {', '.join(SECTIONS)}")

    def put_run(self, values: Mapping[str, Any], chosen: Mapping[str, str], file: Path) -> None:
        """Take the values that a run wrote into a file, perhaps by another version."""
        self.run_files.append(str(file))
        for path, value in values.items():
            self.put(path, value, str(file))
        self.chosen = dict(chosen)

    def follow_again(self, following: Iterable[str]) -> None:
        """Let evaluation follow the collecting environment where it did in the run resumed."""
        for path in following:
            followed = path.replace("eval_env", "collect_env")
            if self.values.get(path) == self.values.get(followed):  # nobody has edited it
                self.values[path] = None

    def derive_again(self, places: Sequence[Place]) -> None:
        """Let values follow from others and the ranks where they did so in the run resumed."""
        defaults = Draft(self.algorithm.name).values
        unknown = {path: None for path, value in defaults.items() if value is None}
        derived = self.algorithm.derive(Values(self.values | unknown, places))
        for path in unknown.keys() & derived.keys():
            if self.values.get(path) == derived[path]:
                self.values[path] = None

    def _entries(self, name: str, entries: Any, origin: str) -> Iterable[tuple[str, Any]]:
        if isinstance(entries, Mapping):
            return [(str(key), value) for key, value in entries.items()]
        if entries is not None:
            self.problems.append(f"{name} = {entries!r} ({origin}): must map keys to values")
        return []

    def known_options(self, options: Sequence[Option]) -> dict[str, list[str]]:
        """The values given to each option, ``{name: values}``."""
        allowed = [*COMMANDS, *self.algorithm.options]
        known: dict[str, list[str]] = {}
        for word, name, value in options:
            if not name:
                self.problems.append(f"unexpected {word}: options are given as --name VALUE")
            elif name not in allowed:
                self.problems.append(f"unknown option {word}: {self._option(name, allowed)}")
            elif value is None:
                self.problems.append(f"{word} needs a value: {word} VALUE or {word}=VALUE")
            else:
                known.setdefault(name, []).append(value)
        return known

    def read_file(self, file: Path) -> None:
        """Take a file: YAML, or Python that holds dicts named as in config.py."""
        examples = self.algorithm.examples()
        if not file.is_file() and (examples / file).is_file():
            file = examples / file
        if not file.is_file() or file.suffix not in (".yaml", ".yml", ".py"):
            wrong = "must be .yaml or .py"
            if file.exists() and not file.is_file():
                wrong = "is not a file"
            elif not file.is_file():
                also = f", neither in {Path.cwd()} nor in {examples}" if examples.is_dir() else ""
                wrong = f"there is no such file{also}{_whose(file, self.algorithm)}"
            self.problems.append(f"--config {file}: {wrong}")
            return
        try:
            if file.suffix == ".py":
                self.put_all(dicts(vars(import_file(file.resolve()))), str(file))
            else:
                self.put_all(parse_yaml(file.read_text(encoding="utf-8")), str(file))
        except ConfigError as error:
            self.problems.append(f"--config {file}: {error}")
        except BaseException as error:  # a .py file is run and may raise anything
            self.problems.append(f"--config {file}: {describe(error)}")

    def of_others(self, files: Sequence[str]) -> list[str]:
        """Refuse ready settings of another algorithm, where nobody has said which is meant."""
        examples, here, problems = self.algorithm.examples().parent, self.algorithm.name, []
        for file in files:
            folder = Path(file).resolve().parent
            if folder.parent == examples.resolve() and folder.name != here:
                problems.append(
                    f"--config {file}: is a ready setting of {folder.name}: add --algorithm "
                    f"{folder.name}, or --algorithm {here} if that is meant"
                )
        return problems

    def fill_eval_env(self) -> None:
        """Give the evaluation environment what it is to take from the collecting one."""
        for path, value in self.values.items():
            if path.startswith("eval_env.") and value is None:
                self.following.append(path)
                follows = self.values.get(path.replace("eval_env", "collect_env"))
                self.values[path] = copy.deepcopy(follows)

    def derive(self) -> None:
        """Give a value to what is None and follows from other values and the ranks."""
        for path, value in self.algorithm.derive(self.values).items():
            if self.values.get(path) is None:
                self.values[path] = value

    def choose(self, id: Any) -> None:
        """Give a value to what is still None and depends on the kind of environment."""
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
                self.values.origins[path] = "automatic"
                if kind == ids.ATARI:
                    self.chosen[path] = f"{id} is an Atari game"
                elif id != self.default_id:
                    self.chosen[path] = f"{id} has no defaults of its own"
        needed = {path for values in self.automatic.values() for path in values}
        for path in sorted(needed - {"network.torso"}):  # the observations decide it later
            if self.values.get(path, "") is None:
                self.problems.append(f"{path} is None, and automatic has no value for it ({kind})")

    def finish(self, ranks: int | None) -> dict[str, Any]:
        """Check everything and give the fields of a ``Config``, or raise all problems."""
        self.choose(self.values.get("collect_env.id"))
        self._convert()
        self.fill_eval_env()
        self._place(ranks)
        try:
            self.derive()
            self.problems += self.algorithm.check(self.values)
        except ConfigError as error:  # perhaps for want of a value that is wrong in itself
            self.problems = self.problems or list(error.problems)
        self._check_source(ranks)
        self._check_kept()
        if self.problems:
            raise ConfigError(*dict.fromkeys(self.problems))  # a part repeats those of its section
        return self._fields(ranks)

    def _convert(self) -> None:
        """Give every value its type; those that cannot have it are problems, and removed."""
        for path, key in self.keys.items():
            if path not in self.values:
                self.problems.append(f"{path} is missing in config.py: it takes {key.takes}")
                continue
            try:
                self.values[path] = key.convert(self.values[path])
            except (TypeError, ValueError, OverflowError, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else f"must be {key.takes}"
                why = str(error) if isinstance(error, Unfit) else why
                self.problems.append(f"{self.values.given(path)}: {why}")
                del self.values[path]  # so that no other check reports it too

    def _fields(self, ranks: int | None) -> dict[str, Any]:
        """The fields of a ``Config``; the params of each part are one of the sections."""
        parts = self.algorithm.parts
        built: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, *parts)}
        for path, value in self.values.items():
            head, key = path.split(".")
            built[head if key in PART else f"{head}_params"][key] = value
        for name, section in self.algorithm.sections.items():
            built[name]["params"] = built.get(section or "")
        sections = {name: built.pop(name) for name in SECTIONS}
        resume = self.resume
        folder = Path(sections["trainer_params"]["run_dir"] or resume or "").absolute()
        forks = resume is not None and folder.resolve() != resume.resolve()
        return {
            "algorithm": self.algorithm.name,
            **sections,
            "algorithm_config": built,
            "actors": self.values.actors,
            "ranks": ranks or max(len(self.values.places), 1),
            "resume": None if resume is None else str(folder),
            "fork_of": str(resume) if forks else None,
            "chosen": {path: why for path, why in self.chosen.items() if path in self.values},
            "following": tuple(self.following),
        }

    def _check_kept(self) -> None:
        """Refuse to go on with a run by settings that its checkpoint does not fit."""
        for path, before in differing(self.resumed or {}, self.values):
            self.problems.append(
                f"{self.values.given(path)}: a run keeps its own, {show(before)}, when it is "
                "resumed; --init_from begins a new run with its weights, if the network is the same"
            )

    def _place(self, ranks: int | None) -> None:
        """Find out what each rank is, from the wiring and N."""
        number = self.values.get("actor.number")
        if ranks is None:
            self.values.places = self.algorithm.places_for(number or 1, self.values)
            return
        if ranks < 1:
            self.problems.append(f"N = {ranks}: must be 1 or more")
            return
        try:
            self.values.places = self.algorithm.places(ranks, self.values)
        except ValueError as error:
            self.problems.append(f"{self.algorithm.name} with N = {ranks}: {error}")
            return
        self._check_places(ranks, number)

    def _check_places(self, ranks: int, number: int | None) -> None:
        """Refuse settings that do not fit what the ranks are."""
        get, given, problems = self.values.get, self.values.given, self.problems
        there = roles(self.values.places)
        actors = acting(self.values.places)
        if number not in (None, actors):
            problems.append(
                f"{given('actor.number')}: {count(ranks, 'rank')} = {ranks_in_words(there)}; give "
                "another N, or None"
            )
        if ranks == 1 and get("learner.device") not in ("auto", "CPU", None):
            problems.append(
                f"{given('learner.device')}: with N = 1 {' and '.join(there)} are one process,"
                " which computes on the CPU: give N = 2 or more"
            )
        if get("trainer.min_actors", 1) > actors:
            are = "there is" if actors == 1 else "there are"
            problems.append(f"{given('trainer.min_actors')}: {are} {count(actors, 'actor')}")

    def _check_source(self, ranks: int | None) -> None:
        """Whether there are the weights to begin with; not for a run that has begun."""
        source = self.values.get("trainer.init_from")
        origin = self.values.origins.get("trainer.init_from")
        if not source or origin in self.run_files or ranks is None:
            return
        given = self.values.given("trainer.init_from")
        if self.resume is not None:
            self.problems.append(
                f"{given}: --resume goes on with a run's own weights: leave one out"
            )
        elif not Path(source).exists():
            self.problems.append(f"{given}: there is no such checkpoint or run folder")
        elif Path(source).is_dir() and not any(Path(source, "checkpoints").glob("update_*.ckpt")):
            self.problems.append(f"{given}: the folder holds no checkpoint of a run")

    def _option(self, name: str, allowed: Sequence[str]) -> str:
        """What may have been meant by an unknown option: the path of a key, or a similar name."""
        if name in self.keys:
            return f"did you mean {self.algorithm.option_of(name)}?"
        if others := algorithms.others_with(self.algorithm.name, name):
            return self._belongs_to(others)
        name = "env" if name == "id" else name.rpartition(".")[2]
        near = closest(name, allowed)
        return f"did you mean --{near}?" if near else "--help all lists all"

    def _suggest(self, path: str) -> str:
        """What may have been meant: the same key elsewhere, or a similar one."""
        head, dot, key = path.partition(".")
        if dot and (others := algorithms.others_with(self.algorithm.name, path)):
            return self._belongs_to(others)
        same = [known for known in self.keys if known.endswith(f".{key or head}")]
        there = [known for known in self.keys if known.startswith(f"{head}.")]
        return f"did you mean {same[0]}?" if same else nearest(path, there or self.keys)

    def _belongs_to(self, others: Sequence[str]) -> str:
        return f"a setting of {' and '.join(others)}, not of {self.algorithm.name}"


# What a run that goes on cannot change: its checkpoint would not fit, or mean something else.
_KEPT_BY_A_RUN = re.compile(
    r"learner\.optimizer|network\.(?!options$)\w+|collect_env\.(frame_stack|scale_actions)"
)


def differing(before: Mapping[str, Any], values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Path and value of each key that a checkpoint of a run depends on, and that differs now."""
    return [
        (path, before[path])
        for path, value in values.items()
        if _KEPT_BY_A_RUN.fullmatch(path)
        and before.get(path) is not None  # it depends on the environment, and was not known yet
        and value is not None
        and _in_any_folder(before[path]) != _in_any_folder(value)
    ]


def _whose(file: Path, algorithm: Algorithm) -> str:
    """The other algorithms that have a ready setting of that name, as the end of a message."""
    folder = algorithm.examples().parent
    owners = [name for name in algorithms.names() if (folder / name / file).is_file()]
    return f"; {file} is a ready setting of {' and '.join(owners)}" if owners else ""


def _in_any_folder(value: Any) -> Any:
    """A reference to a file without its folder, which may have moved; other values as they are."""
    module, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{Path(module).name}:{name}" if module.endswith(".py") else value
