# The two commands that do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.PHONY: demo test test-all browser lint types docs check bench-oracle bench-cases bench-minify bench-diagnosis \
	bench-diagnose bench-power bench-cuda test-cuda clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $(STAMP)

$(DEV): $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(DEV)

demo: $(STAMP)  ## diagnose a real bug of inductor, and check a model that is right
	$(BIN)/python examples/demo.py

test: $(DEV) browser  ## the tests, without the slow ones
	$(BIN)/python -m pytest -n 2

test-all: $(DEV) browser  ## every test
	$(BIN)/python -m pytest -n 2 -m ''

test-cuda: $(DEV)  ## what needs a GPU
	$(BIN)/python -m pytest -m cuda

browser:  # The page is tested in a real one; where it cannot be installed, these tests say so and are skipped.
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no chromium here: the tests of the page will be skipped"

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

docs: $(DEV)  ## the site, in site/; fails on a broken link
	$(BIN)/mkdocs build --strict --quiet

check: lint types docs test

bench-oracle: $(DEV)  ## ours, stock and assert_close, in one run
	$(BIN)/python -m benchmarks.oracle

bench-power: $(DEV)  ## what can be seen in half precision at all, and what is seen
	$(BIN)/python -m benchmarks.power

bench-cuda: $(DEV)  ## what a check costs on a GPU, and what it says of kernels that take the device along
	$(BIN)/python -m benchmarks.cuda

bench-cases: $(DEV)  ## what cases cost, as ratios
	$(BIN)/python -m benchmarks.cases

bench-minify: $(DEV)  ## ours and the stock minifier on the same failures, in one run
	$(BIN)/python -m benchmarks.minify

bench-diagnosis: $(DEV)  ## locate and blame on planted faults and real bugs
	$(BIN)/python -m benchmarks.diagnosis

bench-diagnose: $(DEV)  ## the five lines on real bugs, and the stock tool's time
	$(BIN)/python -m benchmarks.diagnose

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache
