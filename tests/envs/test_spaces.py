"""Each space: what the policy gets, what the environment gets, and what is refused."""

import json
import logging

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from impala_ms.envs.external import GymnasiumVectorEnvironment
from impala_ms.envs.make import MakeError, make_vec
from impala_ms.envs.processes import ProcessVectorEnvironment
from impala_ms.envs.sync import SyncVectorEnvironment
from impala_ms.spaces import leaf_array, leaves
from tests.envs import fakes


def make(
    id="SpacesFake-v0",
    num_envs=1,
    frame_stack=1,
    vectorization="sync",
    scale_actions=True,
    **kwargs,
):
    return make_vec(
        f"tests.envs.fakes:{id}",
        num_envs=num_envs,
        seeds=[0] * num_envs,
        kwargs=kwargs,
        frame_stack=frame_stack,
        vectorization=vectorization,
        scale_actions=scale_actions,
    )


def native_structured(num_envs=2):
    """The same environment in gymnasium's own vector environment."""
    envs = gymnasium.vector.SyncVectorEnv([fakes.StructuredEnv] * num_envs)
    return GymnasiumVectorEnvironment("structured", envs, seeds=[0] * num_envs)


PLAIN = [
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Box(-3, 3, (), np.float64),
    spaces.Box(-3, 3, (4,), np.float16),
    spaces.Box(-9, 9, (1,), np.int32),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete([[3, 4], [5, 6]], dtype=np.int32, start=[[0, 7], [-2, 0]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 3)),
]


class TestPlainObservations:
    @pytest.mark.parametrize("space", PLAIN, ids=str)
    def test_plain_observation_keeps_values_shape_and_type(self, space):
        space.seed(0)
        given = [space.sample() for _ in range(4)]
        env = make(observation_space=space, observe=given.__getitem__)
        (described,) = leaves(env.spaces()["observation"]).values()
        shape, dtype = leaf_array(described)
        assert env.observation_leaves == {"": (shape, dtype)}
        assert (env.observation_shape, env.observation_dtype) == (shape, dtype)
        seen = [env.reset(), *(env.step(np.zeros(1, int))[0] for _ in range(3))]
        for expected, row in zip(given, seen, strict=True):
            assert row.shape == (1, *shape)
            assert row.dtype == dtype
            np.testing.assert_array_equal(row[0], expected - getattr(space, "start", 0))

    def test_each_space_is_described(self):
        described = [
            make(observation_space=space, observe=lambda _, s=space: s.sample()).spaces()
            for space in PLAIN[5:]
        ]
        described = [each["observation"] for each in described]
        assert described == [
            {"type": "Discrete", "n": 4, "start": -1},
            {"type": "MultiDiscrete", "nvec": [3, 4], "start": [0, 0]},
            {"type": "MultiDiscrete", "nvec": [[3, 4], [5, 6]], "start": [[0, 7], [-2, 0]]},
            {"type": "MultiBinary", "n": 3},
            {"type": "MultiBinary", "n": [2, 3]},
        ]

    @pytest.mark.parametrize(
        ("space", "wrong", "says"),
        [
            (spaces.Box(0, 255, (2,), np.uint8), np.zeros(1, np.uint8), r"shape \(1,\)"),
            (spaces.Box(0, 255, (2,), np.uint8), np.full(2, 0.5), "type float64"),
            (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 256]), "from 0 to 256"),
            (spaces.Box(0, 1, (1,)), np.zeros((1, 1), np.float32), r"shape \(1, 1\)"),
            (spaces.Box(0, 1, ()), "text", "type <U4"),
            (spaces.Box(0, 1, ()), None, "type object"),
            (spaces.Discrete(3), 1.0, "type float64"),
            (spaces.Discrete(3), np.zeros(2, int), r"shape \(2,\)"),
        ],
    )
    @pytest.mark.parametrize("step", [0, 2])
    def test_observation_that_does_not_fit_is_refused_in_reset_and_step(
        self, space, wrong, says, step
    ):
        right = space.sample()
        env = make(observation_space=space, observe=lambda s: wrong if s == step else right)

        def play():
            env.reset()
            for _ in range(2):
                env.step(np.zeros(1, int))

        with pytest.raises(ValueError, match=f"{says}.*observation space says") as caught:
            play()
        assert "\n" not in str(caught.value)

    def test_observation_that_fits_is_cast(self):
        for space, value in [
            (spaces.Box(0, 255, (2,), np.uint8), [3, 4]),
            (spaces.Box(-9, 9, (2,), np.float32), np.array([1.5, 2.0])),
            (spaces.Box(-9, 9, (2,), np.float32), np.array([1, 2], np.int64)),
            (spaces.Discrete(9), np.int32(5)),
        ]:
            row = make(observation_space=space, observe=lambda _, value=value: value).reset()
            np.testing.assert_array_equal(row[0], value)


