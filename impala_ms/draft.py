"""The values of a configuration while it is read: defaults, files, options, then the checks.

Input: an algorithm's ``config.py``, files and options. Output: the fields of a checked ``Config``,
or all problems, one line each.
"""

from __future__ import annotations

import copy
import importlib
import logging
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_ms.envs import ids
from impala_ms.errors import ConfigError, describe, text_of
from impala_ms.imports import import_file
from impala_ms.messages import count, nearest, show
from impala_ms.sections import SECTIONS, dicts, flatten, nest, section_of
from impala_ms.values import Key, Unfit
from impala_ms.yaml_text import parse_yaml

log = logging.getLogger(__name__)

PART_KEYS = {
    "number": Key("int | None", "", ">= 1", "how many; None: one per rank beside the learner"),
    "type": Key("class", "", "", "imported only by the ranks that need it"),
}


def import_defaults(algorithm: str) -> Any:
    """The algorithm's config module."""
    file = Path(__file__).parent / "algorithm" / algorithm / "config.py"
    if not file.is_file():
        there = sorted(other.parent.name for other in file.parents[1].glob("*/config.py"))
        raise ConfigError(f"unknown algorithm {algorithm!r}: allowed: {', '.join(there)}")
    try:
        return importlib.import_module(f"impala_ms.algorithm.{algorithm}.config")
    except BaseException as error:  # users edit this file
        raise ConfigError(f"{file}: {describe(error)}") from error


class Draft:
    """Values by path, where each came from, and the problems so far; begins with config.py."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.chosen: dict[str, str] = {}
        self.following: list[str] = []  # keys of eval_env that are as in collect_env
        self.resume: Path | None = None
        self.resumed: dict[str, Any] | None = None  # values of the run that is resumed
        self.run_files: list[str] = []  # config.json of runs: of another version, perhaps
        defaults = dict(vars(import_defaults(algorithm)))
        self.automatic: dict[str, dict[str, Any]] = {}
        self.parts: dict[str, dict[str, Any]] = defaults["algorithm_config"]
        self.sections = {name: section_of(part, defaults) for name, part in self.parts.items()}
        self.keys = {path: Key(*entry) for path, entry in flatten(defaults["schema"], {})}
        # Keys of one section only have an option of their own; eval_env has collect_env's keys.
        names = [path.split(".") for path in self.keys if not path.startswith("eval_env.")]
        keys = [key for _, key in names]
        self.named = {key: f"{head}.{key}" for head, key in names if keys.count(key) == 1}
        self.named["env"] = self.named.pop("id")
        for name, part in self.parts.items():
            for key in PART_KEYS:
                if key in part or key == "type":
                    self.keys[f"{name}.{key}"] = PART_KEYS[key]
        self.put_all(dicts(defaults), "config.py")
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
                value = parse_yaml(value)
            except ConfigError as error:
                self.problems.append(f"{path} = {value!r} ({origin}): {error}")
                return
        self.values[path] = nest(self.values.get(path), below, value)
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
                near = nearest(name, [*SECTIONS, "algorithm_config"])
                self.problems.append(f"unknown section {name} ({origin}): {near}")

    def put_run(self, given: Mapping[str, Any], chosen: Mapping[str, str], file: Path) -> None:
        """Take the configuration that a run wrote into a file, perhaps by another version."""
        self.run_files.append(str(file))
        names = (*SECTIONS, "algorithm_config")
        self.put_all({name: given[name] for name in names}, str(file))
        self.chosen = dict(chosen)

    def follow_again(self, following: Iterable[str]) -> None:
        """Let evaluation follow the collecting environment where it did in the run resumed."""
        for path in following:
            followed = path.replace("eval_env", "collect_env")
            if self.values.get(path) == self.values.get(followed):  # nobody has edited it
                self.values[path] = None

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
                self.put_all(dicts(vars(import_file(file.resolve()))), str(file))
            else:
                self.put_all(parse_yaml(file.read_text(encoding="utf-8")), str(file))
        except ConfigError as error:
            self.problems.append(f"--config {file}: {error}")
        except BaseException as error:  # a .py file is run and may raise anything
            self.problems.append(f"--config {file}: {describe(error)}")

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

    def finish(self, ranks: int | None) -> dict[str, Any]:
        """Check everything and give the fields of a ``Config``, or raise all problems."""
        self.choose(self.values.get("collect_env.id"))
        for path, key in self.keys.items():
            if path not in self.values:
                self.problems.append(f"{path} is missing in config.py: it takes {key.takes}")
                continue
            try:
                self.values[path] = key.convert(self.values[path])
            except (TypeError, ValueError, OverflowError, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else f"must be {key.takes}"
                why = str(error) if isinstance(error, Unfit) else why
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
            built[head if key_name in PART_KEYS else f"{head}_params"][key_name] = value
        for name, section in self.sections.items():
            built[name]["params"] = built.get(section or "")
        sections = {name: built.pop(name) for name in SECTIONS}
        resume = self.resume
        folder = Path(sections["trainer_params"]["run_dir"] or resume or "").absolute()
        forks = resume is not None and folder.resolve() != resume.resolve()
        return {
            "algorithm": self.algorithm,
            **sections,
            "algorithm_config": built,
            "actors": actors,
            "resume": None if resume is None else str(folder),
            "fork_of": str(resume) if forks else None,
            "chosen": {path: why for path, why in self.chosen.items() if path in self.values},
            "following": tuple(self.following),
        }

    def _check_kept(self) -> None:
        """Refuse to go on with a run by settings that its checkpoint does not fit."""
        for path, before in differing(self.resumed or {}, self.values):
            self.problems.append(
                f"{self._given(path)}: a run keeps its own, {show(before)}, when it is resumed; "
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
                f"start_standalone.sh was given {count(ranks or 0, 'rank')} = 1 learner +"
                f" {count(actors, 'actor')}{place}, but the config says {given('actor.number')}"
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
            problems.append(f"{given('trainer.min_actors')}: {there} {count(actors, 'actor')}")
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
                f" {count(actors, 'actor')}: batch_size a multiple of {actors * envs}, or N one of"
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
        automatic = f"None: {show(games.get(path))} for Atari games, else {show(others.get(path))}"
        parts = [self.keys[path].meaning, automatic if path in others else ""]
        return "; ".join(part for part in parts if part)

    def _option(self, name: str, allowed: Sequence[str]) -> str:
        """What may have been meant by an option that is none: the path of a key, or similar."""
        if name in self.keys:
            return f"did you mean {self.options().get(name, f'--set {name}=VALUE')}?"
        return nearest(name.rpartition(".")[2], allowed, "--")

    def _suggest(self, path: str) -> str:
        """What may have been meant: the same key elsewhere, or a similar one."""
        head, _, key = path.partition(".")
        same = [known for known in self.keys if known.endswith(f".{key or head}")]
        there = [known for known in self.keys if known.startswith(f"{head}.")]
        return f"did you mean {same[0]}?" if same else nearest(path, there or self.keys)


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


def _in_any_folder(value: Any) -> Any:
    """A reference to a file without its folder, which may have moved; other values as they are."""
    module, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{Path(module).name}:{name}" if module.endswith(".py") else value
