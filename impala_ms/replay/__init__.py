"""Replays: they keep unrolls, so that the learner can learn from them again."""
