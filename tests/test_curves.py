"""``python -m impala_ms curves``: metrics of runs as a picture."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms import curves
from impala_ms.comparison import pictures, runs
from impala_ms.comparison.runs import RunError
from tests.made_up_runs import make_run

SCRIPT = Path(__file__).parents[1] / "example" / "impala" / "curves.py"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def size(file):
    picture = file.read_bytes()
    assert picture.startswith(b"\x89PNG")
    return tuple(int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))


def drawn(monkeypatch, *words):
    """The figure that a command draws."""
    figures = []
    monkeypatch.setattr(pictures, "_save", lambda figure, file: figures.append(figure))
    assert curves.main(list(map(str, words))) == 0
    return figures[0]


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()], legend.get_title().get_text()


def test_the_script_draws_a_run_that_goes_on(here):
    run = make_run(here / "run", [None, None, 1, 2, 3], entropy=0.5, state=None)
    with run.joinpath("metrics.csv").open("a") as table:
        table.write("12.0,")
    done = subprocess.run(
        [sys.executable, SCRIPT, "run"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "curves.png\n", "")
    width, height = size(here / "curves.png")
    assert width > 2 * height > 400  # four panels side by side, by steps and by seconds


def test_a_folder_of_runs_is_mean_and_band_over_seeds(here, monkeypatch):
    make_run(here / "runs" / "1", [0, 2, 4], steps=[0, 10, 20], seed=1)
    make_run(here / "runs" / "2", [0, 2, 4, 6, 8], steps=[0, 5, 10, 15, 20], seed=2)
    figure = drawn(monkeypatch, "runs", "--metrics", "episode_return_mean")
    by_steps, by_seconds = figure.axes
    (line,) = by_steps.lines
    assert line.get_xydata().tolist() == [[0, 0], [5, 1.5], [10, 3], [15, 4.5], [20, 6]]
    assert by_seconds.lines[0].get_xdata()[-1] == 2  # the shorter run ends there
    assert len(by_steps.collections) == 1
    assert figure.get_suptitle() == "CartPole-v1, N = 3, 2 seeds"
    labels, note = legend_of(figure)
    assert labels == ["impala"]
    assert note.endswith("band: mean ± standard error")


def test_a_run_that_is_given_twice_counts_once(here, monkeypatch):
    make_run(here / "runs" / "1", [0, 10], seed=1)
    make_run(here / "runs" / "2", [0, 40], seed=2)
    words = ["runs", "runs/1", str(here / "runs" / "1"), "--metrics", "episode_return_mean"]
    figure = drawn(monkeypatch, *words)
    assert figure.axes[0].lines[0].get_ydata().tolist() == [0, 25]
    assert figure.get_suptitle() == "CartPole-v1, N = 3, 2 seeds"
    figure = drawn(monkeypatch, "a=runs", "b=runs/1", "--metrics", "episode_return_mean")
    assert [line.get_ydata()[-1] for line in figure.axes[0].lines] == [25, 10]


def test_runs_without_a_common_part_of_an_axis_have_no_line_and_it_is_said(here, monkeypatch):
    make_run(here / "runs" / "1", [0, 2], seconds=[0, 1], seed=1)
    make_run(here / "runs" / "2", [0, 2], seconds=[5, 6], seed=2)
    by_steps, by_seconds = drawn(monkeypatch, "runs", "--metrics", "episode_return_mean").axes
    assert by_steps.get_title() == ""
    assert by_seconds.get_title() == "impala: no line, its runs do not overlap here"
    assert len(by_seconds.lines[0].get_xdata()) == 0


def test_lowest_and_highest_can_be_the_band(here, monkeypatch):
    for seed, top in enumerate([1, 1, 7]):
        make_run(here / "runs" / str(seed), [0, top], seed=seed)
    words = ["runs", "--metrics", "episode_return_mean", "--x", "env_steps", "--band", "minmax"]
    figure = drawn(monkeypatch, *words)
    (band,) = figure.axes[0].collections
    assert band.get_datalim(figure.axes[0].transData).ymax == 7
    assert legend_of(figure)[1].endswith("band: lowest to highest of the seeds")


def test_one_seed_has_no_band_and_it_is_said(here, monkeypatch):
    make_run(here / "one", [1, 2])
    figure = drawn(monkeypatch, "one")
    assert not any(panel.collections for panel in figure.axes)
    assert legend_of(figure) == (["impala (1 seed)"], "one seed each: no band")


def test_a_run_without_rows_is_said(here, monkeypatch):
    make_run(here / "runs" / "1", seed=1)
    make_run(here / "runs" / "2", [1, 2], seed=2)
    make_run(here / "runs" / "3", [1, 2], seed=3)
    assert legend_of(drawn(monkeypatch, "runs"))[0] == ["impala (2 of 3 seeds)"]
    assert legend_of(drawn(monkeypatch, "runs/1"))[0] == ["impala (nothing to draw)"]


def test_runs_with_one_label_are_one_line_whatever_differs(here, monkeypatch):
    make_run(here / "a", [1, 2], settings={"learner.lr": 0.1})
    make_run(here / "b=c", [1, 2], ranks=5)
    figure = drawn(monkeypatch, "both of=them=a", "both of=them=b=c", "--metrics", "entropy")
    assert legend_of(figure)[0] == ["both of=them (nothing to draw)"]
    assert figure.get_suptitle() == "CartPole-v1, N = 3 and 5, 2 runs"
    assert legend_of(drawn(monkeypatch, "b=c"))[0] == ["impala (1 seed)"]


def test_lines_beyond_ten_have_colours_and_dashes_of_their_own(here):
    styles = [pictures.style_of(number) for number in range(40)]
    assert len(set(styles)) == 40
    assert len({dashes for _, dashes in styles[:10]}) == 1
    with pytest.raises(RunError, match="more than 40 lines in one picture cannot be told apart"):
        pictures.style_of(40)


def test_the_legend_is_below_all_panels(here, monkeypatch):
    for number in range(12):
        settings = {"learner.gamma": 0.5 + number / 100}
        make_run(here / "runs" / str(number), [1, 2], settings=settings)
    figure = drawn(monkeypatch, "runs", "--metrics", "episode_return_mean")
    figure.draw_without_rendering()
    top = figure.legends[0].get_window_extent().ymax
    assert len(legend_of(figure)[0]) == 12
    assert all(panel.get_tightbbox().ymin >= top for panel in figure.axes)


def test_reference_lines_are_in_the_panel_of_the_return(here, monkeypatch):
    make_run(here / "run", [1, 2], entropy=0.5)
    words = [
        "run",
        "--reference",
        "475",
        "random=20",
        "--metrics",
        "entropy",
        "episode_return_mean",
    ]
    entropy, returned = drawn(monkeypatch, *words, "--x", "env_steps").axes
    assert [text.get_text() for text in returned.texts] == ["475", "random"]
    assert [line.get_ydata()[0] for line in returned.lines[1:]] == [475, 20]
    assert (len(entropy.lines), len(entropy.texts)) == (1, 0)


def test_axes_have_units(here, monkeypatch):
    make_run(here / "run", [1, 2])
    words = ["--metrics", "entropy", "explained_variance", "updates"]
    figure = drawn(monkeypatch, "run", *words, "--x", "wall_time_s")
    assert {panel.get_xlabel() for panel in figure.axes} == {"time since the command was given (s)"}
    assert [panel.get_ylabel() for panel in figure.axes] == [
        "entropy (nats)",
        "explained variance (at most 1)",
        "updates",
    ]


def test_pictures_of_other_kinds_are_the_same_each_time(here):
    make_run(here / "run", [1, 2])
    for name in ("a.svg", "b/a.svg"):
        Path(name).parent.mkdir(exist_ok=True)
        assert curves.main(["run", "--metrics", "entropy", "--output", name]) == 0
    assert Path("a.svg").read_bytes() == Path("b/a.svg").read_bytes()
    assert re.search(rb"<svg", Path("a.svg").read_bytes())


def test_a_backend_that_a_notebook_has_set_does_not_matter(here, monkeypatch):
    make_run(here / "run", [1, 2])
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    code = "import sys; from impala_ms import curves; sys.exit(curves.main(['run']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "curves.png\n", "")


def test_dollar_signs_in_a_name_are_not_a_formula_and_need_no_latex(here, monkeypatch):
    make_run(here / "run", [1, 2])
    (here / "matplotlibrc").write_text("text.usetex: True\naxes.formatter.use_mathtext: True\n")
    code = "import sys; from impala_ms import curves; sys.exit(curves.main(sys.argv[1:]))"
    words = ["$$=run", "a$\\b$=run", "--title", "$_$", "--reference", "$x^$=1", "--output", "a.svg"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a.svg\n", "")
    texts = (here / "a.svg").read_text()
    for text in ("$$ (1 seed)", "a$\\b$ (1 seed)", "$_$", "$x^$"):
        assert f"<!-- {text} -->" in texts


def test_a_console_that_knows_only_ascii_is_enough(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for word in ("--help", "grün=nothing"):
        done = subprocess.run([sys.executable, SCRIPT, word], capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        assert ("[LABEL=]DIR" in done.stdout) == (word == "--help")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "nothing: there is no such folder"),
        (["a", "--metrics", "reward"], "reward is not a column of a/metrics.csv; columns of all "),
        (["a", "--x", "steps"], "steps is not a column of a/metrics.csv; columns of all runs: w"),
        (["a", "old", "--metrics", "entropy"], "entropy is not a column of old/metrics.csv; colum"),
        (["a", "pong"], "runs of CartPole-v1 and Pong-v5 do not belong in one picture: give "),
        (["a", "--output", "nowhere/a.png"], "No such file or directory"),
        (["a", "--output", "a.what"], "a.what: a picture's name ends with .png, .svg, .pdf"),
        (["a", "--reference", "high"], "--reference high: it takes a number, or NAME=NUMBER"),
        (["a", "--reference", "x=inf"], "--reference x=inf: it takes a number, or NAME=NUMBER"),
    ],
)
def test_mistakes_are_one_line(here, capsys, words, says):
    make_run(here / "a", [1, 2])
    make_run(here / "old", [1, 2], columns=["env_steps", "wall_time_s", "episode_return_mean"])
    make_run(here / "pong", [1, 2], env="Pong-v5")
    assert curves.main(words) == 1
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_without_matplotlib_it_is_said_how_to_install_it(here, capsys, monkeypatch):
    make_run(here / "a", [1, 2])
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert curves.main(["a"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("matplotlib is missing, which draws the pictures: ")
    assert said.endswith("constraints.txt matplotlib\n")
    assert runs.read(here / "a").rows
