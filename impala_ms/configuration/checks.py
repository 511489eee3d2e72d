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


def whole_replayed_unrolls(values: Values) -> list[str]:
    """The replayed part of a batch is whole unrolls, and the replay can fill them."""
    (batch, envs), part = _batch(values), values.get("trainer.replay_fraction")
    if not part or not batch or batch % envs:
        return []
    problems, new = [], batch // envs
    exactly, replayed = new * part / (1.0 - part), replayed_unrolls(new, part)
    if replayed < 1 or abs(replayed - exactly) > 1e-4:
        fitting = sorted({more / (more + new) for more in (1, new, 3 * new)})
        problems.append(
            f"{values.given('trainer.replay_fraction')}: with S = batch_size / num_envs = {batch} /"
            f" {envs} = {count(new, 'new unroll')}, R = S f / (1 - f) = {exactly:.4g} must be a"
            f" whole number, as for {', '.join(f'{one:.6g}' for one in fitting)}"
        )
    if values.get("trainer.replay_updates"):
        problems.append(
            f"{values.given('trainer.replay_fraction')}: not together with"
            f" {values.given('trainer.replay_updates')}: set one of them to 0"
        )
    if (kept := values.get("trainer.replay_trajectories")) and kept < envs:
        problems.append(
            f"{values.given('trainer.replay_trajectories')}: must be at least"
            f" {values.given('collect_env.num_envs')}, since whole unrolls are kept"
        )
    return problems


def replayed_unrolls(new: int, fraction: float) -> int:
    """R, the replayed unrolls beside so many new ones when they are this part of a batch."""
    return round(new * fraction / (1.0 - fraction))


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


def replay_that_can_be_used(values: Values) -> list[str]:
    """Learning from a replay can begin, and its numbers fit together."""
    path = "trainer.{}".format
    unroll, envs = values.get(path("unroll_length")), values.get("collect_env.num_envs")
    capacity, start = values.get(path("replay_capacity")), values.get(path("replay_start"))
    problems = []
    if unroll and values.get("learner.n_step", 1) > unroll:
        problems.append(
            f"{values.given('learner.n_step')}: must be at most"
            f" {values.given(path('unroll_length'))}, since a return does not go beyond its unroll"
        )
    if capacity is None or start is None or not unroll or not envs:
        return problems
    kept = capacity // (unroll * envs) * unroll * envs
    if kept < max(start, 1):
        problems.append(
            f"{values.given(path('replay_capacity'))}: whole unrolls of unroll_length x num_envs ="
            f" {unroll} x {envs} = {unroll * envs} decisions keep {kept:,} of them, fewer than"
            f" {values.given(path('replay_start'))}: learning would not begin"
        )
    total = values.get(path("total_env_steps"))
    if total is not None and total <= start:
        problems.append(
            f"{values.given(path('total_env_steps'))}: must be more than"
            f" {values.given(path('replay_start'))}, or nothing is learned"
        )
    return problems


def scaled_actions(values: Values) -> list[str]:
    """Actions of -1 ... 1 are mapped to the bounds of the environment."""
    if values.get("collect_env.scale_actions", True):
        return []
    return [
        f"{values.given('collect_env.scale_actions')}: must be true, since the policy's actions are"
        " between -1 and 1"
    ]


def size_of_a_replay(values: Values) -> list[str]:
    """The sizes of the replay in a line."""
    batch, ratio = values["trainer.batch_size"], values["trainer.replay_ratio"]
    start, capacity = values["trainer.replay_start"], values["trainer.replay_capacity"]
    rate = "as often as the learner can"
    if ratio is not None:
        rate = f"for every {batch / ratio:g} decisions"
    return [
        f"the replay keeps {capacity:,} decisions; from {start:,} on, an update of {batch} "
        f"transitions {rate}"
    ]


def _batch(values: Values) -> tuple[int, int]:
    """B and E; where one of them is wrong in itself, a pair that fits."""
    batch, envs = values.get("trainer.batch_size"), values.get("collect_env.num_envs")
    return (batch, envs) if batch and envs else (0, 1)
