"""Meters: each value computed by hand; the clock is a number."""

import numpy as np
import pytest

from impala_ms.metrics.meters import EpisodeMeter, MeanMax, Rate, WaitMeter


class TestEpisodeMeter:
    def test_means_are_none_before_the_window_is_full(self):
        meter = EpisodeMeter(window=20)
        assert (meter.count, meter.return_mean, meter.length_mean) == (0, None, None)
        meter.add(np.arange(19.0), np.arange(19))
        assert (meter.count, meter.return_mean, meter.length_mean) == (19, None, None)
        meter.add(np.array([19.0]), np.array([39]))
        assert meter.count == 20
        assert meter.return_mean == 9.5
        assert meter.length_mean == (18 * 19 / 2 + 39) / 20

    def test_means_are_over_the_last_episodes(self):
        meter = EpisodeMeter(window=2)
        meter.add([1.0, 2.0, 4.0], [10, 20, 40])
        assert (meter.count, meter.return_mean, meter.length_mean) == (3, 3.0, 30.0)
        meter.add([8.0], [80])
        assert (meter.count, meter.return_mean, meter.length_mean) == (4, 6.0, 60.0)

    def test_adding_no_episodes_changes_nothing(self):
        meter = EpisodeMeter(window=1)
        meter.add([5.0], [3])
        meter.add(np.empty(0), np.empty(0, np.int64))
        assert (meter.count, meter.return_mean, meter.length_mean) == (1, 5.0, 3.0)

    def test_returns_without_lengths_are_refused(self):
        with pytest.raises(ValueError, match="2 returns, but 1 lengths"):
            EpisodeMeter().add([1.0, 2.0], [1])


class TestMeanMax:
    def test_mean_and_max_without_values_are_none(self):
        assert (MeanMax().mean, MeanMax().max) == (None, None)

    def test_single_values_and_arrays_are_added(self):
        meter = MeanMax()
        meter.add(1)
        meter.add(np.array([[2.0, 6.0]]))
        assert (meter.mean, meter.max) == (3.0, 6.0)

    def test_negative_values_have_a_negative_maximum(self):
        meter = MeanMax()
        meter.add([-3.0, -1.0])
        assert (meter.mean, meter.max) == (-2.0, -1.0)

    def test_mean_is_weighted(self):
        meter = MeanMax()
        meter.add([1.0, 4.0, 100.0], [2, 1, 0])
        assert (meter.mean, meter.max) == (2.0, 4.0)
        meter.add(5.0, 3)
        assert meter.mean == 3.5

    def test_values_of_weight_0_do_not_count(self):
        meter = MeanMax()
        meter.add([np.nan, np.inf], 0)
        assert (meter.mean, meter.max) == (None, None)

    def test_reset_removes_all_values(self):
        meter = MeanMax()
        meter.add([9.0])
        meter.reset()
        assert (meter.mean, meter.max) == (None, None)
        meter.add(2.0)
        assert (meter.mean, meter.max) == (2.0, 2.0)


class TestRate:
    def test_rate_is_growth_per_second_since_the_last_call(self):
        rate = Rate(now=10.0, count=100)
        assert rate.take(now=12.0, count=600) == 250.0
        assert rate.take(now=12.5, count=600) == 0.0
        assert rate.take(now=13.5, count=700) == 100.0

    def test_rate_without_time_is_none(self):
        rate = Rate(now=1.0)
        assert rate.take(now=1.0, count=5) is None
        assert rate.take(now=2.0, count=6) == 1.0


class TestWaitMeter:
    def test_share_is_of_the_time_since_the_last_call(self):
        meter = WaitMeter(now=0.0)
        meter.begin(1.0)
        meter.end(1.5)
        meter.begin(2.0)
        meter.end(2.5)
        assert meter.take(4.0) == 0.25
        assert meter.take(5.0) == 0.0

    def test_wait_over_two_intervals_is_split(self):
        meter = WaitMeter(now=0.0)
        meter.begin(3.0)
        assert meter.take(4.0) == 0.25
        meter.end(7.0)
        assert meter.take(8.0) == 0.75

    def test_end_without_a_wait_changes_nothing(self):
        meter = WaitMeter(now=0.0)
        meter.end(1.0)
        assert meter.take(2.0) == 0.0

    def test_share_without_time_is_none(self):
        assert WaitMeter(now=1.0).take(1.0) is None
