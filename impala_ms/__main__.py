"""``python -m impala_ms doctor``: what works here, what does not, what to do."""

import sys

from impala_ms import doctor

USAGE = "Usage: python -m impala_ms doctor [--json] [--quick]\n"

if __name__ == "__main__":
    command, *options = sys.argv[1:] or [""]
    if command != "doctor" or not {"--json", "--quick"}.issuperset(options):
        sys.stderr.write(USAGE)
        sys.exit(2)
    sys.exit(doctor.main(as_json="--json" in options, quick="--quick" in options))
