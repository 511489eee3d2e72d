"""Snapshots on the disk, and the table of what they returned."""

import numpy as np
import pytest

from impala_ms import snapshots
from impala_ms.errors import RunError
from impala_ms.snapshots import Played, Taken


def save(folder, *updates):
    for number in updates:
        snapshots.save(
            folder, np.full(3, number, np.float32), Taken(number / 8, number * 10, number)
        )


def names(folder):
    return sorted(path.name for path in (folder / "snapshots").iterdir())


def row(updates, episodes=20, stderr=0.5):
    return Played(updates / 8, updates * 10, updates, 9.25, stderr, episodes)


def test_snapshot_gives_back_weights_and_when_they_were_taken(tmp_path):
    flat = np.array([0.1, np.pi, -1e30], np.float32)
    path = snapshots.save(tmp_path, flat, Taken(12.345, 600, 7))
    read, taken = snapshots.load(path)
    assert read.dtype == np.float32
    assert read.tobytes() == flat.tobytes()
    assert taken == (12.345, 600, 7)
    assert names(tmp_path) == ["update_000000007.npz"]  # nothing unfinished is left


def test_snapshots_are_listed_by_their_updates(tmp_path):
    assert snapshots.listing(tmp_path) == []
    save(tmp_path, 2_000_000_000, 3, 999_999_999)
    (tmp_path / "snapshots" / ".unfinished.npz").touch()
    found = [snapshots.updates_of(path) for path in snapshots.listing(tmp_path)]
    assert found == [3, 999_999_999, 2_000_000_000]


def test_second_snapshot_of_an_update_is_not_written(tmp_path):
    path = snapshots.save(tmp_path, np.zeros(3, np.float32), Taken(1.0, 10, 1))
    snapshots.save(tmp_path, np.ones(3, np.float32), Taken(2.0, 10, 1))
    assert snapshots.load(path)[1].wall_time_s == 1.0


@pytest.mark.parametrize("part", [0, 3, 400])
def test_damaged_snapshot_is_one_line(tmp_path, part):
    path = snapshots.save(tmp_path, np.zeros(300, np.float32), Taken(1.0, 10, 1))
    path.write_bytes(path.read_bytes()[:part])
    with pytest.raises(
        RunError, match=r"^cannot read the snapshot .*update_000000001.npz \(miss.*"
    ):
        snapshots.load(path)


def test_snapshot_that_cannot_be_written_ends_the_run(tmp_path):
    (tmp_path / "snapshots").touch()
    with pytest.raises(RunError, match=r"cannot write the snapshot .*: File exists"):
        save(tmp_path, 1)


def test_table_gives_back_what_was_written_in_order_of_updates(tmp_path):
    assert snapshots.read_table(tmp_path, True) == []
    save(tmp_path, 1, 10)
    snapshots.write_table(tmp_path, True, [row(10), row(1, episodes=1, stderr=None)])
    assert snapshots.read_table(tmp_path, True) == [row(1, episodes=1, stderr=None), row(10)]
    assert snapshots.read_table(tmp_path, False) == []
    text = (tmp_path / "snapshots" / "greedy.csv").read_text()
    assert text == f"{snapshots.HEADER}\n0.125,10,1,9.25,,1\n1.25,100,10,9.25,0.5,20\n"


def test_table_with_other_columns_is_one_line(tmp_path):
    save(tmp_path, 1)
    snapshots.table(tmp_path, True).write_text("a,b\n1,2\n")
    with pytest.raises(RunError, match=r"cannot read .*greedy.csv: its first line is not wall_t"):
        snapshots.read_table(tmp_path, True)


def test_snapshot_is_unplayed_without_a_row_of_as_many_episodes(tmp_path):
    save(tmp_path, 1, 2, 3)
    snapshots.write_table(tmp_path, True, [row(1), row(2, episodes=5)])
    left = snapshots.unplayed(tmp_path, True, 20)
    assert [snapshots.updates_of(path) for path in left] == [2, 3]
    assert len(snapshots.unplayed(tmp_path, False, 20)) == 3


def test_rewind_removes_later_snapshots_and_their_rows(tmp_path):
    save(tmp_path, 1, 2, 3)
    snapshots.write_table(tmp_path, True, [row(1), row(2), row(3)])
    snapshots.write_table(tmp_path, False, [row(1)])
    snapshots.rewind_to(tmp_path, 2)
    kept = ["greedy.csv", "sampled.csv", "update_000000001.npz", "update_000000002.npz"]
    assert names(tmp_path) == kept
    assert snapshots.read_table(tmp_path, True) == [row(1), row(2)]
    assert snapshots.read_table(tmp_path, False) == [row(1)]


def test_rewind_without_snapshots_makes_nothing(tmp_path):
    snapshots.rewind_to(tmp_path, 2)
    assert list(tmp_path.iterdir()) == []
