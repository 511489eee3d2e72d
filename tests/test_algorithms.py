"""Which algorithm is trained, which settings it has, and how algorithms are found."""

import json

import pytest

from impala_ms import config
from impala_ms.config import Config
from impala_ms.configuration import algorithms
from impala_ms.errors import ConfigError
from impala_ms.settings import NETWORK, section
from tests.configs import a_run, another_algorithm, defaults, load, problem, write
from tests.conftest import ROOT

OWN = """VTRACE = {
    "power": Setting(2.0, "float", "", "> 0", "The power of the other."),
"""
WIRING = '"impala_ms.cluster.topology:star_of_unrolls"', '"wirings:at_least_three"'
WIRINGS = """
from impala_ms.cluster.topology import star_of_gradients
def at_least_three(ranks):
    if ranks < 3:
        raise ValueError("1 server and 2 workers are needed, since one worker has nobody to meet")
    return star_of_gradients(ranks)
"""


@pytest.fixture
def other(monkeypatch, tmp_path):
    """An algorithm with a setting of its own, without IMPALA's replay; the folder it lies in."""
    replaced = ("VTRACE = {\n", OWN), ("    REPLAY,\n", "")
    another_algorithm(monkeypatch, tmp_path / "algorithms", "other", *replaced)
    return tmp_path / "algorithms"


def trained(algorithm, *argv):
    return config.load(algorithm, argv, 3).algorithm


def test_algorithms_are_the_folders_with_a_config(other):
    write(other / "notes" / "README.md", "has no config.py")
    assert {"impala", "other"} <= set(algorithms.names())
    assert "notes" not in algorithms.names()


def test_the_option_wins_over_the_script_and_the_script_over_the_default(other):
    assert trained(None) == "impala"
    assert trained("other") == "other"
    assert trained("impala", "--algorithm", "other") == "other"
    assert trained("other", "--algorithm=other", "--algorithm=impala") == "impala"
    first = config.load("other", [], 4).summary().splitlines()[0]
    assert first == "other on CartPole-v1: 1 learner + 3 actors, 32 environments each"


def test_a_resumed_run_keeps_its_algorithm(other, tmp_path):
    folder = str(a_run(tmp_path / "run", "--algorithm", "other", "--power", "3"))
    resumed = config.load("impala", ["--resume", folder], 3)
    assert resumed.algorithm == "other"
    assert resumed.learner_params["power"] == 3.0
    assert trained("impala", "--resume", folder, "--algorithm", "other") == "other"
    line = problem("--resume", folder, "--algorithm", "impala")
    assert line == (
        f"--algorithm impala: the run in {folder} is one of other and goes on as such: leave "
        "--algorithm out"
    )
    assert config.of_run(tmp_path / "run").algorithm == "other"


def test_an_unknown_algorithm_is_refused_with_the_nearest_and_all(other):
    with pytest.raises(ConfigError) as caught:
        trained("impala", "--algorithm", "othr")
    assert str(caught.value).startswith("unknown algorithm 'othr': did you mean other? allowed: ")
    assert "impala, other" in str(caught.value)
    with pytest.raises(
        ConfigError, match="unknown algorithm 'A2C': did you mean a3c --synchronous"
    ):
        algorithms.module_of("A2C")
    with pytest.raises(ConfigError, match=r"unknown algorithm 'zzz': allowed: .*impala, other"):
        trained("impala", "--algorithm", "zzz")


def test_a_run_of_an_algorithm_that_is_gone_is_refused(other, tmp_path):
    folder = a_run(tmp_path / "run", "--algorithm", "other")
    data = json.loads((folder / "config.json").read_text()) | {"algorithm": "gone"}
    write(folder / "config.json", json.dumps(data))
    assert "config.json: unknown algorithm 'gone'" in problem("--resume", str(folder))


def test_a_setting_of_another_algorithm_is_refused_with_its_name(other):
    assert problem("--power", "3") == "unknown option --power: a setting of other, not of impala"
    line = problem("--set", "learner.power=3")
    assert line == "unknown key learner.power (--set): a setting of other, not of impala"
    line = problem("--algorithm", "other", "--set", "trainer.replay_updates=1")
    assert line.endswith("(--set): a setting of impala, not of other")
    assert problem("--powr", "3") == "unknown option --powr: --help all lists all"


