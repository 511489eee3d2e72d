"""The replay of transitions, beside a slow form that keeps everything."""

import numpy as np
import pytest

from impala_ms.frames import push_frame
from impala_ms.replay.limiter import RateLimiter
from impala_ms.replay.n_step import n_step
from impala_ms.replay.rewards import Rewards
from impala_ms.replay.sampling import Prioritized, Uniform
from impala_ms.replay.transitions import TransitionReplay, ring_bytes
from impala_ms.trajectory import TrajectorySpec


def make_spec(steps, envs, shape=(), dtype=np.float32, stack=1, mask_size=0, error=False):
    recorded = {"error": ((steps, envs), np.dtype(np.float32))} if error else {}
    return TrajectorySpec(
        unroll_length=steps,
        num_envs=envs,
        observation={"": (shape, dtype)},
        action_shape=(),
        action_dtype=np.int32,
        policy_parameters=0,
        frame_stack=stack,
        mask_size=mask_size,
        recorded=recorded,
        next_mask=True,
    )


def make_replay(spec, unrolls, batch=1, n=1, sampler=None, limiter=None, **changes):
    capacity = unrolls * spec.unroll_length * spec.num_envs
    arguments = {
        "capacity": capacity,
        "batch_size": batch,
        "n": n,
        "gamma": 0.5,
        "rewards": Rewards(),
        "sampler": sampler or Uniform(capacity, np.random.default_rng(1)),
        "limiter": limiter or RateLimiter(None, 0, 0.0),
    }
    return TransitionReplay(spec, **arguments | changes)


def unroll_of(spec, **fields):
    _, unroll = spec.empty()
    for name, values in fields.items():
        unroll[name][...] = values
    return unroll


class Given(Uniform):
    """A sampler that draws the slots it was told to."""

    slots = ()

    def draw(self, number, batches=1):
        return np.array(self.slots), np.ones(number, np.float32)


class Game:
    """Episodes of random length in E environments; every frame is a number of its own."""

    def __init__(self, spec, seed):
        self.spec, self.rng = spec, np.random.default_rng(seed)
        self.frame = 0
        envs, stack = spec.num_envs, spec.frame_stack
        self.first = np.ones(envs, np.bool_)
        self.left = self.rng.integers(1, 6, size=envs)
        self.over = np.zeros(envs, np.bool_)
        self.stack = np.zeros((envs, stack), np.int64)
        self.rows = []  # (stack, action, reward, terminated, next stack, is a reset row), by row
        self._see()

    def _see(self):
        frames = self.frame + np.arange(self.spec.num_envs)
        self.frame += self.spec.num_envs
        push_frame(self.stack, frames, self.first, self.stack)

    def play(self):
        spec, older = self.spec, self.spec.frame_stack - 1
        unroll = unroll_of(spec, behaviour_version=0)
        for row in range(older):
            unroll["observation"][row] = self.stack[:, row]
        unroll["observation"][older], unroll["first"][0] = self.stack[:, -1], self.first
        for t in range(spec.unroll_length):
            before, reset = self.stack.copy(), self.over.copy()
            action = self.rng.integers(3, size=spec.num_envs)
            reward = self.rng.normal(size=spec.num_envs).astype(np.float32)
            reward[reset] = 0.0
            self.left -= ~reset
            ends = (self.left == 0) & ~reset
            terminated = ends & (self.rng.random(spec.num_envs) < 0.5)
            self.first = reset
            self.left[reset] = self.rng.integers(1, 6, size=int(reset.sum()))
            self._see()
            self.over = ends
            unroll["action"][t], unroll["reward"][t] = action, reward
            unroll["terminated"][t] = terminated
            unroll["observation"][older + t + 1] = self.stack[:, -1]
            unroll["first"][t + 1] = self.first
            self.rows.append((before, action, reward, terminated, self.stack.copy(), reset))
        return unroll


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_every_row_of_the_ring_is_the_transition_that_was_played(stack, n):
    steps, envs, unrolls = 6, 2, 3
    spec = make_spec(steps, envs, dtype=np.int64, stack=stack)
    sampler = Given(unrolls * steps * envs, np.random.default_rng(1))
    replay, game = make_replay(spec, unrolls, n=n, sampler=sampler), Game(spec, seed=n)
    played = []
    for _ in range(unrolls + 2):  # the first two are overwritten
        replay.add(game.play())
        played.append(game.rows[-steps:])
    seen = 0
    for number in range(2, unrolls + 2):
        rows = played[number]
        reward, terminated, reset = (np.stack([row[i] for row in rows]) for i in (2, 3, 5))
        first = np.concatenate([reset[:1], reset])
        returns, length, discounts = n_step(reward, terminated, first, n, 0.5)
        for t in range(steps):
            for env in range(envs):
                sampler.slots = [((number % unrolls) * steps + t) * envs + env]
                batch = replay.take(0.0)
                if reset[t, env]:
                    assert not sampler._can_be_drawn[sampler.slots[0]]
                    continue
                seen += 1
                assert sampler._can_be_drawn[sampler.slots[0]]
                after = rows[t + length[t, env] - 1][4][env]
                before = rows[t][0][env]
                assert batch["observation"].ravel().tolist() == before.tolist()
                assert batch["next_observation"].ravel().tolist() == after.tolist()
                assert batch["action"] == rows[t][1][env]
                assert batch["returns"] == returns[t, env]
                assert batch["discounts"] == discounts[t, env]
    assert seen > 20


