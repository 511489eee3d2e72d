"""The pages of settings and metrics, which are made from the code."""

import pytest

from impala_ms import pages
from impala_ms.configuration import algorithms
from impala_ms.settings import PART


def test_every_page_is_up_to_date():
    made = pages.pages()
    there = {file: file.read_text(encoding="utf-8") for file in made}
    assert there == made, "run: python -m impala_ms.pages"
    assert {file.stem for file in (pages.DOCS / "settings").glob("*.md")} == {*algorithms.names()}


@pytest.mark.parametrize("name", algorithms.names())
def test_a_page_has_one_row_for_each_key(name):
    rows = [row for row in pages.page(name).splitlines() if row.startswith("| `")]
    assert all(row.count("|") == 6 for row in rows)
    paths = [row.split("`")[1] for row in rows]
    algorithm = algorithms.Algorithm(name)
    assert sorted(paths) == sorted(algorithm.keys)
    assert {f"{part}.type" for part in algorithm.parts} <= set(paths)
    assert [key for key in PART if key not in ("number", "type")] == []


def test_the_page_of_metrics_has_each_column_once_for_an_algorithm():
    common, *others = pages.metrics().split("\n## ")[1:]
    names = [row.split("`")[1] for row in common.splitlines() if row.startswith("| `")]
    assert "policy_lag_mean" in names
    for text, name in zip(others, algorithms.names(), strict=True):
        own = [row.split("`")[1] for row in text.splitlines() if row.startswith("| `")]
        assert text.startswith(f"{name} adds")
        assert sorted(names + own) == sorted(algorithms.columns(name))
