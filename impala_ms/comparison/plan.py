"""Which runs a comparison consists of, and what became of each: ``comparison.json``.

Input: a `Request`, and what an earlier command left in the folder. Output: a `Comparison`, checked
whole before the first run starts, whose runs are asked for one by one.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from impala_ms import config, errors, launch, snapshots
from impala_ms.comparison import runs
from impala_ms.comparison.request import Request, UsageError
from impala_ms.comparison.results import score_of
from impala_ms.comparison.runs import Run, RunError
from impala_ms.comparison.typed import made
from impala_ms.configuration import algorithms
from impala_ms.errors import ConfigError
from impala_ms.run_dir import GREEDY, try_lock, write_json

FILE, FORMAT = "comparison.json", 1
TORSO = "network.torso"  # unless it is given, each run chooses it by its observations


@dataclass
class Setting:
    """What differs between runs, but for the seed; ``values`` are all settings by path."""

    name: str  # of its folder below runs/
    algorithm: str
    env: str
    ranks: int
    options: list[str]
    values: dict[str, Any]
    seeds: list[int]

    def same_as(self, other: Setting) -> bool:
        """Whether runs of both belong together."""
        return (self.algorithm, self.env, self.ranks, self.values) == (
            other.algorithm,
            other.env,
            other.ranks,
            other.values,
        )


@dataclass
class Outcome:
    """How a run ended, and how long it took from its command to its end."""

    state: str
    took_s: float
    message: str = ""  # why it or its evaluation failed
    played_s: float = 0.0  # how long its weights played


@dataclass
class Comparison:
    """All runs of one folder; ``outcomes`` by ``<setting>/seed_<n>`` of those that were started."""

    folder: Path
    started_in: str
    settings: list[Setting] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    limit_s: float | None = None
    greedy_episodes: int = 20
    greedy_scores: dict[str, float] = field(default_factory=dict)
    machines: list[str] = field(default_factory=list)

    def save(self) -> None:
        """Write ``comparison.json``, whole or not at all."""
        data = asdict(self)
        del data["folder"]
        write_json(self.folder / FILE, {"format": FORMAT} | data)

    def planned(self) -> list[Run]:
        """Every run, seed by seed: a change of the machine meanwhile hits all settings alike."""
        seeds = dict.fromkeys(seed for setting in self.settings for seed in setting.seeds)
        return [
            self._run(setting, seed)
            for seed in sorted(seeds)
            for setting in self.settings
            if seed in setting.seeds
        ]

    def missing(self) -> list[Run]:
        """The runs that are not started, stopped or failed, or whose weights are still to play."""
        return [
            run
            for run in self.planned()
            if self.to_train(run) or self.last_to_play(run) or self.snapshots_to_play(run)
        ]

    def to_train(self, run: Run) -> bool:
        """Whether a run is still to be made, or again, since its folder was removed."""
        return run.state not in runs.COUNTED or not run.folder.exists()

    def last_to_play(self, run: Run) -> bool:
        """Whether the last weights of a run have not played as many episodes as are wanted."""
        played = runs.read_json(run.folder / GREEDY).get("episodes", 0)
        return self.greedy_episodes not in (0, played)

    def snapshots_to_play(self, run: Run) -> bool:
        """Whether there are snapshots of a run that have not played."""
        if self.greedy_score_of(run) is None:
            return False
        try:
            return bool(snapshots.unplayed(run.folder, True, self.greedy_episodes))
        except errors.RunError as error:
            raise RunError(str(error)) from error

    def greedy_score_of(self, run: Run) -> float | None:
        """The greedy score that a run is to reach."""
        return score_of(run.env, self.greedy_scores)

    def read_runs(self) -> list[Run]:
        """Every run that was started, with what its folder shows.

        A torso that is None in the plan is the one that the runs of the setting have chosen.
        """
        planned = [run for run in self.planned() if run.state != runs.GOES_ON]
        started = [(run, runs.read(run.folder)) for run in planned]
        torsos = {
            run.folder.parent: torso
            for run, there in started
            for torso in (there.settings.get(TORSO), run.settings.get(TORSO))
            if torso is not None
        }
        return [
            replace(
                run,
                settings={**run.settings, TORSO: torsos.get(run.folder.parent)},
                rows=there.rows,
                columns=there.columns,
                meta=there.meta,
                greedy=there.greedy,
                snapshots=there.snapshots,
            )
            for run, there in started
        ]

    def key(self, run: Run) -> str:
        """The name of a run in ``outcomes``."""
        return f"{run.folder.parent.name}/{run.folder.name}"

    def setting_of(self, run: Run) -> Setting:
        """The setting that a run belongs to."""
        return next(found for found in self.settings if found.name == run.folder.parent.name)

    def _run(self, setting: Setting, seed: int) -> Run:
        name = f"seed_{seed}"
        outcome = self.outcomes.get(f"{setting.name}/{name}", Outcome(runs.GOES_ON, 0.0))
        return Run(
            folder=self.folder / "runs" / setting.name / name,
            algorithm=setting.algorithm,
            env=runs.name_of(setting.env),
            ranks=setting.ranks,
            seed=seed,
            settings=setting.values,
            state=outcome.state,
            message=outcome.message,
            counted=outcome.state in runs.COUNTED,
        )


def load(folder: Path) -> Comparison:
    """What an earlier command left in a folder.

    Raises:
        UsageError: If there is no comparison, or it cannot be read.
    """
    file = folder / FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data.pop("format") != FORMAT:
            raise ValueError("another version wrote it")
        data["settings"] = [made(Setting, values) for values in data["settings"]]
        outcomes = data["outcomes"].items()
        data["outcomes"] = {key: made(Outcome, values) for key, values in outcomes}
        comparison = made(Comparison, data | {"folder": folder})
        _check_names(comparison)
        return comparison
    except FileNotFoundError as error:
        raise UsageError(f"{folder} is not the folder of a comparison: no {FILE}") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def _check_names(comparison: Comparison) -> None:
    """Refuse names and seeds by which no folder of a run can be found.

    Raises:
        ValueError: If there are such.
    """
    names = [setting.name for setting in comparison.settings]
    for setting in comparison.settings:
        name, seeds = setting.name, setting.seeds
        if name in ("", "..") or name != Path(name).name or names.count(name) > 1:
            raise ValueError(f"name is {name!r}")
        if setting.ranks < 1 or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError(f"{name} has ranks {setting.ranks} and seeds {seeds}")


def make(request: Request, command: str) -> Comparison:
    """The comparison that a command asks for, with what its folder holds already.

    Raises:
        UsageError, RunError: If it cannot be; nothing was written.
    """
    comparison = _begin(request)
    comparison.commands.append(command)
    comparison.scores |= request.scores
    comparison.greedy_scores |= request.greedy_scores
    if request.greedy_episodes is not None:
        comparison.greedy_episodes = request.greedy_episodes
    if comparison.greedy_scores and not comparison.greedy_episodes:
        raise UsageError("--greedy_episodes 0: --greedy_score needs 1 or more, give another number")
    if (machine := _machine()) not in comparison.machines:
        comparison.machines.append(machine)
    if request.limit_s is not None:
        if comparison.outcomes and comparison.limit_s != request.limit_s:
            had = "none" if comparison.limit_s is None else f"{comparison.limit_s:g}"
            raise UsageError(
                f"--limit_s {request.limit_s:g}: the runs in {comparison.folder} were made with "
                f"{had}; give the same, or another --output"
            )
        comparison.limit_s = request.limit_s
    if request.resume is not None or comparison.missing():
        _check_unchanged(comparison)
    for setting in _settings(request):
        _add(comparison, setting, request.seeds)
    check_scores(request, {runs.name_of(setting.env) for setting in comparison.settings})
    return comparison


def check_scores(request: Request, envs: Collection[str]) -> None:
    """Refuse the score of an environment that is not among these.

    Raises:
        UsageError: If there is one.
    """
    options = {"--score": request.scores, "--greedy_score": request.greedy_scores}
    for option, scores in options.items():
        if unknown := [env for env in scores if env and env not in envs]:
            raise UsageError(
                f"{option} {unknown[0]}={scores[unknown[0]]:g}: {unknown[0]} is not an environment "
                f"of these runs: they are of {', '.join(sorted(envs))}"
            )


def _begin(request: Request) -> Comparison:
    """An older comparison in the folder that was given, or an empty one."""
    here = str(launch.current_folder())
    folder = request.resume or request.output
    if folder is not None and (request.resume or (folder / FILE).exists()):
        comparison = load(folder)
        if comparison.started_in != here:
            raise UsageError(
                f"the comparison in {folder} was started in {comparison.started_in}: go there, "
                "its options may name files from there"
            )
        return comparison
    if folder is None:
        env = "+".join(map(runs.name_of, request.envs)) or _env_of(request.algorithms[0])
        folder = Path("comparisons", f"{_slug(env)}_{datetime.now():%Y%m%d-%H%M%S}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and is not the folder of a comparison: give another")
    return Comparison(folder, here)


def _env_of(algorithm: str) -> str:
    _check_algorithm(algorithm)
    return runs.name_of(config.load(algorithm, [], 1).collect_env_params["id"])


def _settings(request: Request) -> list[Setting]:
    """Every combination of what was given, checked for every seed.

    Raises:
        UsageError: With all problems, each once for each setting.
    """
    for algorithm in request.algorithms:
        _check_algorithm(algorithm)
    found: list[Setting] = []
    problems: list[str] = []
    for algorithm, env, ranks, values in _combinations(request):
        options = [*(["--env", env] if env else []), *request.options]
        for path, value in values:
            options += ["--set", f"{path}={value}"]
        words = [algorithm, env, f"N={ranks}", *(f"{path}={value}" for path, value in values)]
        what = " ".join(filter(None, words))
        try:
            read = _check(algorithm, ranks, options, request.seeds)
        except UsageError as error:
            problems.append(f"{what}: {error}")
            continue
        setting = Setting(
            name=_slug("_".join([algorithm, runs.name_of(read[0]), *words[2:]])),
            algorithm=algorithm,
            env=read[0],
            ranks=ranks,
            options=options,
            values=read[1],
            seeds=list(request.seeds),
        )
        if any(setting.same_as(other) for other in found):
            problems.append(f"{what}: the same setting is there already")
        found.append(setting)
    if problems:
        raise UsageError("\n".join(problems))
    return found


def _combinations(
    request: Request,
) -> Iterator[tuple[str, str, int, list[tuple[str, str]]]]:
    """Algorithm, environment (perhaps empty), N, and path and value of what varies."""
    paths = [path for path, _ in request.vary]
    for env in request.envs or ("",):
        for algorithm, ranks in itertools.product(request.algorithms, request.ranks):
            for values in itertools.product(*(values for _, values in request.vary)):
                yield algorithm, env, ranks, list(zip(paths, values, strict=True))


def _check(
    algorithm: str, ranks: int, options: Sequence[str], seeds: Sequence[int]
) -> tuple[str, dict[str, Any]]:
    """Environment and settings by path, if training would take the options with these seeds.

    Raises:
        UsageError: With all problems.
    """
    problems: dict[str, None] = {}
    for seed in {min(seeds), max(seeds)}:  # no setting depends on it, but it has bounds
        try:
            read = config.load(algorithm, [*options, "--seed", str(seed)], ranks)
            launch.check_ids(read)
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise UsageError("; ".join(problems))
    data = read.to_json()
    return str(data["collect_env_params"]["id"]), runs.settings_of(data)


def _check_algorithm(name: str) -> None:
    try:
        algorithms.module_of(name)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _check_unchanged(comparison: Comparison) -> None:
    """Refuse to go on where defaults have changed: later seeds would be of another setting."""
    for setting in comparison.settings:
        env, values = _check(setting.algorithm, setting.ranks, setting.options, setting.seeds)
        paths = [*values, *(setting.values.keys() - values.keys())]
        differing = {path: (values.get(path), setting.values.get(path)) for path in paths}
        differing |= {"env": (env, setting.env)}
        differing |= {"ranks": (setting.ranks, _ranks_before(comparison, setting))}
        for path, (now, before) in differing.items():
            if now != before:
                raise UsageError(
                    f"{path} of {setting.name} is {runs.shown(now)} now and was "
                    f"{runs.shown(before)} when the comparison began: its runs would not belong "
                    "together; set it back, or begin another comparison"
                )


def _ranks_before(comparison: Comparison, setting: Setting) -> int:
    """N of the runs of a setting that were made."""
    for run in comparison.planned():
        if run.folder.parent.name == setting.name and run.state in runs.COUNTED:
            ranks = runs.read_json(run.folder / "config.json").get("ranks")
            if isinstance(ranks, int):
                return ranks
    return setting.ranks


def _add(comparison: Comparison, setting: Setting, seeds: Sequence[int]) -> None:
    """Take a setting; where it is there already, more seeds of it."""
    for there in comparison.settings:
        if there.same_as(setting):
            there.seeds += [seed for seed in seeds if seed not in there.seeds]
            return
    names = {there.name for there in comparison.settings}
    name = setting.name
    for number in itertools.count(2):
        if setting.name not in names:
            break
        setting.name = f"{name}-{number}"
    comparison.settings.append(setting)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")[:120]


def lock(folder: Path) -> TextIO:
    """Keep another comparison out of the folder as long as the file that is returned is open.

    Raises:
        UsageError: If another process has done so.
    """
    file = (folder / ".lock").open("a")
    if not try_lock(file):
        file.close()
        raise UsageError(f"another comparison runs in {folder}: wait for its end")
    return file


def check_current(comparison: Comparison) -> None:
    """Refuse to go on with what was read before another comparison in the folder ended.

    Raises:
        UsageError: If there was one.
    """
    folder = comparison.folder
    if (folder / FILE).exists() and load(folder).outcomes != comparison.outcomes:
        raise UsageError(f"another comparison has just ended in {folder}: give the command again")


def _machine() -> str:
    """What the runs are made on, as the kernel shows it."""
    cpu = re.search(r"model name\s*: (.*)", _text("/proc/cpuinfo"))
    memory = re.search(r"MemTotal: *(\d+) kB", _text("/proc/meminfo"))
    gib = f", {int(memory[1]) / 2**20:.1f} GiB of memory" if memory else ""
    return f"{cpu[1] if cpu else 'unknown processor'}, {os.cpu_count()} cores{gib}"


def _text(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""
