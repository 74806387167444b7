# Needs git, make and Python >= 3.11 (with its venv module); everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCALSTACK_VENV := .venv-localstack
UV := $(BIN)/uv
BUILD := build

# Options of single commands: make test TESTS="tests/unit -k paging", make demo KEEP=1, make crash-test ROUNDS=100,
# make requirements UPGRADE=1
TESTS ?= tests
WORKERS ?= 2
KEEP ?=
ROUNDS ?=
UPGRADE ?=

SOURCES := $(wildcard .ci benchmarks devtools example_dags providers tests)

# Whatever imports Airflow writes into its home: never into the user's own.
export AIRFLOW_HOME := $(CURDIR)/.airflow-home
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export UV_PYTHON_DOWNLOADS := never

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv localstack-venv test demo crash-test lint format wheel-test requirements clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

venv: $(VENV)/.installed ## install everything into .venv, from the pinned requirements

$(VENV)/.requirements: requirements/bootstrap.txt requirements/dev.txt
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "make: '$(PYTHON)' was not found. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $$("$(PYTHON)" --version) is too old. Python 3.11 or later is needed: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $$("$(PYTHON)" --version) lacks its venv module. On Debian and Ubuntu it is the package python3-venv." >&2; \
	  exit 1; }
	@echo "Installing Airflow and the tools into $(VENV) (a minute or two the first time) ..."
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --requirement requirements/bootstrap.txt
	@$(UV) pip install --quiet --python $(BIN)/python --requirement requirements/dev.txt
	@touch $@

# The requirements pin the build back end as well: nothing is resolved here.
$(VENV)/.installed: $(VENV)/.requirements pyproject.toml
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable '.[amazon,google,store-sql,testing]'
	@touch $@

localstack-venv: $(LOCALSTACK_VENV)/.installed ## install LocalStack into .venv-localstack

$(LOCALSTACK_VENV)/.installed: requirements/localstack.txt $(VENV)/.requirements
	@echo "Installing LocalStack into $(LOCALSTACK_VENV) ..."
	@$(BIN)/python -m venv --clear --without-pip $(LOCALSTACK_VENV)
	@$(UV) pip install --quiet --python $(LOCALSTACK_VENV)/bin/python --requirement requirements/localstack.txt
	@touch $@

test: venv localstack-venv ## run all tests, with real S3 servers and a real Airflow
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(TESTS)

demo: venv ## show the main job in a real Airflow (KEEP=1 leaves it running)
	@$(BIN)/python -m devtools.demo $(if $(KEEP),--keep)

crash-test: venv ## kill, stop and pause a real triggerer, and count (ROUNDS=n for a longer run)
	@$(BIN)/python -m devtools.crash_test $(if $(ROUNDS),--rounds $(ROUNDS))

lint: venv ## check style, types and layers
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	AIRFLOW__LOGGING__LOGGING_LEVEL=WARNING $(BIN)/lint-imports --no-logo

format: venv ## put the code in order
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

wheel-test: venv ## build the wheel and try it in a clean environment
	@rm -rf $(BUILD)
	@$(BIN)/python -m build --no-isolation --outdir $(BUILD)/dist . >$(BUILD).log 2>&1 || { cat $(BUILD).log >&2; exit 1; }
	@rm $(BUILD).log
	@$(BIN)/python -m venv --without-pip $(BUILD)/venv
	@$(UV) pip install --quiet --python $(BUILD)/venv/bin/python --constraint requirements/dev.txt $(BUILD)/dist/*.whl
	@$(BUILD)/venv/bin/python -I .ci/check_wheel.py $(BUILD)/dist/*.whl

requirements: venv ## compile the pinned requirement files (UPGRADE=1 takes the newest releases)
	$(UV) pip compile --quiet --universal --python-version 3.11 --no-header $(if $(UPGRADE),--upgrade) \
	  --extra amazon --extra google --extra store-sql --extra testing --output-file requirements/dev.txt pyproject.toml requirements/dev.in
	$(UV) pip compile --quiet --universal --python-version 3.11 --no-header $(if $(UPGRADE),--upgrade) \
	  --output-file requirements/localstack.txt requirements/localstack.in

clean: ## remove what make has made
	rm -rf $(VENV) $(LOCALSTACK_VENV) $(BUILD) $(BUILD).log .airflow-home .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	  .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
