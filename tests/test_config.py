"""What a configuration becomes: defaults, precedence, values, the environment's part, JSON."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms import classes
from impala_ms.config import Config
from impala_ms.configuration.sections import SECTIONS
from impala_ms.errors import ConfigError
from tests.configs import ATARI, OTHER, defaults, edited_defaults, load, problem, write


def test_no_options_give_what_config_py_says():
    loaded = load()
    for name in set(SECTIONS) - {"eval_env_params"}:
        given, section = getattr(loaded, name), name.removesuffix("_params")
        for key, value in getattr(defaults, name).items():
            assert given[key] == (OTHER.get(f"{section}.{key}") if value is None else value)
    assert (
        loaded.algorithm_config["learner"]["type"] == defaults.algorithm_config["learner"]["type"]
    )
    assert loaded.resume is None


def test_params_of_the_parts_are_the_sections():
    loaded = load("--lr", "0.5")
    parts = loaded.algorithm_config
    assert parts["learner"]["params"] is loaded.learner_params
    assert parts["learner"]["params"]["lr"] == 0.5
    assert parts["collect_environment"]["params"] is loaded.collect_env_params
    assert parts["eval_environment"]["params"] is loaded.eval_env_params
    assert parts["policy_and_network"]["params"] is loaded.network_params
    assert parts["actor"]["params"] is loaded.policy_params
    assert parts["trainer"]["params"] is loaded.trainer_params


def test_evaluation_follows_the_collecting_environment_where_it_says_nothing():
    loaded = load("--env", "Acrobot-v1", "--set", "collect_env.kwargs.x=1", "--num_envs", "4")
    assert loaded.eval_env_params["id"] == "Acrobot-v1"
    assert loaded.eval_env_params["kwargs"] == {"x": 1}
    assert loaded.eval_env_params["kwargs"] is not loaded.collect_env_params["kwargs"]
    assert loaded.eval_env_params["num_envs"] == defaults.eval_env_params["num_envs"]
    assert load("--set", "eval_env.num_envs=None", "--num_envs=4").eval_env_params["num_envs"] == 4


def test_loading_leaves_the_dicts_of_config_py_as_they_are():
    names = (*SECTIONS, "algorithm_config", "automatic")
    before = copy.deepcopy({name: getattr(defaults, name) for name in names})
    loaded = load("--set", "collect_env.kwargs.a=1", "--lr=1", "--set", "learner.type=m:C")
    loaded.collect_env_params["kwargs"]["a"] = 2
    loaded.network_params["hidden_sizes"].append(7)
    loaded.algorithm_config["actor"]["params"]["eval_greedy"] = "x"
    assert {name: getattr(defaults, name) for name in names} == before


def test_named_options_win_over_set_and_set_over_files_in_any_order(tmp_path):
    file = write(tmp_path / "a.yaml", "learner: {lr: 0.1, gamma: 0.1, baseline_cost: 0.1}")
    options = {
        "file": ("--config", file),
        "set": ("--set", "learner.lr=0.2", "--set", "learner.gamma=0.2"),
        "named": ("--lr", "0.3"),
    }
    for order in (("file", "set", "named"), ("named", "set", "file")):
        loaded = load(*(word for name in order for word in options[name])).learner_params
        assert (loaded["lr"], loaded["gamma"], loaded["baseline_cost"]) == (0.3, 0.2, 0.1)
        assert loaded["entropy_cost"] == defaults.learner_params["entropy_cost"]


def test_the_last_of_several_files_or_options_wins(tmp_path):
    first = write(tmp_path / "a.yaml", "trainer: {seed: 5, unroll_length: 7}")
    second = write(tmp_path / "b.yaml", "trainer: {seed: 6}")
    loaded = load("--config", first, "--config", second).trainer_params
    assert (loaded["seed"], loaded["unroll_length"]) == (6, 7)
    assert load("--seed", "7", "--seed=8").trainer_params["seed"] == 8
    assert load("--set", "trainer.seed=7", "--set=trainer.seed=9").trainer_params["seed"] == 9


def test_evaluation_follows_env_before_the_file_but_not_before_set(tmp_path):
    file = write(tmp_path / "a.yaml", "collect_env: {id: A-v0}\neval_env: {id: B-v0}")
    assert load("--config", file).eval_env_params["id"] == "B-v0"
    assert load("--config", file, "--env", "C-v0").eval_env_params["id"] == "C-v0"
    kept = load("--set", "eval_env.id=D-v0", "--env", "C-v0")
    assert (kept.collect_env_params["id"], kept.eval_env_params["id"]) == ("C-v0", "D-v0")


def test_batch_size_is_the_same_in_all_places():  # case 19 of the fault reports
    loaded = load("--batch_size", "8", "--num_envs", "4")
    assert loaded.trainer_params["batch_size"] == 8
    assert loaded.algorithm_config["trainer"]["params"]["batch_size"] == 8
    assert loaded.unrolls_per_batch == 2
    assert Config.from_json(loaded.to_json()).trainer_params["batch_size"] == 8


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--total_env_steps=1e6", 1_000_000),
        ("--total_env_steps=1_000_000", 1_000_000),
        ("--total-env-steps=12", 12),
        ("--seed=12345678901234567890", 12345678901234567890),
        ("--max_policy_lag=None", None),
        ("--max_policy_lag=null", None),
        ("--max_policy_lag=3", 3),
        ("--rho_bar=none", None),
        ("--rho_bar=2", 2.0),
        ("--lr=1e-3", 0.001),
        ("--gamma=1", 1.0),
        ("--gamma=0", 0.0),
        ("--synchronous=False", False),
        ("--tensorboard=false", False),
        ("--correction=none", "none"),
        ("--run_dir=123", "123"),
        ("--hidden_sizes=[8, 16]", [8, 16]),
        ("--kwargs={a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_options_have_the_type_of_their_key(option, value):
    key = option.partition("=")[0][2:].replace("-", "_")
    loaded = load(option)
    (got,) = [
        getattr(loaded, s)[key] for s in SECTIONS if s[:4] != "eval" and key in getattr(loaded, s)
    ]
    assert got == value
    assert type(got) is type(value)


def test_set_reaches_below_a_dict():
    text = "collect_env.kwargs"
    loaded = load(
        "--set", f"{text}.a=1e-3", "--set", f"{text}.b.c=[1, x]", "--set", f"{text}.d=true"
    )
    assert loaded.collect_env_params["kwargs"] == {"a": 0.001, "b": {"c": [1, "x"]}, "d": True}


def test_set_takes_sections_and_parts_by_any_of_their_names():
    for path in ("learner.lr", "learner_params.lr", "learner.params.lr"):
        assert load("--set", f"{path}=0.25").learner_params["lr"] == 0.25
    assert (
        load("--set", "collect_environment.params.num_envs=1").collect_env_params["num_envs"] == 1
    )
    assert load("--set", "learner.correction = none").learner_params["correction"] == "none"
    loaded = load("--set", "policy_and_network.type=my_module:MyNet", "--set", "actor.number=2")
    assert loaded.algorithm_config["policy_and_network"]["type"] == "my_module:MyNet"
    assert loaded.algorithm_config["actor"]["number"] == 2


def test_yaml_file_takes_all_spellings(tmp_path):
    text = """
    learner_params: {lr: 1e-3}
    trainer: {total_env_steps: 1e6, synchronous: false, max_policy_lag: null}
    network:
    algorithm_config: {actor: {number: 2}, learner: {params: {gamma: 0.5}}}
    """
    loaded = load("--config", write(tmp_path / "a.yml", text))
    assert loaded.learner_params["lr"] == 0.001
    assert loaded.learner_params["gamma"] == 0.5
    assert loaded.trainer_params["total_env_steps"] == 1_000_000
    assert loaded.network_params == defaults.network_params
    assert loaded.algorithm_config["actor"]["number"] == 2


def test_python_file_may_hold_classes(tmp_path):
    text = """
