# Two commands: `make demo` sets up and runs the main job, `make test` sets up and runs every check.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

debian = { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends $(1); }

.PHONY: demo test format clean

demo: $(VENV)/demo-ready
	HF_HUB_OFFLINE=1 $(BIN)/eigenlens demo --overwrite

test: $(VENV)/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/oxlint src/eigenlens/reports/page
	$(BIN)/python -m pytest -n 2 --dist loadfile

format: $(VENV)/test-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/demo-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/test-ready: $(VENV)/demo-ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	command -v g++ >/dev/null || $(call debian,g++) \
	  || echo "no compiler could be installed: the compiled form of block attention goes untested"
	command -v chromium >/dev/null || $(call debian,chromium) \
	  || echo "no browser could be installed: the tests of the report need chromium and will fail"
	touch $@

clean:
	rm -rf $(VENV) demo site
