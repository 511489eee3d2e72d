"""``python -m impala_ms doctor``: what works here, what does not, what to do."""

import sys

from impala_ms import doctor, launch
from impala_ms.errors import ConfigError
from impala_ms.metrics import progress

USAGE = """\
Usage: python -m impala_ms doctor [--json] [--quick]
       python -m impala_ms doctor [--json] --hostfile FILE
"""

if __name__ == "__main__":
    progress.open_streams()
    command, *options = sys.argv[1:] or [""]
    try:
        hostfile, options = launch.take_hostfile(options)
    except ConfigError as error:
        sys.exit(str(error))
    if command != "doctor" or not {"--json", "--quick"}.issuperset(options):
        sys.stderr.write(USAGE)
        sys.exit(2)
    try:
        sys.exit(doctor.main("--json" in options, "--quick" in options, hostfile))
    except BrokenPipeError:  # its reader has what it wants, such as head
        progress.ignore_output()
        sys.exit(1)
