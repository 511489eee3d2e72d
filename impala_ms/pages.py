"""Write the pages that list all settings and all metrics: ``python -m impala_ms.pages``.

Input: the ``config.py`` of each algorithm. Output: ``docs/settings/<algorithm>.md`` and
``docs/metrics.md``.
"""

from __future__ import annotations

from pathlib import Path

from impala_ms.configuration import algorithms
from impala_ms.configuration.draft import Draft
from impala_ms.configuration.help_text import meaning
from impala_ms.configuration.messages import show
from impala_ms.metrics.columns import markdown_table, together
from impala_ms.settings import PART

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE_BY = "<!-- Made by: python -m impala_ms.pages -->"
HEAD = ["| key | default | unit | allowed | meaning |", "|---|---|---|---|---|"]


def page(algorithm: str) -> str:
    """The page of an algorithm: a table for each of its sections."""
    draft = Draft(algorithm)
    lines = [
        MADE_BY,
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


def metrics() -> str:
    """The page of all columns of ``metrics.csv``: those of every algorithm, then what each adds."""
    lines = [
        MADE_BY,
        "# Metrics",
        "",
        "`metrics.csv` in the run folder has one row per log interval (`trainer.log_interval_s`) "
        "with these columns. A field with nothing to say is empty. TensorBoard shows the same "
        "numbers by `env_steps`: losses under `loss/`, evaluations under `eval/`, times and rates "
        "under `speed/`, the rest under `train/`.",
        "",
        "## Of every algorithm",
        "",
        markdown_table(together()),
    ]
    for name in algorithms.names():
        own = algorithms.columns(name)
        added = {column: own[column] for column in own if column not in together()}
        lines += ["", f"## {name} adds", "", markdown_table(added)]
    return "\n".join(lines) + "\n"


def _row(draft: Draft, path: str) -> str:
    key = draft.keys[path]
    return (
        f"| `{path}` | `{show(draft.values[path])}` | {key.unit} | {key.takes} | "
        f"{meaning(draft, path)} |"
    )


def pages() -> dict[Path, str]:
    """Every page, by its file."""
    found = {DOCS / "settings" / f"{name}.md": page(name) for name in algorithms.names()}
    return found | {DOCS / "metrics.md": metrics()}


def main() -> None:
    """Bring the pages up to date."""
    for file, text in pages().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
