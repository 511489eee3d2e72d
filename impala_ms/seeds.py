"""Which random numbers belong to whom: no two generators of a run have the same seed.

A generator is seeded by the run's seed, the epoch (how often it was resumed), the number of the
playing rank counted from 1, its incarnation (how many processes were this rank before), and what
the numbers are for. What concerns no rank stands in the place of a rank's number; it is larger
than any rank.
"""

from __future__ import annotations

import numpy as np

EVALUATION = 1 << 24  # episodes of evaluations
ACTIONS = 1 << 25  # what an actor samples
REPLAY = 1 << 26  # what is learned from again
SNAPSHOTS = 1 << 27  # episodes of snapshots


def of_actions(seed: int, epoch: int, number: int, incarnation: int) -> tuple[int, ...]:
    """Of the generator that samples the actions of a playing rank."""
    return seed, epoch, number, incarnation, ACTIONS


def episode_seeds(seed: int, epoch: int, number: int, incarnation: int, num_envs: int) -> list[int]:
    """Seeds for the environments of one playing rank.

    Each is the lower 31 of the first 32 bits of ``SeedSequence((seed, epoch, number, incarnation,
    index))``, since many simulators keep a seed in a C int.

    Returns:
        ``num_envs`` integers in [0, 2**31).
    """
    of_rank = seed, epoch, number, incarnation
    sequences = [np.random.SeedSequence((*of_rank, index)) for index in range(num_envs)]
    return [int(sequence.generate_state(1)[0]) & 0x7FFFFFFF for sequence in sequences]
