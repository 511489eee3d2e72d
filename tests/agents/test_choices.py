"""The choice of a torso by the observations, and the messages at the start of a run."""

import pytest

from impala_ms import checkpoint, config
from impala_ms.agents import build
from impala_ms.agents.choices import described, settle_torso, warnings
from tests.fakes import box

DISCRETE = {"type": "Discrete", "n": 2, "start": 0}


def bounded(*shape, low, high, dtype="float32"):
    return box(*shape, dtype=dtype) | {"low": low, "high": high}


def spaces_of(observation, action=DISCRETE, frame_stack=1, mask=0):
    return {
        "observation": observation,
        "action": action,
        "action_mask": mask,
        "frame_stack": frame_stack,
    }


def load(*options):
    return config.load("impala", options, 2)


def test_chosen_torso_is_put_into_the_configuration_with_its_reason():
    loaded = load()
    lines = settle_torso(loaded, spaces_of(bounded(96, 96, 3, low=0, high=255, dtype="uint8")))
    assert lines == ["chosen, since observations are images [96, 96, 3]: network.torso shallow"]
    assert loaded.network_params["torso"] == "shallow"
    assert loaded.chosen["network.torso"] == "observations are images [96, 96, 3]"
    assert config.Config.from_json(loaded.to_json()).network_params["torso"] == "shallow"
    given = load("--torso", "mlp")
    assert settle_torso(given, spaces_of(box(96, 96, 3))) == []
    assert given.network_params["torso"] == "mlp"


def test_vector_observation_gets_an_mlp_without_a_message():
    loaded = load()
    assert settle_torso(loaded, spaces_of(box(4))) == []
    assert loaded.network_params["torso"] == "mlp"
    assert warnings(loaded, spaces_of(box(4))) == []


FAR = bounded(1, low=100.0, high=200.0)
LARGE = bounded(10, 10, 3, low=0, high=255, dtype="uint8")


@pytest.mark.parametrize(
    ("options", "spaces", "says"),
    [
        ((), spaces_of(LARGE), "observations [10, 10, 3] go up to 255 and are read as they are"),
        (("--normalize_observations=true",), spaces_of(LARGE), None),
        (("--torso=mlp",), spaces_of(box(64, 64, 3)), "network.torso is mlp, but observations are"),
        ((), spaces_of(bounded(64, 64, 3, low=0, high=255)), "images go up to 255 and are float32"),
        ((), spaces_of(bounded(64, 64, 3, low=0, high=255, dtype="uint8")), None),
        ((), spaces_of(bounded(64, 64, 3, low=0, high=1)), None),
        (
            ("--hidden_sizes=[8]",),
            spaces_of(box(64, 64)),
            "network.hidden_sizes is not used: the torso is shallow",
        ),
        (("--hidden_sizes=[8]",), spaces_of(box(4)), None),
        (("--core_size=8",), spaces_of(box(4)), "network.core_size is not used: the torso is mlp"),
        (("--core_size=8", "--core=lstm"), spaces_of(box(4)), None),
        (
            ("--scale_actions=false",),
            spaces_of(box(4), FAR),
            "actions are only clipped to their bounds, 100.0 to 200.0",
        ),
        ((), spaces_of(box(4), FAR), None),
        (("--scale_actions=false",), spaces_of(box(4), bounded(2, low=-2.0, high=2.0)), None),
        (("--scale_actions=false",), spaces_of(box(4), box(2)), None),
        (("--scale_actions=false",), spaces_of(box(4), FAR | {"low": "sha256:0"}), None),
    ],
)
def test_probable_mistake_gives_a_warning(options, spaces, says):
    loaded = load(*options)
    settle_torso(loaded, spaces)
    lines = warnings(loaded, spaces)
    assert [line[: len(f"warning: {says}")] for line in lines] == [f"warning: {says}"] * bool(says)


@pytest.mark.parametrize(
    ("options", "has_step_limit", "warns"),
    [
        (("--eval_interval_updates=5",), False, True),
        (("--eval_interval_updates=5",), True, False),
        ((), False, False),
        (("--eval_interval_updates=5", "--set=eval_env.max_episode_steps=9"), False, False),
        (("--eval_interval_updates=5", "--set=eval_env.id=Acrobot-v1"), False, False),
    ],
)
def test_evaluation_without_a_time_limit_gives_a_warning(options, has_step_limit, warns):
    loaded = load("--env", "CliffWalking-v1", *options)
    settle_torso(loaded, spaces_of(box(4)))
    lines = warnings(loaded, spaces_of(box(4)), has_step_limit)
    assert [line[:49] for line in lines] == (
        ["warning: CliffWalking-v1 has no time limit: an ev"] if warns else []
    )


def test_description_names_observation_action_and_network():
    loaded = load("--core", "lstm")
    spaces = spaces_of(box(4), DISCRETE, mask=2)
    settle_torso(loaded, spaces)
    assert described(loaded, spaces) == (
        "observation [4] float32, action Discrete 2 with a mask, network mlp [64, 64] + lstm 256"
    )
    spaces = spaces_of(box(84, 84, dtype="uint8"), box(2), frame_stack=4)
    loaded = load("--scale_actions", "false")
    settle_torso(loaded, spaces)
    assert described(loaded, spaces) == (
        "observation [4, 84, 84] uint8, action [2] float32 clipped to its bounds, network shallow"
    )


def test_checkpoint_for_other_actions_is_refused_even_if_its_weights_fit():
    state = {"spaces": spaces_of(box(4))}
    build.check_actions(state, spaces_of(box(4)), "a.ckpt")
    build.check_actions(
        {}, spaces_of(box(4)), "a.ckpt"
    )  # an older checkpoint does not hold its spaces
    with pytest.raises(checkpoint.CheckpointError, match=r"a\.ckpt is of a policy for the actions"):
        build.check_actions(state, spaces_of(box(4), box(1)), "a.ckpt")
