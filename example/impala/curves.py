"""Draw the metrics of runs: ``python curves.py RUN_DIR … --output curves.png``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # impala_ms is not installed

from impala_ms.curves import main

if __name__ == "__main__":
    sys.exit(main())