def native(**kwargs):
    envs = gymnasium.vector.SyncVectorEnv([lambda: fakes.SpacesEnv(**kwargs)] * 2)
    return GymnasiumVectorEnvironment("native", envs, seeds=[0, 0])


# A space, two observations, a wrong one, the two counted from 0, parts of the message.
CHOICES = [
    (spaces.Discrete(4, start=10), [10, 13], 14, [0, 3], ("14", "", "10 to 13")),
    (spaces.Discrete(4, start=10), [10, 13], 9, [0, 3], ("9", "", "10 to 13")),
    (spaces.Discrete(3, start=-3), [-3, -1], 0, [0, 2], ("0", "", "-3 to -1")),
    (spaces.Discrete(3), [0, 2], -1, [0, 2], ("-1", "", "0 to 2")),
    (
        spaces.MultiDiscrete([2, 3], start=[5, -1]),
        [[6, -1], [5, 1]],
        [5, 2],
        [[1, 0], [0, 2]],
        ("2", " at [1]", "-1 to 1"),
    ),
    (spaces.MultiBinary(2), [[0, 1], [1, 1]], [2, 0], [[0, 1], [1, 1]], ("2", " at [0]", "0 to 1")),
    (spaces.MultiBinary(1), [[0], [1]], [-1], [[0], [1]], ("-1", " at [0]", "0 to 1")),
]


class TestChoices:
    """Discrete, MultiDiscrete and MultiBinary observations."""

    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize("made", [lambda **kwargs: make(num_envs=2, **kwargs), native])
    @pytest.mark.parametrize(("space", "given", "wrong", "seen", "says"), CHOICES, ids=str)
    def test_values_are_counted_from_0_and_must_lie_in_the_space(
        self, made, nested, space, given, wrong, seen, says
    ):
        rows = [np.array(row) for row in (*given, wrong)]
        if nested:
            whole = spaces.Dict(a=spaces.Box(0, 9, ()), b=spaces.Tuple([space]))
            env = made(observation_space=whole, observe=lambda i: {"a": 5.0, "b": (rows[i],)})
        else:
            env = made(observation_space=space, observe=rows.__getitem__)
        results = [env.reset(), env.step(np.zeros(2, int))[0]]
        results = [row["b/0"] if nested else row for row in results]
        assert [row.tolist() for row in results] == [[row] * 2 for row in seen]
        assert env.spaces()["observation"]["type"] == ("Dict" if nested else type(space).__name__)
        with pytest.raises(ValueError, match="the environment returned") as caught:
            env.step(np.zeros(2, int))
        value, element, allowed = says
        field = " for 'b/0'" if nested else ""
        assert str(caught.value) == (
            f"the environment returned {value}{field}{element} in an observation, but the "
            f"observation space allows {allowed}"
        )
        (note,) = caught.value.__notes__
        assert note.startswith("in step 2 of its episode, environment 0 of 2 (")
        assert note.endswith(", step 2 since the start")

    def test_workers_count_from_0_too(self):
        env = make_vec(
            "tests.envs.fakes:Structured-v0",
            num_envs=2,
            seeds=[0, 0],
            vectorization="processes",
            kwargs={"lengths": (9,)},
        )
        assert env.reset()["a"].tolist() == [0, 0]
        for step in range(1, 5):
            assert env.step(np.zeros(2, int))[0]["a"].tolist() == [step] * 2
        with pytest.raises(ValueError, match=r"returned 7 for 'a' in .* allows 2 to 6"):
            env.step(np.zeros(2, int))
        env.close()

    def test_wrong_first_observation_is_reported_in_reset(self):
        env = make(observation_space=spaces.Discrete(3), observe=lambda _: 3, num_envs=2)
        with pytest.raises(ValueError, match="returned 3 in an observation") as caught:
            env.reset()
        assert caught.value.__notes__[0].startswith("in reset, environment 0 of 2 (")


