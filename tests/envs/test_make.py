"""Vector environments: the common contract, and what only one kind has."""

import json
import logging
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from impala_ms.envs.make import MakeError, make_vec
from impala_ms.seeds import episode_seeds
from tests import fakes  # registers Counting-v0
from tests.envs.contract import EnvironmentContract, actions, play

COUNTING = "tests.fakes:Counting-v0"


def counting(num_envs=1, seeds=None, max_episode_steps=None, **kwargs):
    return make_vec(
        COUNTING,
        num_envs=num_envs,
        seeds=[0] * num_envs if seeds is None else seeds,
        kwargs=kwargs,
        max_episode_steps=max_episode_steps,
    )


class TestNativeCartPole(EnvironmentContract):
    def make(self, num_envs, seeds):
        return make_vec("CartPole-v1", num_envs=num_envs, seeds=seeds)

    def test_auto_takes_the_vectorised_program(self, env):
        assert isinstance(env._envs, CartPoleVectorEnv)

    def test_log_names_the_vectorised_program(self, caplog):
        caplog.set_level(logging.INFO)
        self.make(2, [0, 1])
        (line,) = caplog.messages
        assert line.startswith("CartPole-v1: stepped by its own vectorised version")

    def test_vectorised_program_uses_only_the_first_seed(self):
        raw = CartPoleVectorEnv(num_envs=2)
        np.testing.assert_array_equal(self.make(2, [5, 9]).reset(), raw.reset(seed=5)[0])


class TestSyncCartPole(EnvironmentContract):
    def make(self, num_envs, seeds):
        return make_vec("CartPole-v1", num_envs=num_envs, seeds=seeds, vectorization="sync")


class TestCounting(EnvironmentContract):
    def make(self, num_envs, seeds):
        return make_vec(
            COUNTING,
            num_envs=num_envs,
            seeds=seeds,
            kwargs={"lengths": tuple(range(2, 13)), "rewards": (1.0, 0.5)},
        )

    def check_second_reset(self, first, second):
        # Both begin at 0; only the lengths of the episodes show that the generator went on.
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("vectorization", ["vector_entry_point", "sync"])
class TestCartPoleEpisodes:
    def make(self, vectorization, **kwargs):
        return make_vec(
            "CartPole-v1", num_envs=3, seeds=[1, 2, 3], vectorization=vectorization, **kwargs
        )

    def test_step_limit_truncates(self, vectorization, caplog):
        env = self.make(vectorization, max_episode_steps=5)
        env.reset()
        observation, _, terminated, truncated, first = play(env, 12)
        np.testing.assert_array_equal(truncated[:, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0])
        np.testing.assert_array_equal(first[:, 0], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1])
        assert not terminated.any()
        # After five pushes the pole is tilted; in a new episode it is nearly upright.
        assert (np.abs(observation[4]).max(axis=1) > 0.5).all()
        assert (np.abs(observation[5]) <= 0.05).all()
        assert not caplog.records

    def test_step_limit_of_the_id_is_the_default(self, vectorization):
        assert self.make(vectorization).step_limit == 500

    def test_fall_terminates(self, vectorization):
        env = self.make(vectorization)
        env.reset()
        observation, _, terminated, truncated, _ = play(env, 15)
        assert terminated.any()
        assert not truncated.any()
        fallen = np.abs(observation[..., 2]) > 12 * 2 * np.pi / 360
        np.testing.assert_array_equal(fallen, terminated)

    def test_kwargs_reach_the_environment(self, vectorization):
        env = self.make(vectorization, kwargs={"sutton_barto_reward": True})
        env.reset()
        _, reward, terminated, _, _ = play(env, 15)
        np.testing.assert_array_equal(reward, np.where(terminated, -1.0, 0.0))

    def test_unknown_kwarg_is_refused_in_one_line(self, vectorization):
        with pytest.raises(MakeError, match=r"CartPole-v1 cannot be made: .*'gravty'") as caught:
            self.make(vectorization, kwargs={"gravty": 3})
        assert "\n" not in str(caught.value)


