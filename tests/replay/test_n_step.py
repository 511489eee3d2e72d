"""n-step returns, beside a slow form and the numbers of the cases."""

import numpy as np
import pytest

from impala_ms.replay.n_step import n_step


def columns(*values, dtype):
    return np.array(values, dtype)[:, None]


def made(rewards, n, gamma, terminated=(), reset=()):
    """n-step returns of one environment; rows that terminate, and reset rows."""
    rows = len(rewards)
    ended, first = np.zeros((rows, 1), np.bool_), np.zeros((rows + 1, 1), np.bool_)
    ended[list(terminated)] = True
    first[[row + 1 for row in reset]] = True
    return n_step(columns(*rewards, dtype=np.float32), ended, first, n, gamma)


def slow(reward, terminated, first, n, gamma):
    """Row by row, with plain loops."""
    rows, envs = reward.shape
    returns, steps, discounts = (np.zeros((rows, envs)) for _ in range(3))
    for env in range(envs):
        for row in range(rows):
            if first[row + 1, env]:
                continue
            total, factor, at = 0.0, 1.0, row
            while at < rows and at < row + n and not first[at + 1, env]:
                total += factor * reward[at, env]
                factor *= gamma
                at += 1
                if terminated[at - 1, env]:
                    factor = 0.0
                    break
            returns[row, env], steps[row, env], discounts[row, env] = total, at - row, factor
    return returns, steps, discounts


class TestNStep:
    REWARDS = 1.0, 2.0, 4.0, 8.0, 16.0, 32.0
    VALUES = np.arange(10.0, 80.0, 10.0)  # best value of observations 0 to 6

    def targets(self, found):
        after = np.arange(6) + found.steps[:, 0]
        return found.returns[:, 0] + found.discounts[:, 0] * self.VALUES[after]

    def test_a_truncated_episode_is_continued_by_the_value_of_its_last_observation(self):
        found = made(self.REWARDS, 3, 0.5, reset=[3])  # case 62
        assert found.discounts[[0, 1, 2, 4, 5], 0].tolist() == [0.125, 0.25, 0.5, 0.25, 0.5]
        assert found.steps[:, 0].tolist() == [3, 2, 1, 0, 2, 1]
        targets = self.targets(found)
        assert targets[[0, 1, 2, 4, 5]].tolist() == [8.0, 14.0, 24.0, 49.5, 67.0]

    def test_a_terminated_episode_is_not_continued(self):
        found = made(self.REWARDS, 3, 0.5, terminated=[2], reset=[3])  # case 62
        assert self.targets(found)[:3].tolist() == [3.0, 4.0, 4.0]
        assert found.discounts[:3, 0].tolist() == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize("n", [1, 2, 3, 5, 50])
    def test_is_that_of_plain_loops_for_any_ends(self, n):
        rng = np.random.default_rng(n)
        for _ in range(20):
            rows, envs = int(rng.integers(1, 12)), int(rng.integers(1, 4))
            first = np.zeros((rows + 1, envs), np.bool_)
            terminated = np.zeros((rows, envs), np.bool_)
            for env in range(envs):
                row = 0
                while row < rows:
                    row += int(rng.integers(1, 5))  # the episode's length
                    if row < rows:
                        first[row + 1, env] = True  # row is a reset row
                    if row <= rows and rng.random() < 0.5:
                        terminated[row - 1, env] = True
                    row += 1
            reward = rng.normal(size=(rows, envs)).astype(np.float32)
            found = n_step(reward, terminated, first, n, 0.9)
            for got, wanted in zip(found, slow(reward, terminated, first, n, 0.9), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
            assert [values.dtype for values in found] == [np.float32, np.int32, np.float32]