def test_a_stack_of_frames_does_not_cross_the_seam_of_the_ring():
    """Case 61: decision t shows frame t; three unrolls of four rows in a ring of two."""
    spec = make_spec(4, 1, dtype=np.int64, stack=4)
    sampler = Given(8, np.random.default_rng(1))
    replay = make_replay(spec, 2, sampler=sampler)
    for number in range(3):
        frames = np.maximum(np.arange(4 * number - 3, 4 * number + 5), 0)[:, None]
        first = np.zeros((5, 1), np.bool_)
        first[0] = number == 0
        replay.add(unroll_of(spec, observation=frames, first=first))
    sampler.slots = [4]  # row 0 of the second unroll: decision 4
    batch = replay.take(0.0)
    assert batch["observation"].tolist() == [[1, 2, 3, 4]]
    assert batch["next_observation"].tolist() == [[2, 3, 4, 5]]


def test_rows_are_drawn_alike_and_reset_rows_never():
    """Case 63."""
    spec = make_spec(8, 1)
    replay = make_replay(spec, 2, batch=6_000, n=3)
    first = np.zeros((9, 1), np.bool_)
    first[[3, 6]] = True  # rows 2 and 5 are reset rows
    replay.add(unroll_of(spec, first=first, observation=np.arange(9)[:, None]))
    batch = replay.take(0.0)
    found = np.bincount(batch["observation"].astype(int), minlength=8) / 6_000
    np.testing.assert_allclose(found, np.array([1, 1, 0, 1, 1, 0, 1, 1]) / 6, atol=0.02)


def test_each_part_of_a_batch_is_drawn_as_if_it_were_a_batch():
    spec = make_spec(4, 2, error=True)
    errors = np.arange(1.0, 9.0, dtype=np.float32).reshape(4, 2)

    def make_sampler():
        return Prioritized(8, np.random.default_rng(3), alpha=0.6, beta=0.4)

    replay = make_replay(spec, 1, 12, sampler=make_sampler(), draws=3)
    replay.add(unroll_of(spec, action=np.arange(8).reshape(4, 2), error=errors))
    alone = make_sampler()
    alone.put(0, np.ones(8, np.bool_), errors.ravel())
    parts = [alone.draw(4) for _ in range(3)]
    batch = replay.take(0.0)
    np.testing.assert_array_equal(batch["action"], np.concatenate([part[0] for part in parts]))
    np.testing.assert_array_equal(batch["weights"], np.concatenate([part[1] for part in parts]))
    assert replay.limiter.learned == 12


def test_the_mask_of_the_next_observation_is_given():
    spec = make_spec(3, 1, mask_size=2)
    sampler = Given(3, np.random.default_rng(1))
    replay = make_replay(spec, 1, n=2, sampler=sampler)
    masks = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.bool_)[:, None]
    replay.add(unroll_of(spec, action_mask=masks))
    for slot, after in ((0, 2), (1, 3), (2, 3)):
        sampler.slots = [slot]
        assert replay.take(0.0)["next_action_mask"].tolist() == masks[after].tolist()


def test_rewards_are_clipped_before_they_are_summed():
    spec = make_spec(2, 1)
    sampler = Given(2, np.random.default_rng(1))
    replay = make_replay(spec, 1, n=2, sampler=sampler, rewards=Rewards("abs_one", 2.0))
    replay.add(unroll_of(spec, reward=[[5.0], [-7.0]]))
    sampler.slots = [0]
    assert replay.take(0.0)["returns"] == [2.0 * (1.0 - 0.5)]


