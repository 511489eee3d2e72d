"""What the pages say holds: links and names exist, commands are accepted, both languages agree."""

import ast
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from impala_ms import classes, config, curves, evaluate
from impala_ms.comparison import request
from impala_ms.configuration import algorithms, help_text
from impala_ms.errors import ConfigError
from tests.conftest import ROOT

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README_CN.md"
DOCS = ROOT / "docs"
WALK = ROOT / "impala_ms" / "algorithm" / "impala" / "README.md"
WALKS = sorted((ROOT / "impala_ms" / "algorithm").glob("*/README.md"))
EXAMPLES = ROOT / "example"
WRITTEN = [page for page in DOCS.glob("*.md") if "impala_ms.pages -->" not in page.read_text()]
PAGES = sorted(
    [ENGLISH, CHINESE, *WALKS, *WRITTEN, *EXAMPLES.glob("*/README.md")],
    key=lambda page: page.as_posix(),
)
EACH = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
PAIRS = pytest.mark.parametrize(
    ("english", "chinese"),
    [(ENGLISH, CHINESE), (DOCS / "systems.md", DOCS / "systems_CN.md")],
    ids=["readme", "systems"],
)

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
SOURCES = [
    file
    for folder in ("impala_ms", "example", "tests", "scripts")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".c", ".yaml", ".sh") and file != Path(__file__)
]


def read(file):
    return file.read_text(encoding="utf-8")


def prose(file):
    """The text without blocks of code."""
    return BLOCK.sub("", read(file))


def blocks(file, language):
    return [text for name, text in BLOCK.findall(read(file)) if name == language]


def headings(file):
    return re.findall(r"^(#+) (.+)$", prose(file), re.MULTILINE)


def names(file):
    """What stands as code in the text."""
    return set(re.findall(r"`([^`\n]+)`", prose(file)))


@functools.cache
def source():
    return "\n".join(map(read, SOURCES))


def commands(file):
    """Every command line of the bash blocks and of code in the text, without ``VAR=value``."""
    lines = "\n".join(blocks(file, "bash")).splitlines()
    lines += re.findall(r"`((?:bash|python -m impala_ms \w+) \S[^`…]*)`", prose(file))
    parts = [shlex.split(part) for line in lines for part in line.split(";")]
    found = [[word for word in words if not re.match(r"[A-Z_]+=", word)] for words in parts]
    return [words for words in found if words]


def of_package(words):
    """``(name of the command, its arguments)`` if the words call one of the package, else None."""
    if words[:2] == ["bash", "start_standalone.sh"]:
        train = words[2].endswith(".py")
        return ("train", words[3:]) if train else (words[2], words[3:])
    if words[0].endswith("python") and words[1:3] == ["-m", "impala_ms"]:
        return words[3], words[4:]
    return None


# Both languages


@PAIRS
def test_both_languages_have_the_same_sections(english, chinese):
    assert len(headings(english)) >= 8
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]


@PAIRS
def test_both_languages_have_the_same_code(english, chinese):
    assert len(BLOCK.findall(read(english))) >= 3
    assert BLOCK.findall(read(english)) == BLOCK.findall(read(chinese))


@PAIRS
def test_both_languages_have_the_same_tables_lists_and_links(english, chinese):
    def shape(file):
        """Columns of every table row, and list items, in order."""
        lines = [line for line in prose(file).splitlines() if line[:2] in ("| ", "|-", "- ")]
        return ["|" * line.count("|") if line[0] == "|" else "-" for line in lines]

    def links(file):
        found = re.findall(r"\]\(([^)]+)\)", prose(file))
        return [link.replace("_CN", "") for link in found if "mindspore.cn" not in link][1:]

    assert len(shape(english)) > 40
    assert shape(english) == shape(chinese)
    assert links(english) == links(chinese)


@PAIRS
def test_both_languages_name_the_same_code(english, chinese):
    words = re.compile(r"[\w.]*[a-z]_[a-z]\w*(\.\w+)?|--\w+")  # config keys, files, options
    named = {name for name in names(english) if words.fullmatch(name)}
    assert len(named) > 5
    assert named == {name for name in names(chinese) if words.fullmatch(name)}


# The README


def test_the_readme_fits_five_minutes():
    assert len(read(ENGLISH).splitlines()) <= 190


