"""Run folders, which of them belong together, and the tables about them."""

import csv
import json

import pytest

from impala_ms import snapshots
from impala_ms.comparison import results, runs, tables
from impala_ms.comparison.results import Asked
from impala_ms.comparison.runs import RunError
from impala_ms.configuration import algorithms
from tests.made_up_runs import make_run, make_snapshots, play_snapshots


def groups_of(folder):
    return runs.grouped([runs.read(found) for found in runs.find(folder)])


def record_of(folder, score=None, limit_s=None, greedy_score=None):
    (group,) = groups_of(folder)
    return results.of_group(group, Asked(score, greedy_score, limit_s))


def test_runs_that_differ_only_in_the_seed_are_one_group(tmp_path):
    for seed in (1, 2, 10):
        make_run(tmp_path / f"a_{seed}", [1, 2], seed=seed)
        make_run(tmp_path / f"b_{seed}", [1, 2], seed=seed, settings={"learner.gamma": 0.5})
    labels = [(group.label, [run.seed for run in group.runs]) for group in groups_of(tmp_path)]
    assert labels == [("impala gamma=0.99", [1, 2, 10]), ("impala gamma=0.5", [1, 2, 10])]


@pytest.mark.parametrize(
    ("others", "labels"),
    [
        ([{}], ["impala"]),
        ([{"settings": {"trainer.snapshot_interval_s": 2.0}}], ["impala"]),  # learns the same
        ([{"algorithm": "a3c"}], ["impala", "a3c"]),
        ([{"ranks": 5}], ["impala N=3", "impala N=5"]),
        # what two algorithms differ in says their name
        ([{"algorithm": "a3c", "settings": {"learner.lr": 0.1}}], ["impala", "a3c"]),
        (
            [{"settings": {"network.hidden_sizes": [8, 8], "collect_env.frame_stack": 4}}],
            [
                "impala collect_env.frame_stack=none hidden_sizes=[64,64]",
                "impala collect_env.frame_stack=4 hidden_sizes=[8,8]",
            ],
        ),
        ([{"env": "Pong-v5"}], ["impala", "impala"]),  # each has a table and a picture
    ],
)
def test_a_label_says_what_differs(tmp_path, others, labels):
    for number, values in enumerate([{}, *others]):
        make_run(tmp_path / str(number), [1], seed=number, **values)
    assert [group.label for group in groups_of(tmp_path)] == labels


def test_a_run_that_was_resumed_with_another_setting_is_not_of_either_setting(tmp_path):
    whole = make_run(tmp_path / "whole", [1, 2], seed=1, settings={"learner.lr": 0.001})
    steps = {"learner.lr": 0.001, "trainer.total_env_steps": 500, "trainer.eval_episodes": 3}
    longer = make_run(tmp_path / "longer", [1, 2], seed=2, settings={"learner.lr": 0.001})
    earlier = make_run(tmp_path / "old", [1], settings=steps)
    (earlier / "config.json").rename(longer / "config.1.json")  # only went on for longer
    other = make_run(tmp_path / "other", [1, 2], seed=3, settings={"learner.lr": 0.001})
    for number, lr in ((1, 0.004), (2, 0.002)):
        made = make_run(tmp_path / f"made_{number}", [1], settings={"learner.lr": lr})
        (made / "config.json").rename(other / f"config.{number}.json")
    fork = make_run(tmp_path / "fork", [1, 2], seed=4, settings={"learner.lr": 0.5})
    config = json.loads((fork / "config.json").read_text()) | {"fork_of": str(whole)}
    (fork / "config.json").write_text(json.dumps(config))
    groups = runs.grouped([runs.read(folder) for folder in (whole, longer, other, fork)])
    assert [(group.label, [run.seed for run in group.runs]) for group in groups] == [
        ("impala lr=0.001", [1, 2]),
        ("impala lr=0.004 then 0.002 then 0.001", [3]),
        ("impala lr=0.001 then 0.5", [4]),
    ]


def test_n_is_of_all_ranks_that_ever_took_part(tmp_path):
    make_run(tmp_path / "lost", [1, 2, 3], ranks=5, ranks_alive=[4, 5, 3])
    make_run(tmp_path / "young", ranks=4)  # its command says it
    assert [runs.read(tmp_path / name).ranks for name in ("lost", "young")] == [5, 4]


