"""Layout of unrolls and batches: all bytes are accounted for, and no byte stays unwritten."""

import threading
import time

import numpy as np
import pytest

from impala_ms.finite import non_finite
from impala_ms.frames import frame_rows, push_frame
from impala_ms.spaces import leaf_array, leaves
from impala_ms.trajectory import ALIGNMENT_BYTES, Batches, TrajectorySpec

BASE = {
    "unroll_length": 3,
    "num_envs": 2,
    "observation": {"": ((4,), np.float32)},
    "frame_stack": 1,
    "mask_size": 0,
    "inputs": ("core_state",),
    "state_size": 2,
    "action_shape": (),
    "action_dtype": np.int32,
    "policy_parameters": 5,
}
OTHERS = {
    "unroll_length": 4,
    "num_envs": 3,
    "observation": {"a/b": ((2, 2), np.uint8), "c": ((), np.int64)},
    "frame_stack": 3,
    "mask_size": 2,
    "inputs": ("last_action", "core_state"),
    "state_size": 4,
    "action_shape": (1,),
    "action_dtype": np.int64,
    "policy_parameters": 6,
}
# Two values that no field has by chance.
ABSURD = (0xA5, 0x5A)


def random_array(rng):
    """A random ``(shape, dtype)`` for a part of an observation."""
    shape = tuple(rng.integers(1, 5, rng.integers(0, 4)).tolist())
    return shape, rng.choice(["u1", "i2", "i8", "f4", "f8"])


def random_specs(count):
    """Random specs, some with unusual sizes."""
    rng = np.random.default_rng(11)
    for _ in range(count):
        paths = [("",), ("a", "b/0", "b/1")][rng.integers(2)]
        yield TrajectorySpec(
            unroll_length=int(rng.integers(1, 9)),
            num_envs=int(rng.integers(1, 6)),
            observation={path: random_array(rng) for path in paths},
            frame_stack=int(rng.integers(1, 5)) if paths == ("",) else 1,
            mask_size=int(rng.integers(0, 3)),
            inputs=[x for x in ("last_action", "last_reward", "core_state") if rng.random() < 0.5],
            state_size=int(rng.integers(1, 4)),
            action_shape=tuple(rng.integers(1, 4, rng.integers(0, 2)).tolist()),
            action_dtype=rng.choice(["i4", "i8", "f4"]),
            policy_parameters=int(rng.integers(1, 7)),
        )


def random_unroll(spec, rng):
    """``{name: array}`` of random bytes (flags: random booleans)."""
    unroll = {}
    for name, (shape, dtype) in spec.fields.items():
        if dtype == np.bool_:
            unroll[name] = rng.random(shape) < 0.5
        else:
            unroll[name] = rng.integers(-100, 100, shape).astype(dtype)
    return unroll


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert got[name].dtype == values.dtype, name
        assert got[name].shape == values.shape, name
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def numbered(spec, number):
    """An unroll in which all fields hold this number."""
    _, unroll = spec.empty()
    for values in unroll.values():
        values[...] = number
    return unroll


