"""A whole run, with one rank and over MPI: all that it prints and leaves in its folder."""

import itertools
import re
import sys

import pytest

from impala_ms import checkpoint, config
from impala_ms.configuration import algorithms
from impala_ms.errors import ConfigError
from tests.conftest import ROOT
from tests.metrics.test_sinks import read_events

TOTAL, ENVS, UNROLL = 5000, 2, 10  # with so few environments, 20 episodes take several updates
SECRET = "what-nobody-else-is-to-know"


MPI = pytest.mark.mpi
OWN = {"impala": ("--batch_size", "null"), "a3c": ("--max_policy_lag", 0)}


@pytest.fixture(
    scope="module",
    params=[
        ("impala", 1),
        pytest.param(("impala", 3), marks=MPI),
        pytest.param(("a3c", 3), marks=MPI),
    ],
    ids=["alone", "mpi", "a3c-mpi"],
)
def run(request, start_for_all, tmp_path_factory):
    algorithm, ranks = request.param
    environment = {"MY_SECRET": SECRET}
    if ranks == 1:  # it needs no MPI
        broken = tmp_path_factory.mktemp("broken") / "mpi4py.py"
        broken.write_text("raise ImportError('MPI is broken here')\n")
        environment["PYTHONPATH"] = f"{broken.parent}:{ROOT}"
    run = start_for_all(
        ranks,
        *("--algorithm", algorithm, *OWN[algorithm], "--total_env_steps", TOTAL),
        *("--num_envs", ENVS, "--unroll_length", UNROLL),
        *["--log_interval_s", "0.05", "--checkpoint_interval_s", "0.05"],
        name=f"{algorithm}{ranks}",
        **environment,
    )
    run.algorithm, run.ranks_given = algorithm, ranks
    run.unrolls = 1 if algorithm == "a3c" else max(1, ranks - 1)  # in an update
    run.code = run.wait()
    return run


def played_by(run, rank):
    return int(re.search(r"told to stop after (\d+) env steps", run.log(rank))[1])


def test_last_lines_say_the_result_and_where_the_files_are(run):
    assert run.code == 0, run.lines
    status = run.json("status.json")
    said = re.fullmatch(
        r"finished: ([\d,]+) env steps in ([\d.]+) s, return ([\d.]+) \(mean of the last 20 "
        r"episodes\)",
        run.line("finished: "),
    )
    assert int(said[1].replace(",", "")) == status["env_steps"]
    assert 0 < float(said[2]) <= run.took_s + 0.1
    assert float(said[3]) == pytest.approx(status["episode_return_mean"], abs=0.051)
    if run.ranks_given > 1:
        played = [played_by(run, rank) for rank in range(1, run.ranks_given)]
        assert sum(played) == status["env_steps"] + status["env_steps_dropped"]
    for name in ("logs", "curves", "checkpoint"):
        path = run.line(f"  {name}  ").split()[1].rstrip(",")
        assert (run.folder / path).is_file()
    assert any("steps (" in line and "/s" in line for line in run.lines)  # progress


def test_status_agrees_with_the_last_row(run):
    status, last = run.json("status.json"), run.rows()[-1]
    assert (status["state"], status["exit_code"], status["message"]) == ("finished", 0, "")
    assert TOTAL <= status["env_steps"] == last["env_steps"]
    assert status["updates"] == last["updates"]
    assert status["episode_return_mean"] == pytest.approx(last["episode_return_mean"], rel=1e-4)


def test_metrics_have_all_columns_and_their_counters_grow(run):
    header = (run.run_dir / "metrics.csv").read_text().partition("\n")[0]
    assert header.split(",") == list(algorithms.columns(run.algorithm))
    rows = run.rows()
    assert len(rows) > 2
    for name in ("wall_time_s", "updates", "env_steps", "env_frames"):
        values = [row[name] for row in rows]
        assert all(a < b for a, b in itertools.pairwise(values)), name
    for name in ("episodes", "env_steps_dropped", "updates_skipped"):
        values = [row[name] for row in rows]
        assert values == sorted(values), name
    assert rows[0]["updates"] == 1
    assert rows[-1]["episodes"] > 20
    assert {row["ranks_alive"] for row in rows} == {run.ranks_given}
    assert all(row["env_frames"] == row["env_steps"] for row in rows)
    assert rows[-1]["wall_time_s"] <= run.took_s
    learning_rates = [row["learning_rate"] for row in rows]
    assert learning_rates == sorted(learning_rates, reverse=True)


def test_stale_gradients_are_dropped_counted_and_answered_and_nothing_else_is_dropped(run):
    """With ``max_policy_lag`` 0 a gradient is stale if another was applied meanwhile."""
    rows = run.rows()
    lags = {row["policy_lag_max"] for row in rows}
    assert (lags == {0}) == (run.ranks_given == 1 or run.algorithm == "a3c")
    dropped = sum(row.get("gradients_dropped", 0) for row in rows)
    assert (dropped > 0) == (rows[-1]["env_steps_dropped"] > 0) == (run.algorithm == "a3c")
    assert rows[-1]["env_steps_dropped"] <= dropped * ENVS * UNROLL
    played = [played_by(run, rank) for rank in range(1, run.ranks_given)]
    assert not played or min(played) > 0.1 * sum(played)  # nobody waits for ever