class TestCountingEpisodes:
    def test_final_observation_is_returned_before_the_reset_row(self):
        env = counting()
        assert env.reset().tolist() == [[0]]
        observation, reward, terminated, truncated, first = play(env, 6)
        assert observation[:, 0, 0].tolist() == [1, 2, 3, 0, 1, 2]
        assert reward[:, 0].tolist() == [1, 1, 1, 0, 1, 1]
        assert terminated[:, 0].tolist() == [False, False, True, False, False, False]
        assert first[:, 0].tolist() == [False, False, False, True, False, False]
        assert not truncated.any()

    def test_truncation_by_the_environment_is_passed_on(self):
        env = counting(ends="truncated")
        env.reset()
        _, _, terminated, truncated, _ = play(env, 4)
        assert truncated[:, 0].tolist() == [False, False, True, False]
        assert not terminated.any()

    def test_termination_at_the_limit_sets_both_flags(self):
        env = counting(max_episode_steps=3)
        env.reset()
        _, _, terminated, truncated, _ = play(env, 3)
        assert terminated[:, 0].tolist() == [False, False, True]
        assert truncated[:, 0].tolist() == [False, False, True]

    def test_finished_lists_each_episode_with_its_environment(self):
        env = counting(2, seeds=[0, 1], lengths=(2, 3))
        env.reset()
        ended = []
        for step in range(1, 8):
            env.step(actions(env, 0))
            ended += [(step, e, r, n) for e, r, n in zip(*env.finished, strict=True)]
        assert ended == [(2, 0, 2.0, 2), (3, 1, 3.0, 3), (6, 0, 3.0, 3), (6, 1, 2.0, 2)]

    def test_return_is_the_sum_of_raw_rewards(self):
        env = counting(rewards=(0.0, 0.0, 7.0))
        env.reset()
        _, reward, _, _, _ = play(env, 3)
        assert reward[:, 0].tolist() == [0, 0, 7]
        assert [part.tolist() for part in env.finished] == [[0], [7.0], [3]]

    def test_returns_are_summed_in_float64(self):
        env = counting(lengths=(3,), rewards=(2.0**25, 1.0, 1.0))
        env.reset()
        play(env, 3)
        assert env.finished[1].tolist() == [2.0**25 + 2]

    def test_array_that_the_environment_reuses_does_not_change_rows(self):
        env = counting(2, seeds=[0, 1], one_array=True, lengths=(3, 2))
        kept = [env.reset()]
        for _ in range(5):
            kept.append(env.step(actions(env, 0))[0])
        assert np.stack(kept)[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1]
        assert np.stack(kept)[:, 1, 0].tolist() == [0, 1, 2, 0, 1, 2]

    @pytest.mark.parametrize("steps", [2, 3])
    def test_reset_discards_the_current_and_the_finished_episode(self, steps):
        env = counting()
        env.reset()
        play(env, steps)
        assert env.reset().tolist() == [[0]]
        assert env.finished[0].size == 0
        observation, _, _, _, first = play(env, 3)
        assert observation[:, 0, 0].tolist() == [1, 2, 3]
        assert not first.any()
        assert [part.tolist() for part in env.finished] == [[0], [3.0], [3]]

    def test_episodes_of_one_step_alternate_with_reset_rows(self):
        env = counting(max_episode_steps=1)
        env.reset()
        observation, _, _, truncated, first = play(env, 4)
        assert observation[:, 0, 0].tolist() == [1, 0, 1, 0]
        assert truncated[:, 0].tolist() == [True, False, True, False]
        assert first[:, 0].tolist() == [False, True, False, True]

    def test_frames_per_step_is_the_action_repeat(self):
        env = make_vec(COUNTING, num_envs=1, seeds=[0], action_repeat=4)
        assert env.frames_per_step == 4
        assert counting().frames_per_step == 1


class Old(gymnasium.Env):
    """CountingEnv written for the old gym."""

    observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=3, flags=None, reward=1.0):
        self._length, self._reward = length, reward
        self._flags = {} if flags is None else flags
        self.seeded = None

    def seed(self, seed=None):
        self.seeded = seed

    def reset(self):
        self._step = 0
        self.drawn = self.np_random.random()
        return np.zeros(1, np.float32)

    def step(self, action):
        self._step += 1
        done = self._step == self._length
        info = dict(self._flags) if done else {}
        return np.array([self._step], np.float32), self._reward, done, info


gymnasium.register("Old-v0", Old)


