# Everything a contributor runs. `make help` lists it.

.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
LOCALCLUSTER := $(BIN)/python -m localcluster
COMPILE := --universal --generate-hashes --no-header --no-annotate

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ The platform on this machine

.PHONY: up
up: $(BIN)/.ready ## Bring everything up in the background (API_PORT=8080, NATS_PORT=4222)
	@$(LOCALCLUSTER) up $(if $(API_PORT),--api-port=$(API_PORT)) $(if $(NATS_PORT),--nats-port=$(NATS_PORT))

.PHONY: down
down: $(BIN)/.ready ## End every process; the data stays
	@$(LOCALCLUSTER) down

.PHONY: wipe
wipe: $(BIN)/.ready ## End every process and delete the data
	@$(LOCALCLUSTER) wipe

.PHONY: status
status: $(BIN)/.ready ## Tell what runs
	@$(LOCALCLUSTER) status

.PHONY: logs
logs: $(BIN)/.ready ## Show what the processes said (NAME=kubelet for one of them, FOLLOW=1 to go on)
	@$(LOCALCLUSTER) logs $(NAME) $(if $(FOLLOW),--follow)

.PHONY: run
run: $(BIN)/.ready ## Run a controller manager here, as one more candidate beside those in the platform
	@KUBECONFIG=.local/kubeconfig $(BIN)/gpu-runtime controller-manager --config config/local/controller-manager.yaml

.PHONY: run-api
run-api: $(BIN)/.ready ## Run a runtime API here, at 127.0.0.1:8090, as one more replica beside those in the platform
	@KUBECONFIG=.local/kubeconfig $(BIN)/gpu-runtime runtime-api --config config/local/runtime-api.yaml

.PHONY: run-activator
run-activator: $(BIN)/.ready ## Run an activator here, as one more replica beside those in the platform
	@KUBECONFIG=.local/kubeconfig $(BIN)/gpu-runtime activator --config config/local/activator.yaml

##@ Tests and checks

.PHONY: test
test: $(BIN)/.ready ## Run all tests, starting what they need (ARGS="-k name" for some of them)
	@$(BIN)/pytest --numprocesses=2 --no-loadscope-reorder $(ARGS)

.PHONY: test-unit
test-unit: $(BIN)/.ready ## Run the tests that need nothing but Python
	@$(BIN)/pytest tests/unit $(ARGS)

.PHONY: fuzz
fuzz: CASES ?= 10000
fuzz: SEED := $(or $(SEED),$(shell echo $$RANDOM))
fuzz: $(BIN)/.ready ## Fuzz every surface with CASES cases each, from SEED (ARGS="-k name" for some of them)
	@echo "To see the same cases again: make fuzz SEED=$(SEED) CASES=$(CASES)"
	@FUZZ_CASES=$(CASES) FUZZ_SEED=$(SEED) $(BIN)/pytest tests/fuzz --timeout=7200 -s $(ARGS)

.PHONY: chaos
chaos: MINUTES ?= 5
chaos: $(BIN)/.ready ## Kill, pause, cut off and fill what runs under load, for MINUTES, as SEED says (ROUND=3 for one round)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND))

.PHONY: check
check: $(BIN)/.ready ## Format, lint, types, import contracts, generated files fresh
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m gpu_runtime.manifests --check config
	$(BIN)/python -m gpu_runtime.manifests.write_openapi --check docs/api/openapi.json
	@$(MAKE) --no-print-directory check-locks

.PHONY: check-locks
check-locks: $(BIN)/.ready
	@mkdir -p .local && rm -rf .local/locks && cp -r locks .local/locks
	@$(MAKE) --no-print-directory lock LOCKS=.local/locks >/dev/null
	@diff -r locks .local/locks >/dev/null || { echo "locks/ does not fit pyproject.toml: run 'make lock'." >&2; exit 1; }

.PHONY: ci
ci: check test ## The checks and all tests

##@ Benchmarks

# Every subject is measured, whatever another one misses; the command fails at the end if any of them did.
.PHONY: bench
bench: $(BIN)/.ready ## Measure everything, one subject after another, and plot it (a quarter of an hour)
	@$(MAKE) --no-print-directory --keep-going --jobs=1 \
	  bench-controller bench-handoff bench-invoke bench-results bench-plots

.PHONY: bench-controller
bench-controller: $(BIN)/.ready ## What the controller manager costs, up to 5,000 units (eight minutes)
	@$(BIN)/python -m bench.controller $(ARGS)

.PHONY: bench-handoff
bench-handoff: $(BIN)/.ready ## What a create costs from stock to unit, with up to 64 callers (three minutes)
	@$(BIN)/python -m bench.handoff $(ARGS)

.PHONY: bench-invoke
bench-invoke: $(BIN)/.ready ## What an invocation costs, warm and cold, of up to 100 functions (two minutes)
	@$(BIN)/python -m bench.invoke $(ARGS)

.PHONY: bench-results
bench-results: $(BIN)/.ready ## How many results per second are stored (half a minute)
	@$(BIN)/python -m bench.results $(ARGS)

.PHONY: bench-plots
bench-plots: $(BIN)/.ready ## Draw what the last runs found, into docs/performance
	@$(BIN)/python -m bench.plots docs/performance

##@ Making

.PHONY: manifests generate
manifests: $(BIN)/.ready ## Write the generated files under config/: CRDs, RBAC, samples, settings
	$(BIN)/python -m gpu_runtime.manifests config
generate: manifests ## The same

.PHONY: swagger
swagger: $(BIN)/.ready ## Write the API's document, docs/api/openapi.json
	$(BIN)/python -m gpu_runtime.manifests.write_openapi docs/api/openapi.json

.PHONY: format
format: $(BIN)/.ready ## Format the code and sort the imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: lock
lock: LOCKS ?= locks
lock: ## Resolve the dependencies into locks/ (UPGRADE=--upgrade for newer versions)
	$(BIN)/uv pip compile --quiet $(UPGRADE) $(COMPILE) pyproject.toml --output-file $(LOCKS)/runtime.txt
	$(BIN)/uv pip compile --quiet $(UPGRADE) $(COMPILE) pyproject.toml --group dev --constraint $(LOCKS)/runtime.txt \
	  --output-file $(LOCKS)/dev.txt

# A virtual environment with exactly what locks/dev.txt says, uv itself included.
$(BIN)/.ready: pyproject.toml locks/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "GPU Runtime needs Python 3.11 or later: name one, as in 'make PYTHON=python3.12 $(MAKECMDGOALS)'." >&2; exit 1; }
	@test -x $(BIN)/uv || $(MAKE) --no-print-directory bootstrap
	@VIRTUAL_ENV=.venv $(BIN)/uv pip sync --quiet --require-hashes locks/dev.txt
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: bootstrap
bootstrap:
	@echo "Setting up Python's packages in .venv"
	@$(PYTHON) -m venv .venv >/dev/null || \
	  { rm -rf .venv; echo "Python's venv module is missing: on Debian, 'apt-get install python3-venv'." >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes --disable-pip-version-check \
	  --requirement <(awk '/^[a-z]/ {wanted = /^uv==/} wanted' locks/dev.txt)
