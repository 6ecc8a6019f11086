# `make demo` and `make test` set up everything they need. PYTHON names another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NAME ?= all
FOLDER ?=

.PHONY: demo test check bench soak proto setup clean

demo: setup
	$(BIN)/hivemem demo $(FOLDER)

test: setup
	$(BIN)/pytest -m "not soak"

# The full counts of the chaos and kill loops.
soak: setup
	$(BIN)/pytest -m soak -s --timeout 3600

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	cd protos && ../$(BIN)/buf lint
	$(BIN)/uv run --quiet --python $(BIN)/python protos/generate.py --check
	@if git cat-file -e origin/main:protos/buf.yaml 2>/dev/null; then \
		$(BIN)/buf breaking protos --against '.git#ref=origin/main,subdir=protos'; \
	else echo "buf breaking: no protos on origin/main to compare with"; fi

proto: setup
	$(BIN)/uv run --quiet --python $(BIN)/python protos/generate.py

bench: setup
	$(BIN)/python -m tests.bench $(NAME)

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hivemem needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[server]' --group dev
	$(BIN)/python -m compileall -q client server
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
