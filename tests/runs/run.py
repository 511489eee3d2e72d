"""A run started as users start it, and its view from outside."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from impala_ms.metrics.sinks import read_rows

LAUNCHER = (sys.executable, "-m", "impala_ms", "train")
FOR_EVER = ("--total_env_steps", "1000000000")
# On a busy machine the start of MindSpore may take ten times as long.
PATIENCE_S = 120.0


def command_of(pid):
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


class Run:
    """``train.py`` under the launcher, in a folder of its own.

    Args:
        folder: Folder in which the command is given.
        ranks: N.
        options: Options after N.
        name: Name of the run folder.
        command: Command before SCRIPT N.
        environment: Environment variables in addition to those of this process.
    """

    def __init__(self, folder, ranks, *options, name="run", command=LAUNCHER, **environment):
        self.folder, self.run_dir = folder, folder / name
        chosen = [] if "--resume" in options else ["--run_dir", name]
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*command, "train.py", str(ranks), *chosen, *map(str, options)],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines = []

    def wait(self, patience_s=PATIENCE_S):
        """Wait for the end; return the exit code. Sets ``lines`` (its output) and ``took_s``.

        No process of the run may be left, however it has ended.
        """
        output, _ = self.process.communicate(timeout=patience_s)
        self.took_s, self.ended = time.monotonic() - self.began, time.time()
        self.lines = output.splitlines()
        assert self.processes() == []
        return self.process.returncode

    def until(self, condition):
        """Wait until a function returns a true value; return that value."""
        deadline = time.monotonic() + PATIENCE_S
        while not (result := condition()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return result

    def until_training(self):
        """Wait until the first steps are in the metrics."""
        self.until(lambda: len(self.rows()) > 1)

    def stop(self, number=signal.SIGINT):
        """Send the launcher a signal; return the exit code and the seconds until the end."""
        sent = time.monotonic()
        self.process.send_signal(number)
        return self.wait(), time.monotonic() - sent

    def kill(self, rank):
        """Kill one rank; return its process id."""
        pid = self.ranks()[rank]
        os.kill(pid, signal.SIGKILL)
        return pid

    def replacements(self):
        """Process ids of replacements of lost actors."""
        return [pid for pid, _ in self.processes() if "--in-place-of" in command_of(pid)]

    def processes(self):
        """The living processes of this run: ``[(pid, {environment variable: value})]``."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it has ended, or is another user's
                continue
            if f"IMPALA_MS_RUN_DIR={self.run_dir}" in variables:
                environment = dict(v.split("=", 1) for v in variables if "=" in v)
                found.append((int(folder.name), environment))
        return found

    def ranks(self):
        """``{rank: pid}`` of living processes that MPI has started."""
        found = {}
        for pid, environment in self.processes():
            rank = environment.get("OMPI_COMM_WORLD_RANK", environment.get("PMI_RANK"))  # MPICH's
            if rank is None:
                continue
            # For MPI, a replacement is rank 0 of another job.
            replaced = re.search(r'"OMPI_COMM_WORLD_RANK": "(\d+)"', command_of(pid))
            found[int(replaced[1] if replaced else rank)] = pid
        return found

    def end(self):
        """Kill all processes that are left."""
        self.process.kill()
        self.process.communicate()
        for pid, _ in self.processes():
            os.kill(pid, signal.SIGKILL)

    def line(self, text):
        """The last printed line that contains a text."""
        found = [line for line in self.lines if text in line]
        assert found, (text, self.lines)
        return found[-1]

    def log(self, rank):
        """Text of ``worker_<rank>.txt``; empty if there is no such file yet."""
        file = self.run_dir / f"worker_{rank}.txt"
        return file.read_text() if file.exists() else ""

    def json(self, name):
        """Content of a JSON file in the run folder."""
        return json.loads((self.run_dir / name).read_text())

    def rows(self):
        """Complete rows of ``metrics.csv``: ``[{column: number, or None if empty}]``."""
        file = self.run_dir / "metrics.csv"
        return read_rows(file) if file.exists() else []

    def checkpoints(self):
        """Names of the files in ``checkpoints``."""
        return sorted(path.name for path in (self.run_dir / "checkpoints").glob("*"))
