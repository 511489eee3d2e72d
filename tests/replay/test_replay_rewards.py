"""Rewards in a replay are those that the other learners see."""

import numpy as np
import pytest

from impala_ms.agents.actor_critic import clip_rewards
from impala_ms.replay.rewards import Rewards

RAW = np.array([[-40.0, -1.5, -1.0, -0.2], [0.0, 0.7, 1.0, 900.0]], np.float32)


@pytest.mark.parametrize("clip", ["none", "abs_one", "soft_asymmetric"])
def test_rewards_are_clipped_as_the_learner_of_unrolls_clips_them(clip):
    expected = 0.5 * clip_rewards(RAW, clip).asnumpy()
    got = Rewards(clip, 0.5)(RAW)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_soft_asymmetric_by_hand():
    got = Rewards("soft_asymmetric", 2.0)(np.array([[-5.0, 5.0]], np.float32))
    np.testing.assert_allclose(got, [[-2 * 1.5 * np.tanh(1.0), 2 * 5.0 * np.tanh(1.0)]], rtol=1e-6)
