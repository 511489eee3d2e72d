"""Every kind of mistake in a configuration is one line: what was given, what is allowed."""

from pathlib import Path

import pytest

from impala_ms.errors import ConfigError
from tests.configs import edited_defaults, load, problem, problems, write


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
        ("--synchronous=2", "trainer.synchronous = '2'", "true or false"),
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
def test_a_value_that_is_not_allowed_is_refused(option, given, allowed):
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
        ("--zzz=8", "unknown option --zzz: --help all lists all"),
        ("--learner.lr=8", "unknown option --learner.lr: did you mean --lr?"),
        ("--x.batchsize=8", "unknown option --x.batchsize: did you mean --batch_size?"),
        ("--collect_env.id=a", "unknown option --collect_env.id: did you mean --env?"),
        ("--eval_env.id=a", "unknown option --eval_env.id: did you mean --set eval_env.id=VALUE?"),
        ("--seed", "--seed needs a value: --seed VALUE or --seed=VALUE"),
        ("seed=3", "unexpected seed=3: options are given as --name VALUE"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(option, line):
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
    assert line.endswith(", or N = 2 or 3 or 5")
    assert load(*argv, "24", ranks=4).unrolls_per_batch == 6
    assert load("--num_envs", "4", "--batch_size", "16", ranks=4).unrolls_per_batch == 4


def test_a_separate_baseline_is_refused_with_a_core():
    line = problem("--separate_baseline", "true", "--core", "lstm")
    assert line.startswith("network.separate_baseline = True (--separate_baseline): not with")
    assert "network.core = 'lstm' (--core)" in line
    assert load("--separate_baseline", "true").network_params["separate_baseline"]
    line = problem("--separate_baseline", "true", "--core", "gru")
    assert line.startswith("network.core = 'gru' (--core): must be one of")


def test_a_learner_on_another_device_needs_a_rank_of_its_own():
    assert "give N = 2 or more" in problem("--device", "GPU", ranks=1)
    assert load("--device", "GPU", ranks=2).learner_params["device"] == "GPU"
    assert load("--device", "auto", ranks=1).learner_params["device"] == "auto"


@pytest.mark.parametrize(
    ("ranks", "number", "there"),
    [
        (3, 3, "3 ranks = 1 learner + 2 actors"),
        (2, 2, "2 ranks = 1 learner + 1 actor"),
        (1, 2, "1 rank = 1 learner + 1 actor"),
    ],
)
def test_an_actor_number_that_n_does_not_give_is_refused(ranks, number, there):
    assert problem("--set", f"actor.number={number}", ranks=ranks) == (
        f"actor.number = {number} (--set): {there}; give another N, or None"
    )


@pytest.mark.parametrize(("ranks", "actors"), [(1, 1), (2, 1), (3, 2), (64, 63)])
def test_every_rank_but_the_learner_is_an_actor(ranks, actors):
    assert load(ranks=ranks).actors == actors
    assert load("--set", f"actor.number={actors}", ranks=ranks).actors == actors


def test_without_ranks_the_config_says_how_many_actors():
    assert load(ranks=None).actors == 1
    assert load("--set", "actor.number=5", "--min_actors", "5", ranks=None).actors == 5
    assert load("--min_actors", "5", ranks=None).actors == 1  # nothing to compare it with


def test_no_ranks_or_too_few_for_min_actors_are_refused():
    assert problem(ranks=0) == "N = 0: must be 1 or more"
    assert "trainer.min_actors = 3 (--min_actors): there are 2 actors" in problem("--min_actors=3")


def test_files_are_looked_up_as_given_then_among_the_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("--config", "cartpole_throughput.yaml").collect_env_params["num_envs"] == 512
    Path("cartpole_throughput.yaml").write_text("collect_env: {num_envs: 4}")
    assert load("--config", "cartpole_throughput.yaml").collect_env_params["num_envs"] == 4


def test_a_ready_setting_of_another_algorithm_is_said():
    line = problem("--algorithm", "a3c", "--config", "doorkey.yaml")
    assert line.endswith("; doorkey.yaml is a ready setting of impala")


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
def test_a_config_file_that_cannot_be_used_is_refused(tmp_path, name, text, says):
    file = tmp_path / name
    if text is not None:
        write(file, text)
    line = problem("--config", str(file))
    assert says in line
    assert str(file) in line


def test_a_key_that_stands_twice_in_a_file_is_refused(tmp_path):
    file = write(tmp_path / "a.yaml", "learner: {lr: 0.1}\nlearner: {gamma: 0.5}\n")
    assert "learner stands there twice" in problem("--config", file)


def test_a_python_config_that_fails_can_be_mended_and_read_again(tmp_path):
    file = write(tmp_path / "a.py", "x = 1 / 0")
    problem("--config", file)
    write(tmp_path / "a.py", "trainer_params = {'seed': 321}")
    assert load("--config", file).trainer_params["seed"] == 321


def test_mistakes_in_config_py_are_told(monkeypatch):
    edited = edited_defaults(monkeypatch)
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
