"""DQN, Ape-X DQN and Ape-X DDPG as whole runs: what differs from the other algorithms."""

import re

import pytest

from impala_ms import checkpoint
from tests.runs.run import FOR_EVER

SMALL = (
    *("--num_envs", 2, "--unroll_length", 5, "--batch_size", 16, "--replay_start", 200),
    *("--replay_capacity", 2000, "--log_interval_s", "0.05", "--checkpoint_interval_s", "0.1"),
    *("--n_step", 3, "--updates_per_call", 4),
)
TOTAL = 2000
MPI, SLOW = pytest.mark.mpi, pytest.mark.slow


def played(run):
    """Decisions of all actors, as their logs say."""
    said = [re.search(r"told to stop after (\d+) env steps", run.log(r)) for r in (1, 2)]
    return sum(int(one[1]) for one in said)


@pytest.fixture(
    scope="module",
    params=[
        ("dqn", 1),
        pytest.param(("apex_dqn", 3), marks=MPI),
        pytest.param(("apex_ddpg", 3), marks=MPI),
    ],
    ids=["dqn-alone", "apex_dqn-mpi", "apex_ddpg-mpi"],
)
def run(request, start_for_all):
    algorithm, ranks = request.param
    options = "--algorithm", algorithm, *SMALL, "--total_env_steps", TOTAL
    run = start_for_all(ranks, *options, name=algorithm)
    run.ranks_given = ranks
    assert run.wait() == 0, run.lines
    return run


def test_all_decisions_are_counted_and_learning_begins_at_the_start(run):
    rows, status = run.rows(), run.json("status.json")
    assert run.line("finished: ")
    assert run.line("the replay takes up to ")
    assert rows[0]["updates"] == 4
    assert rows[0]["env_steps"] >= 200
    assert TOTAL <= rows[-1]["env_steps"] == status["env_steps"]
    assert status["updates"] == rows[-1]["updates"]
    if run.ranks_given == 3:
        assert played(run) == status["env_steps"] + status["env_steps_dropped"]
        assert len({row.get("epsilon") for row in rows}) == 1
    else:  # 16 rows are learned from for each that arrived after the start
        assert rows[-1]["updates"] == pytest.approx(rows[-1]["env_steps"] - 200, abs=40)
        assert rows[0]["epsilon"] > rows[-1]["epsilon"]
    assert rows[-1]["rows_learned"] == 16 * rows[-1]["updates"]


def test_checkpoint_holds_target_and_optimizer_but_not_the_replay(run):
    path = run.run_dir / "checkpoints" / run.checkpoints()[-1]
    parameters, state = checkpoint.load(path)
    targets = {name for name in parameters if name.startswith("target.")}
    assert {name.removeprefix("target.") for name in targets} <= set(parameters)
    critic = [name for name in parameters if name.startswith("critic.")]
    assert len(targets) == len(state["network"]) + len(critic)
    assert parameters["updates"] == run.rows()[-1]["updates"]
    assert path.stat().st_size < 4_000_000


@MPI
@SLOW
@pytest.mark.parametrize("algorithm", ["dqn", "apex_dqn", "apex_ddpg"])
class TestFaults:
    def test_a_resumed_run_fills_its_replay_first_and_goes_on_counting(self, start, algorithm):
        options = "--algorithm", algorithm, *SMALL
        run = start(3, *options, "--total_env_steps", TOTAL)
        assert run.wait() == 0, run.lines
        before = run.rows()[-1]
        run = start(2, "--resume", "run", "--total_env_steps", 2 * TOTAL)
        assert run.wait() == 0, run.lines
        assert run.line("the replay is not in checkpoints: it is filled with 200 decisions again")
        rows = run.rows()
        later = [row for row in rows if row["updates"] > before["updates"]]
        assert later[0]["updates"] == before["updates"] + 4
        assert later[0]["env_steps"] >= before["env_steps"] + 200
        assert 2 * TOTAL <= rows[-1]["env_steps"] < 2 * TOTAL + 500

    def test_a_killed_actor_is_started_again(self, start, algorithm):
        run = start(3, "--algorithm", algorithm, *FOR_EVER, *SMALL)
        run.until_training()
        before = run.ranks()
        run.kill(2)
        run.until(lambda: "rank 2 takes part again" in run.log(0))
        steps = run.rows()[-1]["env_steps"]
        run.until(lambda: run.rows()[-1]["env_steps"] > steps + 1000)
        assert run.ranks()[2] != before[2]
        assert run.stop()[0] == 130

    def test_a_killed_learner_loses_nothing_that_a_checkpoint_held(self, start, algorithm):
        run = start(3, "--algorithm", algorithm, *FOR_EVER, *SMALL)
        run.until(lambda: len(run.checkpoints()) > 1)
        run.kill(0)
        assert run.wait() == 1
        assert "rank 0 ended and did not say why" in run.lines[-1]
        path, _, state = checkpoint.latest(run.run_dir / "checkpoints")
        steps = state["totals"]["env_steps"]
        resumed = start(3, "--resume", "run", "--total_env_steps", steps + 1000)
        assert resumed.wait() == 0, resumed.lines
        assert resumed.line(f"resumed from {path.name}: {steps:,} env steps")
