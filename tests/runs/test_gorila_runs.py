"""Gorila as whole runs: several servers, and what happens when one of the ranks is lost."""

import re

import numpy as np
import pytest

from impala_ms import checkpoint
from tests.runs.run import FOR_EVER

pytestmark = pytest.mark.mpi
SLOW = pytest.mark.slow
SMALL = (
    *("--algorithm", "gorila", "--num_envs", 2, "--unroll_length", 5, "--batch_size", 16),
    *("--replay_start", 100, "--replay_capacity", 2000, "--n_step", 3, "--target_period", 20),
    *("--log_interval_s", "0.05", "--checkpoint_interval_s", "0.1", "--snapshot_interval_s", "0.3"),
)
TOTAL = 1500


def played(run, *ranks):
    """Decisions of all workers, as their logs say."""
    said = [re.search(r"told to stop after (\d+) env steps", run.log(rank)) for rank in ranks]
    return sum(int(one[1]) for one in said)


def test_two_servers_make_one_network_and_count_every_decision_once(start):
    run = start(4, *SMALL, "--servers", 2, "--total_env_steps", TOTAL)
    assert run.wait() == 0, run.lines
    rows, status = run.rows(), run.json("status.json")
    assert run.line("gorila on CartPole-v1: 2 servers + 2 workers")
    assert TOTAL <= rows[-1]["env_steps"] == status["env_steps"]
    assert rows[-1]["ranks_alive"] == 4
    assert rows[-1]["rows_learned"] == 16 * rows[-1]["updates"]
    # What the workers have played since their last gradient is not counted.
    missing = played(run, 2, 3) - status["env_steps"] - status["env_steps_dropped"]
    assert 0 <= missing <= 2 * (100 + 10)
    assert re.search(r"serves 8705 weights to the workers, ranks \[2, 3\]", run.log(1))
    path, parameters, state = checkpoint.latest(run.run_dir / "checkpoints")
    sizes = [parameters[name].size for name in state["network"]]
    assert sum(sizes) == 17410
    assert path.name == run.checkpoints()[-1]
    moved = [parameters[f"accum.{name}"] for name in state["network"]]
    assert all((one > 0.1).any() for one in moved)  # both ranges were learned
    snapshots = sorted((run.run_dir / "snapshots").glob("update_*.npz"))
    (last,) = (file for file in np.load(snapshots[-1]).values() if file.size == 17410)
    flat = np.concatenate([parameters[name].ravel() for name in state["network"]])
    np.testing.assert_array_equal(last, flat)


@SLOW
class TestFaults:
    def test_a_run_goes_on_with_other_numbers_of_servers_and_workers(self, start):
        run = start(3, *SMALL, "--total_env_steps", TOTAL)
        assert run.wait() == 0, run.lines
        for again, (ranks, servers) in enumerate(((5, 3), (3, 2), (2, 1)), 2):
            before = run.rows()
            options = "--resume", "run", "--servers", servers, "--total_env_steps", again * TOTAL
            run = start(ranks, *options)
            assert run.wait() == 0, run.lines
            assert run.line("each worker fills its own with 100 decisions again")
            rows = run.rows()
            assert rows[: len(before)] == before
            assert rows[len(before)]["updates"] == before[-1]["updates"] + 1
            assert again * TOTAL <= rows[-1]["env_steps"] < again * TOTAL + 600

    def test_a_killed_worker_is_started_again_under_one_server(self, start):
        run = start(3, *SMALL, *FOR_EVER)
        run.until_training()
        before = run.ranks()
        run.kill(2)
        run.until(lambda: "rank 2 takes part again" in run.log(0))
        steps = run.rows()[-1]["env_steps"]
        run.until(lambda: run.rows()[-1]["env_steps"] > steps + 1000)
        assert run.ranks()[2] != before[2]
        assert run.stop()[0] == 130

    def test_a_killed_worker_is_left_out_under_two_servers(self, start):
        run = start(4, *SMALL, "--servers", 2, *FOR_EVER)
        run.until_training()
        run.kill(3)
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        steps = run.rows()[-1]["env_steps"]
        run.until(lambda: run.rows()[-1]["env_steps"] > steps + 1000)
        assert run.stop()[0] == 130
        assert run.json("status.json")["state"] == "stopped"

    def test_one_replay_for_all_workers_is_lost_with_its_rank_and_filled_again(self, start):
        run = start(4, *SMALL, "--global_replay", "true", *FOR_EVER)
        run.until(lambda: len(run.checkpoints()) > 1)
        run.kill(1)
        assert run.wait() == 1
        assert run.line("rank 1, the replay, was lost: its decisions are lost")
        assert run.line("1 server + 1 store + 2 workers")
        path, _, state = checkpoint.latest(run.run_dir / "checkpoints")
        steps = state["totals"]["env_steps"]
        for servers, ranks in ((1, 3), (2, 5)):
            options = "--servers", servers, "--total_env_steps", steps + servers * 1000
            resumed = start(ranks, "--resume", "run", *options)
            assert resumed.wait() == 0, resumed.lines
            assert resumed.line("the replay is not in checkpoints: it is filled with 100 decisions")
        rows = resumed.rows()
        assert rows[-1]["rows_learned"] == 16 * rows[-1]["updates"]
        assert rows[-1]["replay_rows"] <= 2000
        assert path.name == checkpoint.file_name(state["totals"]["updates"])

    @pytest.mark.parametrize("lost", [0, 1])
    def test_a_killed_server_ends_the_run_and_it_goes_on_from_its_checkpoint(self, start, lost):
        run = start(4, *SMALL, "--servers", 2, *FOR_EVER)
        run.until(lambda: len(run.checkpoints()) > 1)
        run.kill(lost)
        assert run.wait() == 1
        if lost:
            assert run.line("rank 1, a parameter server, was lost: its weights are lost")
        path, _, state = checkpoint.latest(run.run_dir / "checkpoints")
        steps = state["totals"]["env_steps"]
        options = "--resume", "run", "--servers", 1, "--total_env_steps", steps + 1000
        resumed = start(3, *options)
        assert resumed.wait() == 0, resumed.lines
        assert resumed.line(f"resumed from {path.name}: {steps:,} env steps")

    def test_gradients_are_dropped_where_the_limits_are_tight_and_not_where_they_are_wide(
        self, start
    ):
        tight, wide = ((0.1, 0), (50, 100))
        found = []
        for name, (sigma, lag) in (("tight", tight), ("wide", wide)):
            options = "--sigma", sigma, "--max_policy_lag", lag, "--total_env_steps", 3 * TOTAL
            run = start(4, *SMALL, *options, name=name)
            assert run.wait() == 0, run.lines
            rows = run.rows()
            kinds = ("dropped", "withheld")
            found.append([sum(row[f"gradients_{kind}"] for row in rows) for kind in kinds])
        assert min(found[0]) > 10
        assert found[1] == [0, 0]