def test_a_folder_without_runs_is_one_line(tmp_path):
    with pytest.raises(RunError, match="nothing: there is no such folder"):
        runs.find(tmp_path / "nothing")
    with pytest.raises(RunError, match="is not a run folder, and holds none: there is no metrics"):
        runs.find(tmp_path)


def test_damaged_files_are_one_line(tmp_path):
    run = make_run(tmp_path / "run", [1, 2])
    run.joinpath("metrics.csv").write_text("env_steps,entropy\n1,two\n")
    with pytest.raises(RunError, match=r"metrics.csv cannot be read: could not convert"):
        runs.read(run)
    run.joinpath("status.json").write_text("{")
    with pytest.raises(RunError, match=r"status.json cannot be read: "):
        runs.read(run)


def test_time_and_steps_to_the_score_count_a_run_without_it_as_limit_and_total(tmp_path):
    make_run(tmp_path / "1", [0, 475, 0], seconds=[0, 40, 50], steps=[0, 300, 900], seed=1)
    make_run(tmp_path / "2", [0, 500, 0], seconds=[0, 80, 90], steps=[0, 500, 900], seed=2)
    make_run(tmp_path / "3", [0, 474, 0], seconds=[0, 60, 95], steps=[0, 300, 900], seed=3)
    record = record_of(tmp_path, 475.0, 300.0)
    assert (record["time_to_score_mean_s"], record["time_to_score_median_s"]) == (140, 80)
    assert (record["steps_to_score_mean"], record["steps_to_score_median"]) == (600, 500)
    assert record["score_never_reached"] == "seed 3"
    assert tables.notes([record], Asked(475.0, limit_s=300.0)) == [
        "475 was not reached within 300 s by impala (seed 3); such a run counts as so many "
        "seconds, and as all its steps."
    ]
    assert record_of(tmp_path, 475.0)["time_to_score_mean_s"] == (40 + 80 + 95) / 3
    assert record_of(tmp_path)["time_to_score_mean_s"] is None


def test_a_run_that_has_the_score_after_the_limit_counts_as_one_that_never_had_it(tmp_path):
    for seed, returns in enumerate([[0, 475, 475], [0, 0, 475], [0, 0, 0]], 1):
        make_run(tmp_path / str(seed), returns, seconds=[0, 10, 70], steps=[0, 300, 900], seed=seed)
    record = record_of(tmp_path, 475.0, 60.0)
    assert record["time_to_score_mean_s"] == (10 + 60 + 60) / 3
    assert record["steps_to_score_mean"] == (300 + 1000 + 1000) / 3
    assert record["score_never_reached"] == "seeds 2, 3"
    without = record_of(tmp_path, 475.0)
    assert without["time_to_score_mean_s"] == (10 + 70 + 70) / 3
    assert without["score_never_reached"] == "seed 3"


def play(run, returns, seconds=None, last=None):
    """Give a run snapshots that have played, at 10, 20, … seconds and 100, 200, … steps."""
    make_snapshots(run, seconds or [10.0 * (k + 1) for k in range(len(returns))])
    play_snapshots(run, returns)
    if last is not None:
        run.joinpath("greedy.json").write_text(json.dumps({"return_mean": last, "episodes": 20}))