class TestPriorities:
    def replay(self):
        spec = make_spec(1, 1, error=True)
        sampler = Prioritized(4, np.random.default_rng(1), alpha=1.0, beta=0.0)
        replay = make_replay(spec, 4, batch=2, sampler=sampler)
        for _ in range(4):
            replay.add(unroll_of(spec, error=1.0))
        return spec, replay, sampler

    def draw(self, replay, sampler, monkeypatch, slots):
        monkeypatch.setattr(sampler._tree, "find", lambda masses: np.array(slots))
        return replay.take(0.0)

    def test_of_a_slot_that_was_overwritten_meanwhile_is_dropped(self, monkeypatch):
        """Case 59."""
        spec, replay, sampler = self.replay()
        batch = self.draw(replay, sampler, monkeypatch, [0, 2])
        replay.add(unroll_of(spec, error=5.0))  # in place of slot 0
        replay.give_back(batch, np.array([9.0, 9.0]))
        assert sampler._tree.values(range(4)).tolist() == [5.0, 1.0, 9.0, 1.0]
        batch = self.draw(replay, sampler, monkeypatch, [1, 3])
        replay.give_back(batch, np.array([np.nan, 3.0]))
        assert sampler._tree.values(range(4)).tolist() == [5.0, 1.0, 9.0, 3.0]
        assert sampler._tree.total == 18.0

    def test_without_errors_nothing_is_written(self, monkeypatch):
        _, replay, sampler = self.replay()
        replay.give_back(self.draw(replay, sampler, monkeypatch, [0, 1]))
        assert sampler._tree.values(range(4)).tolist() == [1.0] * 4


class TestRate:
    """Case 60: batch 32, eight rows are learned from for each that is accepted, from 1,000 on."""

    def replay(self):
        spec = make_spec(10, 1)
        return spec, make_replay(spec, 500, batch=32, limiter=RateLimiter(8.0, 1_000, 160.0))

    def run(self, spec, replay, rows):
        """Accept so many rows, learning whenever a batch is due; the number of batches."""
        accepted = batches = 0
        while accepted < rows or replay.is_due():
            while replay.is_due():
                replay.give_back(replay.take(0.0))
                batches += 1
            if accepted < rows:
                assert replay.has_room()
                replay.add(unroll_of(spec))
                accepted += 10
        return batches

    def test_learning_begins_at_the_start_and_keeps_the_ratio(self):
        spec, replay = self.replay()
        assert self.run(spec, replay, 990) == 0
        assert replay.take(0.0) is None
        assert self.run(spec, replay, 410) == 100

    def test_a_learner_that_lags_makes_the_actors_wait(self):
        spec, replay = self.replay()
        self.run(spec, replay, 1_000)
        added = 0
        while replay.has_room():
            replay.add(unroll_of(spec))
            added += 10
        assert added * 8 == 160
        for _ in range(2):
            replay.give_back(replay.take(0.0))
        assert replay.has_room()

    def test_a_new_replay_fills_again_and_learns_without_a_burst(self):
        spec, replay = self.replay()  # as after a resume
        assert self.run(spec, replay, 1_000) == 0
        assert self.run(spec, replay, 400) == 100

    def test_without_a_ratio_both_run_freely_from_the_start_on(self):
        spec = make_spec(10, 1)
        replay = make_replay(spec, 5, batch=4, limiter=RateLimiter(None, 20, 0.0))
        replay.add(unroll_of(spec))
        assert not replay.is_due()
        for _ in range(9):
            assert replay.has_room()
            replay.add(unroll_of(spec))
        for _ in range(50):
            assert replay.take(0.0) is not None


class TestCounting:
    def test_rows_that_came_since_the_last_batch_are_counted_once(self):
        spec = make_spec(4, 1)
        replay = make_replay(spec, 5, batch=3)
        first = np.zeros((5, 1), np.bool_)
        first[2] = True
        replay.add(unroll_of(spec, behaviour_version=3, wait_fraction=0.25))
        replay.add(unroll_of(spec, behaviour_version=5, first=first))
        batch = replay.take(0.0)
        assert replay.rows(batch) == (7, 3)
        assert batch["behaviour_version"].tolist() == [3, 5]
        assert batch["wait_fraction"].tolist() == [0.25, 0.0]
        replay.give_back(batch)
        batch = replay.take(0.0)
        assert replay.rows(batch) == (0, 3)
        assert batch["behaviour_version"].size == 0
        assert replay.columns()["replay_rows"] == 7.0
        assert 0.0 <= replay.columns()["replay_age_mean"] <= 2.0


def test_the_memory_of_a_full_ring_is_as_computed_and_frames_are_kept_once():
    """Case 61: 100,000 decisions of an Atari game at T = 20 take at most 872 MB."""
    spec = make_spec(20, 16, (84, 84), np.uint8, stack=4)
    each = ring_bytes(spec, 100_000) / (100_000 // 320 * 320)
    assert each <= 1.03 * 7_056 * (20 + 4) / 20
    assert ring_bytes(spec, 100_000) <= 872e6
    small = make_spec(5, 2, (3, 3), np.uint8, stack=4, mask_size=4)
    assert make_replay(small, 7).nbytes == ring_bytes(small, 70)
