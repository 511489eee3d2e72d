#!/usr/bin/env bash
# Sets up what is missing, then checks style and types and runs the tests: bash tests/run.sh [pytest arguments]
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
prepare_environment dev
builtin cd -- "$root"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
exec "$python" -m pytest -n 2 -m "not slow" "$@"
