# A handful of verbs. Each sets up what it needs; nothing else has to be installed first but Python >= 3.10.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint types docs bench clean

setup: $(VENV)/.stamp-dev

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.stamp-run

$(VENV)/.stamp-bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@ $(VENV)/.stamp-run

demo: $(VENV)/.stamp-run
	$(BIN)/tacho demo
	$(BIN)/tacho ls

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

docs: setup
	$(BIN)/python docs/generate.py

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadgroup

bench: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dist build
