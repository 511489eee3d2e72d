"""What the READMEs say holds: tables are current, commands are accepted, examples run."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms import algorithms, classes, config, help_text
from impala_ms.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README_CN.md"
WALK = ROOT / "impala_ms" / "algorithm" / "impala" / "README.md"
EXAMPLES = ROOT / "example" / "impala"
ALL = (ENGLISH, CHINESE, WALK, EXAMPLES / "README.md")
BOTH = pytest.mark.parametrize("readme", [ENGLISH, CHINESE], ids=["english", "chinese"])
EACH = pytest.mark.parametrize("readme", ALL, ids=["english", "chinese", "walk", "example"])

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def read(file):
    return file.read_text(encoding="utf-8")


def prose(file):
    """The text without blocks of code and generated tables."""
    text = re.sub(
        r"table: begin -->.*?<!-- (config|metrics) table: end", "", read(file), flags=re.S
    )
    return BLOCK.sub("", text)


def headings(file):
    return re.findall(r"^(#+) (.+)$", prose(file), re.MULTILINE)


def blocks(file, language):
    return [text for name, text in BLOCK.findall(read(file)) if name == language]


def named_blocks(folder):
    """Write the blocks that begin with ``# <file name>`` into a folder."""
    names = []
    for text in (text for _, text in BLOCK.findall(read(ENGLISH))):
        if named := re.match(r"# ([\w.]+)\n", text):
            folder.joinpath(named[1]).write_text(text, encoding="utf-8")
            names.append(named[1])
    return names


def commands(file):
    """Every command line of the bash blocks and of code in the text, without ``VAR=value``."""
    lines = "\n".join(blocks(file, "bash")).splitlines()
    lines += re.findall(r"`(bash [^`]+)`", prose(file))
    found = [
        [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)] for line in lines
    ]
    return [words for words in found if words]


def trainings(file):
    """``(N, options)`` of every command that trains."""
    found = [words for words in commands(file) if words[:2] == ["bash", "start_standalone.sh"]]
    assert all(words[2] == "train.py" for words in found)
    return [(int(words[3]), words[4:]) for words in found]


def between(text, begin, end):
    assert text.count(begin) == text.count(end) == 1
    return text.partition(begin)[2].partition(end)[0].strip()


def start(folder, *options, ranks=1):
    """Train for a moment; the row of metrics that the run ended with."""
    command = ["bash", str(ROOT / "start_standalone.sh"), "train.py", str(ranks), *options]
    command += ["--run_dir", "run", "--total_env_steps", "3000", "--tensorboard", "false"]
    environment = ENVIRONMENT | {"VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished: " in done.stdout
    header, *rows = read(folder / "run" / "metrics.csv").splitlines()
    return dict(zip(header.split(","), rows[-1].split(","), strict=True))


# Both languages


def test_both_have_the_same_sections():
    english, chinese = headings(ENGLISH), headings(CHINESE)
    assert len(english) > 15
    assert [level for level, _ in english] == [level for level, _ in chinese]
    assert len({title for _, title in english}) == len(english)
    assert len({title for _, title in chinese}) == len(chinese)


def test_both_have_the_same_code():
    assert len(BLOCK.findall(read(ENGLISH))) > 10
    assert BLOCK.findall(read(ENGLISH)) == BLOCK.findall(read(CHINESE))


def test_both_have_the_same_tables_links_and_lists():
    def shape(file):
        """Columns of every table row, and list items, in order."""
        lines = [line.strip() for line in prose(file).splitlines()]
        return [
            "|" * line.count("|") if line[:1] == "|" else "-"
            for line in lines
            if line[:2] in ("| ", "|-", "- ")
        ]

    assert len(shape(ENGLISH)) > 100
    assert shape(ENGLISH) == shape(CHINESE)
    english, chinese = (re.findall(r"\]\(([^)]+)\)", prose(file)) for file in (ENGLISH, CHINESE))
    differing = {"README.md", "README_CN.md"}
    assert [link for link in english if "mindspore.cn" not in link and link not in differing] == [
        link for link in chinese if "mindspore.cn" not in link and link not in differing
    ]


def test_the_same_names_are_code_in_both():
    """A key, option or file that is named in one text is named in the other."""
    english, chinese = (set(re.findall(r"`([^`\n]+)`", prose(f))) for f in (ENGLISH, CHINESE))
    words = re.compile(r"[\w.]*[a-z]_[a-z]\w*(\.\w+)?|--\w+")  # config keys, files, options
    named = {name for name in english if words.fullmatch(name)}
    assert len(named) > 30
    assert named == {name for name in chinese if words.fullmatch(name)}


# Tables


@BOTH
def test_figures_have_their_place(readme):
    assert "CartPole-v1" in between(
        read(readme), "<!-- figures: begin -->", "<!-- figures: end -->"
    )


def test_lines_of_the_files_in_the_walk():
    rows = re.findall(r"^\| (\[.+?) \| (\d+) \|", read(WALK), re.MULTILINE)
    assert len(rows) == 11
    for files, stated in rows:
        paths = [WALK.parent / link for link in re.findall(r"\]\((.+?)\)", files)]
        lines = sum(len(read(path).splitlines()) for path in paths)
        assert abs(lines - int(stated)) <= 0.15 * lines, f"{files} has {lines} lines"


# What is mentioned exists


@EACH
def test_links_lead_to_files(readme):
    links = re.findall(r"\]\(([^)#]+)\)", prose(readme))
    local = [link for link in links if not link.startswith("https://")]
    assert local
    for link in local:
        assert (readme.parent / link).exists(), link


@pytest.mark.parametrize("name", ["english", "example"])
def test_training_commands_are_accepted(tmp_path, monkeypatch, name):
    readme = {"english": ENGLISH, "example": EXAMPLES / "README.md"}[name]
    named_blocks(tmp_path)
    (tmp_path / "example").symlink_to(ROOT / "example")
    (tmp_path / "cartpole_throughput.yaml").symlink_to(EXAMPLES / "cartpole_throughput.yaml")
    run = tmp_path / "RUN_DIR"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "update_000000001.ckpt").touch()
    run.joinpath("config.json").write_text(json.dumps(config.load("impala", [], 4).to_json()))
    monkeypatch.chdir(tmp_path)
    found = trainings(readme)
    assert len(found) >= 3
    for ranks, options in found:
        if "--help" in options:
            continue
        if options[:1] == ["--hostfile"]:
            options = options[2:]
        settings = config.load("impala", options, ranks)  # raises on what it does not know
        assert settings.actors == max(1, ranks - 1)
        classes.resolve(settings.algorithm_config["policy_and_network"]["type"])


