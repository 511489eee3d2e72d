"""Curves of groups of runs: the mean over seeds as a line, its spread as a band.

Input: groups of runs of one environment, and which columns to draw. Output: PNG and SVG files.
matplotlib is imported only here, and only when something is drawn.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_ms.comparison import statistics
from impala_ms.comparison.runs import Group, Run, RunError
from impala_ms.configuration import algorithms
from impala_ms.envs.packages import pip_install

# Ten colours that can be told apart by eyes of all kinds: Petroff 2021, arXiv:2107.02270.
COLOURS = (
    *("#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#717581"),
    *("#e76300", "#a96b59", "#92dadd", "#b9ac70", "#94a4a2"),
)
DASHES = ("-", "--", ":", "-.")
AXES = {
    "env_steps": "env steps (decisions)",
    "wall_time_s": "time since the command was given (s)",
    "episode_return_mean": "return (mean of the last 20 episodes)",
    "eval_return_mean": "return of the newest evaluation",
}
UNITS = {"<= 1": "at most 1", "0-1": "0 to 1"}
PANEL_INCHES, CHARACTERS_PER_INCH = (5.2, 3.7), 11
PNG_DPI = 130
KINDS = (".png", ".svg", ".pdf")


class Picture(NamedTuple):
    """What is drawn: a panel for each pair of ``xs`` (rows) and ``ys`` (columns)."""

    xs: Sequence[str]
    ys: Sequence[str]
    title: str
    band: str = "se"
    references: Mapping[float, str] = {}
    across: bool = False  # xs side by side, for a single metric


def missing(error: ModuleNotFoundError) -> str:
    """What to do without matplotlib, in one line."""
    package = (error.name or "").partition(".")[0]
    return f"{package} is missing, which draws the pictures: {pip_install(package)}"


def style_of(number: int) -> tuple[str, str]:
    """Colour and dashes of a line; no two are alike.

    Raises:
        RunError: If there are more lines than can be told apart.
    """
    if number >= len(COLOURS) * len(DASHES):
        most = len(COLOURS) * len(DASHES)
        raise RunError(f"more than {most} lines in one picture cannot be told apart: draw fewer")
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS)]


def title_of(groups: Sequence[Group]) -> str:
    """Environment, N and number of seeds."""
    members = [run for group in groups for run in group.runs]
    ranks = sorted({run.ranks for run in members if run.ranks is not None})
    numbers = sorted({len(group.runs) for group in groups})
    words = [
        next((run.env for run in members if run.env), ""),
        f"N = {' and '.join(map(str, ranks))}" if ranks else "",
        f"{' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} "
        f"{unit_of(groups)}{'s' * (numbers[-1] != 1)}{' each' * (len(groups) > 1)}",
    ]
    return ", ".join(filter(None, words))


def unit_of(groups: Sequence[Group]) -> str:
    """What a group has several of: seeds, unless one is there twice or is not known."""
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if None in seeds or len(set(seeds)) < len(seeds):
            return "run"
    return "seed"


def check(members: Sequence[Run], columns: Sequence[str]) -> None:
    """Refuse runs that do not belong into one picture.

    Raises:
        RunError: With the first reason.
    """
    envs = dict.fromkeys(run.env for run in members if run.env)
    if len(envs) > 1:
        raise RunError(
            f"runs of {' and '.join(envs)} do not belong in one picture: give those of one "
            "environment"
        )
    for run in members:
        for name in columns:
            if run.columns and name not in run.columns:
                everywhere = [c for c in run.columns if all(c in r.columns for r in members)]
                raise RunError(
                    f"{name} is not a column of {run.folder / 'metrics.csv'}; columns of all "
                    f"runs: {', '.join(everywhere) or 'none'}"
                )


def draw(groups: Sequence[Group], picture: Picture, files: Sequence[Path]) -> None:
    """Draw a picture into each of the files, of the kind that its name says.

    Raises:
        ModuleNotFoundError: Without matplotlib.
        RunError: If it cannot be drawn.
        OSError: If a file cannot be written.
    """
    for file in files:
        if file.suffix not in KINDS:
            raise RunError(f"{file}: a picture's name ends with {', '.join(KINDS)}")
    check([run for group in groups for run in group.runs], [*picture.xs, *picture.ys])
    figure = _figure()
    with _plain_text():
        _fill(figure, groups, picture)
        for file in files:
            _save(figure, file)


def _fill(figure: Any, groups: Sequence[Group], picture: Picture) -> None:
    """Draw panels, legend and title."""
    wide, high = len(picture.ys), len(picture.xs)
    if picture.across:
        wide, high = high, wide
    alike = "row" if picture.across else "col"  # panels of one metric
    grid = figure.subplots(high, wide, squeeze=False, sharey=alike)
    lines, drawn = _draw_panels(grid.flat if picture.across else grid.T.flat, groups, picture)
    labels = [_label(group, count, groups) for group, count in zip(groups, drawn, strict=True)]
    width = PANEL_INCHES[0] * wide
    legend_inches = _legend(figure, lines, labels, width)
    note = figure.legends[0].get_title()
    note.set(text=_note(drawn, picture.band, unit_of(groups)), size="small")
    figure.set_size_inches(width, PANEL_INCHES[1] * high + 0.9 + legend_inches)
    figure.suptitle(picture.title, fontsize="large", fontweight="bold")


def _draw_panels(
    panels: Iterable[Any], groups: Sequence[Group], picture: Picture
) -> tuple[list[Any], list[int]]:
    """Fill the panels; a line of each group for the legend, and how many runs are in it."""
    styles = [style_of(number) for number in range(len(groups))]
    lines: list[Any] = []
    drawn = [0] * len(groups)
    pairs = [(x, y) for y in picture.ys for x in picture.xs]
    for panel, (x, y) in zip(panels, pairs, strict=True):
        lines = []
        for number, group in enumerate(groups):
            line, count = _draw_group(panel, group, x, y, styles[number], picture.band)
            lines.append(line)
            drawn[number] = max(drawn[number], count)
        _dress(panel, x, y, picture)
    return lines, drawn


def _figure() -> Any:
    # It is read when matplotlib is imported, and may name what is not there. Nothing is shown here.
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        from matplotlib.figure import Figure
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    return Figure(layout="constrained")


def _plain_text() -> Any:
    """While it is entered, texts are shown as they are, whatever a matplotlibrc says.

    Otherwise what stands between two dollar signs in a name would be read as a formula.
    """
    from matplotlib import rc_context

    return rc_context(
        {"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False}
    )


def _draw_group(
    panel: Any, group: Group, x: str, y: str, style: tuple[str, str], band: str
) -> tuple[Any, int]:
    """Draw mean and band; the line, and how many runs are in it."""
    every = [statistics.curve(run.rows, x, y) for run in group.runs]
    curves = [one for one in every if len(one.x)]
    axis = statistics.common_axis(curves)
    mean = statistics.mean_curve(curves, axis) if len(axis) else axis
    colour, dashes = style
    (line,) = panel.plot(axis, mean, color=colour, linestyle=dashes, linewidth=1.8)
    if len(axis) == 1:
        panel.plot(axis, mean, color=colour, marker="o")  # a line of one point is not seen
    if curves and not len(axis):
        _say(panel, f"{group.label}: no line, its runs do not overlap here")
    edges = statistics.band(curves, axis, band) if len(axis) else None
    if edges is not None:
        panel.fill_between(axis, *edges, color=colour, alpha=0.18, linewidth=0)
    return line, len(curves) if len(axis) else 0


def _say(panel: Any, text: str) -> None:
    """Add a line above a panel."""
    said = [panel.get_title(), textwrap.fill(text, 60)]
    panel.set_title("\n".join(filter(None, said)), fontsize="small")


def _dress(panel: Any, x: str, y: str, picture: Picture) -> None:
    """Axes, their units, and the reference lines."""
    from matplotlib.ticker import EngFormatter

    panel.set_xlabel(axis_label(x))
    panel.set_ylabel(axis_label(y))
    panel.margins(x=0.01)
    if algorithms.columns().get(x, ("",))[0] in ("decisions", "frames", "updates"):
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    if x in AXES:
        panel.set_xlim(left=0)
    panel.yaxis.set_tick_params(labelleft=True)  # also where panels share the axis
    panel.grid(alpha=0.25, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    if y == next((name for name in picture.ys if "return" in name), picture.ys[0]):
        for value, name in picture.references.items():
            panel.axhline(value, color="#222222", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
            panel.annotate(
                name or f"{value:g}",
                (1, value),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
                color="#222222",
            )


def _legend(figure: Any, lines: Sequence[Any], labels: Sequence[str], width: float) -> float:
    """Put the legend below all panels; its height in inches."""
    across = int(width * CHARACTERS_PER_INCH)
    labels = [textwrap.fill(label, across - 6) for label in labels]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = min(max(1, across // (longest + 6)), len(labels))
    figure.legend(
        lines, labels, loc="outside lower center", ncols=columns, frameon=False, title=" "
    )
    return 0.2 * -(-sum(label.count("\n") + 1 for label in labels) // columns)


def axis_label(name: str) -> str:
    """What an axis shows, with its unit."""
    unit = algorithms.columns().get(name, ("",))[0]
    unit = "" if unit in name.split("_") else UNITS.get(unit, unit)
    return AXES.get(name, f"{name.replace('_', ' ')}{f' ({unit})' if unit else ''}")


def _label(group: Group, drawn: int, groups: Sequence[Group]) -> str:
    """A group in the legend: how many runs are in it, where that differs or is only one."""
    of, unit = len(group.runs), unit_of(groups)
    alike = {len(other.runs) for other in groups} == {drawn}
    if drawn == 0:
        return f"{group.label} (nothing to draw)"
    if drawn < of:
        return f"{group.label} ({drawn} of {of} {unit}s)"
    if alike and drawn > 1:
        return group.label
    return f"{group.label} ({drawn} {unit}{'s' * (drawn > 1)})"


def _note(drawn: Sequence[int], band: str, unit: str) -> str:
    """What line and band are."""
    if max(drawn) < 2:
        return f"one {unit} each: no band"
    spread = "mean ± standard error" if band == "se" else f"lowest to highest of the {unit}s"
    one = f"; one {unit}: no band" if 1 in drawn else ""
    return f"line: mean over {unit}s, up to the end of the shortest; band: {spread}{one}"


def _save(figure: Any, file: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": file.stem}):  # the same picture gives the same file
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=PNG_DPI, metadata=metadata)