class TestSpec:
    def test_description_is_the_table_of_fields(self):
        assert TrajectorySpec(**BASE).describe() == {
            "observation": [[4, 2, 4], "<f4"],
            "action": [[3, 2], "<i4"],
            "reward": [[3, 2], "<f4"],
            "terminated": [[3, 2], "|b1"],
            "first": [[4, 2], "|b1"],
            "behaviour_logits": [[3, 2, 5], "<f4"],
            "episode_return": [[3, 2], "<f4"],
            "episode_length": [[3, 2], "<i4"],
            "behaviour_version": [[], "<i8"],
            "env_steps": [[], "<i8"],
            "wait_fraction": [[], "<f4"],
            "core_state": [[2, 2], "<f4"],
        }

    def test_optional_fields_are_there_when_asked_for(self):
        spec = TrajectorySpec(**(BASE | OTHERS | {"observation": {"": ((5, 6), "u1")}}))
        described = spec.describe()
        assert described["observation"] == [[7, 3, 5, 6], "|u1"]  # T = 4, k = 3
        assert described["action_mask"] == [[4, 3, 2], "|b1"]
        assert described["last_action"] == [[3, 1], "<i8"]
        assert described["core_state"] == [[3, 4], "<f4"]
        assert "last_reward" not in described
        structured = TrajectorySpec(**(BASE | {"observation": OTHERS["observation"]})).describe()
        assert structured["observation/a/b"] == [[4, 2, 2, 2], "|u1"]
        assert structured["observation/c"] == [[4, 2], "<i8"]
        assert "observation" not in structured

    def test_uint8_observations_stay_uint8(self):
        spec = TrajectorySpec(**(BASE | {"observation": {"": ((4,), "uint8")}}))
        _, unroll = spec.empty()
        assert unroll["observation"].dtype == np.uint8
        assert spec.batch(2)["observation"].dtype == np.uint8

    def test_equal_specs_have_equal_digests(self):
        assert TrajectorySpec(**BASE).digest() == TrajectorySpec(**BASE).digest()
        as_list = BASE | {"observation": {"": ([4], "float32")}}
        assert TrajectorySpec(**as_list).digest() == TrajectorySpec(**BASE).digest()

    def test_different_specs_have_different_digests(self):
        specs = [TrajectorySpec(**(BASE | {key: value})) for key, value in OTHERS.items()]
        digests = {spec.digest() for spec in [TrajectorySpec(**BASE), *specs]}
        assert len(digests) == 1 + len(BASE)

    def test_values_survive_a_message_in_random_layouts(self):
        rng = np.random.default_rng(12)
        sizes = set()
        for spec in random_specs(60):
            unroll = random_unroll(spec, rng)
            buffer, _ = spec.empty()
            buffer[ALIGNMENT_BYTES:] = ABSURD[0]
            for name, values in spec.views(buffer).items():
                values[...] = unroll[name]
            # as in a message, into a buffer that is not aligned
            received = np.empty(spec.nbytes + 1, np.uint8)[1:]
            received[:] = np.frombuffer(buffer.tobytes(), np.uint8)
            assert_same(spec.views(received), unroll)
            assert_same(spec.views(buffer.tobytes()), unroll)
            sizes.add(spec.nbytes)
        assert len(sizes) > 20

    def test_fields_are_aligned_and_do_not_overlap(self):
        for spec in random_specs(60):
            end = ALIGNMENT_BYTES  # of the header
            for name, (shape, dtype) in spec.fields.items():
                part = spec.slices[name]
                assert part.start % ALIGNMENT_BYTES == 0
                assert part.start >= end
                assert part.stop - part.start == dtype.itemsize * np.prod(shape, dtype=int)
                end = part.stop
            assert end <= spec.nbytes < end + ALIGNMENT_BYTES

    def test_views_share_the_memory_of_the_buffer(self):
        spec = TrajectorySpec(**BASE)
        buffer, unroll = spec.empty()
        assert not buffer[ALIGNMENT_BYTES:].any()
        unroll["reward"][1, 1] = 5.0
        unroll["env_steps"][...] = 9
        assert_same(spec.views(buffer), unroll)
        assert spec.views(buffer)["env_steps"] == 9

    @pytest.mark.parametrize("difference", [-1, 1, -64, 64])
    def test_buffer_of_another_size_is_refused(self, difference):
        spec = TrajectorySpec(**BASE)
        size = spec.nbytes + difference
        with pytest.raises(ValueError, match=f"has {spec.nbytes} bytes, got {size}"):
            spec.views(np.zeros(size, np.uint8))

    def test_header_with_a_changed_bit_is_refused(self):
        for spec in random_specs(20):
            buffer, _ = spec.empty()
            for bit in range(64):
                changed = buffer.copy()
                changed[bit // 8] ^= 1 << bit % 8
                with pytest.raises(ValueError, match=f"has the layout {spec.digest()}, got "):
                    spec.views(changed)
            spec.views(buffer)

    def test_another_layout_of_the_same_size_is_refused(self):
        spec = TrajectorySpec(**BASE)
        others = {"action_dtype": np.float32}, {"observation": {"": ((4,), np.int32)}}
        for change in others:
            other = TrajectorySpec(**(BASE | change))
            buffer, _ = other.empty()
            assert other.nbytes == spec.nbytes
            with pytest.raises(
                ValueError, match=f"got {other.digest()}: do all ranks run the same"
            ):
                spec.views(buffer)

    def test_batch_has_contiguous_arrays(self):
        spec = TrajectorySpec(**BASE)
        batch = spec.batch(7)
        assert batch.keys() == spec.fields.keys()
        for name, values in batch.items():
            shape, dtype = spec.fields[name]
            assert values.shape == (7, *shape)
            assert values.dtype == dtype
            assert values.flags.c_contiguous


class TestNonFinite:
    @pytest.fixture
    def unroll(self):
        return numbered(TrajectorySpec(**BASE), 1)

    def test_finite_unroll_has_no_problem(self, unroll):
        assert non_finite(unroll) is None

    @pytest.mark.filterwarnings("error")  # warnings would be the last lines of the learner's log
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize(
        ("name", "where"),
        [("reward", (2, 1)), ("observation", (3, 0, 2)), ("behaviour_logits", (0, 1, 4))],
    )
    def test_non_finite_value_is_named_with_field_step_and_environment(
        self, unroll, name, where, value
    ):
        unroll[name][where] = value
        step, env = where[:2]
        problem = f"{name} is {value} at step {step} of an unroll, environment {env}"
        assert non_finite(unroll) == problem

    def test_step_of_a_stacked_frame_counts_from_row_0(self):
        unroll = numbered(TrajectorySpec(**(BASE | {"frame_stack": 3})), 1)
        unroll["observation"][4, 1, 0] = np.nan
        assert non_finite(unroll) == "observation is nan at step 2 of an unroll, environment 1"
        unroll["observation"][1, 0, 2] = np.nan
        assert non_finite(unroll) == "observation is nan 1 steps before an unroll, environment 0"

    @pytest.mark.filterwarnings("error")
    def test_infinities_that_cancel_in_a_sum_are_found(self, unroll):
        unroll["reward"][0, 0], unroll["reward"][2, 0] = np.inf, -np.inf
        assert non_finite(unroll) == "reward is inf at step 0 of an unroll, environment 0"

    @pytest.mark.filterwarnings("error")
    def test_large_finite_values_have_no_problem(self, unroll):
        unroll["behaviour_logits"][...] = np.finfo(np.float32).min
        unroll["reward"][...] = np.finfo(np.float32).max
        assert non_finite(unroll) is None
        unroll["observation"] = np.full((4, 2, 4), np.finfo(np.float32).max, np.float64)
        assert non_finite(unroll) is None

    def test_number_too_large_for_float32_counts_as_infinite(self, unroll):
        unroll["observation"] = np.zeros((4, 2, 4))
        unroll["observation"][2, 1, 3] = -1e39
        assert non_finite(unroll) == "observation is inf at step 2 of an unroll, environment 1"

    def test_integers_have_no_problem(self):
        spec = TrajectorySpec(**(BASE | {"observation": {"": ((4,), np.uint8)}}))
        assert non_finite(numbered(spec, 1)) is None


class TestBatches:
    @pytest.fixture
    def spec(self):
        return TrajectorySpec(**BASE)

    @staticmethod
    def make(spec, unrolls):
        """Batches filled with an absurd value, which is different in each."""
        batches = Batches(spec, unrolls)
        for batch, absurd in zip(batches._free, ABSURD, strict=True):
            for values in batch.values():
                values.view(np.uint8)[...] = absurd
        return batches

    def test_batch_holds_its_unrolls_in_order(self):
        rng = np.random.default_rng(13)
        for spec in random_specs(20):
            unrolls = int(rng.integers(1, 5))
            batches = self.make(spec, unrolls)
            for _ in range(3):
                added = [random_unroll(spec, rng) for _ in range(unrolls)]
                for unroll in added:
                    batches.add(unroll)
                batch = batches.take(0.0)
                wanted = {
                    name: np.stack([unroll[name] for unroll in added]) for name in spec.fields
                }
                assert_same(batch, wanted)
                batches.give_back(batch)

    def test_add_copies_the_unroll(self, spec):
        batches, unroll = self.make(spec, 1), numbered(spec, 1)
        batches.add(unroll)
        for values in unroll.values():
            values[...] = 0
        assert (batches.take(0.0)["reward"] == 1).all()

    def test_take_returns_only_a_full_batch(self, spec):
        batches = self.make(spec, 3)
        assert batches.take(0.0) is None
        for _ in range(2):
            batches.add(numbered(spec, 1))
        assert batches.take(0.01) is None
        assert batches.completed == 0
        batches.add(numbered(spec, 1))
        assert batches.completed == 1
        assert batches.take(0.0) is not None
        assert batches.take(0.0) is None

    def test_there_is_room_for_two_batches(self, spec):
        batches = self.make(spec, 2)
        for number in range(4):
            assert batches.has_room()
            batches.add(numbered(spec, number))
        assert not batches.has_room()
        assert batches.completed == 2
        with pytest.raises(IndexError):
            batches.add(numbered(spec, 9))

        first = batches.take(0.0)
        assert not batches.has_room()  # in use by the learner
        np.testing.assert_array_equal(first["env_steps"], [0, 1])
        batches.give_back(first)
        assert batches.has_room()
        batches.add(numbered(spec, 4))
        second = batches.take(0.0)
        np.testing.assert_array_equal(second["env_steps"], [2, 3])
        assert batches.take(0.0) is None
        batches.add(numbered(spec, 5))
        np.testing.assert_array_equal(batches.take(0.0)["env_steps"], [4, 5])
        assert batches.completed == 3

    def test_batch_in_use_is_not_written_to(self, spec):
        batches = self.make(spec, 1)
        batches.add(numbered(spec, 1))
        in_use = batches.take(0.0)
        batches.add(numbered(spec, 2))
        assert (in_use["reward"] == 1).all()
        assert (batches.take(0.0)["reward"] == 2).all()

    def test_take_waits_for_the_other_thread(self, spec):
        batches = self.make(spec, 1)
        thread = threading.Timer(0.1, batches.add, [numbered(spec, 1)])
        thread.start()
        began = time.monotonic()
        batch = batches.take(10.0)
        thread.join()
        assert batch is not None
        assert 0.05 < time.monotonic() - began < 5.0

    def test_two_threads_lose_nothing(self, spec):
        batches, unrolls, count = self.make(spec, 3), 3, 600
        problems = []

        def fill():
            number = 0
            deadline = time.monotonic() + 20
            while number < count and time.monotonic() < deadline:
                if batches.has_room():
                    batches.add(numbered(spec, number))
                    number += 1
                else:
                    time.sleep(1e-5)

        thread = threading.Thread(target=fill)
        thread.start()
        seen = []
        while len(seen) < count and (batch := batches.take(10.0)) is not None:
            before = {name: values.copy() for name, values in batch.items()}
            seen += batch["env_steps"].tolist()
            time.sleep(1e-4)
            problems += [name for name in batch if (batch[name] != before[name]).any()]
            batches.give_back(batch)
        thread.join()
        assert seen == list(range(count))
        assert problems == []
        assert batches.completed == count // unrolls


class TestStackedFrames:
    """The stacks of learner and actor, compared with frames that are looked up one by one."""

    K, T, E = 3, 5, 4

    def frames(self, rows, seed):
        """Frames with different values, and where episodes begin."""
        rng = np.random.default_rng(seed)
        frames = np.arange(1, rows * self.E + 1, dtype=np.uint8).reshape(rows, self.E, 1, 1)
        first = rng.random((rows, self.E)) < 0.3
        first[0] = True
        return np.broadcast_to(frames, (rows, self.E, 2, 2)).copy(), first

    def looked_up(self, frames, first, row, env):
        """The stack at a row: the newest frames of the present episode."""
        begun = max(r for r in range(row + 1) if first[r, env])
        return [frames[max(row - age, begun), env] for age in reversed(range(self.K))]

    @pytest.mark.parametrize("seed", range(8))
    def test_stacks_of_learner_and_actor_are_equal_at_every_row(self, seed):
        unrolls, rows = 3, 3 * self.T + 1
        frames, first = self.frames(rows, seed)
        spec = TrajectorySpec(
            **BASE
            | {"observation": {"": ((2, 2), np.uint8)}, "frame_stack": self.K}
            | {"unroll_length": self.T, "num_envs": self.E}
        )
        batches = Batches(spec, unrolls)
        stack = np.full((self.E, self.K, 2, 2), 255, np.uint8)
        acted = []
        for row in range(rows):  # as an actor does
            push_frame(stack, frames[row], first[row], stack)
            acted.append(stack.copy())
            wanted = [self.looked_up(frames, first, row, env) for env in range(self.E)]
            np.testing.assert_array_equal(stack, wanted)
        for unroll in range(unrolls):
            _, fields = spec.empty()
            part = slice(unroll * self.T, (unroll + 1) * self.T + 1)
            fields["observation"][self.K - 1 :], fields["first"][...] = frames[part], first[part]
            fields["observation"][: self.K - 1] = acted[part.start][:, :-1].swapaxes(0, 1)
            batches.add(fields)
        batch = batches.take(0.0)
        assert batch["observation"].shape == (unrolls, self.T + self.K, self.E, 2, 2)
        stacks = batch["observation"].reshape(-1, 2, 2)[frame_rows(batch["first"], self.K)]
        for unroll in range(unrolls):
            part = slice(unroll * self.T, (unroll + 1) * self.T + 1)
            np.testing.assert_array_equal(stacks[unroll], acted[part])
        assert first[1:].sum() > 5

    def test_atari_step_takes_at_most_8700_bytes(self):
        spec = TrajectorySpec(
            unroll_length=20,
            num_envs=16,
            observation={"": ((84, 84), np.uint8)},
            frame_stack=4,
            action_shape=(),
            action_dtype=np.int32,
            policy_parameters=6,
        )
        assert spec.nbytes / (20 * 16) < 8700


def test_leaves_have_paths_shapes_and_types():
    inner = {"type": "Discrete", "n": 3, "start": 0}
    box = {"type": "Box", "shape": [2, 2], "dtype": "uint8"}
    assert leaves(box) == {"": box}
    nested = {"type": "Dict", "spaces": {"b": box, "a": {"type": "Tuple", "spaces": [inner, box]}}}
    assert list(leaves(nested)) == ["b", "a/0", "a/1"]
    assert leaf_array(box) == ((2, 2), np.uint8)
    assert leaf_array(inner) == ((), np.int64)
    assert leaf_array({"type": "MultiDiscrete", "nvec": [2, 3]}) == ((2,), np.int64)
    assert leaf_array({"type": "MultiBinary", "n": 4}) == ((4,), np.int8)