class TestGreedyScore:
    def test_time_and_steps_are_those_of_the_first_snapshot_whose_next_holds_it(self, tmp_path):
        play(make_run(tmp_path / "1", [1], seed=1), [0.0, 475.0, 9.0, 480.0, 475.0])
        play(make_run(tmp_path / "2", [1], seed=2), [500.0, 500.0])
        record = record_of(tmp_path, greedy_score=475.0)
        assert record["time_to_greedy_score_mean_s"] == (40 + 10) / 2
        assert record["steps_to_greedy_score_mean"] == (400 + 100) / 2
        assert record["greedy_score_never_reached"] == ""
        heads, (line,) = tables.cells([record])
        shown = dict(zip(heads, line, strict=True))
        assert shown["s to greedy 475: mean, median"] == "25.0, 25.0"
        assert shown["steps to greedy 475: mean, median"] == "250.0, 250.0"
        assert record_of(tmp_path)["time_to_greedy_score_mean_s"] is None

    @pytest.mark.parametrize(("limit_s", "limit"), [(None, 300), (90.0, 90)])
    def test_run_that_does_not_reach_it_in_time_counts_as_the_limit_and_is_named(
        self, tmp_path, limit_s, limit
    ):
        play(make_run(tmp_path / "1", [1], seed=1), [475.0, 475.0])
        play(make_run(tmp_path / "2", [1], seed=2), [0.0, 475.0])  # only the last
        play(make_run(tmp_path / "3", [1], seed=3), [475.0, 475.0], seconds=[301.0, 302.0])
        make_run(tmp_path / "4", seed=4, state="failed")
        record = record_of(tmp_path, limit_s=limit_s, greedy_score=475.0)
        assert record["time_to_greedy_score_mean_s"] == (10 + 3 * limit) / 4
        assert record["steps_to_greedy_score_mean"] == (100 + 3 * 1000) / 4
        assert record["greedy_score_never_reached"] == "seeds 2, 3, 4"
        says = (
            f"Greedy 475 was not reached by two snapshots in a row within {limit} s by impala "
            "(seeds 2, 3, 4); such a run counts as this time, and as all its steps."
        )
        assert says in tables.notes([record], Asked(None, 475.0, limit_s))

    def test_run_whose_snapshots_have_not_all_played_is_named_and_has_no_time(self, tmp_path):
        play(make_run(tmp_path / "1", [1], seed=1), [475.0, 475.0])
        make_run(tmp_path / "2", [1], seed=2)
        play(make_run(tmp_path / "3", [1], seed=3), [0.0, 0.0])
        make_snapshots(tmp_path / "3", [10.0, 20.0, 30.0])  # one more
        record = record_of(tmp_path, greedy_score=475.0)
        assert record["time_to_greedy_score_mean_s"] == 10
        assert record["without_snapshots"] == "seeds 2, 3"
        says = (
            "No time to greedy 475 is known of impala (seeds 2, 3): the weights were not saved, or "
        )
        assert tables.notes([record], Asked(None, 475.0))[0].startswith(says)

    def test_damaged_table_is_one_line(self, tmp_path):
        run = make_run(tmp_path / "1", [1])
        play(run, [475.0])
        snapshots.table(run, True).write_text("{")
        with pytest.raises(RunError, match=r"greedy.csv: its first line is not"):
            runs.read(run)


def test_the_greedy_return_is_of_the_last_weights_and_its_spread_over_seeds(tmp_path):
    for seed, value in enumerate([0.0, 0.0, 100.0, 100.0]):
        run = make_run(tmp_path / str(seed), [5, 5], seed=seed, eval_return_mean=77.0)
        play(run, [1.0], last=value)
    record = record_of(tmp_path)
    assert (record["greedy_return_mean"], record["greedy_return_n"]) == (50, 4)
    assert record["greedy_return_se"] == pytest.approx(28.8675, abs=1e-4)
    assert tables.meanings([record])[2] == (
        "greedy return: the last weights of a run play 20 episodes with the most likely actions; "
        "mean ± standard error over seeds."
    )


def test_older_runs_show_their_newest_evaluation_if_it_was_greedy(tmp_path):
    make_run(tmp_path / "1", [5, 5], seed=1, eval_return_mean=[7.0, 77.0])
    sampled = {"policy.eval_greedy": False}
    make_run(tmp_path / "2", [5, 5], seed=2, eval_return_mean=77.0, settings=sampled)
    records = [results.of_group(group, Asked()) for group in groups_of(tmp_path)]
    assert [record["greedy_return_mean"] for record in records] == [77.0, None]
    assert records[0]["greedy_episodes"] == 10


def test_seeds_without_a_greedy_return_are_said(tmp_path):
    play(make_run(tmp_path / "1", [5], seed=1), [1.0], last=9.0)
    make_run(tmp_path / "2", [5], seed=2)
    assert tables.notes([record_of(tmp_path)], Asked()) == [
        "impala: 1 of 2 seeds have a greedy return."
    ]


def test_a_failed_run_is_named_and_counts_only_as_the_limit(tmp_path):
    make_run(tmp_path / "1", [0, 475], seconds=[0, 40], seed=1)
    make_run(tmp_path / "2", [9, 9], seed=2, state="failed", message="no memory")
    record = record_of(tmp_path, 475.0, 300.0)
    assert (record["seeds"], record["n"], record["final_return_mean"]) == ("1", 1, 475)
    assert record["not_counted"] == "seed 2: failed, no memory"
    assert (record["time_to_score_mean_s"], record["score_never_reached"]) == (170, "seed 2")
    without = record_of(tmp_path, 475.0)
    assert (without["time_to_score_mean_s"], without["score_never_reached"]) == (40, "")


