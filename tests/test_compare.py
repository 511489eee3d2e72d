"""``python -m impala_ms compare``: what is run, in which order, and what is left of it."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from impala_ms import compare, config
from impala_ms.comparison import plan, request, running, runs
from impala_ms.comparison.request import UsageError
from impala_ms.run_dir import write_json
from tests.made_up_runs import make_run

FAKE = Path(__file__).parent / "fake_train.py"
TWO = ["impala", "--ranks", "1", "--vary", "learner.gamma=0.9,0.99", "--seeds", "1,2"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder, in which training takes no time and no pictures are drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAKE_TRAIN", raising=False)
    fake = [sys.executable, str(FAKE)]
    monkeypatch.setattr(
        running,
        "train_command",
        lambda algorithm, ranks, options: [*fake, algorithm, str(ranks), *options],
    )
    monkeypatch.setattr(
        running,
        "evaluate_command",
        lambda folder, episodes, options: [
            *[*fake, "evaluate", str(folder), "--episodes", str(episodes), *options]
        ],
    )
    monkeypatch.setattr(compare.report, "write_pictures", lambda *_: {})
    return tmp_path


def commands(here):
    """The runs and evaluations that were started, in their order."""
    file = here / "started.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return ["/".join(Path(line).parts[-2:]) for line in lines]


def started(here):
    """The runs that were started, in their order."""
    return [line for line in commands(here) if " " not in line]


def read_csv(file):
    with file.open() as lines:
        return list(csv.DictReader(lines))


A, B = "impala_CartPole-v1_N-1_learner.gamma-0.9", "impala_CartPole-v1_N-1_learner.gamma-0.99"


ONE = "impala_CartPole-v1_N-1"
LAST, ALL = "--episodes 20 --json", "--episodes 20 --snapshots"


class TestGreedy:
    def test_the_last_weights_of_a_run_play_before_the_next_run(self, here, capsys):
        assert compare.main(["impala", "--ranks", "1", "--seeds", "1-2", "--output", "out"]) == 0
        assert commands(here) == [
            *[f"{ONE}/seed_1", f"{ONE}/seed_1 {LAST}"],
            *[f"{ONE}/seed_2", f"{ONE}/seed_2 {LAST}"],
        ]
        (row,) = read_csv(here / "out" / "table.csv")
        assert (row["greedy_return_mean"], row["greedy_return_se"]) == ("150", "50")
        assert [row["greedy_return"] for row in read_csv(here / "out" / "runs.csv")] == [
            "100",
            "200",
        ]
        said = capsys.readouterr().out
        assert re.search(r"finished after \d+\.\d s, return 80.0, greedy return 200.0\n", said)
        assert "play 20 episodes with the most likely actions" in said

    def test_a_score_has_snapshots_played_too(self, here):
        words = ["impala", "--ranks", "1", "--seeds", "1-2", "--greedy_score", "150"]
        assert compare.main([*words, "--output", "out"]) == 0
        assert commands(here)[3:] == [
            f"{ONE}/seed_2",
            f"{ONE}/seed_2 {LAST}",
            f"{ONE}/seed_2 {ALL}",
        ]
        rows = read_csv(here / "out" / "runs.csv")
        assert [row["time_to_greedy_score_s"] for row in rows] == ["", "4"]
        (row,) = read_csv(here / "out" / "table.csv")
        assert row["time_to_greedy_score_mean_s"] == "152"  # (300 + 4) / 2
        assert row["greedy_score_never_reached"] == "seed 1"
        page = (here / "out" / "report.html").read_text()
        assert "s to greedy 150: mean, median" in page
        assert "two snapshots in a row within 300 s by impala (seed 1); such" in page
        # A report knows the score, and may ask for another.
        assert compare.main(["--report", "out", "--greedy_score", "100"]) == 0
        (row,) = read_csv(here / "out" / "table.csv")
        assert (row["greedy_score"], row["time_to_greedy_score_mean_s"]) == ("100", "3")

    def test_nothing_plays_if_no_episodes_are_wanted(self, here):
        words = ["impala", "--ranks", "1", "--seeds", "1", "--output", "out"]
        assert compare.main([*words, "--greedy_episodes", "0"]) == 0
        assert commands(here) == [f"{ONE}/seed_1"]
        assert compare.main(["--resume", "out"]) == 0
        assert commands(here) == [f"{ONE}/seed_1"]
        assert compare.main(["--resume", "out", "--greedy_episodes", "5"]) == 0
        assert commands(here)[1:] == [f"{ONE}/seed_1 --episodes 5 --json"]

    def test_an_evaluation_that_fails_is_said_and_made_again(self, here, monkeypatch, capsys):
        monkeypatch.setenv("FAKE_TRAIN", "deaf:1")
        words = ["impala", "--ranks", "1", "--seeds", "1-2", "--greedy_score", "150"]
        assert compare.main([*words, "--output", "out"]) == 1
        rows = read_csv(here / "out" / "runs.csv")
        log = f"out/runs/{ONE}/seed_1.txt"
        says = f"its evaluation failed: the sound card is gone (see {log})"
        assert [row["message"] for row in rows] == [says, ""]
        assert [row["state"] for row in rows] == ["finished"] * 2
        assert f"failed: {ONE}/seed_1: {says}\n" in capsys.readouterr().out
        assert Path(log).read_text().endswith("failed: the sound card is gone\n")
        (row,) = read_csv(here / "out" / "table.csv")
        assert (row["greedy_return_n"], row["without_snapshots"]) == ("1", "seed 1")
        before = len(commands(here))
        monkeypatch.setenv("FAKE_TRAIN", "")
        assert compare.main(["--resume", "out"]) == 0
        assert commands(here)[before:] == [f"{ONE}/seed_1 {LAST}", f"{ONE}/seed_1 {ALL}"]
        assert [row["message"] for row in read_csv(here / "out" / "runs.csv")] == ["", ""]

    def test_ctrl_c_ends_an_evaluation_and_resume_makes_it(self, here, monkeypatch, capsys):
        monkeypatch.setenv("FAKE_TRAIN", "break:1")
        words = ["impala", "--ranks", "1", "--seeds", "1-2", "--output", "out"]
        assert compare.main(words) == 130
        assert commands(here) == [f"{ONE}/seed_1", f"{ONE}/seed_1 {LAST}"]
        said = capsys.readouterr().out
        assert "stopped; go on with the 2 runs left: " in said
        assert "failed" not in said
        monkeypatch.setenv("FAKE_TRAIN", "")
        assert compare.main(["--resume", "out"]) == 0
        assert commands(here)[2:] == [
            *[f"{ONE}/seed_1 {LAST}", f"{ONE}/seed_2", f"{ONE}/seed_2 {LAST}"]
        ]


def test_every_setting_is_run_with_a_seed_before_the_next_seed(here, capsys):
    assert compare.main([*TWO, "--output", "out"]) == 0
    assert started(here) == [f"{A}/seed_1", f"{B}/seed_1", f"{A}/seed_2", f"{B}/seed_2"]
    said = capsys.readouterr().out
    assert "comparison in out: 2 settings, 4 runs\n  impala gamma=0.9 on CartPole-v1, N = 1" in said
    assert "4 runs to make; the time is not known before the first has ended\n" in said
    assert "run 1 of 4: impala gamma=0.9, seed 1\n" in said
    assert re.search(r"^2.40M/2.40M steps \(100%\)", said, re.M)
    table = read_csv(here / "out" / "table.csv")
    assert [(row["setting"], row["seeds"]) for row in table] == [
        ("impala gamma=0.9", "1 2"),
        ("impala gamma=0.99", "1 2"),
    ]
    assert [row["final_return_mean"] for row in table] == ["60", "60"]
    assert [row["state"] for row in read_csv(here / "out" / "runs.csv")] == ["finished"] * 4
    assert (here / "out" / "table.md").read_text() in said


def test_environments_and_numbers_of_ranks_are_settings_too(here):
    words = ["impala", "--env", "CartPole-v1", "Acrobot-v1", "--ranks", "1", "3", "--seeds", "7"]
    assert compare.main([*words, "--output", "out"]) == 0
    assert [run.partition("/")[0] for run in started(here)] == [
        "impala_CartPole-v1_N-1",
        "impala_CartPole-v1_N-3",
        "impala_Acrobot-v1_N-1",
        "impala_Acrobot-v1_N-3",
    ]
    table = read_csv(here / "out" / "table.csv")
    assert [(row["environment"], row["setting"]) for row in table] == [
        (env, f"impala N={ranks}") for env in ("CartPole-v1", "Acrobot-v1") for ranks in (1, 3)
    ]
    text = (here / "out" / "table.md").read_text()
    assert re.findall("^## .*", text, re.M) == [
        "## CartPole-v1, N = 1 and 3, 1 seed each",
        "## Acrobot-v1, N = 1 and 3, 1 seed each",
    ]


def test_options_of_training_reach_every_run(here, monkeypatch):
    given = []
    make = running.train_command
    monkeypatch.setattr(
        running, "train_command", lambda *words: given.append(words) or make(*words)
    )
    words = ["impala", "--seeds", "4", "--vary", "gamma=0.5", "--lr", "0.1", "--output", "out"]
    words[4] = "learner.gamma=0.5"
    assert compare.main(words) == 0
    folder = str(Path("out/runs/impala_CartPole-v1_N-3_learner.gamma-0.5/seed_4"))
    options = ["--lr", "0.1", "--set", "learner.gamma=0.5", "--seed", "4", "--run_dir", folder]
    assert given == [("impala", 3, options)]


def test_a_failed_run_is_a_row_and_the_others_go_on(here, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_TRAIN", "fail:1 early:2")
    assert compare.main(["impala", "--ranks", "1", "--seeds", "1-3", "--output", "out"]) == 1
    rows = read_csv(here / "out" / "runs.csv")
    assert [row["state"] for row in rows] == ["failed", "failed", "finished"]
    log = "out/runs/impala_CartPole-v1_N-1/seed_1.txt"
    assert rows[0]["message"] == f"the environment raised ValueError (exit code 1, see {log})"
    assert rows[1]["message"].startswith("no room for temporary files (exit code 1, see ")
    (row,) = read_csv(here / "out" / "table.csv")
    assert (row["seeds"], row["final_return_mean"]) == ("3", "120")
    assert "seed 1: failed, the environment raised ValueError" in row["not_counted"]
    said = capsys.readouterr().out
    assert "failed: impala_CartPole-v1_N-1/seed_2: no room for temporary files" in said
    # They are missing still, and are made again.
    monkeypatch.setenv("FAKE_TRAIN", "")
    assert compare.main(["--resume", "out"]) == 0
    assert [run[-6:] for run in started(here)] == [f"seed_{n}" for n in (1, 2, 3, 1, 2)]
    assert {row["state"] for row in read_csv(here / "out" / "runs.csv")} == {"finished"}


def test_ctrl_c_ends_the_run_in_order_keeps_what_is_finished_and_resume_goes_on(
    here, monkeypatch, capsys
):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setenv("FAKE_TRAIN", "stop:2")
    assert compare.main([*TWO, "--output", "out"]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert len(started(here)) == 3
    rows = read_csv(here / "out" / "runs.csv")
    assert [row["state"] for row in rows] == ["finished", "stopped", "finished"]
    said = capsys.readouterr().out
    assert "(75%)" not in said  # two of four were made
    go_on = f"{sys.executable} -m impala_ms compare --resume out"
    assert f"stopped; go on with the 2 runs left: {go_on}\n" in said
    monkeypatch.setenv("FAKE_TRAIN", "")
    assert compare.main(["--resume", "out"]) == 0
    assert started(here)[3:] == [f"{A}/seed_2", f"{B}/seed_2"]
    said = capsys.readouterr().out
    assert "2 of them are there already\n2 runs to make, about " in said
    assert compare.main(["--resume", "out"]) == 0
    assert len(started(here)) == 5
    assert "nothing is left to run\n" in capsys.readouterr().out


def test_the_limit_ends_a_run_in_order_and_is_its_time_to_the_score(here, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_TRAIN", "slow")
    words = ["impala", "--ranks", "1", "--seeds", "1", "--limit_s", "0.4", "--score", "475"]
    assert compare.main([*words, "--output", "out"]) == 0
    said = capsys.readouterr().out
    assert "before the first has ended; 0 s at most\n" in said
    assert "ended by --limit_s after " in said
    (row,) = read_csv(here / "out" / "runs.csv")
    assert (row["state"], row["final_return"]) == ("limit", "40")
    (row,) = read_csv(here / "out" / "table.csv")
    assert (row["time_to_score_mean_s"], row["score_never_reached"]) == ("0.4", "seed 1")
    assert row["steps_to_score_mean"] == "600000"
    assert compare.main([*words[:5], "--limit_s", "9", "--output", "out"]) == 2
    assert "the runs in out were made with 0.4; give the same" in capsys.readouterr().err


def test_rows_are_added_to_an_older_table(here):
    words = ["impala", "--ranks", "1", "--output", "out"]
    assert compare.main([*words, "--seeds", "1"]) == 0
    assert compare.main([*words, "--seeds", "1-2", "--vary", "learner.gamma=0.99,0.5"]) == 0
    assert started(here) == [
        "impala_CartPole-v1_N-1/seed_1",
        "impala_CartPole-v1_N-1_learner.gamma-0.5/seed_1",
        "impala_CartPole-v1_N-1/seed_2",  # 0.99 is what it was
        "impala_CartPole-v1_N-1_learner.gamma-0.5/seed_2",
    ]
    table = read_csv(here / "out" / "table.csv")
    assert [(row["setting"], row["n"]) for row in table] == [
        ("impala gamma=0.99", "2"),
        ("impala gamma=0.5", "2"),
    ]
    assert len(plan.load(here / "out").commands) == 2


def test_other_settings_of_the_same_name_get_a_folder_of_their_own(here):
    for rate in ("0.1", "0.2"):
        words = ["impala", "--ranks", "1", "--seeds", "1", "--lr", rate, "--output", "out"]
        assert compare.main(words) == 0
    assert [run.partition("/")[0] for run in started(here)] == [
        "impala_CartPole-v1_N-1",
        "impala_CartPole-v1_N-1-2",
    ]


def test_resume_with_other_defaults_is_refused(here, capsys):
    assert compare.main(["impala", "--ranks", "1", "--seeds", "1", "--output", "out"]) == 0
    file = here / "out" / plan.FILE
    data = json.loads(file.read_text())
    data["settings"][0]["values"]["learner.gamma"] = 0.5
    file.write_text(json.dumps(data))
    assert compare.main(["--resume", "out"]) == 2
    said = capsys.readouterr().err
    assert "learner.gamma of impala_CartPole-v1_N-1 is 0.99 now and was 0.5 when the comp" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["impola"], "unknown algorithm 'impola': did you mean impala?"),
        (["dreamer"], "unknown algorithm 'dreamer': allowed: "),
        (["--env", "CartPole-v1"], "no algorithm is given: compare impala, for example; --help "),
        (["impala", "impala"], "impala stands twice in the algorithms: give it once"),
        (["impala", "--ranks", "2", "2"], "2 stands twice in --ranks: give it once"),
        (["impala", "--ranks", "0"], "--ranks 0: it takes whole numbers of 1 or more"),
        (["impala", "--seeds", "1,3,1"], "1 stands twice in --seeds: give it once"),
        (["impala", "--seeds", "5-1"], "--seeds 5-1: a range goes up, such as 1-5"),
        (["impala", "--seeds", "1,2-"], "--seeds 1,2-: they are given as 1-5 or 1,3,7"),
        (["impala", "--seeds", "1,,2"], "--seeds 1,,2: they are given as 1-5 or 1,3,7"),
        (["impala", "--seeds", "one"], "--seeds one: it takes whole numbers of 0 or more"),
        (["impala", "--seeds", "1-20000"], "--seeds 1-20000: a comparison has 10,000 runs at most"),
        (
            ["impala", "--seeds", "1-5000", "--ranks", "1", "2", "3"],
            "these are 15,000 runs, and a comparison has 10,000 at most: give fewer ",
        ),
        (
            ["impala", "--ranks", "1000000"],
            "--ranks 1000000: it takes whole numbers of 1 or more, 9",
        ),
        (
            ["impala", "--algorithm", "a3c"],
            "--algorithm is not for a comparison: give the names fi",
        ),
        (
            ["impala", "--env", "CartPole-v1", "--score", "Pendulum-v1=-200"],
            "--score Pendulum-v1=-200: Pendulum-v1 is not an environment of these runs",
        ),
        (["impala", "--seed", "3"], "--seed is not for a comparison: use --seeds"),
        (["impala", "--run_dir", "a"], "--run_dir is not for a comparison: use --output"),
        (["impala", "--vary", "gamma"], "--vary gamma: it is PATH=A,B, such as learner.correct"),
        (
            ["impala", "--vary", "learner.gamma=0.9,0.9"],
            "0.9 stands twice in --vary learner.gamma=0.9,0.9: give it once",
        ),
        (["impala", "--score", "high"], "--score high: it takes a number"),
        (["impala", "--greedy_score", "high"], "--greedy_score high: it takes a number"),
        (
            ["impala", "--env", "CartPole-v1", "--score", "Cartpole-v1=475"],
            "--score Cartpole-v1=475: Cartpole-v1 is not an environment of these runs: they are of "
            "CartPole-v1",
        ),
        (["impala", "--greedy_score", "CartPole=475"], "--greedy_score CartPole=475: CartPole is "),
        (
            ["impala", "--greedy_episodes", "-1"],
            "--greedy_episodes -1: it takes whole numbers of 0",
        ),
        (
            ["impala", "--greedy_episodes", "0", "--greedy_score", "9"],
            "--greedy_episodes 0: --greedy_score needs 1 or more, give another number",
        ),
        (["--report", "out", "--greedy_episodes", "5"], "--report trains nothing: leave out --gr"),
        (["impala", "--limit_s", "-1"], "--limit_s -1: it takes seconds, more than 0"),
        (["impala", "--limit_s", "1", "2"], "--limit_s takes one value, not 2"),
        (["impala", "--output"], "--output takes one value, not 0"),
        (["impala", "--band", "std"], "--band std: it is one of se, minmax"),
        (["--resume", "nothing"], "nothing is not the folder of a comparison: no comparison.json"),
        (["--resume", "out", "--seeds", "1"], "--resume goes on with what is planned: leave out -"),
        (["--report", "out", "--lr", "1"], "--report trains nothing: leave out --lr"),
        (["impala", "--output", "full"], "full is there and is not the folder of a comparison: gi"),
        (["impala", "--lrr", "1"], "impala N=3: unknown option --lrr: did you mean --lr?"),
        (
            ["impala", "--env", "CartPole-v7"],
            "impala CartPole-v7 N=3: ",
        ),
        (
            ["impala", "--vary", "learner.gama=0.5", "--seeds", "1-9"],
            "impala N=3 learner.gama=0.5: unknown key learner.gama (--set): did you mean learner.g",
        ),
        (
            ["impala", "--vary", "learner.gamma=0.99,0.990"],
            "impala N=3 learner.gamma=0.990: the same setting is there already",
        ),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_started(here, capsys, words, says):
    Path("full").mkdir()
    Path("full", "file").touch()
    assert compare.main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(says)
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert [path.name for path in here.iterdir()] == ["full"]


def test_problems_are_said_once_for_each_setting(here, capsys):
    words = ["impala", "--vary", "learner.gamma=2,0.5,3", "--seeds", "1-5"]
    assert compare.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "impala N=3 learner.gamma=2",
        "impala N=3 learner.gamma=3",
    ]


def test_only_one_comparison_runs_in_a_folder(here, capsys):
    assert compare.main(["impala", "--ranks", "1", "--seeds", "1", "--output", "out"]) == 0
    code = (
        "import sys, time; from pathlib import Path; from impala_ms.comparison import plan\n"
        "lock = plan.lock(Path('out')); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"locked\n"
    assert compare.main(["--resume", "out"]) == 2
    holder.communicate()
    assert capsys.readouterr().err == "another comparison runs in out: wait for its end\n"
    assert compare.main(["--resume", "out"]) == 0


def test_another_folder_is_refused_as_options_may_name_files(here, capsys, monkeypatch):
    assert compare.main(["impala", "--ranks", "1", "--seeds", "1", "--output", "out"]) == 0
    here.joinpath("elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert compare.main(["--resume", "../out"]) == 2
    assert f"was started in {here}: go there, " in capsys.readouterr().err


def test_the_folder_is_named_by_environment_and_time():
    wanted = request.read(["impala", "--env", "CartPole-v1", "--seeds", "1"])
    made = plan.make(wanted, "")
    assert re.fullmatch(r"comparisons/CartPole-v1_\d{8}-\d{6}", str(made.folder))
    assert not made.folder.exists()
    assert plan.make(request.read(["impala"]), "").folder.name.startswith("CartPole-v1_")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["learner.correction=vtrace,none"], [("learner.correction", ("vtrace", "none"))]),
        (["network.hidden_sizes=[8,8],[16]"], [("network.hidden_sizes", ("[8,8]", "[16]"))]),
        (["a.b=1", "c.d=2,3"], [("a.b", ("1",)), ("c.d", ("2", "3"))]),
        (
            ["network.options={a: [8,8], b: 3},{a: [[1],[2]]}"],
            [("network.options", ("{a: [8,8], b: 3}", "{a: [[1],[2]]}"))],
        ),
    ],
)
def test_values_of_a_grid_are_split_at_commas_outside_brackets(words, values):
    assert list(request.read(["impala", "--vary", *words]).vary) == values
    repeated = [part for word in words for part in ("--vary", word)]
    assert list(request.read(["impala", *repeated]).vary) == values


def test_a_score_is_for_all_environments_or_for_one():
    scores = request.read(["impala", "--score", "475", "--score=Pendulum-v1=-200"]).scores
    assert scores == {"": 475.0, "Pendulum-v1": -200.0}
    scores = request.read(["impala", "--score", "envs/corridor.py:Corridor-v0=0.9"]).scores
    assert scores == {"corridor.py:Corridor-v0": 0.9}  # as the table names it
    with pytest.raises(UsageError):
        request.read(["impala", "--score", "nan"])


def made(here, **took):
    """A comparison with some runs that have ended: seconds by name and seed, as a_1."""
    comparison = plan.Comparison(here, str(here))
    for name, env, steps in (("a", "X", 100), ("b", "X", 200), ("c", "Y", 100)):
        values = {"trainer.total_env_steps": steps}
        comparison.settings.append(plan.Setting(name, "impala", env, 1, [], values, [1, 2]))
    for name, seconds in took.items():
        setting, seed = name.split("_")
        comparison.outcomes[f"{setting}/seed_{seed}"] = plan.Outcome(runs.FINISHED, seconds)
        (here / "runs" / setting / f"seed_{seed}").mkdir(parents=True)
    return comparison


@pytest.mark.parametrize(
    ("took", "limit_s", "seconds"),
    [
        ({}, None, None),
        # a as the one of its setting, b at the same speed with twice the steps, twice; c as any
        ({"a_1": 10}, None, 10 + 2 * 20 + 2 * 10),
        ({"a_1": 10, "b_1": 50}, None, 10 + 50 + 2 * (0.1 + 0.25) / 2 * 100),
        ({"a_1": 10, "c_1": 30}, None, 10 + 2 * 20 + 30),
        ({"a_1": 10}, 15, 10 + 2 * 15 + 2 * 10),
    ],
)
def test_the_forecast_goes_by_setting_then_by_speed(here, took, limit_s, seconds):
    comparison = made(here, **took)
    comparison.limit_s, comparison.greedy_episodes = limit_s, 0
    found = running.forecast_s(comparison, comparison.missing())
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_the_forecast_has_the_time_of_playing_and_none_of_a_run_that_only_plays(here):
    comparison = made(here, a_1=10, a_2=10)
    comparison.settings = comparison.settings[:2]  # b has twice the steps
    comparison.outcomes["a/seed_1"].played_s = 3.0
    write_json(here / "runs" / "a" / "seed_1" / "greedy.json", {"episodes": 20})
    missing = comparison.missing()
    assert [comparison.key(run) for run in missing] == ["b/seed_1", "a/seed_2", "b/seed_2"]
    assert running.forecast_s(comparison, missing) == pytest.approx(3 * 3 + 2 * 20)


def test_progress_says_that_weights_play_and_counts_the_run_as_made(here):
    comparison, shown = made(here, a_1=10), []
    _, run, *later = comparison.planned()  # 100 steps are made, this run has 200
    watch = running.Watch(comparison, run, later, SimpleNamespace(progress=shown.append))
    watch.playing()
    (row,) = shown
    assert (row["waiting_for"], row["env_steps"]) == ("greedy episodes", 300)


def test_the_newest_row_is_the_last_whole_one(here):
    file = here / "metrics.csv"
    assert running.newest_row(file) == {}
    file.write_text("a,b\n")
    assert running.newest_row(file) == {}
    file.write_text("a,b\n" + "1,2\n" * 5000 + "3,\n4")
    assert running.newest_row(file) == {"a": 3.0}


class Page(HTMLParser):
    """Which tags a page has, what they refer to, and whether each is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.tags = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def real_pictures(monkeypatch):
    monkeypatch.undo()