from collections import OrderedDict as Imported
class Learner:
    class Inner: pass
_helper = {"not": "a section"}
learner_params = {"lr": 0.125}
algorithm_config = {
    "learner": {"type": Learner, "params": learner_params},
    "actor": {"type": Learner.Inner},
}
"""
    file = write(tmp_path / "settings.py", text)
    loaded = load("--config", file)
    assert loaded.learner_params["lr"] == 0.125
    assert loaded.algorithm_config["learner"]["params"] is loaded.learner_params
    learner = loaded.algorithm_config["learner"]["type"]
    data = json.loads(json.dumps(loaded.to_json()))
    assert data["algorithm_config"]["learner"]["type"] == f"{file}:Learner"
    assert classes.resolve(f"{file}:Learner") is learner
    assert classes.resolve(f"{file}:Learner.Inner") is learner.Inner


def test_config_py_itself_can_be_copied_edited_and_given(tmp_path):
    text = Path(defaults.__file__).read_text()
    text = text.replace(
        "    settings.TRAINING,",
        "    settings.TRAINING | {'seed': Setting(77, 'int', '', '', 'Random.')},",
    )
    loaded = load("--config", write(tmp_path / "copy.py", text), "--lr", "0.5")
    assert loaded.trainer_params["seed"] == 77
    assert loaded.learner_params["lr"] == loaded.algorithm_config["learner"]["params"]["lr"] == 0.5


def test_without_a_batch_size_a_batch_is_one_unroll_of_each_actor():
    loaded = load("--batch_size", "null", "--num_envs", "8", ranks=4)
    assert loaded.trainer_params["batch_size"] == 24
    assert loaded.unrolls_per_batch == 3


def test_the_choice_none_is_not_the_value_none():
    """reward_clip takes "none"; None lets the environment choose."""
    games = ("--env", "ALE/Pong-v5", "--reward_clip")
    assert load(*games, "none").learner_params["reward_clip"] == "none"
    for value in ("None", "null"):
        assert load(*games, value).learner_params["reward_clip"] == "abs_one"


def test_json_gives_the_same_configuration_back():
    loaded = load("--env", "a.b:C-v1", "--set", "collect_env.kwargs.x=[1, 2]", "--rho_bar=None")
    data = json.loads(json.dumps(loaded.to_json(), allow_nan=False))
    again = Config.from_json(data)
    assert again == loaded
    assert again.algorithm_config["learner"]["params"] is again.learner_params
    assert again.unrolls_per_batch == loaded.unrolls_per_batch
    again.learner_params["lr"] = 9.0
    assert data["learner_params"]["lr"] == loaded.learner_params["lr"] != 9.0
    assert "lr" not in json.dumps(data["algorithm_config"])  # each value stands once
    loaded.to_json()["network_params"]["hidden_sizes"].append(7)
    assert 7 not in loaded.network_params["hidden_sizes"]


def test_files_are_named_in_full_so_that_they_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("env.py", "torso.py", "net.py"):
        write(tmp_path / name, "")
    loaded = load(
        *("--env", "env.py:A-v0", "--set", "eval_env.id=env.py:B-v0", "--torso", "torso.py:T"),
        *("--set", "policy_and_network.type=net.py:N"),
    )
    assert loaded.collect_env_params["id"] == f"{tmp_path}/env.py:A-v0"
    assert loaded.eval_env_params["id"] == f"{tmp_path}/env.py:B-v0"
    assert loaded.network_params["torso"] == f"{tmp_path}/torso.py:T"
    assert loaded.algorithm_config["policy_and_network"]["type"] == f"{tmp_path}/net.py:N"
    assert load("--env", "env:A-v0").collect_env_params["id"] == "env:A-v0"
    assert "No such file" in problem("--env", "none.py:A-v0")


def test_describe_marks_what_differs_from_config_py():
    lr = OTHER["learner.lr"]
    changed = load("--lr", str(lr / 2), "--num_envs", "4", "--batch_size", "24", ranks=4)
    lines = changed.describe().splitlines()
    assert lines[0] == "impala: 1 learner + 3 actors"
    assert lines[-1].startswith("S = batch_size / num_envs = 24 / 4 = 6 unrolls")
    (line,) = [line for line in lines if line[2:].startswith("learner.lr ")]
    assert line.split() == ["*", "learner.lr", str(lr / 2), "(config.py:", f"{lr})"]
    assert sum(line.startswith("*") for line in lines) == 3
    assert not any(line.startswith("*") for line in load().describe().splitlines())


def test_describe_does_not_need_config_py_to_be_right(monkeypatch):
    edited = edited_defaults(monkeypatch)
    edited.learner_params["lr"] = -1
    assert "learner.lr" in load("--lr", "0.5").describe()


def test_importing_and_loading_needs_nothing_heavy():  # N = 1 needs no MPI either
    code = """
