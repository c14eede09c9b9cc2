# Every target sets up .venv by itself and is quick on a second run.
PYTHON ?= python3
BASE ?= 0.13.1
HEAD ?= 0.14.0
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := .venv/.ready
MEGATRON := .parity/megatron

.PHONY: help gate test coverage own-mutants lint clean
.DELETE_ON_ERROR:

help:
	@echo "make gate         compare the kernels of two megatron-core releases (BASE=$(BASE) HEAD=$(HEAD))"
	@echo "make test         run the tests on four workers (ARGS='-k concat' adds options of pytest)"
	@echo "make coverage     run them with the branches of parity/ and reports/ measured, least covered first"
	@echo "make own-mutants  plant bugs in what decides in the harness, and list those that no test sees"
	@echo "make lint         ruff and mypy"
	@echo "make clean        remove .venv, .parity and caches"

gate: $(READY) $(MEGATRON)/$(BASE) $(MEGATRON)/$(HEAD)
	@$(BIN)/parity gate --ops megatron --base-root $(MEGATRON)/$(BASE) --head-root $(MEGATRON)/$(HEAD) $(ARGS)

test: $(READY)
	@$(BIN)/python -m pytest -n 4 $(ARGS)

coverage: $(READY)
	@rm -rf .parity/coverage
	@$(BIN)/coverage run -m pytest -n 4 $(ARGS)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

own-mutants: $(READY)
	@$(PIP) install -qq -c constraints.txt mutmut
	@$(BIN)/mutmut run
	@$(BIN)/mutmut results

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

clean:
	rm -rf .venv .parity mutants .hypothesis .mypy_cache .pytest_cache .ruff_cache build *.egg-info

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'Expected Python 3.11 or newer but got none from "$(PYTHON)"; name one with `make PYTHON=python3.11`.' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'Expected the modules venv and ensurepip but "$(PYTHON)" lacks them; install python3-venv with the package manager of the system, or name another Python with `make PYTHON=python3.11`.' >&2; exit 1; }
	@echo "Setting up .venv (the first run takes some minutes)"
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(PIP) install -qq -c constraints.txt setuptools
	@$(PIP) install -qq -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# Only Python and Triton sources of these wheels are run, so the one for CPython 3.11 (newer releases:
# 3.12) serves every Python; installing it would bring a second torch and an old numpy.
FETCH := $(PIP) download --no-deps --only-binary=:all: -d .parity/wheels

$(MEGATRON)/%: | $(READY)
	@echo "Fetching megatron-core $*"
	@mkdir -p $(MEGATRON)
	@$(FETCH) --python-version 3.11 megatron-core==$* >/dev/null 2>&1 || \
	 $(FETCH) --python-version 3.12 megatron-core==$* >/dev/null 2>&1 || { \
	  echo 'Expected pip to fetch a wheel of megatron-core $* for this platform but it failed; see why with `$(FETCH) --python-version 3.12 megatron-core==$*`.' >&2; exit 1; }
	@rm -rf $@.part
	@$(BIN)/python -m zipfile -e .parity/wheels/megatron_core-$*-*.whl $@.part
	@mv $@.part $@
