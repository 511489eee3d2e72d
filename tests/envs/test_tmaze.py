"""The corridor: observations, rewards and the end of an episode."""

import numpy as np
import pytest

from impala_ms.envs.make import make_vec
from impala_ms.envs.tmaze import TMaze


def walk(env, actions, seed=0):
    rows = [(env.reset(seed=seed)[0].tolist(), None, False)]
    for action in actions:
        observation, reward, over, truncated, _ = env.step(action)
        assert not truncated
        rows.append((observation.tolist(), reward, over))
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_sign_is_shown_once_and_decides_the_reward_at_the_junction(seed):
    env = TMaze(length=3)
    sign = walk(env, [], seed)[0][0][0]
    assert sign in (-1.0, 1.0)
    right = 2 if sign == 1.0 else 1
    for turn, paid in [(right, 1.0), (3 - right, 0.0)]:
        assert walk(env, [0, 0, 0, turn], seed) == [
            ([sign, 0.0], None, False),
            ([0.0, 0.0], 0.0, False),
            ([0.0, 0.0], 0.0, False),
            ([0.0, 1.0], 0.0, False),
            ([0.0, 1.0], paid, True),
        ]


def test_both_signs_occur():
    env = TMaze()
    signs = [env.reset(seed=seed)[0][0] for seed in range(40)]
    assert 10 < signs.count(1.0) < 30


def test_moves_that_change_nothing_cost_a_hundredth():
    rows = walk(TMaze(length=1), [1, 2, 0, 0])
    assert [reward for _, reward, _ in rows[1:]] == [-0.01, -0.01, 0.0, -0.01]
    assert rows[1][0] == rows[0][0]  # still at the entrance
    assert not any(over for *_, over in rows)


def test_environment_is_made_by_its_id_and_checks_its_length():
    envs = make_vec("impala_ms.envs.tmaze:TMaze-v0", num_envs=2, seeds=[1, 2])
    assert envs.step_limit == 100
    assert envs.reset().shape == (2, 2)
    envs.step(np.array([0, 0]))
    envs.close()
    with pytest.raises(ValueError, match="length = 0"):
        TMaze(length=0)
