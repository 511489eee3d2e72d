"""The table of metrics, which is also the documentation."""

from pathlib import Path

import pytest

from impala_ms.metrics import columns
from impala_ms.metrics.columns import BEGIN, COLUMNS, END, markdown_table, replace_table

ROOT = Path(__file__).resolve().parents[2]

FIXED = (
    "wall_time_s updates env_steps env_frames env_steps_per_s updates_per_s episodes "
    "episode_return_mean episode_length_mean policy_lag_mean policy_lag_max loss_total "
    "loss_policy_gradient loss_baseline entropy rho_mean rho_clipped_fraction gradient_norm "
    "learning_rate learner_wait_fraction actor_wait_fraction rss_mb ranks_alive "
    "env_steps_dropped updates_skipped eval_return_mean eval_version"
).split()


def test_the_names_that_programs_read_come_first():
    assert len(FIXED) == 27
    assert list(COLUMNS)[:27] == FIXED
    assert list(COLUMNS)[27:] == ["explained_variance", "vs_mean", "loss_entropy"]


def test_the_table_explains_each():
    lines = markdown_table().splitlines()
    assert lines[:2] == ["| metric | unit | meaning |", "|---|---|---|"]
    assert [line.split("|")[1].strip(" `") for line in lines[2:]] == list(COLUMNS)
    for line in lines:
        assert line.count("|") == 4


def test_a_table_is_replaced_in_place(tmp_path, capsys):
    file = tmp_path / "README.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert columns.main(["--write", str(file)]) == 0
    assert file.read_text() == f"before\n{BEGIN}\n{markdown_table()}\n{END}\nafter\n"
    assert columns.main(["--write", str(file)]) == 0
    assert file.read_text().count("`wall_time_s`") == 1
    assert capsys.readouterr().out == ""


def test_without_markers_the_file_is_left_alone(tmp_path, capsys):
    file = tmp_path / "README.md"
    file.write_text(f"{END}\nno beginning\n")
    assert columns.main(["--write", str(file)]) == 1
    assert file.read_text() == f"{END}\nno beginning\n"
    assert "README.md: the table goes between" in capsys.readouterr().err


def test_a_missing_file_is_one_line(tmp_path, capsys):
    assert columns.main(["--write", str(tmp_path / "none.md")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_table_is_printed(capsys):
    assert columns.main([]) == 0
    assert capsys.readouterr().out == markdown_table() + "\n"


@pytest.mark.parametrize("name", ["README.md", "README_CN.md"])
def test_the_readme_has_this_table(name):
    text = (ROOT / name).read_text("utf-8")
    assert replace_table(text) == text, f"python -m impala_ms.metrics.columns --write {name}"
