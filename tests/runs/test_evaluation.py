"""Evaluation during training, and ``python -m impala_ms evaluate`` afterwards."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from impala_ms import checkpoint
from tests.runs.run import FOR_EVER

EPISODES = 5


@pytest.fixture(
    scope="module", params=[1, pytest.param(3, marks=pytest.mark.mpi)], ids=["alone", "mpi"]
)
def run(request, start_for_all):
    run = start_for_all(
        *[request.param, "--total_env_steps", "30000", "--tensorboard", "false"],
        *["--eval_interval_updates", "15", "--eval_episodes", EPISODES],
        name=f"run{request.param}",
    )
    assert run.wait() == 0, run.lines
    run.actor = min(1, request.param - 1)
    return run


def evaluate(run_dir, *options):
    command = [sys.executable, "-m", "impala_ms", "evaluate", run_dir, *options]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=False
    )


def test_only_actor_1_evaluates_and_logs_it(run):
    said = re.findall(r"^evaluate in actor 1, avg_reward (\d+\.\d)  \[", run.log(run.actor), re.M)
    begun = run.log(run.actor).count("Evaluating in actor 1  [")
    assert 1 <= len(said) <= begun <= len(said) + 1  # the end of the run may interrupt one
    assert "valuat" not in run.log(2)
    values = {row["eval_return_mean"] for row in run.rows()} - {None}
    assert values
    assert {f"{value:.1f}" for value in values} <= set(said)


def test_evaluations_give_the_version_of_their_weights(run):
    versions = [row["eval_version"] for row in run.rows() if row["eval_version"] is not None]
    assert versions == sorted(versions)
    assert versions[0] >= 15
    assert all(row["eval_version"] <= row["updates"] for row in run.rows() if row["eval_version"])


def test_best_evaluation_can_be_played_again(run):
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
    run = start_for_all(1, "--total_env_steps", "2000", name="short")
    assert run.wait() == 0, run.lines
    return shutil.copytree(run.run_dir, tmp_path_factory.mktemp("copy") / "run")


class TestEvaluate:
    def test_newest_checkpoint_is_played_with_sampled_actions(self, copy):
        done = evaluate(copy, "--episodes", 4)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^return \d.*standard error of 4 sampled episodes", done.stdout)

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
        """The run, to be evaluated in another environment."""
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
