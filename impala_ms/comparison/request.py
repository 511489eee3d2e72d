"""The command line of ``compare``: which algorithms, where, with which seeds and settings.

Input: the words after ``python -m impala_ms compare``. Output: a `Request`. What is not an option
of the comparison is an option of training, and is kept for every run.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from impala_ms.comparison.runs import name_of
from impala_ms.comparison.statistics import BANDS

RANKS, SEEDS = (3,), (1, 2, 3, 4, 5)  # unless given
MOST_RANKS, MOST_RUNS, MOST = 999_999, 10_000, 999_999_999

T = TypeVar("T")

USAGE = """\
Usage: python -m impala_ms compare ALGORITHM … [options] [options of training]
       python -m impala_ms compare --resume DIR
       python -m impala_ms compare --report DIR … [--output DIR]

Trains every algorithm with every setting, in every environment, with every seed: one run at a
time, seed by seed. Writes table.md, table.csv, runs.csv, pictures and report.html.

  --env ID …             environments; without it that of the algorithm's config.py
  --ranks N …            numbers of processes of a run; without it 3
  --seeds 1-5            seeds, as 1-5 or 1,3,7; without it 1-5
  --vary PATH=A,B,…      values of a setting, such as learner.correction=vtrace,none; given
                         several times, every combination is run
  --score [ENV=]RETURN   time and steps to this return are shown (mean of 20 episodes)
  --greedy_episodes N    after each run its last weights play N greedy episodes, with nothing
                         beside them; without it 20, and 0 plays none
  --greedy_score [ENV=]RETURN
                         runs save their weights every 2 s, and these play as many greedy
                         episodes after the run: time and steps to this return are shown;
                         the next saved weights must reach it too
  --limit_s SECONDS      a run is ended in order after this time; if it has not reached the
                         score, it counts with this time
  --band se|minmax       what pictures show around the mean over seeds: the standard error
                         (default), or the lowest and highest
  --output DIR           folder of the results; without it comparisons/ENV_TIME. The folder of
                         an older comparison keeps its runs, and what is missing is added
  --resume DIR           go on: run what is missing, has failed or was stopped
  --report DIR …         make tables, pictures and report of the runs below these folders anew,
                         without training
  --help                 show this
Options of training, such as --total_env_steps 600000 or --config FILE, hold for all runs.

Ctrl-C stops; finished runs are kept, and --resume goes on.
"""

ONE, SEVERAL = "one value", "one value or more"
_TAKES = {
    "env": SEVERAL,
    "ranks": SEVERAL,
    "seeds": SEVERAL,
    "vary": SEVERAL,
    "score": SEVERAL,
    "greedy_episodes": ONE,
    "greedy_score": SEVERAL,
    "limit_s": ONE,
    "band": ONE,
    "output": ONE,
    "resume": ONE,
    "report": SEVERAL,
}
# Options of training that each run gets from the comparison, and what to do instead.
_GIVEN_TO_RUNS = {
    "algorithm": "give the names first, as in: compare impala a3c",
    "hostfile": "its runs are on this machine",
    "seed": "use --seeds",
    "run_dir": "use --output",
    "verbose": "the file beside each run folder holds what it prints",
}


class UsageError(ValueError):
    """What is wrong with a command line, in one line."""


@dataclass(frozen=True)
class Request:
    """A command line that was read; ``envs`` is empty where the algorithm's own is meant."""

    algorithms: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    ranks: tuple[int, ...] = RANKS
    seeds: tuple[int, ...] = SEEDS
    vary: tuple[tuple[str, tuple[str, ...]], ...] = ()
    scores: dict[str, float] = field(default_factory=dict)  # by environment; "": any other
    greedy_episodes: int | None = None
    greedy_scores: dict[str, float] = field(default_factory=dict)
    limit_s: float | None = None
    band: str = "se"
    output: Path | None = None
    resume: Path | None = None
    report: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()  # of training


def read(argv: Sequence[str]) -> Request:
    """Read the words of a command line.

    Raises:
        UsageError: What was given, what is allowed, what to do.
    """
    algorithms, given, options = _split(argv)
    request = Request(
        algorithms=_distinct("the algorithms", algorithms),
        envs=_distinct("--env", given.get("env", [])),
        ranks=_ranks(given.get("ranks", [])) or RANKS,
        seeds=_seeds(given["seeds"]) if "seeds" in given else SEEDS,
        vary=tuple(map(_vary, given.get("vary", []))),
        scores=_scores("--score", given.get("score", [])),
        greedy_episodes=_whole("--greedy_episodes", given["greedy_episodes"][-1], 0)
        if "greedy_episodes" in given
        else None,
        greedy_scores=_scores("--greedy_score", given.get("greedy_score", [])),
        limit_s=_seconds(given["limit_s"][-1]) if "limit_s" in given else None,
        band=given.get("band", ["se"])[-1],
        output=_folder(given.get("output")),
        resume=_folder(given.get("resume")),
        report=tuple(map(Path, given.get("report", []))),
        options=tuple(options),
    )
    _check(request, set(given))
    return request


