# Sourced by start_standalone.sh and tests/run.sh: finds a complete Python environment, or makes
# one. Needs bash; to make an environment also CPython 3.10 to 3.12 with ensurepip.

# These variables of another Python would prevent the start.
unset PYTHONHOME PYTHONPLATLIBDIR
root=$(CDPATH='' builtin cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && builtin pwd -P)
venv=$root/.venv${IMPALA_MS_MINDSPORE:+-mindspore-$IMPALA_MS_MINDSPORE}
stamp=$venv/impala_ms.complete

say() { printf '%s\n' "$*" >&2; }

fail() { say "${0##*/}: $*"; exit 1; }

# Sets $python to an interpreter with all packages of pyproject.toml, including the extras given;
# and $made_environment if they had to be installed, here or by another set-up.
prepare_environment() {
    local prefix=${VIRTUAL_ENV:-${CONDA_PREFIX:-}} lacking=
    if [[ -z $prefix && $(type -P python3) == */bin/python3 ]]; then
        prefix=$(type -P python3)
        prefix=${prefix%/bin/python3}
        [[ -e $prefix/pyvenv.cfg ]] || prefix=
    fi
    if [[ -n $prefix && ! $prefix -ef $venv ]]; then
        python=$prefix/bin/python3
        lacking=$(missing "$python" "$@") && return
        lacking=${lacking:-a working Python}
        say "The active environment $prefix lacks ${lacking//$'\n'/, }: using ${venv##*/} instead."
    fi
    python=$venv/bin/python
    is_complete "$@" && return
    if [[ -z $prefix ]] && python=$(type -P python3) && missing "$python" "$@" >/dev/null; then
        return
    fi
    make_environment "$@"
}

# Sets $python to any interpreter that can run the launcher, for help and error messages.
find_python() {
    local candidate
    for candidate in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python3}" "$venv/bin/python" python3 \
        python3.12 python3.11 python3.10 \
        "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[0-2]*/bin/python3; do
        # Run it: version managers have shims that fail for versions that are not selected.
        python=$(fitting "$candidate") || continue
        [[ -z ${1:-} ]] || "$python" -I -c "$1" 2>/dev/null || continue
        return 0
    done
    fail "no Python 3.10 to 3.$(($(python_limit) - 1)) found (looked for python3, python3.12," \
        "python3.11, python3.10 and in ~/.pyenv/versions)${1:+ that has the modules venv and" \
        "ensurepip (Debian and Ubuntu: apt install python3-venv)}."
}

# The path of a Python, if it runs and its version is supported.
fitting() {
    "$1" -I -c 'import sys
if not (3, 10) <= sys.version_info < (3, int(sys.argv[1])): sys.exit(1)
print(sys.executable)' "$(python_limit)" 2>/dev/null
}

# The first minor version that is too new: MindSpore 2.7.0 has no wheel for CPython 3.12.
python_limit() { if [[ ${IMPALA_MS_MINDSPORE:-} == 2.7.0 ]]; then echo 12; else echo 13; fi; }

missing() { "$1" -I "$root/impala_ms/requirements.py" missing "${@:2}" 2>/dev/null; }

# The stamp is written last: the installed extras, then the constraints. It may be out of date:
# packages may have been removed, or the system's Python replaced.
is_complete() {
    local extras='' text=''
    [[ -x $venv/bin/python && -r $stamp ]] || return
    { read -r extras; IFS= read -r -d '' text; } <"$stamp"
    [[ $text == "$(<"$root/constraints.txt")"$'\n' ]] || return
    local extra
    for extra; do [[ " $extras " == *" $extra "* ]] || return; done
    missing "$venv/bin/python" "$@" >/dev/null
}

make_environment() {
    [[ -w $root && ( ! -e $venv || -w $venv ) ]] || fail "cannot write to $root, where ${venv##*/}" \
        "would be made. Make the folder writable or activate an environment that has everything."
    # If two set-ups run at once, the second waits and then finds the work done.
    exec 9>"$venv.lock"
    if type -P flock >/dev/null; then
        flock -n 9 2>/dev/null
        # Codes other than 1: this file system has no locks.
        if (($? == 1)); then
            say "Waiting for another set-up of ${venv##*/} ..."
            flock 9
        fi
    fi
    is_complete "$@" || install_all "$@"
    exec 9>&-
    python=$venv/bin/python made_environment=yes
}

