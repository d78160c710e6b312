# Everything a contributor types. The logic lives in .ci/*.py, so that it can be read and tested.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Interpreter for the virtual environment: make setup PYTHON=python3.12
PYTHON ?= python3
# TORCH=0 leaves PyTorch out (lint and wheel jobs); the tests that need it are then skipped.
TORCH ?= 1
# More options for the demo or for pytest: make demo ARGS="--fault none", make test ARGS="-k store"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test bpf registry lint types contracts wheel bench-demo bench-overhead clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install everything into .venv (quick when nothing changed)
	@TORCH=$(TORCH) $(PYTHON) .ci/setup.py

demo: setup ## Train, put a real fault on one rank, and diagnose it
	@$(BIN)/rootwalk demo $(ARGS)

test: setup lint contracts ## Format and imports, then unit, integration and end-to-end tests
	$(BIN)/pytest tests/unit tests/integration tests/e2e --durations=15 \
	  --junitxml=.setup/junit-test.xml $(ARGS)

bpf: setup ## Compile the kernel programs again when their sources changed
	$(BIN)/python .ci/build_bpf.py

registry: setup ## Generate the names on the wire and the README's signal table
	$(BIN)/python .ci/generate_semconv.py

lint: setup ## Format, lint, spelling, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python .ci/generate_semconv.py --check

contracts: setup ## Direction of imports between the folders
	$(BIN)/lint-imports

types: setup ## mypy --strict over the packages, the tests and .ci
	$(BIN)/mypy
	$(BIN)/mypy .ci/*.py

wheel: setup ## Build dist/*.whl with the kernel programs inside
	$(BIN)/python -m build --wheel --outdir dist .

bench-demo: setup ## Ten demo runs of each kind against the job's own clock (13 minutes, quiet machine)
	$(BIN)/python tests/benchmarks/demo_runs.py --output tests/benchmarks/results/demo_runs.json $(ARGS)

bench-overhead: setup ## The same training with and without Rootwalk, in pairs (4 minutes, quiet machine)
	$(BIN)/python tests/benchmarks/overhead.py $(ARGS)

clean: ## Remove everything that setup and the tests made, .venv included
	rm -rf $(VENV) .setup dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f ebpf/programs/*.bpf.o
	find . -name __pycache__ -prune -exec rm -rf {} +
