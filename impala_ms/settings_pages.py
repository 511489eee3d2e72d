"""Write the tables of all settings: ``python -m impala_ms.settings_pages [README.md ...]``.

Input: the ``config.py`` of each algorithm. Output: ``docs/settings/<algorithm>.md``, and the table
of the default algorithm in the files that are named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from impala_ms import algorithms
from impala_ms.draft import Draft
from impala_ms.errors import ConfigError
from impala_ms.help_text import meaning
from impala_ms.messages import show
from impala_ms.settings import PART

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "settings"
BEGIN, END = "<!-- config table: begin -->", "<!-- config table: end -->"
HEAD = ["| key | default | unit | allowed | meaning |", "|---|---|---|---|---|"]


def page(algorithm: str) -> str:
    """The page of an algorithm: a table for each of its sections."""
    draft = Draft(algorithm)
    lines = [
        "<!-- Made by: python -m impala_ms.settings_pages -->",
        f"# Settings of {algorithm}",
        "",
        "Any of them can be given as `--set learner.lr=0.001`, or in a `--config` file. A key that "
        "only one section has is an option too: `--lr 0.001`; `collect_env.id` is `--env`.",
    ]
    heading = ""
    for path in draft.keys:
        head, _, key = path.partition(".")
        head = "algorithm_config" if key in PART else head
        if head != heading:
            heading = head
            lines += ["", f"## {heading}", "", *HEAD]
        lines.append(_row(draft, path))
    return "\n".join(lines) + "\n"


def table(algorithm: str) -> str:
    """All keys of an algorithm in one table."""
    draft = Draft(algorithm)
    return "\n".join([*HEAD, *(_row(draft, path) for path in draft.keys)])


def _row(draft: Draft, path: str) -> str:
    key = draft.keys[path]
    return (
        f"| `{path}` | `{show(draft.values[path])}` | {key.unit} | {key.takes} | "
        f"{meaning(draft, path)} |"
    )


def main(files: Sequence[str]) -> None:
    """Bring the pages up to date, and the table in files that have a place for it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for algorithm in algorithms.names():
        FOLDER.joinpath(f"{algorithm}.md").write_text(page(algorithm), encoding="utf-8")
    for file in map(Path, files):
        before, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not end:
            raise ConfigError(f"{file}: the table goes between {BEGIN} and {END}")
        text = f"{before}{begin}\n{table(algorithms.DEFAULT)}\n{end}{after}"
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
