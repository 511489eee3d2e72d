#!/usr/bin/env bash
# Trains: bash start_standalone.sh SCRIPT N [options]; --help says more.
# Finds or makes the Python environment; everything else is in impala_ms/launch.py.
set +o posix +o errexit +o noclobber +o noglob -u # a shell may have handed others down
shopt -u failglob nullglob
# Seconds since the epoch. The decimal mark is that of the locale; six digits follow it.
now() {
    local digits=${EPOCHREALTIME:-$(date +%s%6N)}
    digits=${digits//[!0-9]/}
    printf '%s.%s' "${digits:0:-6}" "${digits: -6}"
}
started=$(now)
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/environment.sh"

python=
# Nothing is installed for a command that only prints help or a complaint.
if (($# < 2)) || [[ " $* " == *" --help "* || " $* " == *" -h "* || ! $2 =~ ^0*[1-9][0-9]*$ ]]; then
    find_python
else
    prepare_environment
    # What the run took is shown without what was installed before it, which has its own line.
    [[ -z ${made_environment:-} ]] || started=$(now)
fi

export IMPALA_MS_STARTED=$started IMPALA_MS_COMMAND=$0
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
# As python -m impala_ms.launch, except that no file in the current folder is imported instead.
exec "$python" -c 'import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.path[0] = sys.argv.pop(1)
from impala_ms.launch import main
sys.exit(main(sys.argv[1:]))' "$root" "$@"