class TestStructuredObservations:
    EXPECTED = {  # noqa: RUF012
        "z": ((2, 3), np.uint8),
        "a": ((), np.int64),
        "inner/0": ((), np.float64),
        "inner/1/x": ((3,), np.int8),
        "inner/1/y": ((2,), np.int64),
    }

    @pytest.mark.parametrize("made", [lambda: make("Structured-v0", 2), native_structured])
    def test_structured_observation_keeps_types_shapes_and_order(self, made):
        env = made()
        assert list(env.observation_leaves) == list(self.EXPECTED)
        rows = [env.reset()] + [env.step(np.zeros(2, int))[0] for _ in range(4)]
        for row, step in zip(rows, [0, 1, 2, 3, 0], strict=True):
            assert list(row) == list(self.EXPECTED)
            for path, (shape, dtype) in self.EXPECTED.items():
                assert env.observation_leaves[path] == (shape, dtype)
                assert (row[path].shape, row[path].dtype) == ((2, *shape), dtype)
                assert row[path].flags.c_contiguous
            assert row["z"].tolist() == [[[100 + step] * 3] * 2] * 2
            assert row["a"].tolist() == [step] * 2
            assert row["inner/0"].tolist() == [step / 8] * 2
            assert row["inner/1/x"].tolist() == [[1, 1, 1]] * 2
            assert row["inner/1/y"].tolist() == [[0, step]] * 2

    def test_description_has_the_same_parts_as_the_observation(self):
        env = make("Structured-v0")
        described = json.loads(json.dumps(env.spaces()["observation"], allow_nan=False))
        parts = {path: leaf_array(leaf) for path, leaf in leaves(described).items()}
        assert list(parts.items()) == list(env.observation_leaves.items())
        assert "mission" not in json.dumps(described)
        assert described["spaces"]["a"] == {"type": "Discrete", "n": 5, "start": 2}
        assert described["spaces"]["inner"]["type"] == "Tuple"

    def test_texts_are_left_out_and_logged_once(self, caplog):
        caplog.set_level(logging.INFO)
        env = make("Structured-v0", 3)
        env.reset()
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.endswith("Structured-v0: observations without mission, inner/0")

    @pytest.mark.parametrize("change", [{"z": np.zeros((2, 2), np.uint8)}, {"a": 1.5}])
    def test_part_that_does_not_fit_is_named(self, change):
        (name,) = change
        env = make(
            observation_space=fakes.STRUCTURED,
            observe=lambda step: fakes.observe_structured(step) | change,
        )
        with pytest.raises(ValueError, match=f"returned '{name}' of an observation of .* says"):
            env.reset()

    def test_missing_part_is_named(self):
        env = make(observation_space=fakes.STRUCTURED, observe=lambda _: {"z": 3})
        with pytest.raises(ValueError, match=r"returned .z. of an observation"):
            env.reset()

    def test_two_parts_with_one_path_are_refused(self):
        box = spaces.Box(0, 1)
        with pytest.raises(MakeError, match="both called 'a/b': rename"):
            make(observation_space=spaces.Dict({"a/b": box, "a": spaces.Dict(b=box)}))


