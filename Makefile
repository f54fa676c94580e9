# The two commands that do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint types check bench-oracle bench-cases bench-minify bench-diagnosis clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## check a built-in example, right and wrong
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## the tests, without the slow ones
	$(BIN)/python -m pytest -n 2

test-all: $(STAMP)  ## every test
	$(BIN)/python -m pytest -n 2 -m ''

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

bench-oracle: $(STAMP)  ## ours, stock and assert_close, in one run
	$(BIN)/python -m benchmarks.oracle

bench-cases: $(STAMP)  ## what cases cost, as ratios
	$(BIN)/python -m benchmarks.cases

bench-minify: $(STAMP)  ## ours and the stock minifier on the same failures, in one run
	$(BIN)/python -m benchmarks.minify

bench-diagnosis: $(STAMP)  ## locate and blame on planted faults and real bugs
	$(BIN)/python -m benchmarks.diagnosis

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