class TestOldInterface:
    def make(self, num_envs=1, max_episode_steps=None, **kwargs):
        return make_vec(
            "Old-v0",
            num_envs=num_envs,
            seeds=list(range(num_envs)),
            kwargs=kwargs,
            max_episode_steps=max_episode_steps,
        )

    @pytest.mark.parametrize("ends", ["terminated", "truncated"])
    def test_old_and_new_interface_give_equal_rows(self, ends):
        old = self.make(flags={"TimeLimit.truncated": ends == "truncated"})
        new = counting(ends=ends)
        np.testing.assert_array_equal(old.reset(), new.reset())
        for part_old, part_new in zip(play(old, 9), play(new, 9), strict=True):
            assert part_old.dtype == part_new.dtype
            np.testing.assert_array_equal(part_old, part_new)

    def test_step_limit_truncates_an_old_environment(self):
        env = self.make(length=100, max_episode_steps=4)
        env.reset()
        observation, _, terminated, truncated, _ = play(env, 6)
        assert observation[:, 0, 0].tolist() == [1, 2, 3, 4, 0, 1]
        assert truncated[:, 0].tolist() == [False, False, False, True, False, False]
        assert not terminated.any()

    def test_old_environment_is_seeded_once(self):
        env = self.make(num_envs=2)
        env.reset()
        single = [e.unwrapped for e in env._envs]
        drawn = [e.drawn for e in single]
        assert [e.seeded for e in single] == [0, 1]
        assert drawn == [np.random.default_rng(seed).random() for seed in (0, 1)]
        env.reset()
        assert drawn[0] != single[0].drawn

    @pytest.mark.parametrize("mark", [None, np.bool_(False), 0, [False]])
    def test_false_truncation_mark_means_terminated(self, mark):
        env = self.make(flags={"TimeLimit.truncated": mark})
        env.reset()
        _, _, terminated, truncated, _ = play(env, 3)
        assert terminated[:, 0].tolist() == [False, False, True]
        assert not truncated.any()

    @pytest.mark.parametrize("mark", ["yes", [True, False]])
    def test_truncation_mark_that_is_not_a_bool_is_refused(self, mark):
        env = self.make(flags={"TimeLimit.truncated": mark}, length=1)
        env.reset()
        with pytest.raises(ValueError, match=r"info\['TimeLimit.truncated'\] is .*: it takes true"):
            env.step(actions(env, 0))

    @pytest.mark.parametrize("made", [lambda o: (o, None), lambda o: [o, {}], lambda o: (o, {})])
    def test_old_reset_may_return_an_observation_and_an_info(self, made, monkeypatch):
        env = self.make()
        monkeypatch.setattr(Old, "reset", lambda self: made(np.ones(1, np.float32)))
        assert env.reset().tolist() == [[1]]

    def test_reward_of_shape_1_is_taken_as_a_number(self):
        env = self.make(reward=np.array([2.5]))
        env.reset()
        assert env.step(actions(env, 0))[1].tolist() == [2.5]

    def test_two_rewards_are_refused(self):
        env = self.make(reward=np.array([2.5, 1.0]))
        env.reset()
        with pytest.raises(ValueError, match="size 2"):
            env.step(actions(env, 0))


