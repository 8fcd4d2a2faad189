# Everything a contributor runs. `make help` lists it.

.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
COMPILE := --universal --generate-hashes --no-header --no-annotate

##@ Checks

.PHONY: check
check: $(BIN)/.ready ## Format, lint, types, import contracts, lock files and manifests fresh
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m gpu_runtime.manifests --check config

.PHONY: manifests generate
manifests: $(BIN)/.ready ## Write the generated files under config/
	$(BIN)/python -m gpu_runtime.manifests config
generate: manifests ## The same

.PHONY: lock
lock: ## Resolve dependencies anew into locks/ (UPGRADE=--upgrade for newer versions)
	$(BIN)/uv pip compile --quiet $(UPGRADE) $(COMPILE) pyproject.toml --output-file locks/runtime.txt
	$(BIN)/uv pip compile --quiet $(UPGRADE) $(COMPILE) pyproject.toml --group dev --constraint locks/runtime.txt --output-file locks/dev.txt

##@ Set-up (done by every target that needs it)

$(BIN)/.ready: pyproject.toml locks/dev.txt
	@test -x $(BIN)/uv || { $(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --require-hashes --no-deps -r <(awk '/^uv==/{p=1;print;next} p&&/^ /{print;next} {p=0}' locks/dev.txt); }
	@VIRTUAL_ENV=.venv $(BIN)/uv pip sync --quiet --require-hashes locks/dev.txt
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
