# The commands for contributors. `make help` lists them.

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
up: $(BIN)/.ready ## Start the platform in the background (API_PORT=8080, NATS_PORT=4222)
	@$(LOCALCLUSTER) up $(if $(API_PORT),--api-port=$(API_PORT)) $(if $(NATS_PORT),--nats-port=$(NATS_PORT))

.PHONY: down
down: $(BIN)/.ready ## Stop every process and keep the data
	@$(LOCALCLUSTER) down

.PHONY: wipe
wipe: $(BIN)/.ready ## Stop every process and delete the data
	@$(LOCALCLUSTER) wipe

.PHONY: status
status: $(BIN)/.ready ## Show the processes, nodes and pods of the platform
	@$(LOCALCLUSTER) status

.PHONY: logs
logs: $(BIN)/.ready ## Show the logs (NAME=kubelet for one process, FOLLOW=1 to follow)
	@$(LOCALCLUSTER) logs $(NAME) $(if $(FOLLOW),--follow)

.PHONY: run
run: $(BIN)/.ready ## Run a controller manager on this machine, as an additional replica of the platform
	@KUBECONFIG=.local/kubeconfig $(BIN)/gpu-runtime controller-manager --config config/local/controller-manager.yaml

.PHONY: run-api
run-api: $(BIN)/.ready ## Run a runtime API on this machine (127.0.0.1:8090), as an additional replica of the platform
	@KUBECONFIG=.local/kubeconfig $(BIN)/gpu-runtime runtime-api --config config/local/runtime-api.yaml

.PHONY: run-activator
run-activator: $(BIN)/.ready ## Run an activator on this machine, as an additional replica of the platform
	@KUBECONFIG=.local/kubeconfig $(BIN)/gpu-runtime activator --config config/local/activator.yaml

##@ Tests and checks

.PHONY: test
test: $(BIN)/.ready ## Run all tests; the tests start the servers that they need (ARGS="-k name" selects tests)
	@$(BIN)/pytest --numprocesses=2 --no-loadscope-reorder $(ARGS)

.PHONY: test-repeat
test-repeat: TIMES ?= 3
test-repeat: LOAD ?= 0
test-repeat: $(BIN)/.ready ## Run all tests TIMES times in random order, with LOAD processes that use the CPU
	@for process in $$(seq $(LOAD)); do $(BIN)/python -c 'while True: pass' & pids="$$pids $$!"; done; \
	  trap 'test -z "$$pids" || kill $$pids' EXIT; \
	  for run in $$(seq $(TIMES)); do echo "==== run $$run of $(TIMES)"; $(MAKE) --no-print-directory test || exit 1; done

.PHONY: test-unit
test-unit: $(BIN)/.ready ## Run the unit tests, which need only Python
	@$(BIN)/pytest tests/unit $(ARGS)

.PHONY: interleavings
interleavings: SEEDS ?= 10000
interleavings: $(BIN)/.ready ## Run the interleaving tests of invocations and of operations, each with SEEDS seeds
	@INTERLEAVING_SEEDS=$(SEEDS) $(BIN)/pytest --numprocesses=2 --quiet --timeout=3600 $(ARGS) \
	  tests/unit/serverless/test_invocation_interleavings.py tests/unit/runtime_api/test_handoff_interleavings.py

.PHONY: fuzz
fuzz: CASES ?= 10000
fuzz: SEED := $(or $(SEED),$(shell echo $$RANDOM))
fuzz: $(BIN)/.ready ## Run every fuzz test with CASES cases and SEED (ARGS="-k name" selects tests)
	@echo "Repeat the same cases with: make fuzz SEED=$(SEED) CASES=$(CASES)"
	@FUZZ_CASES=$(CASES) FUZZ_SEED=$(SEED) $(BIN)/pytest tests/fuzz --timeout=7200 -s $(ARGS)

.PHONY: request-costs
request-costs: BODIES ?= 2000
request-costs: $(BIN)/.ready ## Search BODIES hostile request bodies per route with SEED for one that blocks the event loop
	@REQUEST_COST_BODIES=$(BODIES) REQUEST_COST_SEED=$(SEED) $(BIN)/pytest tests/attacks/http/test_request_cost.py \
	  --timeout=7200 --quiet -s $(ARGS)

.PHONY: connection-flood
connection-flood: $(BIN)/.ready ## Measure an authenticated caller beside 2,000 half-open connections and 200 requests per second
	@FLOOD_CONNECTIONS=2000 FLOOD_REQUESTS_PER_SECOND=200 FLOOD_SECONDS=30 $(BIN)/pytest --quiet -s $(ARGS) \
	  tests/attacks/http/test_connection_flood.py

.PHONY: chaos
chaos: MINUTES ?= 5
chaos: $(BIN)/.ready ## Inject faults under load for MINUTES with SEED and check all invariants (ROUND=3 for one round)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND))

