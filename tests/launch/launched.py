"""The launcher with small scripts in the place of the ranks: no MindSpore, and little MPI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs the launcher. LIMITS="STOP_S=1 LINGER_S=1" gives it other limits. BLIND=environments hides
# the environments of processes from it, BLIND=processes the processes themselves.
PROGRAM = """
import os, sys
from impala_ms.launching import job, mpirun, proc
from impala_ms.__main__ import main
for limit in os.environ.get("LIMITS", "").split():
    name, _, seconds = limit.partition("=")
    setattr(job if hasattr(job, name) else mpirun, name, float(seconds))
if "BLIND" in os.environ:
    proc.variables = lambda pid: []
if os.environ.get("BLIND") == "processes":
    proc.look = lambda pid: None
sys.exit(main(["train", *sys.argv[1:]]))
"""

RANK = """
import json, os, signal, sys, time
from pathlib import Path
run_dir = Path(os.environ["IMPALA_MS_RUN_DIR"])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
def write_status(**status):
    (run_dir / "status.tmp").write_text(json.dumps(status))
    (run_dir / "status.tmp").rename(run_dir / "status.json")
def up():
    print(f"rank {rank} is up", flush=True)
def connected():
    if rank == 0: print("\\x1eprogress {\\"connected\\": true}", flush=True)
"""

# Ends at the first SIGUSR1, and writes a file that says how often it came.
OBEDIENT = """
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
up()
while not asked:
    time.sleep(0.02)
time.sleep(float(os.environ.get("CHECKPOINT_S", 0.2)))
(run_dir / f"asked_{rank}").write_text(str(len(asked)))
if rank == 0:
    write_status(state="stopped", exit_code=0, env_steps=1234, checkpoint=str(run_dir / "last"))
"""

DEAF = """
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
up()
time.sleep(120)
"""

both_sizes = pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.mpi)])


class Launched:
    """A launcher that runs a script as a child process; its output can be waited for."""

    def __init__(self, folder: Path, script: str, ranks: int, *options: str, **environment: str):
        (folder / "script.py").write_text(RANK + script)
        self.run_dir = folder / "run"
        command = [sys.executable, "-c", PROGRAM, "script.py", str(ranks)]
        self.process = subprocess.Popen(
            [*command, "--run_dir", "run", *options],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str, times: int = 1) -> None:
        """Read lines until the text has been seen in so many."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            times -= text in line
            if not times:
                return
        raise AssertionError(f"no {text!r} in {self.lines}")

    def wait(self) -> int:
        """The exit code, once the output has ended."""
        rest, _ = self.process.communicate(timeout=30)
        self.lines += rest.splitlines()
        return self.process.returncode

    def left(self) -> list[int]:
        """The processes of this run that still live."""
        mark = f"IMPALA_MS_RUN_DIR={self.run_dir}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                pass
        return found


def line_with(launched, text):
    return next(line for line in launched.lines if text in line)