class TestActions:
    def step(self, env, *actions):
        env.reset()
        for action in actions:
            env.step(np.array([action]))
        return env._envs[0].unwrapped.taken

    def test_multi_discrete_actions_are_counted_from_0(self):
        env = make(action_space=spaces.MultiDiscrete([2, 3], start=[0, 5]))
        taken = self.step(env, [1, 2], [0, 0])
        assert [t.tolist() for t in taken] == [[1, 7], [0, 5]]
        assert taken[0].dtype == np.int64
        assert env.spaces()["action"] == {"type": "MultiDiscrete", "nvec": [2, 3], "start": [0, 5]}
        assert env.num_actions == 0

    @pytest.mark.parametrize(("n", "shape"), [(4, (4,)), ((2, 2), (2, 2))])
    def test_multi_binary_actions_have_parts_of_two(self, n, shape):
        space = spaces.MultiBinary(n)
        (taken,) = self.step(make(action_space=space), [1, 0, 1, 1])
        assert (taken.shape, taken.ravel().tolist()) == (shape, [1, 0, 1, 1])
        assert space.contains(taken)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_unscaled_box_actions_are_clipped_in_a_copy(self, dtype):
        low, high = np.array([-1, -np.inf, 0.1], dtype), np.array([1, 2, 0.3], dtype)
        space = spaces.Box(low, high, dtype=dtype)
        env = make(action_space=space, scale_actions=False)
        sampled = np.array([-5, -5, 0.2], np.float32)
        taken = self.step(env, sampled, [5, 5, 5])
        assert sampled.tolist() == np.array([-5, -5, 0.2], np.float32).tolist()
        assert taken[0].tolist() == [-1, -5, dtype(np.float32(0.2))]
        assert taken[1].tolist() == [1, 2, dtype(0.3)]
        assert all(space.contains(action) for action in taken)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_actions_with_finite_bounds_are_scaled_to_them(self, dtype):
        space = spaces.Box(
            np.array([100, -1, -np.inf, 0, -np.inf], dtype),
            np.array([200, 1, 2, np.inf, np.inf], dtype),
            dtype=dtype,
        )
        env = make(action_space=space)
        sampled = [[0, 0.5, -7, 7, 3], [-1, -9, 0.5, -3, -3], [9, 1, 9, 0.5, 0]]
        taken = self.step(env, *sampled)
        assert [action.tolist() for action in taken] == [
            [150, 0.5, -7, 7, 3],
            [100, -1, 0.5, 0, -3],
            [200, 1, 2, 0.5, 0],
        ]
        assert all(space.contains(action) for action in taken)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_scaled_action_stays_in_its_bounds(self, dtype):
        random = np.random.default_rng(0)
        low = random.normal(size=999).astype(dtype)
        space = spaces.Box(low, low + random.random(999).astype(dtype), dtype=dtype)
        env = make(action_space=space)
        for action in self.step(env, np.full(999, -1), np.full(999, 1), random.normal(size=999)):
            assert space.contains(action)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_largest_float_as_a_bound_counts_as_infinite(self, dtype):
        most = np.finfo(dtype).max
        env = make(action_space=spaces.Box(-most, most, (1,), dtype))
        assert self.step(env, [0.5])[0].tolist() == [0.5]

    def test_scaling_is_logged_once_and_not_in_the_spaces(self, caplog):
        caplog.set_level(logging.INFO)
        space = spaces.Box(np.array([-1, 0], np.float32), np.array([2, np.inf], np.float32))
        plain = make(action_space=space, scale_actions=False)
        assert caplog.messages == []
        scaled = make(action_space=space, num_envs=3)
        assert [message.partition("Fake-v0: ")[2] for message in caplog.messages] == [
            "actions of -1 to 1 are scaled to the bounds of the action space",
            "1 of the 2 numbers of an action have an infinite bound and are not scaled",
        ]
        assert scaled.spaces() == plain.spaces()

    @pytest.mark.parametrize("vectorization", ["sync", "processes"])
    @pytest.mark.parametrize(
        "space",
        [
            spaces.Discrete(3),
            spaces.Discrete(3, start=-1, dtype=np.int32),
            spaces.MultiDiscrete([2, 3]),
            spaces.MultiDiscrete([2, 3], dtype=np.int32, start=[1, 1]),
            spaces.MultiBinary(2),
            spaces.MultiBinary((2, 1)),
            spaces.Box(-1, 1, ()),
            spaces.Box(-1, 1, (2, 2), np.float64),
        ],
        ids=str,
    )
    def test_environment_gets_actions_of_the_type_that_its_space_samples(
        self, space, vectorization
    ):
        env = make_vec(
            "tests.envs.fakes:Picky-v0",
            num_envs=2,
            seeds=[0, 0],
            kwargs={"action_space": space},
            vectorization=vectorization,
        )
        env.reset()
        sampled = np.zeros((2, *env._action.shape), np.float32 if env._action.box else np.int64)
        env.step(sampled)
        env.step(sampled)
        assert not sampled.any()
        env.close()

    def test_action_of_another_shape_is_refused(self):
        env = make(action_space=spaces.Box(-1, 1, (2,)))
        env.reset()
        with pytest.raises(ValueError, match=r"actions have shape \(1, 3\)"):
            env.step(np.zeros((1, 3), np.float32))


