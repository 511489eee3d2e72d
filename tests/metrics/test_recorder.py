"""Rows of metrics computed by hand; the clock is a number."""

import numpy as np
import pytest

from impala_ms.metrics.recorder import Recorder, rss_mb


def update(recorder, *, loss=1.0, norm=1.0, lr=0.5, lags=(0,), waits=(0.0,), env_steps=10, **more):
    statistics = {"loss_total": loss, "gradient_norm": norm, "learning_rate": lr, **more}
    statistics["applied"] = int(np.isfinite(loss + norm))
    recorder.add_updates(1, statistics, np.array(lags), np.array(waits, np.float32), env_steps)


def test_means_are_over_the_updates_since_the_last_row():
    recorder = Recorder(100.0)
    update(recorder, loss=1.0, entropy=0.5, lags=[0, 2], waits=[0.25, 0.75], lr=0.4)
    update(recorder, loss=4.0, entropy=0.25, lags=[4, 0], waits=[0.5, 0.5], lr=0.3)
    row = recorder.row(102.0)
    assert row["loss_total"] == 2.5
    assert row["entropy"] == 0.375
    assert (row["policy_lag_mean"], row["policy_lag_max"]) == (1.5, 4)
    assert row["actor_wait_fraction"] == 0.5
    assert row["learning_rate"] == 0.3  # the last one used, not a mean
    assert (row["updates"], row["env_steps"]) == (2, 20)
    assert (row["updates_per_s"], row["env_steps_per_s"]) == (1.0, 10.0)

    update(recorder, loss=-3.0, entropy=0.125, lags=[1], waits=[1.0], lr=0.2)
    row = recorder.row(102.5)
    assert (row["loss_total"], row["entropy"], row["policy_lag_mean"]) == (-3.0, 0.125, 1)
    assert (row["policy_lag_max"], row["actor_wait_fraction"]) == (1, 1.0)
    assert (row["updates"], row["env_steps"], row["env_steps_per_s"]) == (3, 30, 20.0)


def test_row_without_updates_has_none_for_means():
    row = Recorder(0.0).row(1.0)
    fields = ["policy_lag_mean", "policy_lag_max", "actor_wait_fraction", "learning_rate"]
    assert [row[name] for name in fields] == [None] * 4
    assert row["episode_return_mean"] is row["episode_length_mean"] is None
    assert (row["updates"], row["env_steps"], row["episodes"]) == (0, 0, 0)
    assert (row["updates_per_s"], row["env_steps_per_s"]) == (0.0, 0.0)
    assert "eval_return_mean" not in row


def test_means_are_not_repeated_without_updates():
    recorder = Recorder(0.0)
    update(recorder, entropy=0.5)
    recorder.row(1.0)
    row = recorder.row(2.0)
    assert row["loss_total"] is row["entropy"] is row["policy_lag_max"] is None
    assert (row["updates"], row["updates_per_s"]) == (1, 0.0)


@pytest.mark.parametrize("bad", [{"loss": np.nan}, {"loss": -np.inf}, {"norm": np.inf}])
def test_skipped_update_is_counted_apart_and_not_in_the_means(bad):
    recorder = Recorder(0.0)
    update(recorder, loss=2.0, env_steps=10)
    update(recorder, **bad, env_steps=7)
    row = recorder.row(1.0)
    assert (row["updates"], row["updates_skipped"]) == (1, 1)
    assert (row["env_steps"], row["env_steps_dropped"]) == (10, 7)
    assert (row["loss_total"], row["gradient_norm"]) == (2.0, 1.0)


def test_updates_of_one_call_are_counted_each():
    recorder = Recorder(0.0)
    statistics = {"loss_total": 2.0, "learning_rate": 0.5, "applied": 3}
    recorder.add_updates(4, statistics, np.array([0]), np.zeros(1, np.float32), 10, 96, True)
    row = recorder.row(1.0)
    assert (row["updates"], row["updates_skipped"], row["updates_per_s"]) == (3, 1, 3.0)
    assert (row["env_steps"], row["rows_learned"], row["loss_total"]) == (10, 96, 2.0)


def test_wait_is_in_the_row_of_its_interval():
    recorder = Recorder(10.0)
    recorder.waiting.begin(11.0)
    recorder.waiting.end(12.0)
    assert recorder.row(14.0)["learner_wait_fraction"] == 0.25
    assert recorder.row(15.0)["learner_wait_fraction"] == 0.0


def test_episodes_and_evaluation_are_kept_from_row_to_row():
    recorder = Recorder(0.0)
    recorder.episodes.add(np.arange(20.0), np.full(20, 3))
    recorder.evaluation = 7.5, 40
    for now in (1.0, 2.0):
        row = recorder.row(now)
        assert (row["episodes"], row["episode_return_mean"]) == (20, 9.5)
        assert row["episode_length_mean"] == 3.0
        assert (row["eval_return_mean"], row["eval_version"]) == (7.5, 40)


def test_resumed_run_continues_from_its_totals():
    recorder = Recorder(0.0)
    for bad in ({}, {"loss": np.nan}, {}):
        update(recorder, **bad)
    recorder.env_steps_dropped += 5
    recorder.episodes.add([1.0, 2.0], [1, 1])
    totals = recorder.totals()
    assert totals == {
        "updates": 2,
        "updates_skipped": 1,
        "env_steps": 20,
        "env_steps_dropped": 15,
        "rows_learned": 20,
        "episodes": 2,
    }
    resumed = Recorder(50.0, totals)
    assert resumed.totals() == totals
    update(resumed)
    row = resumed.row(51.0)
    assert (row["updates"], row["env_steps"], row["episodes"]) == (3, 30, 2)
    # rates since the resume, not since the first start
    assert (row["updates_per_s"], row["env_steps_per_s"]) == (1.0, 10.0)


def test_rss_grows_with_allocated_memory():
    before = rss_mb()
    ballast = np.ones(8 * 2**20)  # 64 MiB, written to
    assert ballast.nbytes == 64 * 2**20
    assert 50 < rss_mb() - before < 80
    assert 10 < before < 10_000
    assert Recorder(0.0).row(1.0)["rss_mb"] == pytest.approx(rss_mb(), rel=0.1)
