"""The tables of metrics, which are also the documentation."""

from impala_ms.configuration import algorithms
from impala_ms.metrics.columns import COMMON, markdown_table, together

FIXED = (
    "wall_time_s updates env_steps env_frames env_steps_per_s updates_per_s episodes "
    "episode_return_mean episode_length_mean policy_lag_mean policy_lag_max loss_total "
    "loss_policy_gradient loss_baseline entropy rho_mean rho_clipped_fraction gradient_norm "
    "learning_rate learner_wait_fraction actor_wait_fraction rss_mb ranks_alive "
    "env_steps_dropped updates_skipped eval_return_mean eval_version"
).split()


def test_fixed_columns_come_first():
    assert len(FIXED) == 27
    columns = list(algorithms.columns("impala"))
    assert columns[:27] == FIXED
    others = {"explained_variance", "vs_mean", "loss_entropy", "rows_learned"}
    assert set(columns[27:]) == others | {"replay_trajectories", "replay_age_mean"}


def test_columns_of_an_algorithm_are_not_common():
    assert "rho_mean" not in COMMON
    assert "rho_mean" not in algorithms.columns("a3c")
    assert "gradients_dropped" in algorithms.columns("a3c")


def test_columns_of_several_groups_are_joined_without_repeats():
    columns = together({"mine": ("m", "One.")}, {"mine": ("m", "Two."), "entropy": ("", "")})
    assert len(columns) == len(COMMON) + 2
    assert columns["mine"] == ("m", "Two.")
    assert list(columns).index("entropy") < list(columns).index("gradient_norm")


def test_markdown_table_has_a_row_for_each_column():
    lines = markdown_table(algorithms.columns()).splitlines()
    assert lines[:2] == ["| metric | unit | meaning |", "|---|---|---|"]
    assert [line.split("|")[1].strip(" `") for line in lines[2:]] == list(algorithms.columns())
    for line in lines:
        assert line.count("|") == 4
