#!/bin/sh
# Write requirements/*.txt: exact versions with hashes, for all supported Python versions and platforms, without index
# URLs.
#
# Locked versions are kept if they still satisfy the constraints; UPGRADE=1 upgrades everything. dev is compiled after run
# and constrained by it, so that both lock the same versions; web and site after dev. Requires `tools/bootstrap.sh lock`.
set -eu
cd "$(dirname "$0")/.."

floor=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)

for name in build run dev newest web site lock; do
    # --only-binary: installing must not need a compiler. pyspark is the exception: pure Python, published without a wheel.
    # --system-certs: use the system's certificates, which company proxies often require.
    .venv/bin/python -m uv --quiet --no-cache --system-certs pip compile \
        --universal --python-version "$floor" --generate-hashes --only-binary :all: --no-binary pyspark \
        --custom-compile-command 'make lock' ${UPGRADE:+--upgrade} \
        --output-file "requirements/$name.txt" "requirements/$name.in" >/dev/null
    printf 'meshbus: requirements/%s.txt locks %s packages\n' "$name" "$(grep -c '^[a-z0-9].*==' "requirements/$name.txt")" >&2
done
