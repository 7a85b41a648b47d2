# `make demo` sets up and runs the main job, `make test` sets up and runs every check.
# `make test-fast` runs what needs no browser, no cluster, no compiler, no download but the default
# model's and no long time: more than half of the tests, in at most three minutes after the set-up.
# It leaves out the tests marked browser, cluster, download and slow (pyproject.toml says what each
# means, tests/kinds.py which tests they are): pages of the report, the Dask engine, the other models
# and data sets, whole reproductions, fuzzing, memory under load, killed runs and the documentation.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

# Python keeps what it compiled, whatever the shell says: every test starts many processes, and each
# would compile torch and transformers anew, which takes longer than all that it does.
export PYTHONDONTWRITEBYTECODE :=

debian = { command -v apt-get >/dev/null && apt-get update --quiet \
  && apt-get install --yes --quiet --no-install-recommends $(1); }

install = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test test-fast lint pytest format docs results clean

demo: $(VENV)/demo-ready
	HF_HUB_OFFLINE=1 $(BIN)/eigenlens demo --overwrite

# The linters run beside the tests: these wait for browsers and clusters often enough.
test:
	$(MAKE) --no-print-directory --jobs 2 $(VENV)/test-ready $(VENV)/programs-ready
	$(MAKE) --no-print-directory --jobs 2 pytest lint

test-fast: $(VENV)/test-ready
	EIGENLENS_TEST_FAST=1 $(BIN)/python -m pytest -n 2 \
	  -m "not browser and not cluster and not download and not slow"

pytest: $(VENV)/test-ready
	$(BIN)/python -m pytest -n 3

lint: $(VENV)/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/oxlint src/eigenlens/reports/assets

format: $(VENV)/test-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site: open site/index.html.
docs: $(VENV)/test-ready
	$(BIN)/python docs/build.py

# The full runs of the papers as data (results/README.md): hours, but an interrupted run goes on.
# ONLY="sinks fast" runs some, OPTIONS="--jobs 2" or OPTIONS="--engine dask --workers 2" more at once.
results: $(VENV)/test-ready
	$(BIN)/python results/make.py $(ONLY) $(OPTIONS)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo-ready: pyproject.toml constraints.txt | $(BIN)/python
	$(install) -e .
	touch $@

$(VENV)/test-ready: pyproject.toml constraints.txt | $(BIN)/python
	$(install) -e '.[dev]'
	touch $(VENV)/demo-ready $@

$(VENV)/programs-ready: | $(BIN)/python
	command -v g++ >/dev/null || $(call debian,g++) \
	  || echo "No compiler: without g++ on the PATH, the compiled form of block attention goes untested."
	command -v chromium >/dev/null || $(call debian,chromium) \
	  || echo "No browser: without chromium on the PATH, the tests of the report will fail."
	touch $@

clean:
	rm -rf $(VENV) demo site
