"""Checkpoints: written completely or not at all; the newest complete checkpoint is found again.

Input: a learner's parameters and a state of JSON values. Output: ``checkpoints/update_<n>.ckpt``, a
MindSpore checkpoint with a check sum (``mindspore.load_checkpoint`` reads it, without pickle), and
``checkpoints/best.ckpt``, the weights of the best evaluation.
"""

import contextlib
import errno
import json
import logging
import os
import re
from pathlib import Path

import mindspore as ms
import numpy as np

logger = logging.getLogger(__name__)

STATE = "impala_ms_state"
BEST = "best.ckpt"
# Always the same name: a file that a killed process has left is overwritten by the next one.
UNFINISHED = ".unfinished.ckpt"
# Names of the state of Adam and RMSProp, for older checkpoints that do not list the network.
OPTIMISER_SCALARS = ("global_step", "learning_rate", "beta1_power", "beta2_power")
OPTIMISER_SLOTS = ("moment1", "moment2", "mean_square", "velocity")
CHECK_SUM = b"crc_num"  # followed by 10 bytes, at the end of the file
# Errors of file systems that lack fsync, or lack it for folders (CIFS, FUSE, vboxsf).
NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS, errno.EBADF}


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read, or belongs to another network."""


def save(folder, name, parameters, state):
    """Write a checkpoint under a temporary name, sync it to the disk, then rename it.

    Args:
        folder: The run's ``checkpoints`` folder; made if it is missing, but not its parents.
        name: File name, ``update_<n>.ckpt`` or ``BEST``.
        parameters: ``{name: array}``.
        state: Dict of JSON values: counters, epoch of the seeds, configuration.

    Returns:
        Path of the checkpoint.

    Raises:
        CheckpointError: If it cannot be written; an older file of that name is kept.
    """
    folder = Path(folder)
    path, temporary = folder / name, folder / UNFINISHED
    try:
        folder.mkdir(exist_ok=True)  # without parents: a removed run folder is not made again
        with _fixed_permissions():
            ms.save_checkpoint(
                [{"name": key, "data": ms.Tensor(value)} for key, value in parameters.items()],
                str(temporary),
                append_dict={STATE: json.dumps(state)},
                crc_check=True,
            )
            os.chmod(temporary, 0o666 & ~_umask())  # MindSpore lets only the owner read it
        _sync(temporary)
        temporary.replace(path)
        with contextlib.suppress(OSError):  # the checkpoint is already complete
            _sync(folder)
    except (OSError, RuntimeError) as error:
        for unfinished in (temporary, temporary.with_suffix(".tmp")):  # MindSpore writes .tmp first
            with contextlib.suppress(OSError):
                unfinished.unlink()
        raise CheckpointError(f"cannot write the checkpoint {path}: {error}") from error
    return path


@contextlib.contextmanager
def _fixed_permissions():
    """Ignore errors of ``chmod``: some file systems give all files the same permissions.

    MindSpore calls it before and after writing, and would take its failure for a failed write.
    """
    change = os.chmod

    def try_to_change(*arguments, **options):
        with contextlib.suppress(OSError):
            change(*arguments, **options)

    os.chmod = try_to_change
    try:
        yield
    finally:
        os.chmod = change


def _sync(path):
    """Write a file or folder to the disk, if its file system supports that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FSYNC:
            raise
    finally:
        os.close(descriptor)


def _umask():
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def file_name(updates):
    """File name of the checkpoint after so many updates."""
    return f"update_{updates:09d}.ckpt"


def listing(folder):
    """Paths of the checkpoints in a folder, the newest first; ``best.ckpt`` is not among them."""
    found = [p for p in Path(folder).glob("update_*.ckpt") if re.fullmatch(r"update_\d+", p.stem)]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("update_")), reverse=True)


def prune(folder, keep):
    """Delete all but the newest ``keep`` checkpoints."""
    for path in listing(folder)[keep:]:
        path.unlink(missing_ok=True)


def load(path):
    """Read a checkpoint.

    Args:
        path: The file.

    Returns:
        ``(parameters, state)``: ``{name: array}`` and the dict that was saved.

    Raises:
        CheckpointError: If it is missing, cut short or damaged.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - len(CHECK_SUM) - 10))
            if file.read(len(CHECK_SUM)) != CHECK_SUM:  # MindSpore only warns
                raise ValueError("there is no check sum at its end")
        loaded = ms.load_checkpoint(str(path), crc_check=True)
        state = json.loads(loaded.pop(STATE))
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"cannot read the checkpoint {path} (missing, cut short or damaged): "
            f"{reason[0] if reason else type(error).__name__}"
        ) from error
    return {name: value.asnumpy() for name, value in loaded.items()}, state


def latest(folder):
    """Read the newest complete checkpoint; damaged ones are skipped with a warning.

    Returns:
        ``(path, parameters, state)``.

    Raises:
        CheckpointError: If there is none.
    """
    tried: list[Path] = []
    while left := [path for path in listing(folder) if path not in tried]:
        try:
            return (left[0], *load(left[0]))
        except CheckpointError as error:
            tried.append(left[0])  # list again: a run that goes on deletes older checkpoints
            logger.warning("%s; trying the one before", error)
    raise CheckpointError(f"no whole checkpoint in {folder}")


def of_network(saved, state):
    """The network in a checkpoint, ``{name: array}``, without the state of the optimiser.

    Args:
        saved: All parameters of the checkpoint.
        state: Its state; ``network`` is the list of names, which older checkpoints lack.
    """
    if "network" in state:
        return {name: saved[name] for name in state["network"]}
    prefixes = tuple(f"{name}." for name in OPTIMISER_SLOTS)
    return {
        name: values
        for name, values in saved.items()
        if name not in OPTIMISER_SCALARS and not name.startswith(prefixes)
    }


def restore(parameters, saved, path):
    """Put saved values into parameters, before compiled code has used these.

    Args:
        parameters: ``{name: Parameter}`` of the network or learner.
        saved: ``{name: array}`` for the same names.
        path: The file of the values, for the message.

    Raises:
        CheckpointError: If a name is missing on one side, or a shape differs: another network.
    """
    there = {name: value.shape for name, value in saved.items()}
    here = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    for name in (*here, *there):
        if there.get(name) != here.get(name):
            raise CheckpointError(
                f"the checkpoint {path} is of another network: {name} is "
                f"{there.get(name, 'nothing')} there and {here.get(name, 'nothing')} here; "
                "give the settings that it was made with"
            )
    for name, parameter in parameters.items():
        # not ascontiguousarray: it turns a scalar into an array with one dimension
        value = np.array(saved[name], parameter.asnumpy().dtype)
        parameter.set_data(ms.Tensor(value))
