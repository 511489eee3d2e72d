"""Checkpoints are complete or refused, whatever happens to the file or while it is written."""

import errno
import json
import os
import resource
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from impala_ms import checkpoint
from impala_ms.checkpoint import CheckpointError

STATE = {
    "totals": {"updates": 12, "env_steps": 34_567},
    "best_return": None,
    "name": "Grün",
    "x": 0.1,
}


def parameters(seed=0):
    """Weights, optimiser state and counters: all shapes and types that a learner has."""
    rng = np.random.default_rng(seed)
    return {
        "policy.layer.weight": rng.normal(size=(7, 5)).astype(np.float32),
        "policy.layer.bias": rng.normal(size=5).astype(np.float32),
        "moment1.policy.layer.bias": np.float32([0.0, -0.0, 1e-42, 3.4e38, np.inf]),
        "beta1_power": np.array(0.9, np.float32),
        "global_step": np.array([2**31 - 1], np.int32),
        "counter": np.array([2**62 + 1], np.int64),
    }


def assert_same_bits(got, wanted):
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert got[name].dtype == values.dtype, name
        assert got[name].shape == values.shape, name
        assert got[name].tobytes() == values.tobytes(), name


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    return checkpoint.save(folder, "update_2.ckpt", parameters(), STATE).read_bytes()


class TestSaveAndLoad:
    def test_loaded_values_equal_saved_ones_bit_for_bit(self, tmp_path):
        path = checkpoint.save(tmp_path / "new", "update_1.ckpt", parameters(), STATE)
        assert path == tmp_path / "new" / "update_1.ckpt"
        loaded, state = checkpoint.load(path)
        assert_same_bits(loaded, parameters())
        assert state == STATE
        assert json.dumps(state) == json.dumps(STATE)
        assert names(path.parent) == ["update_1.ckpt"]

    @pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
    def test_permissions_follow_the_umask(self, tmp_path, mask):
        before = os.umask(mask)
        try:
            path = checkpoint.save(tmp_path, "update_1.ckpt", parameters(), STATE)
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask

    def test_removed_run_folder_is_not_made_again(self, tmp_path):
        with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
            checkpoint.save(tmp_path / "gone" / "checkpoints", "update_1.ckpt", parameters(), STATE)
        assert not (tmp_path / "gone").exists()

    def test_mindspore_reads_a_checkpoint(self, tmp_path):
        path = checkpoint.save(tmp_path, checkpoint.BEST, parameters(), STATE)
        loaded = ms.load_checkpoint(str(path), crc_check=True)
        weight = loaded["policy.layer.weight"].asnumpy()
        np.testing.assert_array_equal(weight, parameters()["policy.layer.weight"])

    def test_saving_again_replaces_the_file(self, tmp_path):
        for seed in (1, 2):
            path = checkpoint.save(tmp_path, "best.ckpt", parameters(seed), {"seed": seed})
        assert names(tmp_path) == ["best.ckpt"]
        loaded, state = checkpoint.load(path)
        assert_same_bits(loaded, parameters(2))
        assert state == {"seed": 2}

    def test_unfinished_files_are_ignored_and_overwritten(self, tmp_path):
        for name in (".unfinished.ckpt", ".unfinished.tmp"):
            (tmp_path / name).write_bytes(b"half")
        assert checkpoint.listing(tmp_path) == []
        path = checkpoint.save(tmp_path, "update_5.ckpt", parameters(), STATE)
        assert names(tmp_path) == ["update_5.ckpt"]
        assert_same_bits(checkpoint.load(path)[0], parameters())

    def test_parameters_larger_than_a_slice_of_the_format_are_saved(self, tmp_path):
        large = {"w": np.random.default_rng(0).normal(size=(1024, 1500)).astype(np.float32)}
        path = checkpoint.save(tmp_path, "update_1.ckpt", large, {})
        assert_same_bits(checkpoint.load(path)[0], large)


