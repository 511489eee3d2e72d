"""The configuration of a run that is resumed, evaluated, or of another version."""

import json
import sys

import pytest

from impala_ms import config, run_dir
from impala_ms.config import Config
from impala_ms.errors import ConfigError
from tests.configs import ATARI, STARTED, a_run, edited_defaults, load, problem, write


def test_resume_goes_on_from_the_configuration_of_the_run(tmp_path, monkeypatch):
    edited = edited_defaults(monkeypatch)
    folder = a_run(tmp_path / "run", "--seed", "42", "--set", "collect_env.kwargs.x=1")
    edited.trainer_params["seed"] = 7
    edited.collect_env_params["kwargs"] = {"y": 2}
    monkeypatch.chdir(tmp_path)
    loaded = load("--resume", "run", "--total_env_steps", "9e6", ranks=5)
    assert loaded.trainer_params["seed"] == 42
    assert loaded.collect_env_params["kwargs"] == {"x": 1}
    assert loaded.trainer_params["total_env_steps"] == 9_000_000
    assert loaded.actors == 4
    assert loaded.resume == loaded.trainer_params["run_dir"] == str(folder)
    assert Config.from_json(loaded.to_json()) == loaded


def test_a_run_that_was_moved_can_be_resumed(tmp_path):
    a_run(tmp_path / "run").rename(tmp_path / "moved")
    loaded = load("--resume", str(tmp_path / "moved"))
    assert loaded.trainer_params["run_dir"] == str(tmp_path / "moved")


def test_a_folder_that_is_not_a_run_cannot_be_resumed(tmp_path):
    argv = ("--resume", str(tmp_path / "run"))
    assert "there is no such folder" in problem(*argv)
    (tmp_path / "run").mkdir()
    assert "holds no config.json" in problem(*argv)
    folder = a_run(tmp_path / "other")
    (folder / "config.json").rename(tmp_path / "run" / "config.json")
    for name in ("best.ckpt", ".unfinished.ckpt"):  # it was killed before the first checkpoint
        assert "holds no checkpoint" in problem(*argv)
        write(tmp_path / "run" / "checkpoints" / name, "")
    assert "holds no checkpoint" in problem(*argv)
    write(tmp_path / "run" / "checkpoints" / "update_1.ckpt", "")
    assert load(*argv).resume == str(tmp_path / "run")
    broken = json.dumps(load().to_json() | {"epoch": None})
    for text in ("{", "[]", "null", "{}", '{"algorithm_config": {}}', "\xff", broken):
        (tmp_path / "run" / "config.json").write_bytes(text.encode("latin-1"))
        assert "config.json cannot be read" in problem(*argv)
        with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
            Config.read(tmp_path / "run" / "config.json")


def test_the_configuration_of_a_run_is_checked_when_it_is_read_back(tmp_path):
    folder = a_run(tmp_path / "run", "--seed", "42")
    assert config.of_run(folder).trainer_params["seed"] == 42
    good = json.loads((folder / "config.json").read_text())
    with pytest.raises(ConfigError, match="is not a run folder: it holds no config"):
        config.of_run(tmp_path)
    for section, value in (
        ("eval_env_params", {"num_envs": "many"}),
        ("trainer_params", {"seed": None}),
        ("algorithm_config", {"actor": {"type": 5, "params": None}}),
    ):
        write(folder / "config.json", json.dumps(good | {section: good[section] | value}))
        with pytest.raises(ConfigError, match=r"must be|wrote it: .*5 is not a class"):
            config.of_run(folder)


def test_resume_into_another_folder_goes_on_in_a_copy(tmp_path, monkeypatch):
    source = a_run(tmp_path / "run", "--seed", "5")
    write(source / "metrics.csv", "updates\n1\n")
    before = sorted((path, path.stat().st_mtime_ns) for path in source.rglob("*"))
    fork = load("--resume", str(source), "--run_dir", str(tmp_path / "b"), "--seed", "6")
    assert (fork.resume, fork.fork_of) == (str(tmp_path / "b"), str(source))
    assert fork.trainer_params["seed"] == 6
    folder = run_dir.prepare_run_dir(fork, started=STARTED)
    assert folder == tmp_path / "b"
    assert (folder / "checkpoints" / "update_1.ckpt").read_text() == "weights"
    assert (folder / "metrics.csv").read_text() == "updates\n1\n"
    assert Config.read(folder / "config.json") == fork
    assert sorted((path, path.stat().st_mtime_ns) for path in source.rglob("*")) == before
    with pytest.raises(ConfigError, match="holds a run"):
        run_dir.prepare_run_dir(fork, started=STARTED)
    monkeypatch.chdir(tmp_path)
    same = load("--resume", str(source), "--run_dir", "run")
    assert (same.resume, same.fork_of) == (str(source), None)


@pytest.mark.parametrize(
    "option",
    ["--optimizer=rmsprop", "--hidden_sizes=[8]", "--frame_stack=2", "--scale_actions=false"],
)
def test_a_resumed_run_keeps_what_its_checkpoint_depends_on(tmp_path, option):
    folder = a_run(tmp_path / "run")
    line = problem("--resume", str(folder), option)
    assert f"{option[2:].split('=')[0]} = " in line
    assert "a run keeps its own" in line
    assert "--init_from" in line


def test_a_resumed_run_keeps_what_was_chosen_for_it(tmp_path, monkeypatch):
    edited = edited_defaults(monkeypatch)
    folder = a_run(tmp_path / "run", "--env", "ALE/Pong-v5")
    edited.automatic["atari"] = ATARI | {"learner.lr": 0.9}
    resumed = load("--resume", str(folder), "--reward_clip", "none")
    assert resumed.learner_params["lr"] == ATARI["learner.lr"]
    assert set(resumed.chosen) == set(ATARI) - {"learner.reward_clip"}


