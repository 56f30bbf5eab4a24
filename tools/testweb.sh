#!/bin/sh
# Make sure that the programs which `make test-web` runs are there: prometheus and promtool, from the system's packages.
set -eu
for program in prometheus promtool; do
    command -v "$program" >/dev/null && continue
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "meshbus: $program is not installed; install your system's package prometheus and run this again" >&2
        exit 1
    fi
    echo 'meshbus: installing prometheus from the packages of the system' >&2
    log=.venv/.meshbus/apt.log
    { apt-get update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus; } \
        >"$log" 2>&1 || { tail -n 5 "$log" >&2; exit 1; }
done
