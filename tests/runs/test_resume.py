"""``--resume``: the same learner and files, but new episodes."""

import shutil

import numpy as np
import pytest

from impala_ms import checkpoint, snapshots
from impala_ms.metrics.sinks import read_rows
from tests.runs.run import FOR_EVER, PATIENCE_S

OWN = "tests.runs.plugins"
RANKS = 3
STEPS = 6000


@pytest.fixture(scope="module")
def finished(start_for_all):
    """A finished run with a user's own environment and trainer."""
    run = start_for_all(
        *[
            RANKS,
            "--total_env_steps",
            STEPS,
            "--env",
            f"{OWN}:Recording-v0",
            "--num_envs",
            "4",
            "--batch_size",
            "null",
        ],
        *["--set", f"trainer.type={OWN}:recording_trainer", "--log_interval_s", "0.05"],
        *["--checkpoint_interval_s", "0.05", "--snapshot_interval_s", "0.05"],
    )
    assert run.wait() == 0, run.lines
    return run


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of that run's folder."""
    return shutil.copytree(finished.run_dir, tmp_path / "run")


@pytest.fixture(scope="module")
def resumed(finished, start_for_all):
    """The run, resumed with twice the steps."""
    folder = finished.folder / "resumed"
    shutil.copytree(finished.run_dir, folder)
    folder.joinpath("snapshots", "update_000099999.npz").touch()  # later than the checkpoint
    run = start_for_all(
        RANKS, "--resume", "resumed", "--total_env_steps", 2 * STEPS, name="resumed"
    )
    assert run.wait() == 0, run.lines
    return run


def seeds(run, rank):
    return (run.run_dir / f"seeds_{rank}.txt").read_text().split()


@pytest.mark.mpi
class TestResumed:
    def test_learner_begins_with_the_saved_parameters_bit_for_bit(self, finished, resumed):
        saved, _ = checkpoint.load(finished.json("status.json")["checkpoint"])
        began = np.load(resumed.run_dir / "start_1.npz")
        assert set(saved) == set(began.files)
        assert len(saved) > 10  # weights and state of the optimiser
        for name, values in saved.items():
            assert began[name].dtype == values.dtype
            assert began[name].tobytes() == values.tobytes(), name
        fresh = np.load(resumed.run_dir / "start_0.npz")
        assert any(fresh[name].tobytes() != began[name].tobytes() for name in began.files)

    def test_metrics_continue_after_the_last_row(self, finished, resumed):
        before, rows = finished.rows(), resumed.rows()
        assert rows[: len(before)] == before
        assert len(rows) > len(before)
        for name in ("wall_time_s", "updates", "env_steps", "episodes"):
            values = [row[name] for row in rows]
            assert values == sorted(values), name
        assert rows[len(before)]["updates"] == before[-1]["updates"] + 1
        assert rows[-1]["env_steps"] >= 2 * STEPS

    def test_snapshots_continue_without_those_after_the_checkpoint(self, finished, resumed):
        before, now = (snapshots.listing(run.run_dir) for run in (finished, resumed))
        assert 1 < len(before) < len(now)
        assert [path.name for path in now[: len(before)]] == [path.name for path in before]
        taken = [snapshots.load(path)[1] for path in now]
        assert taken == sorted(taken)
        assert [one.updates for one in taken] == list(map(snapshots.updates_of, now))
        assert taken[-1].updates == resumed.json("status.json")["updates"] < 99999

    def test_first_rate_counts_only_new_steps(self, finished, resumed):
        first = resumed.rows()[len(finished.rows())]
        steps = first["env_steps"] - finished.rows()[-1]["env_steps"]
        assert 0 < steps <= 2 * 4 * 10
        assert first["updates_per_s"] * steps == pytest.approx(first["env_steps_per_s"], rel=0.01)

    def test_both_configurations_and_logs_are_kept(self, resumed):
        first, now = resumed.json("config.1.json"), resumed.json("config.json")
        assert first["trainer_params"]["total_env_steps"] == STEPS
        assert now["trainer_params"]["total_env_steps"] == 2 * STEPS
        assert resumed.log(0).count("learner step compiled") == 2

    def test_all_environments_of_both_runs_have_different_seeds(self, resumed):
        given = [seed for rank in (1, 2) for seed in seeds(resumed, rank)]
        assert len(given) == 2 * 2 * 4  # ranks, epochs, environments
        assert len(set(given)) == len(given)

    def test_learner_makes_no_environment(self, resumed):
        assert not (resumed.run_dir / "seeds_0.txt").exists()