install_all() {
    local started=$SECONDS log=$venv/impala_ms.log size='' extras="$*"
    if ! can_install; then
        rm -rf -- "$venv"
        find_python 'import ensurepip, venv'
        say "Making ${venv##*/} with $("$python" -V) ($python) ..."
        mkdir -- "$venv"
        : >"$venv/impala_ms.begun"
        size=' (about 1 GB to download, 3 GB on disk)'
        "$python" -I -m venv "$venv" || fail "python -m venv failed, see above."
    fi
    rm -f -- "$stamp"
    local mindspore=${IMPALA_MS_MINDSPORE:-} constraints=$venv/impala_ms.constraints wanted lacking
    sed "${mindspore:+s/^mindspore==.*/mindspore==$mindspore/}" "$root/constraints.txt" >"$constraints"
    mapfile -t wanted < <("$venv/bin/python" -I "$root/impala_ms/requirements.py" list "$@")
    say "Installing $(sed -n '/^mindspore==/p' "$constraints"), Open MPI, Gymnasium and what they" \
        "need${extras:+, for $extras too}$size ..."
    pip_install -c "$constraints" "${wanted[@]}"
    mapfile -t wanted < <("$venv/bin/python" -I "$root/impala_ms/requirements.py" no-deps)
    say "Installing ${wanted[*]} ..."
    pip_install --no-deps -c "$constraints" "${wanted[@]}"
    # Packages whose files are gone, but that pip still lists as installed.
    if ! lacking=$(missing "$venv/bin/python" "$@"); then
        mapfile -t wanted <<<"$lacking"
        say "Installing ${wanted[*]} again ..."
        pip_install --force-reinstall --no-deps -c "$constraints" "${wanted[@]}"
        lacking=$(missing "$venv/bin/python" "$@") || fail "pip says that it installed everything," \
            "but ${venv##*/} lacks ${lacking//$'\n'/, }: see $log."
    fi
    # For users who activate the environment and run the scripts by hand.
    printf '%s\n' "$root" >"$("$venv/bin/python" -I -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')/impala_ms.pth"
    printf '%s\n%s\n' "$*" "$(<"$root/constraints.txt")" >"$stamp.new"
    mv -- "$stamp.new" "$stamp"
    rm -f -- "$venv/impala_ms.begun"
    say "${venv##*/} is complete after $((SECONDS - started)) s."
}

# Whether there is a $venv to install into. An unusable one is made again, but only if it was made
# here: the environment of another program may hold more packages.
can_install() {
    local has=$venv/bin/python
    local do="move it away, or activate an environment that has everything, and start again."
    # An interrupted first installation may have left an incomplete package.
    [[ -e $venv && ! -e $venv/impala_ms.begun ]] || return
    fitting "$has" >/dev/null && "$has" -I -c 'import pip' 2>/dev/null && return
    if [[ -e $stamp || -e $venv/impala_ms.log ]] || rmdir -- "$venv" 2>/dev/null; then
        return 1
    fi
    fitting "$has" >/dev/null || fail "$venv was made by another program and has no working" \
        "Python of a version from 3.10 to 3.$(($(python_limit) - 1)): $do"
    say "${venv##*/} was made by another program and has no pip: adding it ..."
    "$has" -I -m ensurepip --default-pip >/dev/null && return
    fail "$venv has no pip, and ensurepip cannot add it, see above: $do"
}

# pip, without the user's settings that change what it installs, or where.
pip_install() {
    with_progress "$log" "$venv/bin/python" -I "$root/impala_ms/requirements.py" pip install "$@"
}

# Runs a command with its output in a log file, and shows the size of $venv meanwhile.
with_progress() {
    local log=$1 begun=$SECONDS pid code=0 end=$'\n' every=10
    shift
    [[ -t 2 ]] && end=$'\r' every=1
    mkdir -p -- "$venv/tmp"
    # Downloads go into $venv, where they count in its size: /tmp may be small.
    TMPDIR=$venv/tmp "$@" >>"$log" 2>&1 9>&- &
    pid=$!
    trap 'kill "$pid" 2>/dev/null; say "Set-up interrupted; the same command goes on with it."; exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if ((SECONDS - begun >= every)); then
            printf '  %s MB, %s s%s' "$(du -sm -- "$venv" 2>/dev/null | cut -f1)" \
                "$((SECONDS - begun))" "$end" >&2
            [[ -t 2 ]] && every=$((SECONDS - begun + 1)) || every=$((SECONDS - begun + 10))
        fi
    done
    wait "$pid" || code=$?
    trap - INT TERM
    [[ -t 2 ]] && printf '\r\033[K' >&2
    rm -rf -- "$venv/tmp"
    if ((code != 0)); then
        local said
        said=$(tail -n 15 -- "$log")
        say "$said"
        [[ $said != *"No space left on device"* ]] || fail "installing failed for lack of room:" \
            "${venv%/*} needs about 3 GB, and pip's cache 1 GB (PIP_NO_CACHE_DIR=1 does without)."
        fail "installing failed, see above and $log. Without a network, activate an environment" \
            "that has everything."
    fi
}
