#!/bin/sh
# Write requirements/*.txt: exact versions with hashes, for every supported Python and platform, without addresses.
#
# Versions already locked are kept where they still fit; UPGRADE=1 takes the newest of everything. dev is compiled
# after run and constrained by it, so that the two agree. Needs tools/bootstrap.sh lock.
set -eu
cd "$(dirname "$0")/.."

floor=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)

for name in build run dev lock; do
    # --only-binary: a lock that needs a compiler is no lock; pyspark is pure Python but has no wheel.
    # --system-certs: company proxies are common.
    .venv/bin/python -m uv --quiet --no-cache --system-certs pip compile \
        --universal --python-version "$floor" --generate-hashes --only-binary :all: --no-binary pyspark \
        --custom-compile-command 'make lock' ${UPGRADE:+--upgrade} \
        --output-file "requirements/$name.txt" "requirements/$name.in" >/dev/null
    printf 'meshbus: requirements/%s.txt locks %s packages\n' "$name" "$(grep -c '^[a-z0-9].*==' "requirements/$name.txt")" >&2
done
