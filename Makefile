# Each target sets up what it needs. Install only Python >= 3.10 and, for the dashboard, Node.js >= 20.19 with npm.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UI_SOURCES := $(shell find ui -mindepth 1 -name node_modules -prune -o -print)

.PHONY: setup demo test test-fast test-long test-lowest pytest checks lint types docs ui ui-check tools bench bench-compare bench-detectors bench-overhead bench-ranks release-check audit clean

setup: $(VENV)/.stamp-dev

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-run: pyproject.toml hatch_build.py $(UI_SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# --no-compile: only imported modules are compiled, later. npm runs first because the install writes to the same folder.
$(VENV)/.stamp-dev: pyproject.toml | $(BIN)/python ui/node_modules/.stamp-dev
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	@touch $@ $(VENV)/.stamp-run

$(VENV)/.stamp-bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@ $(VENV)/.stamp-run

ui/node_modules/.stamp-dev: ui/package.json ui/package-lock.json
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20.19 or newer (https://nodejs.org), then run make again." >&2; exit 1; }
	cd ui && npm ci --include=dev --ignore-scripts --no-audit --no-fund
	@touch $@

demo: $(VENV)/.stamp-run
	$(BIN)/tacho demo --ui --open || [ $$? -eq 130 ] # Ctrl-C

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

docs: setup
	$(BIN)/python docs/generate.py

ui: ui/node_modules/.stamp-dev setup
	$(BIN)/python hatch_build.py

ui-check: ui/node_modules/.stamp-dev
	cd ui && npm run check && npm run test

# Programs that tests use: Chromium for the dashboard, Prometheus for its sink, nginx and Caddy in front of the server,
# ClickHouse for the column store. Debian's ClickHouse is unpacked into .tools; without it, its tests are skipped.
tools:
	@sh tests/server/columns/fetch.sh || true
	@missing=; \
	command -v chromium chromium-browser google-chrome $$CHROMIUM >/dev/null || missing="chromium fonts-dejavu-core"; \
	{ command -v prometheus && command -v promtool; } >/dev/null || missing="$$missing prometheus"; \
	{ command -v nginx || [ -x /usr/sbin/nginx ]; } >/dev/null || missing="$$missing nginx-light"; \
	command -v caddy >/dev/null || missing="$$missing caddy"; \
	[ -z "$$missing" ] || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } || \
	{ echo "Programs are missing: install them (Debian: apt-get install $$missing), or set CHROMIUM to the path of Chromium." >&2; exit 1; }

# The checks run beside the tests, one after the other; `-O` prints the output of each in one piece.
test: ui tools
	@$(MAKE) -j 2 --no-print-directory pytest checks

checks:
	@$(MAKE) -O --no-print-directory types lint ui-check

# Four workers, because most tests wait. A test that fails now and then is a bug, so none is repeated.
# Compiled modules are kept whatever the environment says: a thousand child processes would compile everything again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadgroup --max-worker-restart 0
PRELOADED := --tx "4*popen//python=$(BIN)/python tests/worker.py"

pytest: setup
	$(PYTEST) $(PRELOADED)

# For each edit: neither a browser nor a framework, nor tests that take long.
test-fast: setup
	$(PYTEST) -n 4 --fast

# The same cases as `make test`, larger or more often.
test-long: setup
	$(PYTEST) $(PRELOADED) -m long

# Some tests with the lowest versions of all dependencies, with the oldest Python on this machine.
test-lowest: $(BIN)/python
	$(BIN)/python -m tests.lowest

audit: setup
	$(BIN)/python -m tests.audit

bench: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks

bench-compare: setup
	$(BIN)/python -m benchmarks.compare

bench-detectors: setup
	$(BIN)/python -m benchmarks.detectors

bench-overhead: setup
	$(BIN)/python -m benchmarks.recording.overhead

bench-ranks: setup
	$(BIN)/python -m benchmarks.ranks

# Builds sdist and wheel, installs the wheel into an empty virtual environment without npm, and runs it there.
release-check: ui
	$(BIN)/python -m tests.release

clean:
	rm -rf $(VENV) dist build ui/node_modules src/tachograph/server/static