def test_too_few_ranks_are_refused_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "wirings.py", WIRINGS)
    another_algorithm(monkeypatch, tmp_path, "meeting", WIRING)
    line = problem("--algorithm", "meeting", ranks=2)
    assert line == (
        "meeting with N = 2: 1 server and 2 workers are needed, since one worker has nobody to meet"
    )
    loaded = load("--algorithm", "meeting", ranks=4)
    assert loaded.actors == 3
    assert loaded.summary().startswith("meeting on CartPole-v1: 1 server + 3 workers, ")
    assert [place.role for place in loaded.places] == ["server", "worker", "worker", "worker"]
    assert load("--algorithm", "meeting", ranks=None).actors == 2  # the fewest that there can be


def test_checks_and_derived_values_of_an_algorithm_are_used(monkeypatch, tmp_path):
    own = """
def check(values):
    return [f"{values.given('learner.lr')}: too much"] if values.get("learner.lr", 0) > 1 else []


def derive(values, places):
    return {"trainer.batch_size": 1000 + len(places), "trainer.seed": 5}


def sizes(values):
    return [f"seed {values['trainer.seed']}"]


columns = {"power": ("W", "The power.")}
"""
    text = "derive = one_unroll_of_each_actor  # gives batch_size where it is None\n"
    another_algorithm(
        monkeypatch,
        tmp_path,
        "checked",
        (text, own),
        ("sizes = size_of_an_update  # said at the start\n", ""),
    )
    loaded = load("--algorithm", "checked", "--batch_size", "None", ranks=4)
    assert loaded.trainer_params["batch_size"] == 1004
    assert loaded.trainer_params["seed"] == defaults.trainer_params["seed"]  # is not None
    assert loaded.summary().splitlines()[1] == "seed 1"
    assert not loaded.is_changed("trainer.seed")
    line = problem("--algorithm", "checked", "--lr", "2")
    assert line == "learner.lr = 2.0 (--lr): too much"
    assert "learner.lr = 'x'" in problem("--algorithm", "checked", "--lr", "x")


def test_a_section_that_is_a_plain_dict_is_refused(monkeypatch, tmp_path):
    plain = "section(settings.POLICY)", "{'eval_greedy': True}"
    another_algorithm(monkeypatch, tmp_path, "plain", plain)
    with pytest.raises(ConfigError, match=r"policy_params must be made by settings.section"):
        trained("plain")


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        (("wiring =", "wires ="), "config.py of loose lacks wiring"),
        (("work =", "works ="), "config.py of loose lacks work"),
        (("columns =", "cols ="), "config.py of loose lacks columns"),
        (("automatic =", "by_itself ="), "config.py of loose lacks automatic"),
        (
            ('    "session": {', '    "sess": {'),
            "algorithm_config of loose lacks session",
        ),
        (('star_of_unrolls"', 'star"'), r"loose with N = 3: .* cannot be imported"),
        ((WIRING[0], "dict"), r"loose with N = 3: the wiring of loose: TypeError"),
        ((WIRING[0], "lambda ranks: []"), "the wiring of loose does not fit N = 3"),
        ((WIRING[0], "lambda ranks: None"), "the wiring of loose: TypeError"),
        ((WIRING[0], "lambda ranks: 'abc'"), "the wiring of loose: AttributeError"),
    ],
)
def test_a_config_that_lacks_a_name_or_has_a_wrong_wiring_is_refused(
    monkeypatch, tmp_path, replaced, says
):
    another_algorithm(monkeypatch, tmp_path, "loose", replaced)
    with pytest.raises(ConfigError, match=says) as caught:
        trained("loose")
    assert "\n" not in str(caught.value)


def test_a_default_that_no_group_has_is_refused(monkeypatch, tmp_path):
    misspelt = "section(settings.POLICY)", "section(settings.POLICY, eval_greddy=True)"
    another_algorithm(monkeypatch, tmp_path, "misspelt", misspelt)
    with pytest.raises(ConfigError, match=r"setting eval_greddy: did you mean eval_greedy\?"):
        trained("misspelt")


