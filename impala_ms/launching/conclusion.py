"""How a run ended: its exit code, and the lines that are shown last.

Input: the ``status.json`` that rank 0 wrote, or the lack of one, and how the processes ended.
Output: an exit code and lines of text.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_ms import config
from impala_ms import run_dir as run_dir_of
from impala_ms.launching.job import Job
from impala_ms.launching.mpirun import suspects

TAIL_LINES = 20  # of the log of a rank that failed


def conclusion(
    run_dir: Path, returncode: int, job: Job, again: Sequence[str], took_s: float
) -> tuple[int, list[str]]:
    """How the run ended.

    Args:
        run_dir: The run folder, with ``status.json`` unless rank 0 ended before it wrote that.
        returncode: That of mpirun, or of the script; negative for a signal.
        job: The processes, which have ended.
        again: What starts as many ranks again: the script if one was given, N, hosts.
        took_s: Seconds since the user gave the command, without those of an installation.

    Returns:
        The exit code and the lines to show last.
    """
    status, stopped_by = read_status(run_dir_of.status_file(run_dir)), job.stopped_by
    run_dir_of.abandon(run_dir)
    if status is None:
        return _without_status(run_dir, returncode, job, again)
    saved = bool(status.get("checkpoint"))
    places = _places(run_dir, job.ranks, status.get("checkpoint"))
    if status["state"] == "finished":
        return 0, [f"finished: {_reached(status, took_s)}", *places, *_evaluate(run_dir, saved)]
    if status["state"] == "stopped":
        code = int(status.get("exit_code") or 0) if stopped_by is None else 128 + stopped_by
        nothing = [] if saved else ["  no checkpoint: it was stopped before the first update"]
        return code, [
            f"stopped: {_reached(status, took_s)}",
            *places,
            *nothing,
            *_evaluate(run_dir, saved),
            *_resume(again, run_dir, saved),
        ]
    return int(status.get("exit_code") or 1), [*places, f"failed: {status.get('message')}"]


def _reached(status: Mapping[str, Any], took_s: float) -> str:
    """What the run came to, in words."""
    score = status.get("episode_return_mean")
    reached = f"{status.get('env_steps') or 0:,} env steps in {took_s:.1f} s"
    if score is not None:
        reached += f", return {score:.1f} (mean of the last 20 episodes)"
    elif (episodes := status.get("episodes")) is not None:
        ended = f"only {episodes} ended" if episodes else "none ended"
        if episodes >= 20:
            ended = "fewer count so far: those since a resume, of environments that explore least"
        reached += f", no return: it is the mean of 20 episodes, and {ended}"
    if (best := status.get("best_eval_return")) is not None:
        reached += f"; best evaluation {best:.1f} (evaluate --checkpoint best)"
    return reached


def _without_status(
    run_dir: Path, returncode: int, job: Job, again: Sequence[str]
) -> tuple[int, list[str]]:
    """Exit code and last lines of a run whose rank 0 did not write how it ended."""
    if job.stopped_by is not None:
        return 128 + job.stopped_by, [
            *_places(run_dir, job.ranks, None),
            "stopped without a final checkpoint",
            *_resume(again, run_dir, any(run_dir.glob("checkpoints/update_*.ckpt"))),
        ]
    code = 128 - returncode if returncode < 0 else 1 if job.mpich else returncode or 1
    return code, _failure(run_dir, returncode, job)


def _failure(run_dir: Path, returncode: int, job: Job) -> list[str]:
    """Why the run failed, as far as the processes show it."""
    gone, ranks = job.gone, job.ranks
    killed = f"killed by signal {-returncode}" if returncode < 0 else ""
    log = run_dir / f"worker_{gone or 0}.txt"
    if not run_dir.exists():
        return [f"failed: the run folder {shown(run_dir)} is gone"]
    if job.said:  # rank 0 could print why, but not write it
        return [job.said]
    if killed and ranks > 1:
        room = f": is {tempfile.gettempdir()} full?" if returncode == -signal.SIGBUS else ""
        return [f"failed: mpirun, which holds the ranks together, was {killed}{room}"]
    if job.mpich:  # it ends all ranks when one ends, and may name another
        said = "a rank was killed or crashed, and without fault tolerance (MPICH) all others end"
    elif gone or job.halted:
        what = "was stopped (SIGSTOP)" if job.halted else "ended"
        said = f"rank {gone} {what} before all ranks were connected"
    elif gone == 0 or log.exists():
        said = f"rank 0 ended and did not say why{f' ({killed})' if killed else ''}"
    else:
        said = f"no rank was started: {killed or f'exit code {returncode}'}, see above"
    where = f"; its log is {shown(log)}" if log.exists() else ""
    set_here = [] if job.connected or ranks == 1 else suspects()
    return [*_tail(log), *set_here, f"failed: {said}{where}"]


def nothing_left(settings: config.Config) -> list[str]:
    """What is said of a run that is resumed though it is complete; empty of any other."""
    if settings.resume is None:
        return []
    folder = Path(settings.fork_of or settings.resume)
    total = settings.trainer_params["total_env_steps"]
    status = read_status(folder / "status.json")
    done = run_dir_of.nothing_left(int((status or {}).get("env_steps") or 0), total)
    return [done, *_evaluate(folder, True)] if done else []


def read_status(path: Path) -> dict[str, Any] | None:
    """What rank 0 wrote as its last act, or None if it did not."""
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) and "state" in status else None


def command(name: str, *words: str) -> str:
    """A command of this package, called the way that this run was started."""
    if script := os.environ.get("IMPALA_MS_COMMAND"):
        return shlex.join(["bash", script, *([] if name == "train" else [name]), *words])
    return shlex.join([shown(Path(sys.executable)), "-m", "impala_ms", name, *words])


def shown(path: Path) -> str:
    """The path from the current folder if it lies there, else in full."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # removed meanwhile
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _places(run_dir: Path, ranks: int, checkpoint: str | None) -> list[str]:
    folder = shown(run_dir)
    others = f" to worker_{ranks - 1}.txt" if ranks > 1 else ""
    lines = [f"  logs        {folder}/worker_0.txt{others}"]
    if (run_dir / "metrics.csv").exists():
        board = f"tensorboard --logdir {shlex.quote(folder)}"
        lines.append(f"  curves      {folder}/metrics.csv, or {board}")
    if checkpoint:
        lines.append(f"  checkpoint  {shown(Path(checkpoint))}")
    return lines


def _evaluate(run_dir: Path, possible: bool) -> list[str]:
    return [f"  evaluate    {command('evaluate', shown(run_dir))}"] * possible


def _resume(again: Sequence[str], run_dir: Path, possible: bool) -> list[str]:
    return [f"  go on with  {command('train', *again, '--resume', shown(run_dir))}"] * possible


def _tail(log: Path) -> list[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []
    return [f"the end of {shown(log)}:", *(f"  {line}" for line in lines)] if lines else []