class TestDamage:
    @staticmethod
    def positions(size):
        """About 50 positions, with all of the last 25."""
        return sorted({*range(0, size, size // 25), *range(size - 25, size)})

    def test_file_cut_at_any_position_is_refused(self, whole, tmp_path):
        path = tmp_path / "update_2.ckpt"
        for size in self.positions(len(whole)):
            path.write_bytes(whole[:size])
            with pytest.raises(CheckpointError, match=r"update_2\.ckpt"):
                checkpoint.load(path)

    def test_file_with_one_changed_byte_is_refused(self, whole, tmp_path):
        path = tmp_path / "update_2.ckpt"
        for position in self.positions(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="damaged"):
                checkpoint.load(path)

    def test_file_with_zeros_at_the_end_is_refused(self, whole, tmp_path):
        path = tmp_path / "update_2.ckpt"
        path.write_bytes(whole[:-40] + bytes(40))
        with pytest.raises(CheckpointError, match="no check sum"):
            checkpoint.load(path)

    def test_missing_file_is_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"gone\.ckpt.*No such file"):
            checkpoint.load(tmp_path / "gone.ckpt")

    def test_checkpoint_of_another_program_is_refused(self, tmp_path):
        ms.save_checkpoint(
            [{"name": "w", "data": ms.Tensor([1.0])}], str(tmp_path / "a.ckpt"), crc_check=True
        )
        with pytest.raises(CheckpointError, match="impala_ms_state"):
            checkpoint.load(tmp_path / "a.ckpt")

    def test_latest_skips_damaged_checkpoints(self, whole, tmp_path, caplog):
        for updates in (9, 10, 100):
            checkpoint.save(
                tmp_path, checkpoint.file_name(updates), parameters(updates), {"updates": updates}
            )
        for updates, damaged in [(100, 10), (10, 9)]:
            for size in (0, len(whole) // 2, len(whole) - 17):
                newest = tmp_path / checkpoint.file_name(updates)
                newest.write_bytes(whole[:size])
                path, loaded, state = checkpoint.latest(tmp_path)
                assert path.name == checkpoint.file_name(damaged)
                assert_same_bits(loaded, parameters(damaged))
                assert state == {"updates": damaged}
                assert newest.name in caplog.text
        (tmp_path / checkpoint.file_name(9)).write_bytes(b"")
        with pytest.raises(CheckpointError, match=f"no whole checkpoint in {tmp_path}"):
            checkpoint.latest(tmp_path)

    def test_latest_without_checkpoints_is_an_error(self, tmp_path):
        with pytest.raises(CheckpointError, match="no whole checkpoint"):
            checkpoint.latest(tmp_path / "checkpoints")


class TestFailedWrites:
    @pytest.fixture
    def old(self, tmp_path):
        return checkpoint.save(tmp_path / "c", "update_1.ckpt", parameters(1), STATE)

    def save(self, folder, name="update_1.ckpt"):
        with pytest.raises(CheckpointError, match=f"cannot write the checkpoint .*{name}"):
            checkpoint.save(folder, name, parameters(2), STATE)

    def assert_only_the_old_one(self, old):
        assert names(old.parent) == [old.name]
        assert_same_bits(checkpoint.load(old)[0], parameters(1))

    def test_full_disk_keeps_the_old_checkpoint(self, old):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            self.save(old.parent)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.assert_only_the_old_one(old)

    def test_folder_without_write_permission_keeps_the_old_checkpoint(self, old):
        was = os.geteuid()
        old.parent.chmod(0o500)
        if was == 0:  # root can write everywhere
            os.seteuid(65534)
        try:
            self.save(old.parent)
            self.save(old.parent / "below")
        finally:
            os.seteuid(was)
            old.parent.chmod(0o700)
        self.assert_only_the_old_one(old)

    def test_folder_below_a_file_is_an_error(self, old):
        self.save(old / "below")
        self.assert_only_the_old_one(old)

    def test_folder_with_the_name_of_the_file_is_an_error(self, old):
        (old.parent / "best.ckpt").mkdir()
        self.save(old.parent, "best.ckpt")
        (old.parent / "best.ckpt").rmdir()
        self.assert_only_the_old_one(old)

    def test_failed_rename_keeps_the_old_checkpoint(self, old, monkeypatch):
        def refuse(self, target):
            raise OSError("the disk is gone")

        monkeypatch.setattr(Path, "replace", refuse)
        self.save(old.parent)
        monkeypatch.undo()
        self.assert_only_the_old_one(old)

    def test_file_is_synced_before_it_is_renamed(self, tmp_path, monkeypatch):
        events = []
        real_sync, real_replace = os.fsync, Path.replace

        def sync(descriptor):
            what = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            events.append("sync folder" if what == tmp_path else "sync file")
            real_sync(descriptor)

        def replace(self, target):
            events.append("rename")
            return real_replace(self, target)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(Path, "replace", replace)
        checkpoint.save(tmp_path, "update_1.ckpt", parameters(), STATE)
        assert events == ["sync file", "rename", "sync folder"]


class TestFileSystemsThatKnowLess:
    """CIFS, FUSE, vboxsf and others lack calls that a complete file does not need."""

    @staticmethod
    def refuse(monkeypatch, what, code, *, folders):
        """Let a function of ``os`` fail, only for files or only for folders."""
        real = getattr(os, what)

        def function(where, *arguments, **options):
            if os.path.isdir(where) == folders:
                raise OSError(code, os.strerror(code))
            return real(where, *arguments, **options)

        monkeypatch.setattr(os, what, function)

    @pytest.mark.parametrize(
        ("folders", "code"),
        [
            *((True, code) for code in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EIO)),
            *((False, code) for code in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)),
        ],
    )
    def test_checkpoint_is_saved_without_fsync(self, tmp_path, monkeypatch, folders, code):
        self.refuse(monkeypatch, "fsync", code, folders=folders)
        path = checkpoint.save(tmp_path, "update_1.ckpt", parameters(), STATE)
        assert_same_bits(checkpoint.load(path)[0], parameters())
        assert names(tmp_path) == ["update_1.ckpt"]

    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
    def test_failed_fsync_of_the_file_is_an_error(self, tmp_path, monkeypatch, code):
        self.refuse(monkeypatch, "fsync", code, folders=False)
        with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
            checkpoint.save(tmp_path, "update_1.ckpt", parameters(), STATE)
        assert names(tmp_path) == []

    @pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
    def test_checkpoint_is_saved_without_chmod(self, tmp_path, monkeypatch, code):
        """Unfinished files are there too: MindSpore first makes them writable."""
        for name in (".unfinished.ckpt", ".unfinished.tmp"):
            (tmp_path / name).write_bytes(b"half")
        self.refuse(monkeypatch, "chmod", code, folders=False)
        refusing = os.chmod
        path = checkpoint.save(tmp_path, "update_1.ckpt", parameters(), STATE)
        assert_same_bits(checkpoint.load(path)[0], parameters())
        assert names(tmp_path) == ["update_1.ckpt"]
        assert os.chmod is refusing  # restored


class TestPrune:
    def test_prune_keeps_the_newest_and_the_best(self, tmp_path):
        updates = [5, 999_999_999, 1_000_000_000, 60, 7]
        kept = {"best.ckpt", "notes.txt", "update_x.ckpt"}
        for name in kept | {checkpoint.file_name(number) for number in updates}:
            (tmp_path / name).touch()
        in_order = [checkpoint.file_name(number) for number in sorted(updates, reverse=True)]
        assert [path.name for path in checkpoint.listing(tmp_path)] == in_order
        checkpoint.prune(tmp_path, 3)
        assert set(names(tmp_path)) == kept | set(in_order[:3])
        checkpoint.prune(tmp_path, 10)
        assert set(names(tmp_path)) == kept | set(in_order[:3])


class TestRestore:
    @staticmethod
    def fresh():
        return {
            name: ms.Parameter(ms.Tensor(np.zeros_like(values)), name=name)
            for name, values in parameters().items()
        }

    def test_restore_puts_values_into_parameters(self):
        fresh = self.fresh()
        checkpoint.restore(fresh, parameters(3), "p.ckpt")
        assert_same_bits({name: p.asnumpy() for name, p in fresh.items()}, parameters(3))

    @pytest.mark.parametrize(
        ("name", "saved", "said"),
        [
            ("policy.layer.weight", np.ones((5, 7), np.float32), r"is \(5, 7\) there and \(7, 5\)"),
            ("policy.layer.bias", np.ones((1, 5), np.float32), r"is \(1, 5\) there and \(5,\)"),
            ("counter", None, r"is nothing there and \(1,\) here"),
            ("other", np.ones(3, np.float32), r"is \(3,\) there and nothing here"),
        ],
    )
    def test_restore_refuses_another_network_and_changes_nothing(self, name, saved, said):
        values = parameters(3)
        values.pop(name, None)
        if saved is not None:
            values[name] = saved
        fresh = self.fresh()
        with pytest.raises(CheckpointError, match=f"p.ckpt is of another network: {name} {said}"):
            checkpoint.restore(fresh, values, "p.ckpt")
        assert all(not p.asnumpy().any() for p in fresh.values())