.PHONY: check
check: $(BIN)/.ready ## Check format, lint, types, import contracts and generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m gpu_runtime.manifests --check config
	$(BIN)/python -m gpu_runtime.manifests.write_openapi --check docs/api/openapi.json
	$(BIN)/python -m docgen --check docs/reference
	$(BIN)/python -m checks
	@$(MAKE) --no-print-directory check-locks

.PHONY: check-locks
check-locks: $(BIN)/.ready
	@mkdir -p .local && rm -rf .local/locks && cp -r locks .local/locks
	@$(MAKE) --no-print-directory lock LOCKS=.local/locks >/dev/null
	@diff -r locks .local/locks >/dev/null || { echo "locks/ does not match pyproject.toml: run 'make lock'." >&2; exit 1; }

.PHONY: ci
ci: check test ## Run the checks and all tests

##@ Benchmarks

# All benchmarks run, also if one of them misses a target. The command fails at the end if any target was missed.
.PHONY: bench
bench: ROUNDS ?= 5
bench: $(BIN)/.ready ## Run all benchmarks and draw the charts (20 minutes); BASE=<revision> compares HEAD with it
ifdef BASE
	@$(BIN)/python -m bench.compare $(BASE) --rounds=$(ROUNDS) $(ARGS)
else
	@$(MAKE) --no-print-directory --keep-going --jobs=1 \
	  bench-controller bench-handoff bench-stock-size bench-invoke bench-results bench-plots
endif

.PHONY: bench-controller
bench-controller: $(BIN)/.ready ## Measure the controller manager with up to 5,000 units (8 minutes)
	@$(BIN)/python -m bench.controller $(ARGS)

.PHONY: bench-handoff
bench-handoff: $(BIN)/.ready ## Measure the creation of units from stock with up to 64 callers (6 minutes)
	@$(BIN)/python -m bench.handoff $(ARGS)

.PHONY: bench-stock-size
bench-stock-size: $(BIN)/.ready ## Measure the creation of units with 200 and with 2,000 stock units (6 minutes)
	@$(BIN)/python -m bench.stock_size $(ARGS)

.PHONY: bench-shares
bench-shares: $(BIN)/.ready ## Measure a function, a caller and connections while others flood the API (8 minutes)
	@status=0; for each in function_share caller_share connection_flood; do \
	  $(BIN)/python -m bench.$$each $(ARGS) || status=1; done; exit $$status

.PHONY: bench-stock
bench-stock: $(BIN)/.ready ## Measure the time until a unit or a function answers, with and without stock (25 minutes)
	@$(BIN)/python -m bench.stock $(ARGS)

.PHONY: bench-invoke
bench-invoke: $(BIN)/.ready ## Measure warm and cold invocations of up to 100 functions (2 minutes)
	@$(BIN)/python -m bench.invoke $(ARGS)

.PHONY: bench-results
bench-results: $(BIN)/.ready ## Measure the throughput of the result store (30 seconds)
	@$(BIN)/python -m bench.results $(ARGS)

.PHONY: bench-plots
bench-plots: $(BIN)/.ready ## Draw the charts of the latest benchmarks into docs/performance
	@$(BIN)/python -m bench.plots docs/performance

##@ Generated files and dependencies

.PHONY: manifests generate
manifests: $(BIN)/.ready ## Write the generated files in config/: CRDs, RBAC, samples, settings
	$(BIN)/python -m gpu_runtime.manifests config
generate: manifests ## Same as `make manifests`

.PHONY: swagger
swagger: $(BIN)/.ready ## Write the OpenAPI document docs/api/openapi.json
	$(BIN)/python -m gpu_runtime.manifests.write_openapi docs/api/openapi.json

.PHONY: reference
reference: $(BIN)/.ready ## Write the reference pages, docs/reference
	$(BIN)/python -m docgen docs/reference

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

# A virtual environment with exactly the packages of locks/dev.txt, including uv.
$(BIN)/.ready: pyproject.toml locks/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "GPU Runtime needs Python 3.11 or later: run, for example, 'make PYTHON=python3.12 $(MAKECMDGOALS)'." >&2; exit 1; }
	@test -x $(BIN)/uv || $(MAKE) --no-print-directory bootstrap
	@VIRTUAL_ENV=.venv $(BIN)/uv pip sync --quiet --require-hashes locks/dev.txt
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: bootstrap
bootstrap:
	@echo "Installing the Python packages into .venv"
	@$(PYTHON) -m venv .venv >/dev/null || \
	  { rm -rf .venv; echo "Python's venv module is missing: on Debian, 'apt-get install python3-venv'." >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes --disable-pip-version-check \
	  --requirement <(awk '/^[a-z]/ {selected = /^uv==/} selected' locks/dev.txt)
