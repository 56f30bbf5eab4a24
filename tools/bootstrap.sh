#!/bin/sh
# Make .venv ready for a purpose, from nothing but Python (with venv) and a POSIX shell.
#
#   tools/bootstrap.sh run     what `make demo` needs
#   tools/bootstrap.sh dev     everything: tests, checks, benches (a superset of run)
#   tools/bootstrap.sh lock    the tool that `make lock` needs
#
# PYTHON=... chooses the interpreter; a .venv made by another one is then rebuilt. Without it a working .venv is kept.
# The stamp of a purpose (.venv/.meshbus/<purpose>) is written last and holds the checksums of what was installed, so a
# second run is instant and a changed lock is noticed. A set-up that was cut short leaves .venv/.meshbus/unfinished
# behind, and the next run starts .venv again.
set -eu

purpose=${1:?usage: tools/bootstrap.sh run|dev|lock}
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

# ── which Python ────────────────────────────────────────────────────────────────────────────

# Runs on any Python, the old ones too. Prints "good", "old" or "bare" (no venv), then the version.
probe='
import sys
verdict = "good" if sys.version_info >= (3, 11) else "old"
try:
    import ensurepip, venv
except ImportError:
    verdict = "bare" if verdict == "good" else verdict
print(verdict + " %d.%d.%d" % sys.version_info[:3])
'

# Where an interpreter comes from; the same for a venv and for the Python that made it.
origin_of() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

# Plain python3 is what people expect; the tested versions come next. One per line, as a path may hold spaces.
likely='python3
python3.13
python3.12
python3.11
python3.14
python3.15
python'

# Sets $python and $version, or ends with one sentence. A candidate counts only if it runs: version managers
# leave shims behind that do not.
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
    hint='name one that has it: make PYTHON=/path/to/python3'
    [ -z "$bare" ] || die "$bare lacks the standard venv and ensurepip modules; install them (on Debian and Ubuntu:" \
        "apt install python3-venv), or $hint"
    hint='install one, or name one: make PYTHON=/path/to/python3'
    [ -z "$old" ] || die "$old, and meshbus needs 3.11 or newer; $hint"
    [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON does not run; correct it, or leave it out to have one searched for"
    die "no Python found that runs, and meshbus needs 3.11 or newer; $hint"
}

# ── is there anything to do ─────────────────────────────────────────────────────────────────

# What a purpose's stamp must say: this directory (an editable install points at it), this lock, this project file.
stamp_of() {
    printf '%s\n' "$root"
    cksum "requirements/$1.txt"
    [ "$1" = lock ] || cksum pyproject.toml
}
stamped() { [ -f "$marks/$1" ] && [ "$(cat "$marks/$1")" = "$(stamp_of "$1")" ]; }

# Prints why .venv cannot be kept, or nothing.
why_rebuild() {
    if [ ! -d "$marks" ]; then echo 'it was not made by make'; return; fi
    if [ -e "$marks/unfinished" ]; then echo 'the last set-up was cut short'; return; fi
    if [ "$(cat "$marks/root" 2>/dev/null)" != "$root" ]; then echo 'the directory has moved'; return; fi
    if ! "$venv/bin/python" -c '' 2>/dev/null; then echo 'its Python is gone'; return; fi
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

# ── the work ────────────────────────────────────────────────────────────────────────────────

pip() { # build backends are looked up on PATH, hence the first word
    PATH="$root/$venv/bin:$PATH" "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1
}

# Sum the sizes that pip printed: "Downloading numpy-2.4.6-....whl (16.9 MB)".
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
        die "$python could not make .venv (above); install its venv package, or name another: make PYTHON=/path/to/python3"
    }
    printf '%s\n' "$root" >"$marks/root"
fi

: >"$marks/unfinished"
: >"$log"
count=$(sed -n 's/^\([a-z0-9][^ =]*\)==.*/\1/p' "requirements/$purpose.txt" | sort -u | wc -l)
say "installing $((count)) locked packages (a minute or two on a first run; details in $log)"
# Wheels only, so that nothing needs a compiler. Spark alone is published as source (pure Python and jars), and its
# build tools are locked too: they come first, because nothing is built in isolation.
install_locked() {
    pip install --progress-bar off --no-deps --only-binary :all: --no-binary pyspark --no-build-isolation \
        --require-hashes -r "requirements/$1.txt" || {
        tail -n 8 "$log" >&2
        die "could not install the locked packages (above, and in full in $log); check the network and run the same" \
            "command again; if no distribution matches this machine, try another Python: make PYTHON=/path/to/python3.13"
    }
}
if grep -q '^pyspark==' "requirements/$purpose.txt"; then install_locked build; fi
install_locked "$purpose"

if [ "$purpose" != lock ]; then
    say 'installing meshbus itself, editable'
    pip install --no-deps --no-build-isolation --editable . || {
        tail -n 8 "$log" >&2
        die "could not install the project itself (above, and in full in $log); fix pyproject.toml and run the same command again"
    }
fi

stamp_of "$purpose" >"$marks/$purpose"
rm -f "$marks/unfinished"
say "ready in $(($(date +%s) - began)) s: $(fetched_mb) MB fetched, $(($(du -sk "$venv" | cut -f1) / 1024)) MB in .venv"
