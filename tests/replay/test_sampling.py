"""The sum tree and the samplers, beside plain sums and the numbers of the cases."""

import numpy as np
import pytest

from impala_ms.replay.sampling import SMALLEST_ERROR, Prioritized, Uniform
from impala_ms.replay.sum_tree import SumTree


def slot_by_hand(values, mass):
    """The first slot whose running sum is above the mass."""
    total = 0.0
    for slot, value in enumerate(values):
        total += value
        if mass < total:
            return slot
    return max(slot for slot, value in enumerate(values) if value > 0.0)


class TestSumTree:
    def test_masses_lie_in_the_slots_of_case_56(self):
        tree = SumTree(5)
        tree.set(range(5), [1.0, 2.0, 3.0, 4.0, 0.0])
        assert tree.find([0.5, 1.0, 2.999, 3.0, 5.999, 6.0, 9.999]).tolist() == [
            0,
            1,
            1,
            2,
            2,
            3,
            3,
        ]
        assert tree.total == 10.0

    def test_a_slot_of_value_0_is_not_found_where_the_mass_is_the_total(self):
        tree = SumTree(5)
        tree.set(range(5), [0.0, 2.0, 0.0, 4.0, 0.0])
        assert tree.find([0.0, 2.0, 6.0, 7.0]).tolist() == [1, 3, 3, 3]

    @pytest.mark.parametrize("capacity", [1, 2, 3, 8, 13, 1000])
    def test_finds_the_slots_of_running_sums_after_many_changes(self, capacity):
        rng = np.random.default_rng(capacity)
        tree, values = SumTree(capacity), np.zeros(capacity)
        for _ in range(20):
            slots = rng.integers(capacity, size=7)
            new = rng.integers(0, 5, size=7).astype(float)
            tree.set(slots, new)
            for slot, value in zip(slots, new, strict=True):  # the last of equal slots counts
                values[slot] = value
            assert tree.total == values.sum()
            np.testing.assert_array_equal(tree.values(range(capacity)), values)
            if values.any():
                masses = rng.random(50) * values.sum()
                wanted = [slot_by_hand(values, mass) for mass in masses]
                assert tree.find(masses).tolist() == wanted

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
    def test_a_value_that_is_not_finite_or_negative_is_refused_and_changes_nothing(self, bad):
        tree = SumTree(3)
        tree.set([0, 1], [1.0, 2.0])
        with pytest.raises(ValueError, match="must be finite"):
            tree.set([0, 2], [3.0, bad])
        assert tree.values(range(3)).tolist() == [1.0, 2.0, 0.0]

    def test_finding_in_an_empty_tree_is_an_error(self):
        with pytest.raises(ValueError, match="nothing to find"):
            SumTree(4).find([0.0])


def every_slot(number):
    return np.ones(number, np.bool_)


class TestPrioritized:
    def sampler(self, errors, alpha=0.6, beta=0.4, seed=1):
        sampler = Prioritized(len(errors), np.random.default_rng(seed), alpha=alpha, beta=beta)
        sampler.put(0, every_slot(len(errors)), np.array(errors, np.float32))
        return sampler

    def test_slots_are_drawn_as_often_as_in_case_57(self):
        sampler = self.sampler([1.0, 2.0, 4.0, 8.0])
        draws = np.concatenate([sampler.draw(4)[0] for _ in range(25_000)])
        found = np.bincount(draws, minlength=4) / len(draws)
        np.testing.assert_allclose(found, [0.1205, 0.1827, 0.2770, 0.4198], atol=0.005)

    def test_weights_are_divided_by_the_largest_of_the_batch_as_in_case_57(self, monkeypatch):
        sampler = self.sampler([1.0, 2.0, 4.0, 8.0])
        monkeypatch.setattr(sampler._tree, "find", lambda masses: np.array([1, 3]))
        _, weights = sampler.draw(2)
        np.testing.assert_allclose(weights, [1.0, 0.7170], atol=5e-5)
        assert weights.dtype == np.float32

    def test_a_row_without_an_error_can_still_be_drawn(self):
        sampler = self.sampler([0.0, 0.0])
        assert set(sampler.draw(50)[0].tolist()) == {0, 1}
        assert sampler._tree.values([0]) == SMALLEST_ERROR**0.6

    def test_equal_seeds_give_equal_draws(self):
        draws = [
            self.sampler([1.0, 2.0, 4.0], seed=seed).draw(20)[0].tolist() for seed in (3, 3, 4)
        ]
        assert draws[0] == draws[1] != draws[2]

    def test_a_slot_that_cannot_be_drawn_has_priority_0(self):
        sampler = Prioritized(3, np.random.default_rng(1), alpha=1.0, beta=0.0)
        sampler.put(0, np.array([True, False, True]), np.array([1.0, 100.0, 1.0], np.float32))
        assert set(sampler.draw(200)[0].tolist()) == {0, 2}
        sampler.put(0, np.array([False, True, True]), None)
        assert set(sampler.draw(200)[0].tolist()) == {1, 2}

    def test_rows_of_unknown_error_get_the_largest_priority_so_far(self):
        sampler = Prioritized(4, np.random.default_rng(1), alpha=1.0, beta=0.0)
        sampler.put(0, every_slot(2), np.array([3.0, np.nan], np.float32))
        sampler.update(np.array([0]), np.array([7.0]))
        sampler.put(2, every_slot(2), None)
        assert sampler._tree.values(range(4)).tolist() == [7.0, 1.0, 7.0, 7.0]

    def test_an_error_that_is_not_finite_leaves_the_priority_as_it_is(self):
        sampler = self.sampler([5.0, 1.0, 9.0, 1.0], alpha=1.0)
        sampler.update(np.array([1, 3]), np.array([np.nan, 3.0]))
        assert sampler._tree.values(range(4)).tolist() == [5.0, 1.0, 9.0, 3.0]
        assert sampler._tree.total == 18.0


class TestUniform:
    def test_slots_that_can_be_drawn_are_drawn_alike_and_others_never(self):
        sampler = Uniform(10, np.random.default_rng(1))
        sampler.put(0, np.array([True, False, True]), None)
        sampler.put(3, np.array([True, True]), None)
        slots, weights = sampler.draw(40_000)
        assert weights.tolist() == [1.0] * 40_000
        found = np.bincount(slots, minlength=10) / len(slots)
        np.testing.assert_allclose(found, [0.25, 0, 0.25, 0.25, 0.25, 0, 0, 0, 0, 0], atol=0.01)
        sampler.put(0, np.array([False, True, False]), None)
        assert set(sampler.draw(1000)[0].tolist()) == {1, 3, 4}
