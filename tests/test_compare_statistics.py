"""Means and spreads over seeds, by hand."""

import numpy as np
import pytest

from impala_ms.comparison import statistics
from impala_ms.comparison.statistics import Curve
from impala_ms.snapshots import Played


def curve(xs, ys):
    return Curve(np.array(xs, float), np.array(ys, float))


A = curve([0, 10, 20], [0, 2, 4])
B = curve([0, 5, 10, 15, 20], [0, 2, 4, 6, 8])


def test_runs_with_other_steps_are_put_on_one_axis_by_interpolation():
    axis = statistics.common_axis([A, B])
    assert axis.tolist() == [0, 5, 10, 15, 20]
    assert statistics.mean_curve([A, B], axis).tolist() == [0, 1.5, 3, 4.5, 6]


def test_nothing_is_drawn_beyond_the_end_or_before_the_beginning_of_a_run():
    short, late = curve([0, 7], [0, 7]), curve([4, 20], [4, 20])
    assert statistics.common_axis([B, short]).tolist() == [0, 5, 7]
    assert statistics.common_axis([B, late]).tolist() == [4, 5, 10, 15, 20]
    assert len(statistics.common_axis([short, curve([8, 9], [1, 1])])) == 0


def test_a_run_without_rows_has_no_common_axis():
    empty = statistics.curve([], "env_steps", "entropy")
    assert (len(empty.x), len(empty.y)) == (0, 0)
    assert len(statistics.common_axis([A, empty])) == 0
    assert len(statistics.common_axis([])) == 0


def test_long_curves_are_drawn_with_so_many_points_and_their_ends():
    long = curve(range(0, 5000), range(0, 5000))
    axis = statistics.common_axis([long], points=11)
    assert (len(axis), axis[0], axis[-1]) == (11, 0, 4999)


def test_of_equal_x_the_last_row_counts():
    rows = [
        {"env_steps": 20.0, "entropy": 1.0},
        {"env_steps": 10.0, "entropy": 3.0},
        {"env_steps": 20.0, "entropy": 2.0},
        {"env_steps": 30.0, "entropy": None},
    ]
    found = statistics.curve(rows, "env_steps", "entropy")
    assert (found.x.tolist(), found.y.tolist()) == ([10, 20], [3, 2])


def test_the_band_is_the_standard_error_over_seeds_or_all_of_them():
    axis = np.array([10.0])
    low, high = statistics.band([A, B], axis, "se")  # 2 and 4: deviation sqrt(2), error 1
    assert (low.tolist(), high.tolist()) == (pytest.approx([2]), pytest.approx([4]))
    three = [A, A, curve([0, 10], [0, 8])]  # 2, 2, 8: deviation sqrt(12), error 2, mean 4
    low, high = statistics.band(three, axis, "se")
    assert (low.tolist(), high.tolist()) == (pytest.approx([2]), pytest.approx([6]))
    low, high = statistics.band(three, axis, "minmax")
    assert (low.tolist(), high.tolist()) == ([2], [8])


def test_one_seed_has_neither_band_nor_standard_error():
    assert statistics.band([A], np.array([10.0]), "se") is None
    assert statistics.summary([3.0]) == (3, 3, None)
    assert statistics.summary([]) == (None, None, None)


def test_the_standard_error_is_over_seeds_never_over_episodes():
    final = [0.0, 0.0, 100.0, 100.0]  # each the mean of 20 equal episodes
    assert statistics.standard_error(final) == pytest.approx(28.8675, abs=1e-4)
    assert statistics.standard_error(final * 20) == pytest.approx(5.625, abs=1e-3)  # the mistake


def test_a_seed_that_never_has_the_score_counts_as_the_limit_and_is_named():
    assert statistics.reached([40, 80, None], [300, 300, 300]) == (140, 80, (2,))
    assert statistics.reached([None, None], [300, 300]) == (300, 300, (0, 1))
    assert statistics.reached([40, None], [None, None]) == (40, 40, (1,))
    assert statistics.reached([], []) == (None, None, ())


def test_the_score_is_reached_at_the_first_row_at_it():
    rows = [
        {"episode_return_mean": value, "env_steps": k}
        for k, value in enumerate([None, 5.0, 9.0, 4.0, 10.0])
    ]
    assert statistics.first_at(rows, 9.0)["env_steps"] == 2
    assert statistics.first_at(rows, 11.0) is None


@pytest.mark.parametrize(
    ("returns", "first"),
    [
        ([], None),
        ([500.0], None),  # the last alone does not count
        ([0.0, 500.0], None),
        ([475.0, 475.0], 0),
        ([500.0, 474.9, 475.0, 475.0, 0.0], 2),
        ([500.0, 0.0, 500.0, 0.0, 500.0], None),
    ],
)
def test_a_score_is_held_by_the_first_row_whose_next_is_at_it_too(returns, first):
    rows = [Played(k, 10 * k, k, value, None, 1) for k, value in enumerate(returns)]
    assert statistics.first_held(rows, 475.0) is (None if first is None else rows[first])


def test_speed_is_from_the_first_row_on_and_with_start_up():
    rows = [{"env_steps": 100.0, "wall_time_s": 4.0}, {"env_steps": 900.0, "wall_time_s": 8.0}]
    assert statistics.speed(rows) == (200.0, 112.5)
    assert statistics.speed(rows[:1]) == (None, 25.0)
    assert statistics.speed([]) == (None, None)


def test_a_mean_over_rows_is_weighted_by_their_updates():
    rows = [
        {"updates": 1.0, "policy_lag_mean": 9.0},
        {"updates": 4.0, "policy_lag_mean": 1.0},
        {"updates": 8.0, "policy_lag_mean": None},
    ]
    assert statistics.mean_by_update(rows, "policy_lag_mean") == 3.0
    assert statistics.mean_by_update([], "policy_lag_mean") is None
