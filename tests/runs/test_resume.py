"""``--resume``: the same learner, the same files, new episodes."""

import shutil

import numpy as np
import pytest

from impala_ms import checkpoint
from tests.runs.run import FOR_EVER, PATIENCE_S

OWN = "tests.runs.plugins"
RANKS = 3
STEPS = 6000


@pytest.fixture(scope="module")
def finished(start_for_all):
    """A finished run with an environment and a trainer of the user's own."""
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
        *["--checkpoint_interval_s", "0.05"],
    )
    assert run.wait() == 0, run.lines
    return run


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of that run's folder, to be resumed."""
    return shutil.copytree(finished.run_dir, tmp_path / "run")


@pytest.fixture(scope="module")
def resumed(finished, start_for_all):
    """The run again, with twice the steps."""
    folder = finished.folder / "resumed"
    shutil.copytree(finished.run_dir, folder)
    run = start_for_all(
        RANKS, "--resume", "resumed", "--total_env_steps", 2 * STEPS, name="resumed"
    )
    assert run.wait() == 0, run.lines
    return run


def seeds(run, rank):
    return (run.run_dir / f"seeds_{rank}.txt").read_text().split()


@pytest.mark.mpi
class TestResumed:
    def test_the_learner_begins_with_what_was_saved_bit_for_bit(self, finished, resumed):
        saved, _ = checkpoint.load(finished.json("status.json")["checkpoint"])
        began = np.load(resumed.run_dir / "start_1.npz")
        assert set(saved) == set(began.files)
        assert len(saved) > 10  # weights and the optimiser's state
        for name, values in saved.items():
            assert began[name].dtype == values.dtype
            assert began[name].tobytes() == values.tobytes(), name
        fresh = np.load(resumed.run_dir / "start_0.npz")
        assert any(fresh[name].tobytes() != began[name].tobytes() for name in began.files)

    def test_metrics_go_on(self, finished, resumed):
        before, rows = finished.rows(), resumed.rows()
        assert rows[: len(before)] == before
        assert len(rows) > len(before)
        for name in ("wall_time_s", "updates", "env_steps", "episodes"):
            values = [row[name] for row in rows]
            assert values == sorted(values), name
        assert rows[len(before)]["updates"] == before[-1]["updates"] + 1
        assert rows[-1]["env_steps"] >= 2 * STEPS

    def test_the_rate_does_not_count_what_was_before(self, finished, resumed):
        first = resumed.rows()[len(finished.rows())]
        steps = first["env_steps"] - finished.rows()[-1]["env_steps"]
        assert 0 < steps <= 2 * 4 * 10
        assert first["updates_per_s"] * steps == pytest.approx(first["env_steps_per_s"], rel=0.01)

    def test_configurations_and_logs_of_both_are_kept(self, resumed):
        first, now = resumed.json("config.1.json"), resumed.json("config.json")
        assert first["trainer_params"]["total_env_steps"] == STEPS
        assert now["trainer_params"]["total_env_steps"] == 2 * STEPS
        assert resumed.log(0).count("learner step compiled") == 2

    def test_every_environment_has_a_seed_of_its_own_and_a_new_one(self, resumed):
        given = [seed for rank in (1, 2) for seed in seeds(resumed, rank)]
        assert len(given) == 2 * 2 * 4  # ranks, epochs, environments
        assert len(set(given)) == len(given)

    def test_the_learner_makes_no_environment(self, resumed):
        assert not (resumed.run_dir / "seeds_0.txt").exists()


@pytest.mark.mpi
def test_a_finished_run_has_nothing_to_do(finished, copy, start):
    run = start(RANKS, "--resume", "run")
    assert run.wait() == 0, run.lines
    assert run.rows() == finished.rows()
    assert run.checkpoints() == finished.checkpoints()
    assert run.json("status.json")["updates"] == finished.json("status.json")["updates"]
    assert "learner step compiled" not in run.log(0).partition("resumed from")[2]
    assert "--total_env_steps gives more" in run.line("nothing is left to do")
    assert run.line("evaluate").endswith("evaluate.py run")


def test_a_run_that_still_goes_on(start):
    run = start(1, *FOR_EVER, "--checkpoint_interval_s", "0.1")
    run.until(run.checkpoints)
    other = start(1, "--resume", "run").process
    said, _ = other.communicate(timeout=PATIENCE_S)
    assert (other.returncode, said.count("\n")) == (2, len(said.splitlines()))
    assert "is in use by a run that has not ended" in said.splitlines()[-1]
    assert run.stop()[0] == 130


def test_a_checkpoint_cut_short_is_passed_over(finished, copy, start):
    """With N = 1: another number of actors may go on with a run."""
    newest, before = checkpoint.listing(copy / "checkpoints")[:2]
    newest.write_bytes(newest.read_bytes()[:-100])
    _, state = checkpoint.load(before)
    run = start(1, "--resume", "run", "--total_env_steps", 2 * STEPS)
    assert run.wait() == 0, run.lines
    assert f"resumed from {before}" in run.log(0)
    assert f"cannot read the checkpoint {newest}" in run.log(0)
    updates = [row["updates"] for row in run.rows()]
    assert updates == sorted(set(updates))  # rows after that checkpoint were made again
    assert state["totals"]["updates"] + 1 in updates


def test_another_network(copy, start):
    before = sorted(path.name for path in (copy / "checkpoints").iterdir())
    config = (copy / "config.json").read_bytes()
    run = start(
        1, "--resume", "run", "--total_env_steps", 2 * STEPS, "--set", "network.hidden_sizes=[8]"
    )
    assert run.wait() == 1
    assert "is of another network" in run.lines[-1]
    assert "(8, 4) here" in run.lines[-1]
    assert run.checkpoints() == before
    assert (copy / "config.json").read_bytes() == config  # the run can be resumed as it was