MASKED_SPACES = [spaces.Discrete(3), spaces.Discrete(3, start=4), spaces.MultiDiscrete([3, 3])]


class TestActionMasks:
    @pytest.mark.parametrize("mask_in", ["info", "observation"])
    @pytest.mark.parametrize("space", MASKED_SPACES, ids=str)
    def test_mask_belongs_to_the_observation_returned_last(self, mask_in, space):
        if mask_in == "observation" and isinstance(space, spaces.MultiDiscrete):
            pytest.skip("in an observation the fake has only one array as a mask")
        env = make("Masked-v0", 2, action_space=space, mask_in=mask_in)
        parts = 2 if isinstance(space, spaces.MultiDiscrete) else 1
        assert env.mask_size == env.spaces()["action_mask"] == 3 * parts
        observation = env.reset()
        action = np.zeros((2, parts) if parts > 1 else 2, int)
        for step in (0, 1, 2, "end", 0, 1):
            row = [True] * 3 if step != "end" else [False] * 3
            if step != "end":
                row[step] = False
            assert env.action_mask.tolist() == [row * parts] * 2
            assert env.action_mask.dtype == np.bool_
            if mask_in == "observation":
                assert list(observation) == ["count"]
            observation = env.step(action)[0]

    def test_asking_for_the_mask_size_first_does_not_change_the_rows(self):
        one, other = (make("Masked-v0", 2) for _ in range(2))
        one.spaces()
        for env in (one, other):
            env.rows = [env.reset(), *(env.step(np.zeros(2, int))[0] for _ in range(9))]
        np.testing.assert_array_equal(one.rows, other.rows)

    def test_step_before_reset_is_refused_even_if_the_mask_size_is_known(self):
        env = make("Masked-v0")
        env.spaces()
        with pytest.raises(RuntimeError, match=r"reset\(\) comes before"):
            env.step(np.zeros(1, int))

    def test_environment_without_a_mask_has_mask_size_0(self):
        env = make()
        assert env.mask_size == 0
        env.reset()
        assert env.action_mask is None

    def test_final_observation_needs_no_mask(self):
        env = make("Masked-v0", at_the_end="missing")
        env.reset()
        for _ in range(4):
            env.step(np.zeros(1, int))
        assert env.action_mask.tolist() == [[False, True, True]]

    def test_missing_mask_within_an_episode_is_refused(self):
        env = make("Masked-v0", forgets_at=2)
        env.reset()
        env.step(np.zeros(1, int))
        with pytest.raises(ValueError, match="the info has no 'action_mask'"):
            env.step(np.zeros(1, int))

    def test_mask_of_another_size_in_the_observation_is_refused(self):
        with pytest.raises(MakeError, match=r"'action_mask' of 4 entries.* has 3"):
            make("Masked-v0", mask_in="observation", size=4)

    @pytest.mark.parametrize("vectorization", ["sync", "processes"])
    def test_mask_of_another_size_in_the_info_is_refused(self, vectorization):
        env = make_vec(
            "tests.envs.fakes:Masked-v0",
            num_envs=1,
            seeds=[0],
            vectorization=vectorization,
            kwargs={"size": 4},
        )
        with pytest.raises(ValueError, match="mask has 4 entries, but the action space has 3"):
            env.reset()
        env.close()

    def test_box_of_actions_has_no_mask(self):
        space = spaces.Dict(action_mask=spaces.MultiBinary(2))
        env = make(
            observation_space=space,
            action_space=spaces.Box(-1, 1, (2,)),
            observe=lambda _: {"action_mask": np.ones(2, np.int8)},
        )
        assert env.mask_size == 0
        assert list(env.reset()) == ["action_mask"]

    @pytest.mark.parametrize("kind", ["sync", "processes", "native"])
    def test_mask_that_the_first_reset_lacked_is_refused_in_one_line(self, kind):
        kwargs = {"info": {"action_mask": np.array([1, 0], np.int8)}, "reset_info": {}}
        env = self.vector("Info-v0", fakes.InfoEnv, kind, **kwargs)
        env.reset()
        assert env.mask_size == 0
        says = "has 'action_mask', but that of the first reset.* had none: return it from reset too"
        with pytest.raises(ValueError, match=says) as caught:
            env.step(np.zeros(2, int))
        text = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
        assert "step 1" in text
        assert "\n" not in text
        env.close()

    @pytest.mark.parametrize("kind", ["sync", "processes", "native"])
    @pytest.mark.parametrize("forgets", [0, 1])
    def test_mask_of_only_some_environments_is_refused_in_one_line(self, kind, forgets):
        kwargs = {"forgets_at": 0, "only_for": forgets}
        env = self.vector("Masked-v0", fakes.MaskedEnv, kind, **kwargs)
        with pytest.raises(ValueError, match=r"'action_mask'.*return it from .*reset") as caught:
            env.reset()
        assert f"nvironment {forgets}" in str(caught.value) + "".join(
            getattr(caught.value, "__notes__", ())
        )
        env.close()

    def test_vectorised_program_may_omit_the_mask_only_at_the_end_of_an_episode(self):
        env = self.vector("Masked-v0", fakes.MaskedEnv, "native", at_the_end="missing")
        env.reset()
        for _ in range(3):
            env.step(np.zeros(2, int))
        assert env.action_mask.tolist() == [[True] * 3] * 2
        env = self.vector("Masked-v0", fakes.MaskedEnv, "native", forgets_at=2, only_for=1)
        env._envs.reset(seed=0)
        env.reset()
        env.step(np.zeros(2, int))
        with pytest.raises(ValueError, match="step 2 has no 'action_mask' of environment 1: ret"):
            env.step(np.zeros(2, int))

    def vector(self, id, made, kind, **kwargs):
        if kind == "native":
            envs = gymnasium.vector.SyncVectorEnv([lambda: made(**kwargs)] * 2)
            return GymnasiumVectorEnvironment("native", envs, seeds=[0, 1])
        return make_vec(
            f"tests.envs.fakes:{id}", num_envs=2, seeds=[0, 1], vectorization=kind, kwargs=kwargs
        )

    @pytest.mark.parametrize(
        "mask", [3, "10", [], {"a": 1}, np.array([-1e9, 0.0]), np.array(["1", "0"])]
    )
    def test_mask_of_another_type_is_refused_in_one_line(self, mask):
        env = make("Info-v0", reset_info={"action_mask": mask})
        with pytest.raises(ValueError, match=r"'action_mask' is .*, but it takes 0 or 1") as caught:
            env.reset()
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "mask", [[1, 0], (True, False), np.array([1.0, 0.0]), np.array([[1, 0]], np.uint8)]
    )
    def test_mask_of_any_numbers_0_and_1_is_taken(self, mask):
        env = make("Info-v0", reset_info={"action_mask": mask})
        env.reset()
        assert env.action_mask.tolist() == [[True, False]]