def test_a_run_is_not_resumed_with_another_algorithm(run):
    other = "impala" if run.algorithm == "a3c" else "a3c"
    with pytest.raises(ConfigError) as caught:
        config.load(None, ["--resume", str(run.run_dir), "--algorithm", other], run.ranks_given)
    (line,) = caught.value.problems
    assert f"--algorithm {other}" in line
    assert run.algorithm in line


def test_rows_are_at_least_an_interval_apart(run):
    times = [row["wall_time_s"] for row in run.rows()[:-1]]  # the last row is written at the end
    assert all(b - a > 0.04 for a, b in itertools.pairwise(times))


def test_env_steps_are_rows_without_resets(run):
    for row in run.rows():
        resets = row["updates"] * run.unrolls * ENVS * UNROLL - row["env_steps"]
        assert 0 <= resets <= row["episodes"]
    assert resets > 0


def test_steps_per_second_are_counted_steps_over_wall_time(run):
    rows = run.rows()
    steps = rows[-1]["env_steps"] - rows[0]["env_steps"]
    by_rates = sum(
        row["env_steps_per_s"] * (row["wall_time_s"] - before["wall_time_s"])
        for before, row in itertools.pairwise(rows)
    )
    assert by_rates == pytest.approx(steps, rel=0.05)


def test_return_is_empty_before_20_episodes(run):
    rows = run.rows()
    assert {row["episodes"] < 20 for row in rows} == {True, False}
    for row in rows:
        assert (row["episode_return_mean"] is None) == (row["episodes"] < 20)
        assert (row["episode_length_mean"] is None) == (row["episodes"] < 20)


def test_missing_values_are_empty_fields(run):
    text = (run.run_dir / "metrics.csv").read_text()
    assert "nan" not in text.lower()
    assert "none" not in text.lower()
    assert {row["eval_return_mean"] for row in run.rows()} == {None}


def test_config_and_meta_hold_settings_versions_and_command(run):
    config, meta = run.json("config.json"), run.json("meta.json")
    assert config["trainer_params"]["total_env_steps"] == TOTAL
    assert config["collect_env_params"]["num_envs"] == ENVS
    assert config["eval_env_params"]["id"] == "CartPole-v1"
    assert meta["versions"]["mindspore"]
    assert meta["argv"][1:4] == ["train", "train.py", str(run.ranks_given)]


def test_files_hold_no_environment_variables(run):
    assert not any(SECRET in line for line in run.lines)
    files = [path for path in run.run_dir.rglob("*") if path.is_file()]
    assert len(files) > 6
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path


def test_newest_checkpoints_are_kept_with_the_last_update(run):
    status, names = run.json("status.json"), run.checkpoints()
    assert names[-1] == checkpoint.file_name(status["updates"])
    assert status["checkpoint"] == str(run.run_dir / "checkpoints" / names[-1])
    assert 2 <= len(names) <= 3  # one is written every 0.05 s, three are kept
    parameters, state = checkpoint.load(status["checkpoint"])
    assert state["totals"]["env_steps"] == status["env_steps"]
    assert any(name.endswith("policy_head.weight") for name in parameters)


def test_each_rank_has_a_log_with_its_role(run):
    assert sorted(path.name for path in run.run_dir.glob("worker_*")) == [
        f"worker_{rank}.txt" for rank in range(run.ranks_given)
    ]
    for rank in range(run.ranks_given):
        roles = ("server", "worker") if run.algorithm == "a3c" else ("learner", "actor")
        role = roles[rank > 0]
        end = rf".*  \[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}} rank {rank} {role} INFO\]"
        assert run.log(rank)
        assert all(re.fullmatch(end, line) for line in run.log(rank).splitlines()), run.log(rank)
        assert (run.folder / f"worker_{rank}.txt").samefile(run.run_dir / f"worker_{rank}.txt")
    trained = [line for line in run.log(0).splitlines() if line.startswith("Train")]
    form = r"Train from one actor, episode (\d+), loss (-?\d+\.\d{4}), env_steps (\d+), .*"
    rows = run.rows()
    assert len(trained) == len(rows)
    for line, row in zip(trained, rows, strict=True):
        said = re.fullmatch(form, line)
        assert (int(said[1]), int(said[3])) == (row["updates"], row["env_steps"])
        assert float(said[2]) == pytest.approx(row["loss_total"], abs=1e-3, rel=1e-3)


def test_tensorboard_has_an_event_for_each_row(run, tmp_path):
    (file,) = run.run_dir.glob("events.out.tfevents.*")
    (tmp_path / file.name).symlink_to(file)
    events = [event for event in read_events(tmp_path) if event.summary.value]
    rows = run.rows()
    assert [event.step for event in events] == [row["env_steps"] for row in rows]


@pytest.mark.mpi
def test_documented_command_trains(start):
    """It is given in another folder, as by a user."""
    run = start(
        *[2, "--total_env_steps", "5000"],
        command=("bash", str(ROOT / "start_standalone.sh")),
        VIRTUAL_ENV=sys.prefix,
    )
    assert run.wait() == 0, run.lines
    assert run.line("finished: ")
    first = run.rows()[0]
    assert first["wall_time_s"] <= run.took_s