def test_a_resumed_run_says_what_differs_from_itself(tmp_path):
    folder = a_run(tmp_path / "run", "--lr", "0.5", "--env", "Acrobot-v1")
    resumed = load("--resume", str(folder), "--env", "CartPole-v1", "--gamma", "0.5")
    assert resumed.summary().splitlines()[-1] == (
        "changed from the run that goes on: collect_env.id CartPole-v1 (was Acrobot-v1), "
        "learner.gamma 0.5 (was 0.99)"
    )


def test_an_evaluation_that_followed_goes_on_to_follow_after_a_resume(tmp_path):
    run = a_run(
        tmp_path / "run", "--set", "collect_env.kwargs.f=10", "--set=eval_env.frame_stack=1"
    )
    resumed = load("--resume", str(run), "--set", "collect_env.kwargs.f=1", "--env", "Acrobot-v1")
    assert resumed.eval_env_params["kwargs"] == {"f": 1}
    assert resumed.eval_env_params["id"] == "Acrobot-v1"
    assert "eval_env.frame_stack" not in resumed.following


def test_a_torso_whose_file_has_moved_can_be_named_anew(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    write(old / "torso.py", "")
    folder = a_run(tmp_path / "run", "--torso", f"{old}/torso.py:T")
    old.rename(new)
    assert "No such file" in problem("--resume", str(folder))
    resumed = load("--resume", str(folder), "--torso", f"{new}/torso.py:T")
    assert resumed.network_params["torso"] == f"{new}/torso.py:T"
    assert "a run keeps its own" in problem("--resume", str(folder), "--torso", "mlp")


def test_a_run_knows_the_folders_where_its_modules_are_looked_for(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.chdir(first)
    run = a_run(tmp_path / "run")
    assert json.loads((run / "meta.json").read_text())["folder"] == str(first)
    monkeypatch.chdir(second)
    assert load("--resume", str(run)).folders == (str(first), str(second))
    monkeypatch.setattr(sys, "path", [])
    config.of_run(run)
    assert str(first) in sys.path


def test_weights_to_begin_with_must_be_there(tmp_path, monkeypatch):
    assert "there is no such checkpoint or run folder" in problem(
        "--init_from", str(tmp_path / "a")
    )
    file = a_run(tmp_path / "run") / "checkpoints" / "update_1.ckpt"
    monkeypatch.chdir(tmp_path)
    file.rename(file.with_name("best.ckpt"))
    assert "the folder holds no checkpoint of a run" in problem("--init_from", "run")
    write(file, "weights")
    given = load("--init_from", "run")
    assert given.trainer_params["init_from"] == str(tmp_path / "run")


def test_weights_to_begin_with_are_refused_with_resume(tmp_path):
    folder = a_run(tmp_path / "run")
    line = problem("--resume", str(folder), "--init_from", str(folder))
    assert "--resume goes on with a run's own weights: leave one out" in line


def test_a_run_is_read_when_the_weights_that_it_began_with_are_gone(tmp_path):
    source = a_run(tmp_path / "source")
    write(source / "checkpoints" / "update_000000001.ckpt", "weights")
    folder = a_run(tmp_path / "run", "--init_from", str(source))
    (source / "checkpoints").rename(tmp_path / "gone")
    source.rename(tmp_path / "moved")
    assert config.of_run(folder).trainer_params["init_from"] == str(source)
    assert load("--resume", str(folder)).trainer_params["init_from"] == str(source)


def test_weights_are_not_taken_from_a_network_that_was_used_in_another_way():
    data = load("--activation", "relu", "--scale_actions", "false").to_json()
    config.check_kept(load("--activation", "relu", "--scale_actions", "false"), data, "there")
    same = load("--activation=relu", "--scale_actions=false", "--optimizer=rmsprop")
    config.check_kept(same, data, "")
    with pytest.raises(ConfigError) as caught:
        config.check_kept(load(), data, "there")
    assert str(caught.value) == (
        "there collect_env.scale_actions is False, here True; network.activation is relu, here "
        "tanh: give the same"
    )
    with pytest.raises(ConfigError) as caught:
        config.check_kept(load(), data, "there", ["collect_env.scale_actions"])
    assert str(caught.value) == "there network.activation is relu, here tanh: give the same"


def test_a_run_of_format_1_keeps_the_old_meanings(tmp_path, caplog):
    folder = a_run(tmp_path / "run")
    data = json.loads((folder / "config.json").read_text())
    for key in ("format", "ranks", "chosen", "folders", "fork_of"):
        del data[key]
    for section in ("collect_env_params", "eval_env_params"):
        del data[section]["scale_actions"]
    data["trainer_params"]["old_key"] = 3
    data["algorithm_config"]["actor"]["networks"] = ["actor_net"]
    data["algorithm_config"]["collect_environment"]["number"] = 1
    data["network_params"]["torso"] = "mlp"
    write(folder / "config.json", json.dumps(data))
    for loaded in (config.of_run(folder), load("--resume", str(folder))):
        assert loaded.collect_env_params["scale_actions"] is False
        assert loaded.eval_env_params["scale_actions"] is False
        assert loaded.network_params["torso"] == "mlp"
    assert len(Config.read(folder / "config.json").places) == 3  # of 2 actors
    assert "has the key trainer.old_key = 3, which is not known any more" in caplog.text
    assert "networks" not in caplog.text
    assert load().collect_env_params["scale_actions"] is True


def test_a_run_of_a_later_format_is_refused(tmp_path):
    folder = a_run(tmp_path / "run")
    data = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", json.dumps(data | {"format": 99}))
    assert "it has format 99, and this version knows 1 to 3" in problem("--resume", str(folder))