def test_a_report_is_made_anew_from_runs_and_needs_no_other_file(
    real_pictures, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        make_run(tmp_path / "runs" / f"a{seed}", [0, 475], seed=seed)
        settings = {"network.activation": "<relu>"}
        make_run(tmp_path / "runs" / f"b{seed}", [0, 9], seed=seed, settings=settings)
    make_run(tmp_path / "runs" / "c", [0, 9], env="Acrobot-v1", state="failed", message="a < b")
    assert compare.main(["--report", "runs", "--score", "475", "--output", "out"]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    found = Page(page)
    assert found.tags.count("img") == 1  # nothing is drawn of a failed run
    assert all(link.startswith("data:image/svg+xml;base64,") for link in found.links)
    assert not re.search(r"https?://|@import|url\(", page)
    for text in ("activation=&lt;relu&gt;", "a &lt; b", "2.10.0", "--report runs --score 475"):
        assert text in page
    names = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"curves_CartPole-v1.png", "curves_CartPole-v1.svg"}
    assert names == {"report.html", "table.md", "table.csv", "runs.csv"} | pictures
    assert "2 seeds each" in page


def test_without_matplotlib_the_tables_are_written(real_pictures, tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs" / "a", [0, 475])
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert compare.main(["--report", str(tmp_path / "runs"), "--output", str(tmp_path / "o")]) == 0
    assert "matplotlib is missing" in capsys.readouterr().err
    page = Page((tmp_path / "o" / "report.html").read_text())
    assert ("img" in page.tags, "table" in page.tags) == (False, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "nothing: there is no such folder"),
        (["twice"], "twice/a and twice/b are the same setting with the same seed: a mean over "),
        (["old"], "wall_time_s is not a column of old/a/metrics.csv; columns of all runs: env_ste"),
        (["one", "--score", "Pong=9"], "--score Pong=9: Pong is not an environment of these run"),
    ],
)
def test_runs_that_do_not_belong_together_are_one_line(here, capsys, words, says):
    make_run(here / "twice" / "a", [1, 2])
    make_run(here / "twice" / "b", [1, 2])
    make_run(here / "one" / "a", [1, 2])
    make_run(here / "old" / "a", [1, 2], columns=["env_steps", "episode_return_mean"])
    assert compare.main(["--report", *words, "--output", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(says)
    assert said.count("\n") == 1
    assert not Path("out").exists()


def test_a_report_about_a_comparison_knows_its_score_and_names(here, capsys):
    words = ["impala", "--ranks", "1", "--seeds", "1-2", "--score", "30", "--output", "out"]
    assert compare.main(words) == 0
    before = (here / "out" / "table.csv").read_text()
    assert "score_never_reached" in before
    (here / "out" / "table.csv").unlink()
    assert compare.main(["--report", "out"]) == 0
    assert (here / "out" / "table.csv").read_text() == before
    page = (here / "out" / "report.html").read_text()
    assert shlex.join(words) in page
    assert f"{os.cpu_count()} cores" in page


def test_a_run_started_by_hand_is_of_the_setting_of_a_comparison_that_has_the_same(here):
    """What the plan does not know, the torso, stands in the folders of the runs."""
    words = ["impala", "--ranks", "1", "--seeds", "1-2", "--output", "out"]
    assert compare.main(words) == 0
    made = config.load("impala", ["--seed", "3"], 1).to_json()
    made["network_params"]["torso"] = "mlp"
    for folder in (here / "out" / "runs" / ONE / "seed_2", make_run(here / "mine", ranks=1)):
        (folder / "config.json").write_text(json.dumps(made))
    members = [*plan.load(Path("out")).read_runs(), runs.read(here / "mine")]
    (group,) = runs.grouped(members)
    assert [run.seed for run in group.runs] == [1, 2, 3]
    assert group.label == "impala"


def test_a_report_names_folders_that_are_not_utf_8(here):
    make_run(here / os.fsdecode(b"runs/\xc4\xe3"), [1, 2])
    assert compare.main(["--report", "runs", "--output", "out"]) == 0
    (row,) = read_csv(here / "out" / "runs.csv")
    assert row["folder"] == "runs/??"


def test_the_command_of_a_run_is_what_a_user_gives(real_pictures):
    command = running.train_command("impala", 3, ["--seed", "1"])
    words = "-m impala_ms train 3 --algorithm impala --seed 1"
    assert command == [sys.executable, *words.split()]
    command = running.evaluate_command(Path("out/seed_1"), 20, ["--json"])
    words = "-m impala_ms evaluate out/seed_1 --greedy --episodes 20 --json"
    assert command == [sys.executable, *words.split()]


@pytest.mark.slow
def test_two_runs_are_trained_and_compared(real_pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["impala", "--ranks", "1", "--seeds", "1", "--total_env_steps", "3000"]
    words += ["--vary", "learner.correction=vtrace,none", "--output", "out"]
    words += ["--greedy_episodes", "3", "--greedy_score", "5"]
    assert compare.main(words) == 0, capsys.readouterr()
    table = read_csv(tmp_path / "out" / "table.csv")
    assert [row["setting"] for row in table] == [
        "impala correction=vtrace",
        "impala correction=none",
    ]
    for row in table:
        assert float(row["env_steps_per_s"]) > float(row["env_steps_per_s_with_start"]) > 100
        assert float(row["final_return_mean"]) > 5
        assert float(row["greedy_return_mean"]) > 5
        assert 0 < float(row["time_to_greedy_score_mean_s"]) <= 300
        assert float(row["rss_mb"]) > 100
    for row in read_csv(tmp_path / "out" / "runs.csv"):
        folder = Path(row["folder"])
        assert float(row["env_steps"]) >= 3000
        assert "finished: " in folder.with_name("seed_1.txt").read_text()
        config = json.loads((folder / "config.json").read_text())
        assert config["learner_params"]["correction"] == row["setting"].partition("=")[2]
    assert (tmp_path / "out" / "curves_CartPole-v1.png").read_bytes().startswith(b"\x89PNG")