@pytest.mark.mpi
def test_resume_of_a_finished_run_has_nothing_to_do(finished, copy, start):
    run = start(RANKS, "--resume", "run")
    assert run.wait() == 0, run.lines
    assert run.rows() == finished.rows()
    assert run.checkpoints() == finished.checkpoints()
    assert len(snapshots.listing(run.run_dir)) == len(snapshots.listing(finished.run_dir))
    assert run.json("status.json")["updates"] == finished.json("status.json")["updates"]
    assert "learner step compiled" not in run.log(0).partition("resumed from")[2]
    assert "--total_env_steps gives more" in run.line("nothing is left to do")
    assert run.line("evaluate").endswith("-m impala_ms evaluate run")


def test_resume_of_a_running_run_is_refused(start):
    run = start(1, *FOR_EVER, "--checkpoint_interval_s", "0.1")
    run.until(run.checkpoints)
    other = start(1, "--resume", "run").process
    said, _ = other.communicate(timeout=PATIENCE_S)
    assert (other.returncode, said.count("\n")) == (2, len(said.splitlines()))
    assert "is in use by a run that has not ended" in said.splitlines()[-1]
    assert run.stop()[0] == 130


def test_resume_skips_a_damaged_checkpoint(finished, copy, start):
    """With N = 1, since a run may be resumed with another number of actors."""
    newest, before = checkpoint.listing(copy / "checkpoints")[:2]
    newest.write_bytes(newest.read_bytes()[:-100])
    _, state = checkpoint.load(before)
    run = start(1, "--resume", "run", "--total_env_steps", 2 * STEPS)
    assert run.wait() == 0, run.lines
    assert f"resumed from {before}" in run.log(0)
    assert f"cannot read the checkpoint {newest}" in run.log(0)
    updates = [row["updates"] for row in run.rows()]
    assert updates == sorted(set(updates))  # rows after that checkpoint are replaced
    assert state["totals"]["updates"] + 1 in updates


def test_resume_with_another_network_is_refused_and_changes_nothing(copy, start):
    """The ranks notice it; the finished run is unchanged and can still be resumed."""
    before = {
        path: path.read_bytes()
        for path in copy.rglob("*")
        if path.is_file() and not path.name.startswith(("worker_", ".lock"))
    }
    run = start(
        *(1, "--resume", "run", "--total_env_steps", 2 * STEPS, "--env", "Acrobot-v1"),
        *("--set", f"trainer.type={OWN}:recording_trainer"),
    )
    assert run.wait() == 1
    assert "is of another network" in run.lines[-1]
    assert "(64, 6) here" in run.lines[-1]
    assert {path: path.read_bytes() for path in before} == before
    assert run.json("status.json")["state"] == "finished"
    assert not list(copy.glob("*.next.json"))


def test_resume_into_another_folder_leaves_the_run_unchanged(copy, start):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    run = start(
        *(1, "--resume", "run", "--run_dir", "fork", "--total_env_steps", STEPS + 500),
        name="fork",
    )
    assert run.wait() == 0, run.lines
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert run.line("resumed from update_")
    rows = read_rows(copy / "metrics.csv")
    assert run.rows()[: len(rows)] == rows
    assert run.rows()[-1]["env_steps"] >= STEPS + 500
    config = run.json("config.json")
    assert (config["fork_of"], config["epoch"]) == (str(copy), 1)


class TestInitFrom:
    """``--init_from``: a new run with the weights of another."""

    def test_new_run_has_the_weights_of_the_checkpoint_and_counts_from_0(self, copy, start):
        run = start(
            *(1, "--init_from", "run", "--total_env_steps", "500", "--num_envs", "4"),
            *("--batch_size", "4", "--set", f"trainer.type={OWN}:recording_trainer"),
            name="new",
        )
        assert run.wait() == 0, run.lines
        newest = checkpoint.listing(copy / "checkpoints")[0]
        assert run.line("the first weights are those of").endswith(str(newest))
        saved, _ = checkpoint.load(newest)
        began = np.load(run.run_dir / "start_0.npz")
        network = [name for name in saved if name.startswith(("torso.", "policy_head", "baseline"))]
        assert len(network) == 8
        assert all(began[name].tobytes() == saved[name].tobytes() for name in network)
        others = {name for name in began.files if began[name].any()} - set(network)
        assert not {name for name in others if "moment" in name}  # the optimiser is new
        assert run.rows()[-1]["updates"] < 20

    def test_init_from_another_network_is_refused(self, copy, start):
        newest = checkpoint.listing(copy / "checkpoints")[0]
        run = start(1, "--init_from", newest, "--hidden_sizes", "[8]", name="new")
        assert run.wait() == 1
        assert (
            "is of another network: torso.whole.layers.0.weight is (64, 4) there" in (run.lines[-1])
        )
