"""What must fit together among the settings, and what follows from them, for algorithms to choose.

Input: all values by path. Output: problems, one line each, or values. An algorithm's ``config.py``
calls those that it needs in its ``check``, ``derive`` and ``sizes``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from impala_ms.cluster.topology import Place, acting
from impala_ms.configuration.messages import count
from impala_ms.configuration.values import Values


def one_learner(values: Values) -> list[str]:
    """There is one learner."""
    if values.get("learner.number", 1) in (1, None):
        return []
    return [f"{values.given('learner.number')}: must be 1"]


def whole_unrolls(values: Values) -> list[str]:
    """A batch is made of whole unrolls."""
    batch, envs = _batch(values)
    if not batch % envs:
        return []
    return [
        f"{values.given('trainer.batch_size')}: must be a multiple of"
        f" {values.given('collect_env.num_envs')}, such as {math.ceil(batch / envs) * envs}"
    ]


def synchronous_rounds(values: Values) -> list[str]:
    """When synchronous, every actor gives as many unrolls to a batch."""
    batch, envs = _batch(values)
    unrolls, actors = batch // envs, values.actors
    if batch % envs or not values.get("trainer.synchronous") or not unrolls % actors:
        return []
    fitting = [n + 1 for n in range(1, unrolls + 1) if unrolls % n == 0]
    return [
        f"{values.given('trainer.batch_size')}: when synchronous, S = batch_size / num_envs ="
        f" {batch} / {envs} = {unrolls} must be a multiple of the {count(actors, 'actor')}:"
        f" batch_size a multiple of {actors * envs}, or N = {' or '.join(map(str, fitting))}"
    ]


def baseline_without_core(values: Values) -> list[str]:
    """A baseline with a torso of its own has no memory."""
    if not values.get("network.separate_baseline") or values.get("network.core", "none") == "none":
        return []
    return [
        f"{values.given('network.separate_baseline')}: not with {values.given('network.core')},"
        " which such a baseline would not have"
    ]


def one_unroll_of_each_actor(values: Values, places: Sequence[Place]) -> dict[str, Any]:
    """The batch_size where it is None."""
    envs = values.get("collect_env.num_envs")
    if not envs or values.get("trainer.batch_size", 0) is not None:
        return {}
    return {"trainer.batch_size": max(acting(places), 1) * envs}


def size_of_an_update(values: Values) -> list[str]:
    """The sizes of a batch in a line."""
    batch, envs = _batch(values)
    unroll = values["trainer.unroll_length"]
    return [
        f"S = batch_size / num_envs = {batch} / {envs} = {count(batch // envs, 'unroll')} per"
        f" update: unroll_length x batch_size = {unroll} x {batch} = {unroll * batch:,} env steps"
    ]


def _batch(values: Values) -> tuple[int, int]:
    """B and E; where one of them is wrong in itself, a pair that fits."""
    batch, envs = values.get("trainer.batch_size"), values.get("collect_env.num_envs")
    return (batch, envs) if batch and envs else (0, 1)