@pytest.mark.parametrize("options", ["--lrr 3", "--set learner.lrr=3", "--env"])
def test_a_command_with_a_mistake_is_not(options):
    with pytest.raises(ConfigError):
        config.load("impala", shlex.split(options), 4)


@EACH
def test_scripts_of_other_commands_exist(readme):
    here = readme.parent
    for words in commands(readme):
        if words[0].endswith("python") and words[1] == "-m":
            assert (ROOT / words[2] / "__main__.py").is_file()
            continue
        script = next(word for word in words if re.search(r"\.(sh|py)$", word))
        assert (here / script).is_file() or (EXAMPLES / script).is_file(), words


def test_options_in_the_text_exist():
    known = set(re.findall(r"--\w+", help_text.help_text("impala", ["--help", "all"])))
    scripts = (
        "impala_ms/evaluate.py",
        "tests/benchmarks/runs.py",
        "impala_ms/doctor.py",
        "impala_ms/launch.py",
        "impala_ms/mpirun.py",
    )
    others = "".join(read(ROOT / script) for script in scripts)
    for readme in (ENGLISH, CHINESE):
        mentioned = set(re.findall(r"(?<![\w-])--[a-z]\w+", prose(readme)))
        assert len(mentioned) > 8
        for option in mentioned - known - {"--logdir", "--no", "--prefix"}:  # tensorboard, pip
            assert f'"{option}"' in others, option


def test_keys_in_the_text_exist():
    keys = set(algorithms.Algorithm("impala").keys)
    heads = {key.partition(".")[0] for key in keys}
    for readme in (ENGLISH, CHINESE):
        mentioned = {
            name
            for name in re.findall(r"`(\w+\.\w+)(?:\.\w+)*`", prose(readme))
            if name.partition(".")[0] in heads and not name.endswith((".py", ".ckpt"))
        }
        assert {"learner.lr", "actor.type"} <= mentioned
        assert mentioned <= keys | {"collect_env.kwargs"}, mentioned - keys


def test_message_of_wrong_settings_is_the_real_one():
    with pytest.raises(ConfigError) as caught:
        config.load("impala", ["--lrr", "3", "--batch_size", "33"], 4)
    assert f"{caught.value}\n" in blocks(ENGLISH, "text")


def test_exit_code_of_wrong_settings():
    command = ["bash", "start_standalone.sh", "train.py", "2", "--batch_size", "33"]
    environment = ENVIRONMENT | {"VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "must be a multiple of collect_env.num_envs" in done.stderr
    assert "| 2 |" in read(ENGLISH)


def test_log_lines_are_those_of_the_code():
    text = "".join(blocks(ENGLISH, "text"))
    code = read(WALK.parent / "trainer.py") + read(WALK.parent / "exchange.py")
    for line in (
        "Train from one actor, episode ",
        "Evaluating in actor 1",
        "evaluate in actor 1, avg",
    ):
        assert line in text
        assert line in code


# The examples run


def test_own_environment(tmp_path):
    assert "corridor.py" in named_blocks(tmp_path)
    row = start(tmp_path, "--env", "corridor:Corridor-v0")
    assert float(row["env_steps"]) >= 3000
    assert 0.0 <= float(row["episode_return_mean"]) <= 1.0  # it pays 1 at the end of the corridor
    assert 10.0 <= float(row["episode_length_mean"]) <= 50.0


def test_own_network(tmp_path):
    assert "wide.py" in named_blocks(tmp_path)
    row = start(tmp_path, "--set", "policy_and_network.type=wide.py:Wide")
    assert float(row["env_steps"]) >= 3000
    log = read(tmp_path / "run" / "config.json")
    assert "wide.py:Wide" in log


def test_vtrace_by_hand():
    (example,) = blocks(WALK, "python")
    expected = re.search(r"# (\[.+\])$", example, re.MULTILINE)[1]
    done = subprocess.run(
        [sys.executable, "-c", example],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected == "[2.25 2.5 ] [2.25 1.5 ]"
