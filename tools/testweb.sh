#!/bin/sh
# Make sure that what `make test-web` needs is there: Prometheus and Chromium from the system's packages, the driver of the
# browser from requirements/web.txt, and what builds the site. Fails with one sentence if they cannot be had, such as without a network.
set -eu
cd "$(dirname "$0")/.."
log=.venv/.meshbus/testweb.log
stamp=.venv/.meshbus/web

say() { printf 'meshbus: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
# A package source that does not answer must not hold up a run for long, nor must another installation on this machine.
# RUNLEVEL: Debian starts a Prometheus of its own otherwise.
apt() {
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout 300 apt-get -o Acquire::http::Timeout=20 -o Acquire::Retries=1 \
        -o DPkg::Lock::Timeout=60 "$@" >>"$log" 2>&1
}

: >"$log"
missing=
{ command -v prometheus && command -v promtool; } >/dev/null || missing=' prometheus'
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="$missing chromium fonts-liberation"
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "these packages are not installed:$missing; install them with your system's package manager and run this again"
    fi
    say "installing from the packages of the system:$missing"
    # shellcheck disable=SC2086 # a list of names
    { apt update && apt install -y --no-install-recommends $missing; } || {
        tail -n 5 "$log" >&2
        die "cannot install these packages:$missing (see above; full log in $log); check the network and run this again"
    }
fi

if [ "$(cat "$stamp" 2>/dev/null)" != "$(cksum requirements/web.txt)" ]; then
    say 'installing the driver of the browser'
    .venv/bin/python -m pip --disable-pip-version-check --no-input install --progress-bar off --no-deps --only-binary :all: \
        --require-hashes -r requirements/web.txt >>"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        die "cannot install requirements/web.txt (see above; full log in $log); check the network and run this again"
    }
    cksum requirements/web.txt >"$stamp"
fi

sh tools/bootstrap.sh site
