"""The replay of trajectories, beside the unrolls that were put in."""

import numpy as np
import pytest

from impala_ms.replay.trajectories import TrajectoryReplay, ring_bytes
from impala_ms.trajectory import TrajectorySpec

STEPS, ENVS = 3, 2


def make_spec(**changes):
    fields = {
        "unroll_length": STEPS,
        "num_envs": ENVS,
        "observation": {"": ((2,), np.float32)},
        "action_shape": (),
        "action_dtype": np.int32,
        "policy_parameters": 2,
        "inputs": ("last_action", "core_state"),
        "state_size": 2,
    }
    return TrajectorySpec(**fields | changes)


def make_replay(kept=8, new=1, replayed=1, seed=1, **changes):
    rng = np.random.default_rng(seed)
    return TrajectoryReplay(make_spec(**changes), new, replayed=replayed, kept=kept, rng=rng)


def unroll_of(spec, number):
    """An unroll whose every number says of which unroll and environment it is, and of which row."""
    _, unroll = spec.empty()
    for name, values in unroll.items():
        if values.ndim == 0:
            values[...] = number
            continue
        axis = 0 if name in ("last_action", "core_state") else 1
        row = 0 if axis == 0 else np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
        env = np.arange(ENVS).reshape(*[1] * axis, -1, *[1] * (values.ndim - axis - 1))
        values[...] = 0 if values.dtype == np.bool_ else 100 * number + 10 * env + row
    return unroll


def test_the_replayed_part_is_made_of_whole_trajectories_and_the_new_one_stays():
    replay, seen = make_replay(kept=8, replayed=2), set()
    for number in range(30):
        replay.add(unroll_of(replay.layout, number))
        batch = replay.take(0.0)
        wanted = unroll_of(replay.layout, number)
        for name, values in batch.items():
            if name == "new":
                assert values.tolist() == [1.0, 0.0, 0.0]
                continue
            np.testing.assert_array_equal(values[0], wanted[name], name)
        for one in (1, 2):
            for env in range(ENVS):
                source, there = divmod(int(batch["reward"][one, 0, env]) // 10, 10)
                seen.add((number - source, there))
                trajectory = unroll_of(replay.layout, source)
                for name in ("observation", "action", "reward", "behaviour_logits"):
                    np.testing.assert_array_equal(
                        batch[name][one, :, env], trajectory[name][:, there], name
                    )
                for name in ("last_action", "core_state"):
                    np.testing.assert_array_equal(
                        batch[name][one, env], trajectory[name][there], name
                    )
        replay.give_back(batch)
    # of the four newest unrolls, each environment on its own
    assert seen == {(age, env) for age in range(4) for env in range(ENVS)}


def test_trajectories_are_drawn_alike_and_the_seed_decides():
    found = []
    for seed in (1, 1, 2):
        replay = make_replay(kept=6, replayed=3_000, seed=seed)
        for number in range(3):
            replay.add(unroll_of(replay.layout, number))
            replay.give_back(replay.take(0.0))
        replay.add(unroll_of(replay.layout, 3))  # in place of the first one
        found.append(replay.take(0.0)["reward"][1:, 0].ravel())
    share = np.unique(found[0], return_counts=True)
    assert share[0].tolist() == [100.0, 110.0, 200.0, 210.0, 300.0, 310.0]
    np.testing.assert_allclose(share[1] / 6_000, 1 / 6, atol=0.02)
    assert found[0].tolist() == found[1].tolist() != found[2].tolist()


def test_only_new_rows_count_as_new_and_only_new_unrolls_have_a_lag():
    replay = make_replay(replayed=2)
    unroll = unroll_of(replay.layout, 4)
    unroll["first"][2, 0] = True
    replay.add(unroll)
    batch = replay.take(0.0)
    new, learned = replay.rows(batch)
    assert new == STEPS * ENVS - 1
    assert learned == replay.layout.valid_rows(batch) > 2 * new
    assert batch["behaviour_version"].tolist() == [4]
    assert batch["wait_fraction"].tolist() == [4.0]


def test_a_batch_waits_for_its_new_unrolls():
    replay = make_replay(new=2, replayed=2)
    replay.add(unroll_of(replay.layout, 0))
    assert not replay.is_due()
    assert replay.take(0.0) is None
    replay.add(unroll_of(replay.layout, 1))
    assert replay.take(0.0)["reward"].shape == (4, STEPS, ENVS)


@pytest.mark.parametrize("kept", [8, 9])
def test_memory_is_as_computed(kept):
    replay = make_replay(kept=kept)
    assert replay.nbytes == ring_bytes(replay.layout, kept)
    assert replay.kept == 4
