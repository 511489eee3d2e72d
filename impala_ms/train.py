"""One rank of a run: what `python -m impala_ms train N` starts where no script is given."""

import sys
from pathlib import Path

if __name__ == "__main__":
    folder = str(Path(__file__).resolve().parents[1])
    if folder not in sys.path:  # impala_ms is not installed
        sys.path.insert(0, folder)
    from impala_ms.process import main

    main()
