"""Atari: three ids mean one game, and two back ends play it alike."""

import importlib.util
import logging

import numpy as np
import pytest

from impala_ms.envs import atari
from impala_ms.envs.external import EnvpoolVectorEnvironment
from impala_ms.envs.make import MakeError, frames_per_step, make_vec
from impala_ms.envs.sync import SyncVectorEnvironment
from impala_ms.seeds import episode_seeds
from tests.envs.contract import EnvironmentContract


def needs(*packages):
    missing = [p for p in packages if importlib.util.find_spec(p.replace("-", "_")) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


BACK_ENDS = [
    pytest.param("envpool", marks=needs("envpool")),
    pytest.param("sync", marks=needs("ale-py")),
]
PLAYERS = {"envpool": "envpool", "sync": "ale-py"}
each_back_end = pytest.mark.parametrize("vectorization", BACK_ENDS)


def make(id="Breakout-v5", num_envs=1, vectorization="auto", limit=None, repeat=None, **kwargs):
    return make_vec(
        id,
        num_envs=num_envs,
        seeds=episode_seeds(1, 0, 1, 0, num_envs),
        vectorization=vectorization,
        kwargs=kwargs,
        max_episode_steps=limit,
        action_repeat=repeat,
    )


def play(env, steps, seed=0):
    """First observation, arrays of ``steps`` steps with random actions, finished episodes."""
    begun = np.copy(env.reset())
    chosen = np.random.default_rng(seed).integers(0, env.num_actions, (steps, env.num_envs))
    rows, episodes = [], []
    for action in chosen:
        rows.append([np.copy(part) for part in env.step(action)])
        episodes += [tuple(map(float, one)) for one in zip(*env.finished, strict=True)]
    env.close()
    return begun, [np.stack(column) for column in zip(*rows, strict=True)], episodes


class AtariContract(EnvironmentContract):
    STEPS = 24
    PAYS_ALWAYS = False

    def make(self, num_envs, seeds):
        return make_vec(
            "ALE/Pong-v5",
            num_envs=num_envs,
            seeds=seeds,
            vectorization=self.VECTORIZATION,
            max_episode_steps=5,
        )

    def check_second_reset(self, first, second):
        pass  # the first frames of Pong are equal


@needs("envpool")
class TestEnvpoolPong(AtariContract):
    VECTORIZATION = "envpool"


@needs("ale-py")
class TestAlePong(AtariContract):
    VECTORIZATION = "sync"


@needs("envpool", "ale-py")
class TestBothBackEnds:
    def both(self, steps, **kwargs):
        return [play(make(vectorization=v, **kwargs), steps) for v in ("envpool", "sync")]

    def test_both_back_ends_give_equal_rewards_lives_and_ends(self):
        one, other = self.both(700, noop_max=1)
        for a, b in zip(one[1], other[1], strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
        for a, b in zip(one[1][1:], other[1][1:], strict=True):
            np.testing.assert_array_equal(a, b)
        _, reward, terminated, _, first = one[1]
        assert one[2] == other[2]
        assert len(one[2]) >= 2
        assert reward.sum() >= 2
        # Breakout has 5 lives: four of them are lost before each end.
        assert terminated[: int(np.flatnonzero(first)[0])].sum() == 5

    def test_pixels_of_both_back_ends_differ_only_by_rounding(self):
        """Measured in Breakout: 1 grey level in 1 of 7,056 pixels of every tenth frame.

        Final observations may differ more: if a game is over before the fourth frame, envpool
        shows an older frame and ale-py the newest, up to 110 levels in 0.05 % of the pixels. They
        are not used: no action follows, and the value there is not needed.
        """
        (begun_a, a, _), (begun_b, b, _) = self.both(700, noop_max=1)
        np.testing.assert_array_equal(begun_a, begun_b)
        final = np.append(a[4][1:, 0], False)
        assert final.sum() >= 2
        apart = np.abs(a[0].astype(int) - b[0])[~final]
        assert apart.max() <= 1
        assert (apart > 0).mean() < 1e-4

    def test_step_limit_truncates_both_back_ends_at_the_same_decision(self):
        one, other = self.both(40, id="Pong-v5", limit=7, noop_max=1)
        np.testing.assert_array_equal(one[1][3], other[1][3])
        assert np.flatnonzero(one[1][3][:, 0]).tolist() == [6, 14, 22, 30, 38]
        assert one[2] == other[2]
        assert [length for *_, length in one[2]] == [7.0] * 5

    def test_both_back_ends_take_another_repeat_and_all_actions(self):
        one, other = self.both(200, repeat=2, noop_max=1, full_action_space=True, fire_reset=True)
        for a, b in zip(one[1][1:], other[1][1:], strict=True):
            np.testing.assert_array_equal(a, b)
        assert one[1][2].sum() >= 1
        assert np.abs(one[1][0].astype(int) - other[1][0]).max() <= 1

    @pytest.mark.parametrize("size", [42, 160])
    def test_size_sets_the_shape_in_both_back_ends(self, size):
        one, other = self.both(60, id="Pong-v5", size=size, noop_max=1)
        assert one[1][0].shape == other[1][0].shape == (60, 1, size, size)
        apart = np.abs(one[1][0].astype(int) - other[1][0])
        assert apart.max() <= 1
        assert np.ptp(one[1][0]) > 50  # the image is not empty

    def test_both_back_ends_have_most_games(self):
        from envpool.registration import registry

        pools = {
            task.removesuffix("-v5")
            for task, entry in registry.specs.items()
            if entry[0] == "envpool.atari"
        }
        assert len(pools & set(atari._ale_games())) > 60


@each_back_end
class TestEachBackEnd:
    def test_log_names_the_settings_and_the_back_end(self, vectorization, caplog):
        caplog.set_level(logging.INFO)
        make(vectorization=vectorization, noop_max=7).close()
        settings, player = caplog.messages
        for part in ("action_repeat 4", "step limit 27000", "episodic_life True", "noop_max 7"):
            assert part in settings
        assert player == f"Breakout-v5: played by {PLAYERS[vectorization]}"

    def test_game_has_4_frames_per_step_and_84x84_bytes(self, vectorization):
        env = make(vectorization=vectorization)
        assert (env.frames_per_step, env.step_limit) == (4, 27_000)
        assert env.observation_shape == (84, 84)
        assert env.observation_dtype == np.uint8
        assert env.num_actions == 4
        assert make(vectorization=vectorization, repeat=2).step_limit == 54_000
        assert make(vectorization=vectorization, full_action_space=True).num_actions == 18

    def test_lost_life_is_terminal_but_does_not_end_the_episode(self, vectorization):
        _, rows, episodes = play(make(vectorization=vectorization), 300)
        _, without, _ = play(make(vectorization=vectorization, episodic_life=False), 300)
        assert rows[2].sum() > rows[4].sum() + 3
        assert without[2].sum() == len(episodes) == rows[4].sum()

    def test_frames_without_action_vary_the_start_of_episodes(self, vectorization):
        env = make("Pong-v5", vectorization=vectorization, limit=30)
        env.reset()
        ends = []
        for _ in range(8 * 31):
            observation, _, _, truncated, _ = env.step(np.zeros(1, int))
            if truncated[0]:
                ends.append(observation.tobytes())
        env.close()
        assert len(ends) == 8
        assert len(set(ends)) > 3  # the ball is elsewhere after other numbers of frames

    def test_sticky_actions_change_the_game(self, vectorization):
        one, other = (
            play(make(vectorization=vectorization, noop_max=1, repeat_action_probability=p), 60)
            for p in (0.0, 0.9)
        )
        assert (one[1][0] != other[1][0]).any()


@needs("ale-py")
class TestAle:
    def test_ale_py_itself_does_not_repeat_actions(self):
        """By default ALE/*-v5 repeats each action 4 times: with our own 4 it would be 16."""
        env = make("ALE/Pong-v5", vectorization="sync", noop_max=1)
        env.reset()
        ale = env._envs[0]._env.ale
        begun = ale.getEpisodeFrameNumber()
        for _ in range(100):
            env.step(np.zeros(1, int))
        assert ale.getEpisodeFrameNumber() - begun == 400 == 100 * env.frames_per_step
        env.close()

    def test_observation_is_the_maximum_of_the_last_two_frames(self):
        game = atari.AleGame("Pong", action_repeat=4, **options(noop_max=1))
        game.reset(seed=0)
        raw = []
        game._shrink = lambda screen: raw.append(screen.copy()) or screen
        for _ in range(40):
            game.step(0)
        seen = raw[-1]
        again = atari.AleGame("Pong", action_repeat=1, **options(noop_max=1))
        again.reset(seed=0)
        again._shrink = lambda screen: screen.copy()
        frames = [again.step(0)[0] for _ in range(160)]
        np.testing.assert_array_equal(seen, np.maximum(frames[-1], frames[-2]))
        assert (frames[-1] != frames[-2]).any()

    def test_shrinking_averages_areas(self):
        assert atari._shrinking(5, 2).tolist() == [[2, 2, 1, 0, 0], [0, 0, 1, 2, 2]]
        for size in (160, 210, 250):
            shares = atari._shrinking(size, 84)
            assert (shares == np.rint(shares)).all()
            assert (shares.sum(0) == 84).all()
            assert (shares.sum(1) == size).all()
        assert 255 * 250 * 160 < 2**24  # the sums are exact in float32

    def test_processes_and_sync_play_the_same_frames(self):
        one, other = (
            play(make("Pong-v5", 2, vectorization=v, limit=9), 30) for v in ("sync", "processes")
        )
        np.testing.assert_array_equal(one[1][0], other[1][0])


def options(**changed):
    chosen = atari.OPTIONS | changed
    return {key: value for key, value in chosen.items() if key != "episodic_life"}


class TestIds:
    @pytest.mark.parametrize("id", ["ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4", "MsPacman-v5"])
    @needs("envpool")
    def test_three_ids_are_one_game(self, id):
        assert atari.game_of(id) == "MsPacman"
        assert frames_per_step(id, None) == 4

    @pytest.mark.parametrize(
        "id", ["CartPole-v1", "Ant-v5", "ALE/Pong-ram-v5", "Nothing-v5", "my_module:Pong-v5"]
    )
    def test_other_ids_are_not_atari_games(self, id):
        assert atari.game_of(id) is None
        assert frames_per_step(id, None) == 1
        assert frames_per_step(id, 3) == 3

    @needs("envpool")
    def test_auto_takes_envpool(self):
        env = make("PongNoFrameskip-v4", 2)
        assert isinstance(env, EnvpoolVectorEnvironment)
        assert env.reset().shape == (2, 84, 84)

    @needs("ale-py")
    def test_auto_takes_ale_py_without_envpool(self, monkeypatch):
        hide(monkeypatch, "envpool")
        env = make("Pong-v5", 2)
        assert isinstance(env, SyncVectorEnvironment)
        assert env.reset().shape == (2, 84, 84)


def hide(monkeypatch, *packages):
    """Make packages look as if they were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in packages else find(name, *a)
    )


class TestBadInput:
    def refuse(self, *args, **kwargs):
        with pytest.raises(MakeError) as caught:
            make(*args, **kwargs)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_missing_back_ends_are_named_with_the_pip_command(self, monkeypatch):
        hide(monkeypatch, "envpool", "ale_py")
        text = self.refuse("ALE/Pong-v5")
        assert "ALE/Pong-v5 is an Atari game" in text
        assert "pip install -c " in text
        assert " envpool`" in text
        assert " ale-py`" in text

    def test_missing_envpool_is_named_with_the_pip_command(self, monkeypatch):
        hide(monkeypatch, "envpool")
        text = self.refuse("ALE/Pong-v5", vectorization="envpool")
        assert "needs envpool, which is not installed" in text
        assert "pip install" in text

    @needs("ale-py")
    def test_unknown_game_names_the_nearest(self):
        assert "no ROM of a game 'Pongg'; near it are Pong" in self.refuse("ALE/Pongg-v5")

    def test_misspelt_option_names_the_nearest(self):
        assert "not 'noops_max'; did you mean noop_max?" in self.refuse("ALE/Pong-v5", noops_max=3)

    @pytest.mark.parametrize(
        "option",
        [
            {"noop_max": 0},
            {"repeat_action_probability": 25},
            {"episodic_life": 1},
            {"size": 7},
            {"size": 161},
            {"size": 42.0},
        ],
        ids=str,
    )
    def test_option_out_of_range_is_refused(self, option):
        (key,) = option
        assert f"{key} must" in self.refuse("ALE/Pong-v5", **option)

    def test_game_refuses_vector_entry_point(self):
        assert "must be one of auto, envpool" in self.refuse(
            "ALE/Pong-v5", vectorization="vector_entry_point"
        )
