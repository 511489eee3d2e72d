"""What ``--help`` prints: the usual options and the ready settings, or all there is.

Input: the command line, and the ``config.py`` of the algorithm. Output: texts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from impala_ms.configuration import algorithms
from impala_ms.configuration.algorithms import DEFAULT
from impala_ms.configuration.command_line import last, read_options
from impala_ms.configuration.draft import Draft
from impala_ms.configuration.messages import show
from impala_ms.envs import ids
from impala_ms.settings import PART, USUAL

WIDTH = 100  # columns
COMMANDS = """\
Options, as --name VALUE or --name=VALUE:
  --algorithm NAME         one of {names};
                           a run that is resumed keeps its own
  --config FILE            take settings from a .yaml file, or a .py file with dicts as in config.py
  --set PATH=VALUE         any setting, such as learner.lr=0.001; wins over --config
  --resume RUN_DIR         go on with a run; with another --run_dir, in a copy of it
  --verbose                print all settings at the start
  --help                   print this; --help all prints all settings
"""


def help_text(algorithm: str | None, argv: Sequence[str]) -> str:
    """The help that was asked for, or an empty text.

    Args:
        algorithm: Whose, unless ``--algorithm`` says so.
        argv: The options.

    Raises:
        ConfigError: If there is no such algorithm.
    """
    asked = [word for word in argv if word in ("-h", "--help", "--help=all")]
    if not asked:
        return ""
    draft = Draft(last(read_options(argv), "algorithm") or algorithm or DEFAULT)
    everything = asked[0] == "--help=all" or "all" in argv[argv.index(asked[0]) + 1 :][:1]
    lines = list(_all_settings(draft)) if everything else [*_usual(draft), *_ready(draft)]
    return COMMANDS.format(names=", ".join(algorithms.names())) + "\n".join(lines) + "\n"


def meaning(draft: Draft, path: str) -> str:
    """What a key means, and what None stands for where the environment decides."""
    games, others = (draft.automatic.get(kind, {}) for kind in (ids.ATARI, ids.OTHER))
    text = draft.keys[path].meaning
    if path not in others:
        return text
    return f"{text} None takes {show(games.get(path))} for Atari games, else {show(others[path])}."


def _usual(draft: Draft) -> Iterator[str]:
    """The options that are used most, one a line, with the defaults of the algorithm."""
    yield f"\nThe usual settings, with the defaults of {draft.algorithm.name}:"
    for name in USUAL:
        if path := draft.algorithm.options.get(name):
            default = f" [{_default(draft, path)}]"
            label = f"  --{name:22} "
            room = WIDTH - len(label) - len(default)
            yield f"{label}{_begin(draft.keys[path].meaning, room)}{default}"


def _default(draft: Draft, path: str) -> str:
    """The default of a key; of one that depends on the environment, both that there are."""
    value = draft.values[path]
    games, others = (draft.automatic.get(kind, {}) for kind in (ids.ATARI, ids.OTHER))
    if value is None and path in others:
        return f"{show(others[path])}; Atari games {show(games.get(path))}"
    return show(value)


def _ready(draft: Draft) -> Iterator[str]:
    """The files of settings that come with the algorithm, and where the rest is."""
    folder = draft.algorithm.examples()
    files = sorted(folder.glob("*.yaml"))
    if files:
        yield f"\nReady settings, as --config NAME (example/{folder.name}):"
    for file in files:
        comment = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        label = f"  {file.name:28} "
        yield f"{label}{_begin(comment, WIDTH - len(label))}"
    yield f"\nAll settings: --help all, or docs/settings/{draft.algorithm.name}.md"


def _begin(text: str, room: int) -> str:
    """The first sentence, or as much of it as there is room for."""
    sentence = text.partition(". ")[0].rstrip(".")
    if len(sentence) > room:
        sentence = sentence.partition(": ")[0]
    return textwrap.shorten(sentence, room, placeholder=" …")


def _all_settings(draft: Draft) -> Iterator[str]:
    """Every key with its default, what it takes and what it means."""
    options = {path: f"--{name}" for name, path in draft.algorithm.options.items()}
    yield f"\nAll settings of {draft.algorithm.name}; what has no option of its own takes --set:"
    heading = ""
    for path, key in draft.keys.items():
        head, _, name = path.partition(".")
        head = "algorithm_config" if name in PART else head
        if head != heading:
            heading = head
            yield f"\n{heading}"
        default = f"{show(draft.values.get(path))} {key.unit}".rstrip()
        yield f"  {options.get(path, path):26} [{default}]  {key.takes}"
        indent = " " * 29
        yield textwrap.fill(
            meaning(draft, path), WIDTH, initial_indent=indent, subsequent_indent=indent
        )