def test_a_default_of_the_algorithm_wins_over_the_common_one(monkeypatch, tmp_path):
    changed = "section(settings.POLICY)", "section(settings.POLICY, eval_greedy=False)"
    another_algorithm(monkeypatch, tmp_path, "changed", changed)
    assert config.load("changed", [], 3).policy_params == {"eval_greedy": False}
    assert load().policy_params == {"eval_greedy": True}


def test_a_default_that_follows_from_the_ranks_is_not_a_change(monkeypatch, tmp_path):
    unset = "    settings.EVALUATION,\n)", "    settings.EVALUATION,\n    batch_size=None,\n)"
    another_algorithm(monkeypatch, tmp_path, "unset", unset)
    loaded = load("--algorithm", "unset", "--num_envs", "8", ranks=4)
    assert loaded.trainer_params["batch_size"] == 24
    assert not loaded.is_changed("trainer.batch_size")
    assert loaded.is_changed("collect_env.num_envs")


def test_sections_of_one_group_do_not_share_their_values():
    first, second = section(NETWORK), section(NETWORK)
    first["hidden_sizes"].append(7)
    assert second["hidden_sizes"] == [64, 64]


def test_classes_of_ours_are_saved_without_their_path(tmp_path):
    loaded = load("--set", "learner.type=pathlib:Path")
    saved = loaded.to_json()
    types = {name: part["type"] for name, part in saved["algorithm_config"].items()}
    assert types.pop("learner") == "pathlib:Path"
    assert set(types.values()) == {None}
    assert Config.from_json(saved) == loaded
    assert loaded.algorithm_config["actor"]["type"] == defaults.algorithm_config["actor"]["type"]


CHECKS = "derive = one_unroll_of_each_actor  # gives batch_size where it is None\n"


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("def check(values): return 1 / 0", "check in config.py of wrong: ZeroDivisionError: "),
        ("def derive(values, places): return places[9]", "derive in config.py of wrong: IndexErr"),
        ("def derive(values, places): return 7", "derive in config.py of wrong: TypeError: "),
        ("def check(values): return 'too much of it'", "too much of it"),
    ],
)
def test_a_function_of_config_py_that_fails_is_named(monkeypatch, tmp_path, own, says):
    another_algorithm(monkeypatch, tmp_path, "wrong", (CHECKS, f"{CHECKS}{own}\n"))
    assert problem("--algorithm", "wrong").startswith(says)


def test_a_check_that_lacks_a_wrong_value_does_not_hide_that_one(monkeypatch, tmp_path):
    own = "def check(values): return [] if values['learner.lr'] < 9 else ['too fast']\n"
    another_algorithm(monkeypatch, tmp_path, "eager", (CHECKS, CHECKS + own))
    assert problem("--algorithm", "eager", "--lr", "10") == "too fast"
    assert problem("--algorithm", "eager", "--lr", "x").startswith("learner.lr = 'x' (--lr): must")


@pytest.mark.parametrize("replaced", [("columns =", "cols ="), ("wiring =", "1 / 0\nwiring =")])
def test_a_folder_that_is_broken_is_in_nobodys_way(monkeypatch, tmp_path, replaced):
    another_algorithm(monkeypatch, tmp_path, "broken", replaced)
    assert trained("impala") == "impala"
    assert "unknown option --powr" in problem("--powr", "3")
    assert "gradients_dropped" in algorithms.columns()
    with pytest.raises((ConfigError, AttributeError)):
        algorithms.columns("broken")


def test_a_ready_setting_of_another_algorithm_is_refused_unless_the_algorithm_was_given():
    file = str(ROOT / "example" / "a3c" / "tmaze.yaml")
    line = problem("--config", file)
    assert line.endswith(
        "tmaze.yaml: is a ready setting of a3c: add --algorithm a3c, or --algorithm impala if that "
        "is meant"
    )
    for name in ("a3c", "impala"):
        loaded = config.load(None, ["--config", file, "--algorithm", name], 3)
        assert loaded.network_params["core"] == "lstm"
    assert config.load("a3c", ["--config", file], 3).algorithm == "a3c"
