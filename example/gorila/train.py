"""Train Gorila: ``bash start_standalone.sh train.py N --algorithm gorila [options]``.

With N = 1, ``python train.py [options]`` does the same in this process.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # impala_ms is not installed

from impala_ms.process import main

if __name__ == "__main__":
    main("gorila")
