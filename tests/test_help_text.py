"""Every setting is explained: in --help, in docs/settings, in the READMEs."""

import pytest

from impala_ms import config, settings
from impala_ms.configuration.sections import SECTIONS
from impala_ms.errors import ConfigError
from tests.configs import another_algorithm, defaults, problem


def printed(capsys, *argv, algorithm="impala"):
    with pytest.raises(SystemExit) as caught:
        config.load(algorithm, argv, None)
    assert caught.value.code == 0
    return capsys.readouterr().out


def documented_keys():
    for section in SECTIONS:
        for key, setting in getattr(defaults, section).settings.items():
            yield f"{section.removesuffix('_params')}.{key}", setting


def test_every_meaning_is_a_sentence_and_every_default_is_allowed():
    for path, key in documented_keys():
        assert key.meaning[0].isupper(), path
        assert key.meaning.endswith("."), path
        section, name = path.split(".")
        default = getattr(defaults, f"{section}_params")[name]
        assert key.convert(default) == default, path


def test_every_key_of_one_section_is_an_option():
    for path, _ in documented_keys():
        section, name = path.split(".")
        if section == "eval_env" or name == "options":  # of network and of learner
            continue
        option = "env" if path == "collect_env.id" else name
        line = problem(f"--{option}=", ranks=3)
        assert line.startswith(f"{path} = "), option


def test_a_key_of_algorithm_config_is_not_an_option():
    for name in settings.PART:
        assert problem(f"--{name}=1", ranks=3).startswith(f"unknown option --{name}"), name


def test_short_help_is_a_screen_of_usual_settings_and_ready_files(capsys):
    text = printed(capsys, "--help")
    lines = text.splitlines()
    assert 30 < len(lines) < 50
    assert all(len(line) <= 100 for line in lines)
    for name in settings.USUAL:
        assert any(line.startswith(f"  --{name} ") for line in lines), name
    (lr,) = [line for line in lines if line.startswith("  --lr ")]
    assert lr.endswith("The learning rate begins with this value [0.002; Atari games 0.0006]")
    (pong,) = [line for line in lines if line.startswith("  pong.yaml ")]
    assert pong.endswith(" Pong from pixels")
    assert lines[-1] == "All settings: --help all, or docs/settings/impala.md"


def test_help_all_lists_every_key_with_unit_and_default(capsys):
    text = printed(capsys, "--help", "all")
    assert printed(capsys, "--help=all") == text
    lines = text.splitlines()
    for path, key in documented_keys():
        section, name = path.split(".")
        name = "env" if path == "collect_env.id" else name
        is_option = section != "eval_env" and name != "options"
        label = f"--{name}" if is_option else path
        (line,) = [line for line in lines if line.split()[:1] == [label] and "[" in line]
        assert key.unit in line
        assert key.takes in line
        default = getattr(defaults, f"{section}_params")[path.split(".")[1]]
        assert line.split("[", 1)[1].replace("_", "").startswith(str(default).replace("_", ""))
    assert lines.index("algorithm_config") > lines.index("trainer")
    assert "None takes 4 for Atari games, else 1." in " ".join(text.split())
    for option in ("--config FILE", "--set PATH=VALUE", "--resume RUN_DIR", "--algorithm NAME"):
        assert option in text


@pytest.mark.parametrize(
    "argv", [("-h",), ("--nonsense", "--help"), ("--seed", "x", "--help"), ("--help", "--seed=1")]
)
def test_help_is_short_wherever_it_stands(capsys, argv):
    assert printed(capsys, *argv) == printed(capsys, "--help")


def test_help_is_of_the_algorithm_that_is_named(capsys, monkeypatch, tmp_path):
    another_algorithm(monkeypatch, tmp_path, "other", ('"learner.lr": 0.002', '"learner.lr": 0.5'))
    for asked in (
        printed(capsys, "--algorithm", "other", "--help"),
        printed(capsys, "--help", algorithm="other"),
    ):
        assert "[0.5; Atari games 0.0006]" in asked
        assert "Ready settings" not in asked  # it has none
        assert "docs/settings/other.md" in asked
    with pytest.raises(ConfigError, match="unknown algorithm 'othr': did you mean other"):
        config.load("impala", ["--help", "--algorithm=othr"], None)