class Drifting(gymnasium.vector.VectorEnv):
    """A vector environment that takes a step limit and ignores it."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space = gymnasium.spaces.Box(0, 1, (2,))
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs, max_episode_steps=None, fails=False):
        self.num_envs, self._fails = num_envs, fails

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        if self._fails:
            raise ZeroDivisionError("no")
        no = np.zeros(self.num_envs, np.bool_)
        return np.zeros((self.num_envs, 2), np.float32), np.ones(self.num_envs), no, no, {}


class Generous(Drifting):
    """A vector environment with episodes of one step and a reward on reset rows too."""

    def reset(self, *, seed=None, options=None):
        self._over = np.zeros(self.num_envs, np.bool_)
        return super().reset(seed=seed)

    def step(self, actions):
        observation, reward, no, _, info = super().step(actions)
        self._over = ~self._over
        return observation, reward, self._over, no, info


class SameStep(Drifting):
    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012


gymnasium.register("Drifting-v0", vector_entry_point=Drifting, max_episode_steps=3)
gymnasium.register("Generous-v0", vector_entry_point=Generous)
gymnasium.register(
    "Wrapped-v0",
    fakes.CountingEnv,
    vector_entry_point=Drifting,
    additional_wrappers=(gymnasium.wrappers.FlattenObservation.wrapper_spec(),),
)
gymnasium.register("SameStep-v0", fakes.CountingEnv, vector_entry_point=SameStep)


class TestStepLimitContradicted:
    def warnings(self, caplog):
        return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]

    def test_truncation_before_the_limit_warns_once(self, caplog):
        env = counting(2, ends="truncated", max_episode_steps=10)
        env.reset()
        play(env, 12)
        (warning,) = self.warnings(caplog)
        assert "environment 0 was truncated after 3 steps, but its step limit is 10" in warning

    def test_episode_beyond_the_limit_warns_once(self, caplog):
        env = make_vec("Drifting-v0", num_envs=2, seeds=[0, 0])
        env.reset()
        play(env, 3)
        assert self.warnings(caplog) == []
        play(env, 5)
        (warning,) = self.warnings(caplog)
        assert "environment 0 is still running after 4 steps, but its step limit is 3" in warning

    def test_termination_before_the_limit_does_not_warn(self, caplog):
        env = counting(max_episode_steps=10)
        env.reset()
        play(env, 12)
        assert self.warnings(caplog) == []


def test_reward_of_a_vector_program_on_a_reset_row_does_not_count():
    env = make_vec("Generous-v0", num_envs=1, seeds=[0])
    env.reset()
    _, reward, _, _, first = play(env, 3)
    assert first[:, 0].tolist() == [False, True, False]
    assert reward[:, 0].tolist() == [1, 0, 1]
    assert [part.tolist() for part in env.finished] == [[0], [1.0], [1]]


class TestErrorsOfTheEnvironment:
    def test_failing_step_names_environment_and_step(self):
        env = counting(3, fails_at_step=37, lengths=(10,))
        env.reset()
        with pytest.raises(RuntimeError, match="step 37 of CountingEnv fails") as caught:
            play(env, 100)
        # Before it come 3 episodes of 10 steps, each with a reset row.
        (note,) = caught.value.__notes__
        assert note == (
            "in step 7 of its episode, environment 0 of 3 (tests.fakes:Counting-v0), "
            "step 40 since the start"
        )

    def test_failing_reset_names_the_environment(self):
        env = counting(2, fails_in_reset=True)
        with pytest.raises(RuntimeError, match="the reset of CountingEnv fails") as caught:
            env.reset()
        assert caught.value.__notes__[0].startswith("in reset, environment 0 of 2 (tests.fakes:")

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_system_exit_and_interrupt_name_the_step_too(self, error, monkeypatch):
        def fail(self, action):
            raise error

        env = counting()
        env.reset()
        monkeypatch.setattr(fakes.CountingEnv, "step", fail)
        with pytest.raises(error) as caught:
            env.step(np.zeros(1, int))
        assert "in step 1 of its episode" in caught.value.__notes__[0]

    @pytest.mark.parametrize("row", [None, (0, 0.0, False), "abcde"], ids=str)
    def test_step_without_five_values_is_refused(self, row, monkeypatch):
        env = counting()
        env.reset()
        monkeypatch.setattr(fakes.CountingEnv, "step", lambda self, action: row)
        with pytest.raises(ValueError, match=r"step returned .*, not the five values obs"):
            env.step(np.zeros(1, int))

    def test_class_and_arguments_of_an_exception_are_kept(self):
        env = make_vec("Drifting-v0", num_envs=1, seeds=[0], kwargs={"fails": True})
        env.reset()
        with pytest.raises(ZeroDivisionError) as caught:
            env.step(actions(env, 0))
        assert caught.value.args == ("no",)

    @pytest.mark.parametrize(
        "observation", [np.zeros(1, np.uint8), np.zeros((2, 2), np.uint8), np.zeros(2, np.float64)]
    )
    def test_observation_outside_the_space_is_refused(self, observation):
        class Wrong(fakes.CountingEnv):
            def __init__(self):
                super().__init__()
                self.observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)

            def _observation(self):
                return observation

        gymnasium.register("Wrong-v0", Wrong)
        try:
            env = make_vec("Wrong-v0", num_envs=1, seeds=[0])
            with pytest.raises(ValueError, match=r"observation space says \(2,\) and uint8"):
                env.reset()
        finally:
            del gymnasium.registry["Wrong-v0"]


class Spaces(fakes.CountingEnv):
    def __init__(self, observation_space=None, action_space=None):
        super().__init__()
        self.observation_space = observation_space or self.observation_space
        self.action_space = action_space or self.action_space
        self.taken = []

    def step(self, action):
        self.taken.append(action)
        return super().step(action)

    def _observation(self):
        if isinstance(self.observation_space, gymnasium.spaces.Discrete):
            return 3
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)


gymnasium.register("Spaces-v0", Spaces)


class TestSpaces:
    def make(self, **spaces):
        return make_vec("Spaces-v0", num_envs=1, seeds=[0], kwargs=spaces)

    def test_spaces_describe_observation_and_action(self):
        box = gymnasium.spaces.Box(np.array([0, -1], np.float32), np.array([1, np.inf], np.float32))
        described = self.make(
            observation_space=box, action_space=gymnasium.spaces.Discrete(3)
        ).spaces()
        assert described == {
            "observation": {
                "type": "Box",
                "shape": [2],
                "dtype": "float32",
                "low": [0.0, -1.0],
                "high": [1.0, "inf"],
            },
            "action": {"type": "Discrete", "n": 3, "start": 0},
            "action_mask": 0,
            "frame_stack": 1,
        }

    def test_large_boxes_with_other_bounds_have_other_short_descriptions(self):
        low = np.zeros((84, 84), np.float32)
        plain = self.make(observation_space=gymnasium.spaces.Box(low, low + 1)).spaces()
        assert plain["observation"]["low"] == 0.0
        low[3, 4] = -1
        other = self.make(observation_space=gymnasium.spaces.Box(low, low + 2)).spaces()
        low[3, 4] = -2
        third = self.make(observation_space=gymnasium.spaces.Box(low, low + 2)).spaces()
        assert len({json.dumps(s) for s in (plain, other, third)}) == 3
        assert len(json.dumps(third)) < 400

    def test_uint8_observations_stay_uint8(self):
        env = self.make(observation_space=gymnasium.spaces.Box(0, 255, (4, 8, 8), np.uint8))
        assert env.reset().dtype == np.uint8
        assert env.observation_shape == (4, 8, 8)

    def test_discrete_observation_is_a_number(self):
        env = self.make(observation_space=gymnasium.spaces.Discrete(16))
        assert env.observation_shape == ()
        assert env.reset().tolist() == [3]
        assert env.spaces()["observation"] == {"type": "Discrete", "n": 16, "start": 0}

    def test_actions_counted_from_0_reach_the_environment_from_start(self):
        env = self.make(action_space=gymnasium.spaces.Discrete(3, start=-1))
        assert env.num_actions == 3
        env.reset()
        for action in (0, 1, 2):
            env.step(actions(env, action))
        assert env._envs[0].unwrapped.taken == [-1, 0, 1]


class TestIds:
    def test_unknown_id_names_the_nearest(self):
        with pytest.raises(MakeError, match=r"no environment 'CartPol-v1'.*CartPole-v1") as caught:
            make_vec("CartPol-v1", num_envs=1, seeds=[0])
        assert "module:ID" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_missing_module_is_named(self):
        with pytest.raises(MakeError, match="the module 'no_such_module' of the environment"):
            make_vec("no_such_module:Thing-v0", num_envs=1, seeds=[0])

    def test_module_without_the_id_is_named(self):
        with pytest.raises(MakeError, match=r"'Thing-v0', also after importing 'tests.fakes'"):
            make_vec("tests.fakes:Thing-v0", num_envs=1, seeds=[0])

    def test_failed_import_inside_a_module_is_raised_as_it_is(self, tmp_path, monkeypatch):
        (tmp_path / "needy_module.py").write_text("import no_such_dependency\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
            make_vec("needy_module:Thing-v0", num_envs=1, seeds=[0])

    def test_module_in_the_current_directory_is_found(self, tmp_path):
        (tmp_path / "my_env.py").write_text(
            textwrap.dedent(
                """
                import gymnasium
                from tests.fakes import CountingEnv
                gymnasium.register("Mine-v0", CountingEnv)
                """
            )
        )
        elsewhere = tmp_path / "scripts"
        elsewhere.mkdir()
        script = elsewhere / "script.py"
        script.write_text(
            "from impala_ms.envs.make import make_vec\n"
            "print(make_vec('my_env:Mine-v0', num_envs=2, seeds=[0, 0]).reset().tolist())\n"
        )
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.stderr == ""
        assert done.stdout == "[[0.0], [0.0]]\n"

    @pytest.mark.parametrize("vectorization", ["sync", "processes"])
    def test_environment_in_a_file_is_made_by_its_path(self, tmp_path, monkeypatch, vectorization):
        monkeypatch.chdir(tmp_path)
        tmp_path.joinpath("own.py").write_text(
            "import gymnasium\nfrom tests.fakes import CountingEnv\n"
            "gymnasium.register('InFile-v0', CountingEnv)\n"
        )
        for file in ("own.py", "./own.py", f"{tmp_path}/own.py"):
            env = make_vec(
                f"{file}:InFile-v0", num_envs=2, seeds=[0, 1], vectorization=vectorization
            )
            assert env.reset().shape == (2, 1)
            env.close()
        with pytest.raises(MakeError, match="no environment 'Other-v0', also after importing"):
            make_vec("own.py:Other-v0", num_envs=1, seeds=[0])
        with pytest.raises(MakeError, match=f"there is no file {tmp_path}/gone.py, which"):
            make_vec("gone.py:InFile-v0", num_envs=1, seeds=[0])

    def test_vector_entry_point_is_refused_without_a_vectorised_program(self):
        with pytest.raises(MakeError, match="has no usable vector_entry_point"):
            make_vec("Counting-v0", num_envs=1, seeds=[0], vectorization="vector_entry_point")

    def test_vectorised_program_with_another_autoreset_is_refused(self):
        with pytest.raises(MakeError, match=r"SAME_STEP.*only NEXT_STEP.*sync"):
            make_vec("SameStep-v0", num_envs=1, seeds=[0])
        assert make_vec("SameStep-v0", num_envs=1, seeds=[0], vectorization="sync").num_envs == 1

    def test_wrappers_that_come_with_the_id_are_kept(self):
        env = make_vec("Wrapped-v0", num_envs=1, seeds=[0])
        assert isinstance(env._envs[0], gymnasium.wrappers.FlattenObservation)
        with pytest.raises(MakeError, match="has no usable vector_entry_point"):
            make_vec("Wrapped-v0", num_envs=1, seeds=[0], vectorization="vector_entry_point")

    @pytest.mark.parametrize("vectorization", ["sync", "processes"])
    @pytest.mark.parametrize(
        ("id", "limit"), [("Timed-v0", None), ("Timed-v0", 4), ("OldTimed-v0", 4)]
    )
    def test_wrappers_of_the_id_read_the_step_limit(self, id, limit, vectorization):
        env = make_vec(
            f"tests.envs.fakes:{id}",
            num_envs=2,
            seeds=[0, 1],
            max_episode_steps=limit,
            vectorization=vectorization,
        )
        limit = limit or 5
        assert env.step_limit == limit
        observed = [np.copy(env.reset()), *play(env, limit)[0]]
        np.testing.assert_allclose(np.stack(observed)[:, 0, 1], np.arange(limit + 1) / limit)
        env.reset()
        _, _, terminated, truncated, first = play(env, 2 * limit + 1)
        ends = [step % (limit + 1) == limit - 1 for step in range(2 * limit + 1)]
        assert truncated[:, 0].tolist() == ends
        assert first[1:, 0].tolist() == ends[:-1]
        assert not terminated.any()
        env.close()

    def test_unknown_vectorization_is_refused(self):
        with pytest.raises(MakeError, match=r"must be one of auto, .*, not 'asynchronous'"):
            make_vec("Counting-v0", num_envs=1, seeds=[0], vectorization="asynchronous")


class TestSeeds:
    def test_each_number_changes_all_seeds(self):
        base = (1, 0, 1, 0)
        others = [(2, 0, 1, 0), (1, 1, 1, 0), (1, 0, 2, 0), (1, 0, 1, 1), (0, 1, 1, 0)]
        seeds = [s for numbers in (base, *others) for s in episode_seeds(*numbers, 50)]
        assert len(seeds) == 300
        assert len(set(seeds)) == 300
        assert all(type(s) is int and 0 <= s < 2**31 for s in seeds)

    def test_seeds_do_not_depend_on_the_number_of_environments(self):
        assert episode_seeds(3, 1, 2, 0, 8)[:4] == episode_seeds(3, 1, 2, 0, 4)

    def test_seeds_are_derived_as_documented(self):
        expected = np.random.SeedSequence((3, 1, 2, 0, 5)).generate_state(1, np.uint32)[0]
        assert episode_seeds(3, 1, 2, 0, 6)[5] == expected % 2**31


def test_import_of_envs_needs_neither_mindspore_nor_mpi():
    code = (
        "import sys, impala_ms.envs.make as m\n"
        "heavy = {'gymnasium', 'mindspore', 'mpi4py'} & set(sys.modules)\n"
        "m.make_vec('CartPole-v1', num_envs=2, seeds=[0, 0]).reset()\n"
        "print(heavy, {'mindspore', 'mpi4py'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set() set()\n"
