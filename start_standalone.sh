#!/usr/bin/env bash
# Trains: bash start_standalone.sh SCRIPT N [options]; --help says more. The other commands of
# impala_ms work too, such as: bash start_standalone.sh evaluate RUN_DIR
# Finds or makes the Python environment; everything else is in impala_ms/__main__.py.
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

command=train python=
case ${1-} in
    train | evaluate | curves | compare | doctor) command=$1; shift ;;
esac
number='^0*[1-9][0-9]*$'
# Nothing is installed for a command that only prints help or a complaint.
if [[ " $* " == *" --help"[\ =]* || " $* " == *" -h "* ]] ||
    [[ $command == train && ! ${1-} =~ $number && ! ${2-} =~ $number ]]; then
    find_python
else
    prepare_environment
    # The time that a run took does not include an installation, which prints its own.
    [[ -z ${made_environment:-} ]] || started=$(now)
fi

export IMPALA_MS_STARTED=$started IMPALA_MS_COMMAND=$0
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
# As python -m impala_ms, except that no file in the current folder is imported instead.
exec "$python" -c 'import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.path[0], command = sys.argv.pop(1), sys.argv.pop(1)
from impala_ms.__main__ import main
sys.exit(main([command, *sys.argv[1:]]))' "$root" "$command" "$@"
