# All development commands. Each target creates .venv if needed; it requires only Python 3.11+ (with venv), make and sh.
# Package versions are locked in requirements/*.txt.
#
#   make test PYTHON=/path/to/python3.13     choose the interpreter
#   make test ARGS='-k header -x'            pass arguments to the underlying tool

PY = .venv/bin/python
ARGS =
SECONDS = 60
TARGET =
# Tests run on every core, up to four. ARGS='-n0' runs them in one process, for a debugger or to see what they print.
SPREAD = -n auto --maxprocesses=4
# The interpreters that `make release-check` tries, by name or path.
PYTHONS = python3.11 python3.12 python3.13

.NOTPARALLEL:
.PHONY: help demo test test-failed check check-static cover owncover bench fuzz soak interop test-web site release release-check formats limits messages settings format lock clean env-run env-dev env-lock env-site

help: ## list the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: env-run ## run a fleet with visitors, then the Spark pipeline over its logs (ARGS='--small', ARGS='--serve')
	@.venv/bin/meshbus demo $(ARGS)

test: check-static ## run static checks and all tests
	@$(PY) -m pytest $(SPREAD) $(ARGS)

test-failed: env-dev ## run the tests that failed last time, one after the other
	@$(PY) -m pytest -n0 --maxfail=3 --last-failed --last-failed-no-failures none $(ARGS)

check: check-static ## run static checks and the fast tests
	@$(PY) -m pytest $(SPREAD) -m 'not slow and not soak and not web' $(ARGS)

check-static: env-dev ## check format, lint, types, import layers and spelling
	@$(PY) -m ruff format --check --output-format concise . || { echo "meshbus: code is not formatted; run 'make format'" >&2; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy --no-error-summary
	@.venv/bin/lint-imports --no-logo >.venv/lint-imports.log || { cat .venv/lint-imports.log >&2; exit 1; }
	@$(PY) -m codespell_lib

cover: env-dev ## run all tests and report uncovered lines and branches
	@$(PY) -m coverage run -m pytest $(ARGS)
	@$(PY) -m coverage report

owncover: env-dev ## measure each module with its own test file alone (ARGS='policy/gateway')
	@$(PY) -m tools.owncover $(ARGS)

bench: env-dev ## run the benchmarks and print tables of ratios
	@$(PY) -m bench $(ARGS)

fuzz: env-dev ## fuzz what reads bytes of others (SECONDS=60 for each target, TARGET=history for one)
	@$(PY) -m fuzz $(TARGET) --seconds $(SECONDS) $(ARGS)

soak: env-dev env-site ## run the long tests
	@$(PY) -m pytest -m soak --hypothesis-profile=soak --timeout=14400 -o faulthandler_timeout=0 $(ARGS) || [ $$? -eq 5 ] # pytest exits with 5 if no test is marked soak

interop: env-dev ## write docs/interop.md from runs against published net-mesh versions (ARGS='0.23.0 0.45.1')
	@$(PY) -m tests.interop.matrix $(ARGS)

test-web: env-dev ## run the tests that need Prometheus and Chromium; installs them from the system's packages if they are missing
	@sh tools/testweb.sh
	@$(PY) -m pytest -n0 -m web -o cache_dir=.pytest_cache/web tests/web $(ARGS)

site: env-site ## build the documentation as a site in build/site/, with search and versions, and check its links
	@$(PY) -m tools.site $(ARGS)

release: env-run env-site ## make wheel, sdist, Debian package, site, bill of materials and checksums in dist/, without a network
	@$(PY) -m tools.release $(ARGS)

release-check: env-run ## install the wheel and the sdist of dist/ with each of PYTHONS, in empty environments, and try them
	@$(PY) -m tools.release.trial $(PYTHONS)

messages: env-run ## list every message that a user can see; ARGS=--docstrings adds docstrings
	@$(PY) -m tools.messages $(ARGS)

formats: env-run ## write docs/formats.md from the formats in the source
	@$(PY) -m tools.formats

limits: env-run ## write docs/limits.md from the bounds in the source
	@$(PY) -m tools.limits

settings: env-run ## write docs/settings.md from the configuration types
	@$(PY) -m tools.settings

format: env-dev ## format the code and apply automatic lint fixes
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format --quiet .

lock: env-lock ## rewrite requirements/*.txt; UPGRADE=1 upgrades all packages
	@UPGRADE='$(UPGRADE)' sh tools/lock.sh

clean: ## remove .venv, build output and caches
	@rm -rf .venv build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

env-run:
	@sh tools/bootstrap.sh run

env-dev:
	@sh tools/bootstrap.sh dev

env-lock:
	@sh tools/bootstrap.sh lock

env-site:
	@sh tools/bootstrap.sh site