@pytest.mark.parametrize("readme", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_figures_have_their_place(readme):
    begin, end = "<!-- figures: begin -->", "<!-- figures: end -->"
    figures = read(readme).partition(begin)[2].partition(end)[0]
    assert figures.count("\n| ") == 1 + 6  # head and rows


@pytest.mark.parametrize("readme", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_ready_settings_of_the_readme_are_those_that_there_are(readme):
    there = {file.name for file in (EXAMPLES / "impala").glob("*.yaml")}
    assert there == set(re.findall(r"\w+\.yaml", prose(readme)))


@pytest.mark.parametrize("folder", sorted(EXAMPLES.glob("*/")), ids=lambda folder: folder.name)
def test_an_example_folder_names_its_settings(folder):
    there = {file.name for file in folder.glob("*.yaml")}
    assert there <= set(re.findall(r"\w+\.yaml", prose(folder / "README.md")))


@pytest.mark.parametrize("readme", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_the_readme_names_every_algorithm(readme):
    assert {*algorithms.names()} <= names(readme)


def test_message_of_wrong_settings_is_the_real_one():
    with pytest.raises(ConfigError) as caught:
        config.load("impala", ["--lrr", "3", "--batch_size", "33"], 4)
    assert f"{caught.value}\n" in blocks(ENGLISH, "text")


def test_first_lines_of_a_run_are_those_of_the_readme():
    said = config.load("impala", [], 3).summary()
    assert any(f"{said}\n" in text for text in blocks(ENGLISH, "text"))


def test_exit_code_of_wrong_settings():
    command = ["bash", "start_standalone.sh", "train.py", "2", "--batch_size", "33"]
    environment = ENVIRONMENT | {"VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "must be a multiple of collect_env.num_envs" in done.stderr
    assert "| 2 |" in read(DOCS / "running.md")


# What is mentioned exists


@EACH
def test_links_lead_to_files_and_headings(page):
    links = re.findall(r"\]\(([^)]+)\)", prose(page))
    local = [link for link in links if not link.startswith("https://")]
    assert local
    for link in local:
        path, _, heading = link.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), link
        if heading:
            texts = [re.sub(r"[^\w\- ]", "", text.lower()) for _, text in headings(file)]
            assert heading in [text.replace(" ", "-") for text in texts], link


@EACH
def test_names_of_the_text_are_in_the_code(page):
    """Keys, metrics, functions, files: whatever has an underscore or a path."""
    code = source()
    for name in names(page):
        if not re.fullmatch(r"[\w./]*(\w_\w|/\w+\.)[\w./]*", name) or "<" in name:
            continue
        if "my_" in name or name.startswith("envs/"):  # files of the reader's
            continue
        last = re.split(r"[./]", name.rstrip("/"))
        word = last[-2] if last[-1] in ("py", "sh", "yaml", "csv", "txt", "json") else last[-1]
        exists = (ROOT / name).exists() or (page.parent / name).exists()
        assert exists or re.search(rf"\b{word}\b", code), name


def test_keys_in_the_text_exist():
    keys = {key for name in algorithms.names() for key in algorithms.Algorithm(name).keys}
    heads = {key.partition(".")[0] for key in keys}
    mentioned = {
        name
        for page in PAGES
        for name in re.findall(r"`(\w+\.\w+)(?:\.\w+)*`", prose(page))
        if name.partition(".")[0] in heads and not name.endswith((".py", ".md"))
    }
    assert {"learner.lr", "actor.type"} <= mentioned
    assert mentioned <= keys, mentioned - keys


@EACH
def test_options_in_the_text_exist(page):
    texts = [help_text.help_text(name, ["--help", "all"]) for name in algorithms.names()]
    known = "\n".join([*texts, source()])
    mentioned = set(re.findall(r"(?<![\w-])--[a-z]\w+", read(page)))
    for option in mentioned - {"--logdir", "--no", "--prefix"}:  # of tensorboard and pip
        assert re.search(rf"{option}\b", known), option


@pytest.mark.parametrize(
    "phrase",
    [
        "Train from one actor, episode ",
        "Evaluating in actor 1",
        "evaluate in actor 1, avg_reward ",
        "learner step compiled in ",
        "computes on ",
        "told to stop after ",
        "left out",
        "actors that remain: ",
        "is started again",
        "takes part again",
        "speaks again",
        "has not spoken",
        "this rank failed",
    ],
)
def test_log_lines_of_the_page_are_those_of_the_code(phrase):
    assert phrase in read(DOCS / "running.md")
    folders = ("roles", "cluster")
    code = [read(file) for folder in folders for file in (ROOT / "impala_ms" / folder).glob("*.py")]
    assert phrase in "".join([*code, read(ROOT / "impala_ms" / "process.py")])


def test_groups_of_tensorboard_are_those_of_the_code():
    tags = set(re.findall(r"`(\w+/)…`", prose(DOCS / "running.md")))
    assert tags == {"train/", "loss/", "speed/", "eval/"}
    code = read(ROOT / "impala_ms" / "metrics" / "sinks.py")
    assert all(f'"{tag.rstrip("/")}' in code for tag in tags)


# Commands are accepted


@EACH
def test_commands_are_accepted(page, tmp_path, monkeypatch):
    if page == DOCS / "custom.md":
        pytest.skip("its files are made and its commands run by test_custom.py")
    text = "".join(text for text in blocks(page, "yaml") if text.startswith("# my_settings.yaml"))
    (tmp_path / "my_settings.yaml").write_text(text)
    (tmp_path / "RUN_DIR" / "checkpoints").mkdir(parents=True)
    (tmp_path / "RUN_DIR" / "checkpoints" / "update_000000001.ckpt").touch()
    saved = json.dumps(config.load("impala", [], 3).to_json())
    (tmp_path / "RUN_DIR" / "config.json").write_text(saved)
    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        if (command := of_package(words)) is not None:
            accept(*command)
        elif script := next((word for word in words if re.search(r"\w\.(sh|py)$", word)), None):
            places = (ROOT, page.parent, EXAMPLES / "impala")
            assert any((place / script).is_file() for place in places), words


def accept(name, words):
    """Read a command line as the command does; it raises what it does not know."""
    if "--help" in words:
        return
    if name == "train":
        ranks, *options = words
        if options[:1] == ["--hostfile"]:
            options = options[2:]
        module = "corridor:Corridor-v0"  # of docs/custom.md
        options = ["CartPole-v1" if word == module else word for word in options]
        settings = config.load(None, options, int(ranks))
        others = settings.trainer_params.get("servers", 1)  # ranks that do not act
        assert settings.actors == max(1, int(ranks) - others)
        classes.resolve(settings.algorithm_config["policy_and_network"]["type"])
    elif name == "evaluate":
        evaluate.parse(words)
    elif name == "curves":
        curves._parser().parse_args(words)
    elif name == "compare":
        request.read(words)
    else:
        assert name == "doctor"
        assert set(words) <= {"--json", "--quick", "--hostfile", "hosts.txt"}


@pytest.mark.parametrize("words", ["--lrr 3", "--set learner.lrr=3", "--env"])
def test_a_command_with_a_mistake_is_not_accepted(words):
    with pytest.raises(ConfigError):
        accept("train", ["3", *shlex.split(words)])


# The walks


def stops(page):
    """The rows of the table of files: ``(file, stated lines or None, names)``."""
    rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)[^|]* \| (?:(\d+) \| )?(.+?) \|", read(page), re.M)
    return [
        (page.parent / path, int(lines) if lines else None, re.findall(r"`([\w.]+)`", text))
        for path, lines, text in rows
    ]


def defined_in(file):
    """Names of the functions, classes and methods of a file."""
    found = set()
    for node in ast.parse(read(file)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inside = getattr(node, "body", [])
            methods = [one.name for one in inside if isinstance(one, ast.FunctionDef)]
            found |= {f"{node.name}.{method}" for method in methods}
    return found


@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.parent.name)
def test_functions_of_a_walk_exist(page):
    assert len(stops(page)) >= 8
    for file, _, functions in stops(page):
        assert functions, file
        assert set(functions) <= defined_in(file), file


def test_the_walk_of_a_trajectory_is_short():
    table = stops(WALK)
    assert len(table) <= 9
    assert sum(len(functions) for _, _, functions in table) <= 18
    sizes = {file: len(read(file).splitlines()) for file, _, _ in table}
    assert sum(sizes.values()) <= 2000
    for file, stated, _ in table:
        assert abs(sizes[file] - stated) <= 0.1 * stated, f"{file} has {sizes[file]} lines"


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