def test_a_run_that_was_stopped_or_goes_on_counts_and_is_named_with_its_steps(tmp_path):
    make_run(tmp_path / "1", [0, 475], steps=[0, 1000], seed=1)
    make_run(tmp_path / "2", [0, 50], steps=[0, 150], seed=2, state="stopped")
    make_run(tmp_path / "3", seed=3, state=None)
    make_run(tmp_path / "4", [0, 475], steps=[0, 500], seed=4, state="limit")
    record = record_of(tmp_path)
    assert (record["n"], record["final_return_mean"]) == (4, 1000 / 3)
    assert tables.notes([record], Asked())[0] == (
        "impala: counted as far as they came: seed 2: stopped after 150 of 1,000 env steps; "
        "seed 3: has not ended after 0 of 1,000 env steps."
    )


def test_the_spread_of_the_final_return_is_over_seeds(tmp_path):
    for seed, value in enumerate([0, 0, 100, 100]):
        make_run(tmp_path / str(seed), [50, value], seed=seed, eval_return_mean=[None, value + 1])
    record = record_of(tmp_path)
    assert (record["final_return_mean"], record["greedy_return_mean"]) == (50, 51)
    assert record["final_return_se"] == pytest.approx(28.8675, abs=1e-4)
    heads, lines = tables.cells([record])
    assert dict(zip(heads, lines[0], strict=True))["final return"] == "50.0 ± 28.9"


def test_numbers_that_no_run_has_are_no_columns(tmp_path):
    make_run(tmp_path / "run", [1, 2, 3], policy_lag_mean=1.5)
    heads, (line,) = tables.cells([record_of(tmp_path)])
    assert heads == [
        *("setting", "seeds", "env steps/s", "with start-up", "final return"),
        *("policy lag (updates)", "memory (MiB)"),
    ]
    assert line == ["impala", "1", "100.0", "100.0", "3.00", "1.50", "400.0"]


def test_rows_learned_are_shown_by_step_where_there_is_the_column(tmp_path):
    columns = [*algorithms.columns("impala"), "rows_learned"]
    make_run(tmp_path / "run", [1, 2, 3], columns=columns, rows_learned=[0, 200, 600])
    heads, (line,) = tables.cells([record_of(tmp_path)])
    assert dict(zip(heads, line, strict=True))["rows learned per step"] == "3.00"


def test_runs_without_rows_or_with_few_episodes_are_said(tmp_path):
    make_run(tmp_path / "1", seed=1)
    make_run(tmp_path / "2", [None, None], seed=2)
    record = record_of(tmp_path, 475.0)
    assert (record["n"], record["final_return_n"], record["final_return_mean"]) == (2, 0, None)
    assert "impala: 0 of 2 seeds have a final return; 20 episodes must end." in tables.notes(
        [record], Asked(475.0)
    )


def test_one_seed_has_no_standard_error_and_it_is_said(tmp_path):
    make_run(tmp_path / "run", [1, 2])
    record = record_of(tmp_path)
    assert record["final_return_se"] is None
    assert tables.notes([record], Asked()) == [
        "One seed of impala: there is no standard error and no band."
    ]


def test_csv_gives_back_what_was_written(tmp_path):
    records = [{"a": 1 / 3, "b": None, "c": 'x, "y"'}, {"a": 2, "b": 0.0, "c": ""}]
    found = list(csv.DictReader(tables.csv_text(records).splitlines()))
    assert found == [{"a": "0.333333", "b": "", "c": 'x, "y"'}, {"a": "2", "b": "0", "c": ""}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "1234567"),
        (1e15, "1000000000000000"),
        (1234567.5, "1234567.5"),
        (99999.96, "100000"),
        (-0.00012345678, "-0.000123457"),
        (float("inf"), "inf"),
    ],
)
def test_counts_of_steps_are_in_full_in_csv(value, text):
    (line,) = csv.DictReader(tables.csv_text([{"steps": value}]).splitlines())
    assert line["steps"] == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (5, "5"), (1234.5, "1,234"), (-21.0, "-21.0"), (0.5, "0.50"), (0.0123, "0.012")],
)
def test_numbers_have_the_digits_that_say_something(value, text):
    assert tables.number(value) == text