class TestLives:
    def play(self, episodic_life):
        env = SyncVectorEnvironment("lives", fakes.LivesEnv, seeds=[0], episodic_life=episodic_life)
        env.reset()
        terminated, first, finished = [], [], []
        for _ in range(10):
            _, _, t, _, f = env.step(np.zeros(1, int))
            terminated.append(int(t[0]))
            first.append(int(f[0]))
            finished += [part.tolist() for part in env.finished[1:] if len(part)]
        return terminated, first, finished

    def test_lost_life_is_terminal_but_does_not_end_the_episode(self):
        terminated, first, finished = self.play(True)
        # The last life is lost at step 5, the episode ends at step 6.
        assert terminated == [0, 1, 0, 1, 0, 1, 0, 0, 1, 0]
        assert first == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
        assert finished == [[6.0], [6]]

    def test_lost_life_is_not_terminal_without_episodic_life(self):
        assert self.play(False)[0] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]

    def test_workers_read_lives(self):
        env = ProcessVectorEnvironment(
            "lives", fakes.LivesEnv, seeds=[0, 0], processes=2, episodic_life=True
        )
        env.reset()
        ends = [env.step(np.zeros(2, int))[2].tolist() for _ in range(4)]
        env.close()
        assert ends == [[False] * 2, [True] * 2, [False] * 2, [True] * 2]