import sys
from impala_ms import config
config.load("impala", ["--seed", "3"], 1).describe()
print([name for name in ("mindspore", "mindspore_rl", "numpy", "gymnasium", "mpi4py", "yaml")
       if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_an_atari_game_chooses_the_setting_of_the_paper(id):
    loaded = load("--env", id)
    assert loaded.network_params["torso"] == "shallow"
    assert loaded.collect_env_params["frame_stack"] == 4
    assert loaded.eval_env_params["frame_stack"] == 4
    assert loaded.learner_params["reward_clip"] == "abs_one"
    assert loaded.learner_params["lr"] == ATARI["learner.lr"] != OTHER["learner.lr"]
    assert loaded.chosen == dict.fromkeys(ATARI, f"{id} is an Atari game")
    assert f"chosen, since {id} is an Atari game: network.torso shallow, " in loaded.summary()
    assert Config.from_json(json.loads(json.dumps(loaded.to_json()))) == loaded


def test_a_given_value_wins_over_the_choice():
    loaded = load("--env", "ALE/Pong-v5", "--frame_stack", "1", "--torso=nature", "--lr=0.5")
    assert loaded.collect_env_params["frame_stack"] == 1
    assert loaded.network_params["torso"] == "nature"
    assert loaded.learner_params["lr"] == 0.5
    assert not {"collect_env.frame_stack", "network.torso", "learner.lr"} & set(loaded.chosen)
    assert "learner.lr 0.5 (was 0.0006)" in loaded.summary()


def test_other_environments_choose_their_torso_when_observations_are_known():
    assert load().network_params["torso"] is None


def test_the_summary_says_what_differs_and_nothing_else():
    lines = load("--gamma", "0.5", ranks=4).summary().splitlines()
    assert lines[0] == "impala on CartPole-v1: 1 learner + 3 actors, 32 environments each"
    assert lines[1].startswith("S = batch_size / num_envs = 32 / 32 = 1 unroll per update")
    assert lines[2:] == ["changed from config.py: learner.gamma 0.5 (was 0.99)"]
    assert len(load().summary().splitlines()) == 2


def test_a_setting_that_was_made_for_another_environment_is_said():
    loaded = load("--env", "Acrobot-v1", "--lr", "0.001")
    reason = "Acrobot-v1 has no defaults of its own"
    assert loaded.chosen == dict.fromkeys(OTHER.keys() - {"learner.lr"}, reason)
    line = loaded.summary().splitlines()[2]
    assert line.startswith(f"chosen, since {reason}: ")
    assert "learner.reward_scale 0.1" in line


def test_an_action_repeat_that_is_only_counted_is_said():
    assert "is only counted" in load("--action_repeat", "4").summary()
    assert "is only counted" not in load("--action_repeat", "1").summary()
    assert "is only counted" not in load("--action_repeat", "2", "--env=ALE/Pong-v5").summary()


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"learner.lr": -1.0}, r"learner.lr = -1.0 \(automatic\): must be float > 0"),
        ({"learner.lrr": 0.1}, r"unknown key learner.lrr \(automatic\): did you mean learner.lr\?"),
        ({"learner.lr": None}, r"learner.lr is None, and automatic has no value for it \(other\)"),
    ],
)
def test_what_a_user_edits_in_automatic_is_checked(monkeypatch, edit, says):
    edited = edited_defaults(monkeypatch)
    edited.automatic["other"] |= edit
    with pytest.raises(ConfigError, match=says):
        load()


def test_automatic_may_hold_numbers_as_they_are_usually_written(monkeypatch):
    edited = edited_defaults(monkeypatch)
    edited.automatic["other"] |= {"trainer.total_env_steps": 6e5, "learner.lr": "0.001"}
    loaded = load()
    assert loaded.trainer_params["total_env_steps"] == 600_000
    assert loaded.learner_params["lr"] == 0.001


def test_a_file_may_say_what_is_automatic(tmp_path):
    file = write(tmp_path / "a.yaml", "automatic: {atari: {learner.lr: 0.1}}")
    loaded = load("--config", file, "--env", "ALE/Pong-v5")
    assert loaded.learner_params["lr"] == 0.1
    assert loaded.collect_env_params["frame_stack"] == 4
    assert load("--config", file).learner_params["lr"] == OTHER["learner.lr"]
    file = write(tmp_path / "b.yaml", "automatic: {doom: {learner.lr: 0.1}}")
    assert problem("--config", file) == "automatic has 'doom': it has atari and other"
