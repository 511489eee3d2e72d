"""A run's configuration: read, override, check, describe.

Input: an algorithm's ``config.py`` and the command line, or the ``config.json`` of a run. Output: a
checked ``Config``, from which `impala_ms.run_dir` makes the ``config.json`` that every rank reads.

A value is addressed by its path: ``learner.lr`` is ``lr`` of ``learner_params`` (a section),
``actor.number`` is ``number`` of ``actor`` in ``algorithm_config`` (a part). Later wins:
config.py, ``--config FILE``, ``--set path=value``, ``--key value``. What is None after that, and
stands in ``automatic`` of config.py, is chosen by the kind of environment.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from impala_ms.cluster.topology import Place, roles
from impala_ms.configuration.algorithms import DEFAULT, Algorithm
from impala_ms.configuration.command_line import last, read_options
from impala_ms.configuration.draft import Draft, differing
from impala_ms.configuration.formats import FORMAT, in_this_format
from impala_ms.configuration.help_text import help_text
from impala_ms.configuration.messages import count, ranks_in_words, show
from impala_ms.configuration.sections import flatten, section_of
from impala_ms.configuration.values import Values
from impala_ms.envs import ids
from impala_ms.errors import ConfigError
from impala_ms.imports import add_import_folder


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
    actors: int  # ranks that act
    ranks: int  # N, as it was given, or the fewest that give so many actors
    resume: str | None = None
    fork_of: str | None = None  # the run whose checkpoints are copied, to go on with the copy
    epoch: int = 0  # how often the run was resumed; the seeds depend on it
    chosen: dict[str, str] = field(default_factory=dict)  # why a value that was None is as it is
    following: tuple[str, ...] = ()  # keys of eval_env that were None: they follow collect_env
    folders: tuple[str, ...] = ()  # where the commands were given: modules are looked for there

    @property
    def unrolls_per_batch(self) -> int:
        """S, the number of unrolls, of ``num_envs`` environments each, in one batch."""
        return int(self.trainer_params["batch_size"] // self.collect_env_params["num_envs"])

    @property
    def places(self) -> list[Place]:
        """What each rank is, by the wiring of the algorithm."""
        return Algorithm(self.algorithm).places(self.ranks, self.values())

    def values(self) -> dict[str, Any]:
        """All values by path."""
        return dict(flatten(self.__dict__, self.algorithm_config))

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain JSON, for `from_json`; classes become references."""
        algorithm = Algorithm(self.algorithm)
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["algorithm_config"] = {
            # The values stand once, in their section; the part only names it.
            name: {
                **part,
                "type": algorithm.saved_type(name, part["type"]),
                "params": section_of(part, data),
            }
            for name, part in self.algorithm_config.items()
        }
        return copy.deepcopy({"format": FORMAT} | data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        """The configuration that `to_json` gave; it is not checked again."""
        fields = in_this_format(copy.deepcopy(dict(data)))
        algorithm = Algorithm(fields["algorithm"])
        for name, part in fields["algorithm_config"].items():
            part["params"] = fields.get(part["params"])
            if part["type"] is None:
                part["type"] = algorithm.default_type(name)
        return cls(**fields)

    @classmethod
    def read(cls, file: Path, *others: Path) -> Config:
        """The configuration that a run wrote, from the first of these files that exists.

        Raises:
            ConfigError: If it cannot be read, or is not what a run writes.
        """
        try:
            config = cls.from_json(json.loads(file.read_text(encoding="utf-8")))
            if type(config.epoch) is not int or config.epoch < 0:
                raise ValueError(f"epoch is {config.epoch!r}")
            config.to_json()  # raises where a class is not a class
            config.values()  # raises where a section is not a dict
            return config
        except OSError as error:
            if others and isinstance(error, FileNotFoundError):
                return cls.read(*others)
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        except ConfigError as error:  # there is no such algorithm
            raise ConfigError(f"{file}: {error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{file} cannot be read, it is not as a run wrote it: {what}"
            ) from error

    def describe(self) -> str:
        """All values, those that differ from config.py marked ``*``, and the derived sizes."""
        draft = self._defaults()
        lines = [f"{self.algorithm}: {self._roles()}"]
        for path, value in self.values().items():
            default = draft.values.get(path)
            unit = draft.keys[path].unit if path in draft.keys else ""
            note = "" if value == default else f"(config.py: {show(default)})"
            if path in self.chosen:
                note = f"({self.chosen[path]})"
            mark = "*" if note and path not in self.chosen else " "
            lines.append(f"{mark} {path:33} {show(value):20} {unit}  {note}".rstrip())
        return "\n".join([*lines, *self._sizes()])

    def summary(self) -> str:
        """What matters at the start: the ranks, the batch, and what differs from config.py."""
        collect = self.collect_env_params
        before, known = self._known_before()
        games = count(collect["num_envs"], "environment")
        each = " each" if self.actors > 1 else ""
        lines = [
            f"{self.algorithm} on {collect['id']}: {self._roles()}, {games}{each}",
            *self._sizes(),
        ]
        for why in dict.fromkeys(self.chosen.values()):
            paths = [path for path, reason in self.chosen.items() if reason == why]
            values = self.values()
            chosen = ", ".join(f"{path} {show(values[path])}" for path in paths)
            lines.append(f"chosen, since {why}: {chosen}")
        changed = [
            f"{path} {show(value)} (was {show(before[path])})"
            for path, value in self.values().items()
            if value != before.get(path, value)
            and (path not in self.chosen or self.resume)
            and path not in self.following
            and path not in ("trainer.run_dir", "collect_env.id" if not self.resume else "")
        ]
        if changed:
            lines.append(f"changed from {known}: {', '.join(changed)}")
        repeat = collect["action_repeat"]
        if repeat not in (None, 1) and ids.kind_of(collect["id"]) == ids.OTHER:
            lines.append(
                f"collect_env.action_repeat {repeat} is only counted, in env_frames: it is not an "
                "Atari game, and must repeat actions itself"
            )
        return "\n".join(lines)

    def is_changed(self, path: str) -> bool:
        """Whether a value differs from that of config.py."""
        values = self.values()
        return bool(values[path] != self._defaults().values.get(path))

    def _known_before(self) -> tuple[dict[str, Any], str]:
        """The values to compare with at the start, by path, and a name for them."""
        if self.resume is None:
            return self._defaults().values, "config.py"
        run = Config.read(Path(self.fork_of or self.resume, "config.json"))
        return run.values(), "the run that goes on"

    def _roles(self) -> str:
        return ranks_in_words(roles(self.places))

    def _sizes(self) -> list[str]:
        return Algorithm(self.algorithm).sizes(Values(self.values()))

    def _defaults(self) -> Draft:
        """What config.py gives for this environment and these ranks."""
        draft = Draft(self.algorithm)
        draft.choose(self.collect_env_params["id"])
        draft.fill_eval_env()
        # What follows from other values does so from those of this run.
        unknown = {path: None for path, value in draft.values.items() if value is None}
        derived = draft.algorithm.derive(Values(self.values() | unknown, self.places))
        draft.values.update({path: derived[path] for path in unknown.keys() & derived.keys()})
        return draft


def of_run(folder: Path) -> Config:
    """The checked configuration of a run.

    Raises:
        ConfigError: If the folder holds none, or one with mistakes.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f"{folder} is not a run folder: it holds no config.json")
    config = Config.read(file)
    for start in config.folders:
        add_import_folder(Path(start))
    draft = Draft(config.algorithm)
    draft.put_run(config.values(), config.chosen, file)
    return Config(**draft.finish(config.ranks))


def load(algorithm: str | None, argv: Sequence[str], ranks: int | None) -> Config:
    """Read, override and check the configuration of a run.

    Args:
        algorithm: The one that is taken if neither ``--algorithm`` nor a run that is resumed says
            another; None: the default.
        argv: The options, as in `help_text`; ``--help`` prints that and exits.
        ranks: How many processes will run; None if it is not known.

    Raises:
        ConfigError: With all problems: what was given, what is allowed, what to do.
    """
    if text := help_text(algorithm, argv):
        sys.stdout.write(text)
        raise SystemExit(0)
    given = read_options(argv)
    name, resumed = last(given, "algorithm"), last(given, "resume")
    folder = None if resumed is None else Path(resumed).absolute()
    run, problems = (None, []) if folder is None else _read_run(folder)
    if run is not None and name not in (None, run.algorithm):
        problems.append(
            f"--algorithm {name}: the run in {folder} is one of {run.algorithm} and goes on as "
            "such: leave --algorithm out"
        )
    draft = Draft(run.algorithm if run else name or algorithm or DEFAULT)
    options = draft.known_options(given)
    draft.problems += problems
    if name is None and run is None:
        draft.problems += draft.of_others(options.get("config", ()))
    if folder is not None:
        _go_on(draft, folder, run)
    _override(draft, options)
    here = [os.getcwd()] if ranks is not None else []
    return Config(
        **draft.finish(ranks),
        epoch=run.epoch + 1 if run else 0,
        folders=tuple(dict.fromkeys([*(run.folders if run else ()), *here])),
    )


def _override(draft: Draft, options: Mapping[str, Sequence[str]]) -> None:
    """Take files, then --set, then the options of single settings: the last wins."""
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
    for name, path in draft.algorithm.options.items():
        for text in options.get(name, ()):
            draft.put(path, text, f"--{name}")


def _read_run(folder: Path) -> tuple[Config | None, list[str]]:
    """The configuration of a run that is to be resumed, and what is wrong with it."""
    file = folder / "config.json"
    if not folder.is_dir():
        return None, [f"--resume {folder}: there is no such folder"]
    if not file.is_file():
        return None, [f"--resume {folder}: is not a run folder, it holds no config.json"]
    if not any(folder.glob("checkpoints/update_*.ckpt")):
        return None, [f"--resume {folder}: holds no checkpoint, start a new run instead"]
    try:
        return Config.read(file), []
    except ConfigError as error:
        return None, [f"--resume: {error}"]


def _go_on(draft: Draft, folder: Path, run: Config | None) -> None:
    """Let the draft begin with what a run has; None if that could not be read."""
    if run is not None:
        draft.resumed = run.values()
        draft.put_run(draft.resumed, run.chosen, folder / "config.json")
        draft.follow_again(run.following)
        draft.derive_again(run.places)
    draft.resume = folder
    draft.put("trainer.run_dir", str(folder), "--resume")


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
    values = config.values()
    for path in ("learner.optimizer", *without):  # the new run has an optimizer of its own
        del values[path]
    differ = differing(Config.from_json(data).values(), values)
    if differ:
        lines = [f"{path} is {show(before)}, here {show(values[path])}" for path, before in differ]
        raise ConfigError(f"{what} {'; '.join(lines)}: give the same")
