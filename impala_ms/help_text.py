"""What every setting means: the text of ``--help``, and the table in the READMEs.

Input: an algorithm's ``config.py``. Output: texts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from impala_ms.draft import PART_KEYS, Draft
from impala_ms.errors import ConfigError
from impala_ms.messages import show

TABLE_BEGIN, TABLE_END = "<!-- config table: begin -->", "<!-- config table: end -->"


def help_text(algorithm: str) -> str:
    """All options with their units and defaults."""
    draft = Draft(algorithm)
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
        head = "algorithm_config" if name in PART_KEYS else head
        if head != heading:
            heading = head
            lines += ["", heading]
        default = f"{show(draft.values.get(path))} {key.unit}".rstrip()
        lines.append(f"  {options.get(path, path):26} [{default}]  {key.takes}")
        lines += [f"  {'':26} {meaning}" for meaning in [draft.meaning(path)] if meaning]
    return "\n".join(lines) + "\n"


def markdown_table(algorithm: str) -> str:
    """All keys as a table for the README, one row each."""
    draft = Draft(algorithm)
    rows = [
        f"| `{path}` | `{show(draft.values[path])}` | {key.unit} | {key.takes} | "
        f"{draft.meaning(path)} |"
        for path, key in draft.keys.items()
    ]
    return "\n".join(
        ["| key | default | unit | allowed | meaning |", "|---|---|---|---|---|", *rows]
    )


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