class TestInfos:
    """Keys that are not needed may hold anything; the info may be missing."""

    @pytest.mark.parametrize(
        "info",
        [
            {"lives": [3, 2], "TimeLimit.truncated": [1, 2]},
            {"lives": None, "action_mask": None},
            {"lives": "three"},
            None,
            ["lives"],
        ],
        ids=str,
    )
    def test_infos_that_are_not_needed_are_not_read(self, info):
        env = make("Info-v0", 2, info=info, reset_info=None)
        env.reset()
        rows = [env.step(np.zeros(2, int)) for _ in range(5)]
        assert [int(row[2][0]) for row in rows] == [0, 0, 1, 0, 0]
        assert not any(row[3].any() for row in rows)

    def test_workers_do_not_read_infos_that_are_not_needed(self):
        env = make("Info-v0", 2, info={"lives": [3, 2]}, vectorization="processes")
        env.reset()
        assert env.step(np.zeros(2, int))[0].tolist() == [[1], [1]]
        env.close()

    def test_mask_of_continuous_actions_is_not_read(self):
        info, box = {"action_mask": "none"}, spaces.Box(-1, 1, (2,))
        env = make("Info-v0", info=info, reset_info=info, action_space=box)
        env.reset()
        env.step(np.zeros((1, 2)))
        assert env.action_mask is None


class TestFrameStack:
    def test_frame_stack_of_images_leaves_single_frames_in_the_rows(self):
        env = make(
            observation_space=spaces.Box(0, 255, (5, 4), np.uint8),
            observe=lambda step: np.full((5, 4), step, np.uint8),
            frame_stack=4,
        )
        assert env.frame_stack == env.spaces()["frame_stack"] == 4
        assert env.reset().shape == (1, 5, 4)

    @pytest.mark.parametrize(
        "space", [spaces.Box(0, 1, (3,)), spaces.Discrete(2), fakes.STRUCTURED], ids=str
    )
    def test_frame_stack_of_other_observations_is_refused(self, space):
        with pytest.raises(MakeError, match=r"frame_stack 2 needs .* one image.*") as caught:
            make(observation_space=space, frame_stack=2)
        assert "\n" not in str(caught.value)


BOX = spaces.Box(np.zeros((9, 9)), np.ones((9, 9)), dtype=np.float64)  # its text has many lines


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Box(0, 1, (0,)), "Fake-v0 has an observation space without any element"),
        (
            spaces.Dict(a=BOX, b=spaces.Box(0, 1, (3, 0))),
            "has a part 'b' of its observation space without any element",
        ),
        ("box", "the observation space of .*SpacesFake-v0 is 'box', not a space"),
    ],
    ids=str,
)
def test_observation_space_without_elements_is_refused(space, says):
    with pytest.raises(MakeError, match=says):
        make(observation_space=space)


@pytest.mark.parametrize(
    "unsupported",
    [
        {"observation_space": spaces.Text(5)},
        {"observation_space": spaces.Sequence(BOX)},
        {"observation_space": spaces.Graph(BOX, None)},
        {"observation_space": spaces.OneOf([BOX, BOX])},
        {"observation_space": spaces.Dict(a=BOX, b=spaces.Sequence(BOX))},
        {"observation_space": spaces.Dict(a=spaces.Text(5))},
        {"action_space": spaces.Box(0, 9, (0,))},
        {"action_space": spaces.Box(0, 9, (2,), np.int64)},
        {"action_space": spaces.Dict(a=BOX)},
        {"action_space": spaces.Tuple([BOX])},
        {"action_space": spaces.Text(5)},
        {"action_space": spaces.MultiDiscrete([[2, 2], [2, 2]])},
    ],
    ids=str,
)
def test_unsupported_space_is_refused_in_one_line(unsupported):
    (which,) = unsupported
    with pytest.raises(MakeError) as caught:
        make(**unsupported)
    text = str(caught.value)
    assert f"SpacesFake-v0 has the {which.replace('_', ' ')} " in text
    assert "supported" in text
    assert "wrap the environment" in text
    assert "\n" not in text
    assert len(text) < 1000
