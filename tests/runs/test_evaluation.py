"""Evaluation during training, and ``python -m impala_ms evaluate`` afterwards."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from impala_ms import checkpoint, snapshots
from tests.runs.run import FOR_EVER

EPISODES = 5


MPI, SLOW = pytest.mark.mpi, pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        (1, "impala"),
        pytest.param((3, "impala"), marks=MPI),
        pytest.param((3, "a3c"), marks=[MPI, SLOW]),
    ],
    ids=["alone", "mpi", "a3c-mpi"],
)
def run(request, start_for_all):
    ranks, algorithm = request.param
    run = start_for_all(
        *[ranks, "--algorithm", algorithm, "--total_env_steps", "30000", "--tensorboard", "false"],
        *["--eval_interval_updates", "15", "--eval_episodes", EPISODES],
        name=f"{algorithm}{ranks}",
    )
    assert run.wait() == 0, run.lines
    run.actor = min(1, ranks - 1)
    return run


def evaluate(run_dir, *options):
    command = [sys.executable, "-m", "impala_ms", "evaluate", run_dir, *options]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=False
    )


def test_only_actor_1_evaluates_and_logs_the_result(run):
    said = re.findall(r"^evaluate in actor 1, avg_reward (\d+\.\d)  \[", run.log(run.actor), re.M)
    begun = run.log(run.actor).count("Evaluating in actor 1  [")
    assert (
        1 <= len(said) <= begun <= len(said) + 1
    )  # the end of the run may interrupt an evaluation
    assert "valuat" not in run.log(2)
    values = {row["eval_return_mean"] for row in run.rows()} - {None}
    assert values
    assert {f"{value:.1f}" for value in values} <= set(said)


def test_rows_name_the_version_of_the_evaluated_weights(run):
    versions = [row["eval_version"] for row in run.rows() if row["eval_version"] is not None]
    assert versions == sorted(versions)
    assert versions[0] >= 15
    assert all(row["eval_version"] <= row["updates"] for row in run.rows() if row["eval_version"])


def test_best_evaluation_can_be_repeated(run):
    _, state = checkpoint.load(run.run_dir / "checkpoints" / checkpoint.BEST)
    returns = np.array(state["eval_returns"])
    assert len(returns) == EPISODES
    assert returns.mean() == state["best_return"]
    done = evaluate(run.run_dir, "--checkpoint", "best", "--greedy", "--episodes", EPISODES)
    assert done.returncode == 0, done.stderr
    error = returns.std(ddof=1) / np.sqrt(EPISODES)
    assert done.stdout == (
        f"return {returns.mean():.2f} ± {error:.2f} (mean ± standard error of {EPISODES} greedy "
        f"episodes; lowest {returns.min():.1f}, highest {returns.max():.1f}) of "
        f"{run.run_dir}/checkpoints/best.ckpt\n"
    )


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.mpi)])
def test_ctrl_c_in_an_evaluation_without_end_leaves_a_checkpoint(start, ranks):
    run = start(
        *(ranks, "--env", "CliffWalking-v1", "--eval_interval_updates", "2"),
        *("--eval_max_steps", "1000000000", "--synchronous", ranks == 2, *FOR_EVER),
    )
    run.until(lambda: "Evaluating in actor 1" in run.log(ranks - 1))
    code, took_s = run.stop()
    assert code == 130
    assert took_s < 10
    assert run.line("warning: CliffWalking-v1 has no time limit")
    assert len(run.checkpoints()) == 1


@pytest.fixture(scope="module")
def copy(start_for_all, tmp_path_factory):
    run = start_for_all(
        1, "--total_env_steps", "2000", "--snapshot_interval_s", "0.001", name="short"
    )
    assert run.wait() == 0, run.lines
    return shutil.copytree(run.run_dir, tmp_path_factory.mktemp("copy") / "run")


class TestEvaluate:
    def test_newest_checkpoint_is_played_with_sampled_actions(self, copy):
        done = evaluate(copy, "--episodes", 4)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^return \d.*standard error of 4 sampled episodes", done.stdout)

    def test_json_has_the_returns_and_their_checkpoint(self, copy):
        done = evaluate(copy, "--episodes", 4, "--greedy", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        returns = found.pop("returns")
        assert found == {
            "episodes": 4,
            "greedy": True,
            "return_mean": np.mean(returns),
            "return_stderr": pytest.approx(np.std(returns, ddof=1) / 2),
            "checkpoint": str(checkpoint.listing(copy / "checkpoints")[0]),
        }

    def test_folder_without_a_run_is_refused(self, tmp_path):
        done = evaluate(tmp_path / "nothing")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"{tmp_path}/nothing is not a run folder: it holds no config.json\n"

    def test_damaged_checkpoint_is_refused(self, copy, tmp_path):
        whole = checkpoint.listing(copy / "checkpoints")[0]
        damaged = tmp_path / "damaged.ckpt"
        damaged.write_bytes(whole.read_bytes()[:1000])
        done = evaluate(copy, "--checkpoint", damaged)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"cannot read the checkpoint {damaged}")
        assert done.stderr.count("\n") == 1

    def test_best_checkpoint_needs_evaluation_in_training(self, copy):
        done = evaluate(copy, "--checkpoint", "best")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "has no best checkpoint" in done.stderr
        assert "--eval_interval_updates" in done.stderr

    def with_environment(self, copy, tmp_path, id, kwargs):
        """A copy of the run that is evaluated in another environment."""
        folder = shutil.copytree(copy, tmp_path / "other")
        config = json.loads((folder / "config.json").read_text())
        config["eval_env_params"] |= {"id": id, "kwargs": kwargs}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    @pytest.mark.parametrize(
        ("kwargs", "says"),
        [
            ({"exits_at_step": 5}, "failed: it called sys.exit(0) in step 5 of its episode"),
            ({"fails_at_step": 5}, "failed: ValueError: the wheel came off at step 5 in step 5"),
        ],
    )
    def test_environment_that_fails_or_exits_is_named(self, copy, tmp_path, kwargs, says):
        id = "tests.runs.plugins:Troubled-v0"
        done = evaluate(self.with_environment(copy, tmp_path, id, kwargs | {"rank": 0}))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1].startswith(says)

    def test_damaged_settings_are_refused(self, copy, tmp_path):
        folder = self.with_environment(copy, tmp_path, "CartPole-v1", 5)
        done = evaluate(folder)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert f"eval_env.kwargs = 5 ({folder}/config.json): must be dict" in done.stderr

    def test_one_episode_has_no_standard_error(self, copy):
        done = evaluate(copy, "--episodes", 1)
        assert re.match(r"return \d+\.\d\d \(of 1 sampled episode\) of ", done.stdout)

    @pytest.mark.parametrize(("output", "code"), [(">/dev/full", 1), (">&-", 0)])
    def test_output_that_cannot_be_written_is_not_a_traceback(self, copy, output, code):
        command = f"{sys.executable} -m impala_ms evaluate {copy} --episodes 1 {output}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert done.returncode == code
        assert "Traceback" not in done.stderr


class TestSnapshots:
    @pytest.fixture
    def few(self, copy, tmp_path):
        """The run with only its first and its last snapshot."""
        folder = shutil.copytree(copy, tmp_path / "few")
        for path in snapshots.listing(folder)[1:-1]:
            path.unlink()
        return folder

    def test_each_plays_the_same_episodes_once(self, few):
        first, last = snapshots.listing(few)
        assert snapshots.updates_of(first) == 1  # the interval has passed at the first update
        flat, taken = snapshots.load(last)
        _, state = checkpoint.load(checkpoint.listing(few / "checkpoints")[0])
        assert taken[1:] == (state["totals"]["env_steps"], state["totals"]["updates"])
        snapshots.save(few, flat, snapshots.Taken(9.0, 9, taken.updates + 1))  # the same weights
        done = evaluate(few, "--snapshots", "--greedy", "--episodes", 3)
        assert done.returncode == 0, done.stderr
        rows = snapshots.read_table(few, True)
        assert [row.updates for row in rows] == [1, taken.updates, taken.updates + 1]
        assert {row.episodes for row in rows} == {3}
        assert rows[1][3:] == rows[2][3:]
        assert rows[0][3:] != rows[1][3:]
        assert done.stdout == (
            "3 of 3 snapshots played, 3 greedy episodes each; the last returned "
            f"{rows[2].return_mean:.2f}: {few}/snapshots/greedy.csv\n"
        )
        # One more, while those that were played need not be there to be known.
        first.write_bytes(b"")
        snapshots.save(few, flat, snapshots.Taken(9.5, 10, taken.updates + 2))
        done = evaluate(few, "--snapshots", "--greedy", "--episodes", 3)
        assert done.stdout.startswith("1 of 4 snapshots played, "), done.stderr
        assert snapshots.read_table(few, True)[:3] == rows

    def test_weights_of_another_network_are_refused(self, few):
        snapshots.save(few, np.zeros(3, np.float32), snapshots.Taken(0.0, 0, 0))
        done = evaluate(few, "--snapshots", "--episodes", 1)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "update_000000000.npz is of another network: the network has " in done.stderr

    def test_run_without_snapshots_says_how_to_get_them(self, few):
        shutil.rmtree(few / "snapshots")
        done = evaluate(few, "--snapshots")
        says = f"{few} has no snapshots: training saves them with --snapshot_interval_s 2\n"
        assert (done.returncode, done.stderr) == (1, says)
