#!/bin/sh
# Create or update .venv. Requires only Python (with venv) and a POSIX shell.
#
#   tools/bootstrap.sh run     packages for `make demo`
#   tools/bootstrap.sh dev     packages for tests, checks and benchmarks (a superset of run)
#   tools/bootstrap.sh lock    packages for `make lock`
#   tools/bootstrap.sh site    packages for `make site`, beside those that are there
#
# PYTHON=... selects the interpreter; a .venv made by a different one is rebuilt. Without PYTHON, a working .venv is kept.
# The stamp file .venv/.meshbus/<purpose> is written last. It holds the checksums of the lock and the project file, so a
# second run is instant and a changed lock is noticed. An interrupted run leaves .venv/.meshbus/unfinished behind, and the
# next run rebuilds .venv.
set -eu

purpose=${1:?usage: tools/bootstrap.sh run|dev|lock|site}
cd "$(dirname "$0")/.."
root=$(pwd -P)
venv=.venv
marks=$venv/.meshbus
log=$marks/pip.log
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX

say() { printf 'meshbus: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# ── find Python ────────────────────────────────────────────────────────────────────────────

# Must run on any Python version. Prints "good", "old" or "bare" (no venv), then the version.
probe='
import sys
verdict = "good" if sys.version_info >= (3, 11) else "old"
try:
    import ensurepip, venv
except ImportError:
    verdict = "bare" if verdict == "good" else verdict
print(verdict + " %d.%d.%d" % sys.version_info[:3])
'

# Identifies an installation: the result is the same for a venv and for the Python that created it.
origin_of() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

# Try python3 first because users expect it, then the tested versions. One per line, because a path may contain spaces.
likely='python3
python3.13
python3.12
python3.11
python3.14
python3.15
python'

# Sets $python and $version, or exits with an error. A candidate must actually run: version managers leave behind
# shims that do not.
find_python() {
    old= bare=
    candidates=${PYTHON:-"$likely"}
    while IFS= read -r python; do
        answer=$("$python" -c "$probe" 2>/dev/null </dev/null) || continue
        version=${answer#* }
        case $answer in
        good*) return ;;
        old*) old=${old:-"$python is Python $version"} ;;
        bare*) bare=${bare:-"$python (Python $version)"} ;;
        esac
    done <<EOF
$candidates
EOF
    hint='select another Python: make PYTHON=/path/to/python3'
    [ -z "$bare" ] || die "$bare has no venv or ensurepip module; install them (on Debian and Ubuntu:" \
        "apt install python3-venv), or $hint"
    hint='install it, or select another Python: make PYTHON=/path/to/python3'
    [ -z "$old" ] || die "$old, but meshbus needs Python 3.11 or newer; $hint"
    [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON does not run; correct it, or omit it to search for a Python"
    die "no working Python found; meshbus needs Python 3.11 or newer; $hint"
}

# ── check the existing .venv ─────────────────────────────────────────────────────────────────

# Expected content of a stamp: this directory (the editable install points to it), the lock, and the project file.
stamp_of() {
    printf '%s\n' "$root"
    cksum "requirements/$1.txt"
    [ "$1" != dev ] || cksum requirements/newest.txt
    [ "$1" = lock ] || [ "$1" = site ] || cksum pyproject.toml
}
stamped() { [ -f "$marks/$1" ] && [ "$(cat "$marks/$1")" = "$(stamp_of "$1")" ]; }

# Prints why .venv must be rebuilt, or nothing.
why_rebuild() {
    if [ ! -d "$marks" ]; then echo 'it was not created by make'; return; fi
    if [ -e "$marks/unfinished" ]; then echo 'the last installation was interrupted'; return; fi
    if [ "$(cat "$marks/root" 2>/dev/null)" != "$root" ]; then echo 'the project directory has moved'; return; fi
    if ! "$venv/bin/python" -c '' 2>/dev/null; then echo 'its Python no longer runs'; return; fi
    if [ -n "${PYTHON:-}" ]; then
        find_python
        if [ "$(origin_of "$python")" != "$(origin_of "$venv/bin/python")" ]; then echo "PYTHON is now $version"; fi
    fi
}

reason=
if [ -d "$venv" ]; then
    reason=$(why_rebuild) || exit 1
    if [ -z "$reason" ]; then
        if stamped "$purpose"; then exit 0; fi
        if [ "$purpose" = run ] && stamped dev; then exit 0; fi
    fi
fi

# ── install ────────────────────────────────────────────────────────────────────────────────

pip() { # PATH is set because build backends are found through it
    PATH="$root/$venv/bin:$PATH" "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1
}

# Add up the download sizes that pip printed: "Downloading numpy-2.4.6-....whl (16.9 MB)".
fetched_mb() {
    awk '/(Downloading|Using cached) .*\([0-9.]+ [kM]?B\)/ {
             size = $(NF-1); sub(/\(/, "", size)
             total += size * ($NF ~ /^MB/ ? 1 : $NF ~ /^kB/ ? 0.001 : 0.000001)
         } END { printf "%d", total + 0.5 }' "$log"
}

began=$(date +%s)

if [ ! -d "$venv" ] || [ -n "$reason" ]; then
    find_python
    [ -z "$reason" ] || say "rebuilding .venv: $reason"
    say "creating .venv with Python $version"
    rm -rf "$venv"
    mkdir -p "$marks"
    : >"$marks/unfinished"
    "$python" -m venv "$venv" >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        die "$python could not create .venv (see above); install its venv package, or select another Python: make PYTHON=/path/to/python3"
    }
    printf '%s\n' "$root" >"$marks/root"
fi

: >"$marks/unfinished"
: >"$log"
count=$(sed -n 's/^\([a-z0-9][^ =]*\)==.*/\1/p' "requirements/$purpose.txt" | sort -u | wc -l)
say "installing $((count)) locked packages (a minute or two on the first run; details in $log)"
# Install wheels only, so that no compiler is needed. pyspark is published only as source (pure Python and jars). Its
# build tools are locked too and are installed first, because build isolation is off.
install_locked() {
    name=$1
    shift
    pip install --progress-bar off --no-deps --only-binary :all: --no-binary pyspark --no-build-isolation \
        --require-hashes -r "requirements/$name.txt" "$@" || {
        tail -n 8 "$log" >&2
        # pip downloads everything first, so the packages of other purposes are as they were: do not rebuild them.
        [ "$purpose" != site ] || rm -f "$marks/unfinished"
        die "could not install the locked packages (see above; full log in $log); check the network and run the command" \
            "again; if no distribution matches this machine, try another Python: make PYTHON=/path/to/python3.13"
    }
}
if grep -q '^pyspark==' "requirements/$purpose.txt"; then install_locked build; fi
install_locked "$purpose"
# A second version of net-mesh for the tests, beside the one in the environment (requirements/newest.in).
if [ "$purpose" = dev ]; then
    rm -rf "$venv/net-mesh"
    install_locked newest --target "$venv/net-mesh"
fi

if [ "$purpose" != lock ] && [ "$purpose" != site ]; then
    say 'installing meshbus in editable mode'
    pip install --no-deps --no-build-isolation --editable . || {
        tail -n 8 "$log" >&2
        die "could not install meshbus (see above; full log in $log); fix pyproject.toml and run the command again"
    }
fi

stamp_of "$purpose" >"$marks/$purpose"
rm -f "$marks/unfinished"
say "ready in $(($(date +%s) - began)) s: $(fetched_mb) MB downloaded, $(($(du -sk "$venv" | cut -f1) / 1024)) MB in .venv"
