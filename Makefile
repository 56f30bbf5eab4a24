# The whole tool box. Every target sets up what it needs from Python 3.11+ (with venv), make and sh alone;
# the environment is .venv, the versions are requirements/*.txt. A second run is instant.
#
#   make test PYTHON=/path/to/python3.13     choose the interpreter
#   make test ARGS='-k header -x'            pass arguments on to the tool behind the target

PY = .venv/bin/python
ARGS =

.NOTPARALLEL:
.PHONY: help demo test check check-static cover bench soak format lock clean env-run env-dev env-lock

help: ## list the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: env-run ## run a small fleet, and then the pipeline over what it logged
	@.venv/bin/meshbus demo $(ARGS)

test: check-static ## static checks and all tests
	@$(PY) -m pytest $(ARGS)

check: check-static ## static checks and the fast tests
	@$(PY) -m pytest -m 'not slow and not soak' $(ARGS)

check-static: env-dev ## format, lint, types, layers, spelling
	@$(PY) -m ruff format --check --output-format concise . || { echo 'meshbus: not formatted; run: make format' >&2; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy --no-error-summary
	@.venv/bin/lint-imports --no-logo >.venv/lint-imports.log || { cat .venv/lint-imports.log >&2; exit 1; }
	@$(PY) -m codespell_lib

cover: env-dev ## all tests, with the lines and branches they miss
	@$(PY) -m coverage run -m pytest $(ARGS)
	@$(PY) -m coverage report

bench: env-dev ## measure, and print tables of ratios
	@$(PY) -m bench $(ARGS)

soak: env-dev ## the long tests
	@$(PY) -m pytest -m soak --hypothesis-profile=soak $(ARGS) || [ $$? -eq 5 ] # 5: none exist yet

format: env-dev ## format the code, and fix what lint can fix
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format --quiet .

lock: env-lock ## rewrite requirements/*.txt; UPGRADE=1 takes the newest versions
	@UPGRADE='$(UPGRADE)' sh tools/lock.sh

clean: ## remove the environment and every cache
	@rm -rf .venv build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

env-run:
	@sh tools/bootstrap.sh run

env-dev:
	@sh tools/bootstrap.sh dev

env-lock:
	@sh tools/bootstrap.sh lock
