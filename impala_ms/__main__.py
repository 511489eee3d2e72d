"""The commands of the package: ``python -m impala_ms COMMAND …`` or ``impala-ms COMMAND …``.

Input: a command line. Output: what the command prints, and its exit code. The module of a command
is imported only when it is used.
"""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from impala_ms.metrics import progress

# By name: the module whose ``main`` does it, and what it does.
COMMANDS = {
    "train": ("launch", "start a run of N processes: train [SCRIPT] N [options]"),
    "evaluate": ("evaluate", "play episodes with a trained network: evaluate RUN_DIR [options]"),
    "curves": ("curves", "draw the metrics of runs: curves RUN_DIR … [options]"),
    "compare": ("compare", "run algorithms and settings side by side: compare NAME … [options]"),
    "doctor": ("doctor", "say what works on this machine, and what to do: doctor [options]"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Its name and its arguments; None: those of this process.

    Returns:
        The exit code: that of the command, or 2 if there is no such command.
    """
    progress.open_streams()
    # Until there is something to stop, a signal ends this process and prints nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    given = sys.argv[1:] if argv is None else argv
    name, *words = given or [""]
    try:
        if name in ("", "-h", "--help"):
            sys.stdout.write(usage())
            return 0 if name else 2
        if name not in COMMANDS:
            sys.stderr.write(f"{unknown(name)}\n")
            return 2
        module = importlib.import_module(f"impala_ms.{COMMANDS[name][0]}")
        return int(module.main(words))
    except BrokenPipeError:  # its reader has what it wants, such as head
        progress.ignore_output()
        return 1


def usage() -> str:
    """One line for each command."""
    lines = [f"  {name:10}{what}" for name, (_, what) in COMMANDS.items()]
    head = "Usage: python -m impala_ms COMMAND …; COMMAND --help says more"
    return "\n".join([head, "", *lines]) + "\n"


def unknown(name: str) -> str:
    """What may have been meant by a name that is not a command."""
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    what = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(COMMANDS)}"
    return f"there is no command {name!r}: {what}"


if __name__ == "__main__":
    # Not from the current folder: a file of the user's there may have the name of one of Python's.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    folder = str(Path(__file__).resolve().parents[1])
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.exit(main())
