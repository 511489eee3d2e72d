"""Train IMPALA: ``bash start_standalone.sh train.py N [options]``; ``--help`` lists them.

With N = 1, ``python train.py [options]`` does the same in this process.
"""

from impala_ms.session import main

if __name__ == "__main__":
    main("impala")
