"""What classes of the user's are made with stays as it is in the configuration."""

import copy

import numpy as np
import pytest
from mindspore import nn

from impala_ms import config
from impala_ms.agents import build
from impala_ms.agents.actor_critic import VTraceLearner
from impala_ms.agents.network import ActorCriticPolicy
from tests.fakes import box

SPACES = {
    "observation": box(3),
    "action": {"type": "Discrete", "n": 2, "start": 0},
    "action_mask": 0,
    "frame_stack": 1,
}


class Taking(ActorCriticPolicy):
    """Takes its own settings out of the lists and dicts that it gets."""

    def __init__(self, observation_space, distribution, *, more, hidden_sizes, **others):
        hidden_sizes.append(more.pop("units"))
        super().__init__(observation_space, distribution, hidden_sizes=hidden_sizes, **others)
        observation_space["shape"].clear()


class TakingLearner(VTraceLearner):
    def __init__(self, policy, params, total_env_steps, *, more):
        super().__init__(policy, params, total_env_steps)
        more.pop("units")
        params.pop("lr")


def make_taking(id, *, num_envs, seeds, kwargs, **others):
    return kwargs["sizes"].pop()


@pytest.fixture
def loaded():
    module = "tests.agents.test_build"
    options = ["network", "learner"]
    return config.load(
        "impala",
        [
            *(f"--set=policy_and_network.type={module}:Taking", "--hidden_sizes=[8]"),
            *(f"--set=learner.type={module}:TakingLearner",),
            *(f"--set=collect_environment.type={module}:make_taking",),
            *(f"--set={section}.options.more.units=4" for section in options),
            "--set=collect_env.kwargs.sizes=[1, 2]",
        ],
        1,
    )


def test_a_class_of_the_users_cannot_change_the_settings_of_the_next_or_of_the_run(loaded):
    """With N = 1 the networks of actor and learner are made in one process."""
    before, spaces = copy.deepcopy(loaded.to_json()), copy.deepcopy(SPACES)
    policies = [build.make_policy(loaded, spaces) for _ in range(2)]
    sizes = [[parameter.size for parameter in policy.get_parameters()] for policy in policies]
    assert sizes[0] == sizes[1]
    assert np.sum(sizes[0]) == (3 * 8 + 8) + (8 * 4 + 4) + (4 * 2 + 2) + (4 + 1)
    for policy in policies:
        build.make_learner(loaded, policy)
    assert [build.make_environment(loaded, "collect", 1, [0]) for _ in range(2)] == [2, 2]
    assert loaded.to_json() == before
    assert spaces == SPACES


class TakingTorso(nn.Cell):
    def __init__(self, shape, *, more):
        super().__init__()
        self.outputs = more.pop("units")
        self.layer = nn.Dense(shape[0], self.outputs)


def test_a_torso_of_the_users_cannot_change_the_options_of_the_baselines_torso():
    module = "tests.agents.test_build"
    loaded = config.load(
        "impala",
        [
            *(f"--torso={module}:TakingTorso", "--set=network.options.more.units=4"),
            "--separate_baseline=true",
        ],
        1,
    )
    policy = build.make_policy(loaded, SPACES)
    assert policy.torso.outputs == policy.baseline_torso.outputs == 4
