"""Play episodes with a trained network, as ``python -m impala_ms evaluate`` does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # impala_ms is not installed

from impala_ms.__main__ import main
from impala_ms.imports import forget_script

if __name__ == "__main__":
    forget_script(__file__)
    sys.exit(main(["evaluate", *sys.argv[1:]]))