def _split(argv: Sequence[str]) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Algorithms, values by option of the comparison, and the words for training."""
    words = deque(argv)
    algorithms = _values(words)
    given: dict[str, list[str]] = {}
    options: list[str] = []
    while words:
        word = words.popleft()
        option, equals, text = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        values = [text] if equals else _values(words)
        if name in _GIVEN_TO_RUNS:
            raise UsageError(f"{option} is not for a comparison: {_GIVEN_TO_RUNS[name]}")
        if name not in _TAKES:
            options += [word] if equals else [word, *values]
        elif not values or (_TAKES[name] == ONE and len(values) > 1):
            raise UsageError(f"{option} takes {_TAKES[name]}, not {len(values)}")
        else:
            given.setdefault(name, []).extend(values)
    return algorithms, given, options


def _values(words: deque[str]) -> list[str]:
    """Take the words before the next option."""
    values = []
    while words and not words[0].startswith("--"):
        values.append(words.popleft())
    return values


def _check(request: Request, given: set[str]) -> None:
    """Refuse options that say nothing together."""
    if request.band not in BANDS:
        raise UsageError(f"--band {request.band}: it is one of {', '.join(BANDS)}")
    paths = [path for path, _ in request.vary]
    _distinct("--vary", paths)
    whole = {"report": "--report trains nothing", "resume": "--resume goes on with what is planned"}
    for name, why in whole.items():
        others = given - {name, "score", "greedy_score", "band"}
        others -= {"output", "limit_s"} if name == "report" else {"greedy_episodes"}
        words = [*request.algorithms, *(f"--{other}" for other in sorted(others)), *request.options]
        if name in given and words:
            raise UsageError(f"{why}: leave out {words[0]}")
    planned = len(request.algorithms) * len(request.ranks) * len(request.seeds)
    planned *= math.prod(len(values) for _, values in request.vary) * max(len(request.envs), 1)
    if planned > MOST_RUNS:
        raise UsageError(
            f"these are {planned:,} runs, and a comparison has {MOST_RUNS:,} at most: give fewer "
            "seeds or values"
        )
    if not request.algorithms and not given & {"report", "resume"}:
        raise UsageError("no algorithm is given: compare impala, for example; --help shows more")


def _distinct(what: str, values: Sequence[T]) -> tuple[T, ...]:
    twice = next((value for value, times in Counter(values).items() if times > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} stands twice in {what}: give it once")
    return tuple(values)


def _whole(option: str, word: str, least: int, most: int = MOST) -> int:
    if re.fullmatch("[0-9]{1,9}", word) and least <= int(word) <= most:
        return int(word)
    raise UsageError(f"{option} {word}: it takes whole numbers of {least} or more, {most} at most")


def _ranks(words: Sequence[str]) -> tuple[int, ...]:
    return _distinct("--ranks", [_whole("--ranks", word, 1, MOST_RANKS) for word in words])


def _seeds(words: Sequence[str]) -> tuple[int, ...]:
    """The seeds of ``1-5`` or ``1,3,7``, in the order given."""
    seeds: list[int] = []
    for part in ",".join(words).split(","):
        first, dash, last = part.partition("-")
        if not first or (dash and not last):
            raise UsageError(f"--seeds {','.join(words)}: they are given as 1-5 or 1,3,7")
        low = _whole("--seeds", first, 0)
        high = _whole("--seeds", last, 0) if dash else low
        if high < low:
            raise UsageError(f"--seeds {part}: a range goes up, such as 1-5")
        if len(seeds) + high - low >= MOST_RUNS:
            raise UsageError(f"--seeds {part}: a comparison has {MOST_RUNS:,} runs at most")
        seeds += range(low, high + 1)
    return _distinct("--seeds", seeds)


def _vary(text: str) -> tuple[str, tuple[str, ...]]:
    """Path and values of ``path=a,b``; a comma inside brackets belongs to a value."""
    path, equals, given = text.partition("=")
    values, depth = [""], 0
    for character in given:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    found = [value.strip() for value in values]
    if not (path and equals) or "" in found:
        raise UsageError(f"--vary {text}: it is PATH=A,B, such as learner.correction=vtrace,none")
    return path.strip(), _distinct(f"--vary {text}", found)


def _scores(option: str, texts: Sequence[str]) -> dict[str, float]:
    """The return by environment of ``475`` or ``CartPole-v1=475``."""
    pairs = (text.rpartition("=") for text in texts)
    return {name_of(env): _number(option, number) for env, _, number in pairs}


def _seconds(text: str) -> float:
    seconds = _number("--limit_s", text)
    if seconds <= 0:
        raise UsageError(f"--limit_s {text}: it takes seconds, more than 0")
    return seconds


def _number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{option} {text}: it takes a number")
    return number


def _folder(values: Sequence[str] | None) -> Path | None:
    return Path(values[-1]) if values else None
