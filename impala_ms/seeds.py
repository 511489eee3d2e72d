"""Seeds of all random generators: no two generators of a run have the same seed.

Input: the run's seed, the epoch (how often the run was resumed), the number of the acting rank
counted from 1, its incarnation (how many processes were this rank before), and the purpose. Output:
seeds. A purpose without a rank is used in place of the rank's number: it is larger than any rank.
"""

from __future__ import annotations

import numpy as np

FOR_EVALUATION = 1 << 24  # episodes of evaluations
FOR_ACTIONS = 1 << 25  # actions that an actor samples
FOR_REPLAY = 1 << 26  # batches that a replay draws
FOR_SNAPSHOTS = 1 << 27  # episodes of snapshots


def of_actions(seed: int, epoch: int, number: int, incarnation: int) -> tuple[int, ...]:
    """Seed of the generator that samples the actions of an acting rank."""
    return seed, epoch, number, incarnation, FOR_ACTIONS


def episode_seeds(seed: int, epoch: int, number: int, incarnation: int, num_envs: int) -> list[int]:
    """Seeds for the environments of one acting rank.

    Each is made of the lower 31 bits of the first 32-bit word of ``SeedSequence((seed, epoch,
    number, incarnation, index))``, since many simulators keep a seed in a C int.

    Returns:
        ``num_envs`` integers in [0, 2**31).
    """
    of_rank = seed, epoch, number, incarnation
    sequences = [np.random.SeedSequence((*of_rank, index)) for index in range(num_envs)]
    return [int(sequence.generate_state(1)[0]) & 0x7FFFFFFF for sequence in sequences]
