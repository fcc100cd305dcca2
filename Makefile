# Everything here works from a fresh clone with Python 3.11 or newer, make and git. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ENVIRONMENT := .venv/.complete
# An integrator has the light base of our dependencies only, beside a framework.
EXAMPLES := .venv-examples/.complete
CPP := libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc cmake g++ make pkg-config
# The contract must not break what was released, and what was committed: in the last commit or, if nothing has changed
# since, the one before.
RELEASE := $(shell cut -d ' ' -f 2 tests/upgrade/last-release)
CONTRACT_BASES ?= $(sort $(shell git rev-parse --quiet --verify "$(RELEASE)^{commit}" || true; \
  git rev-list --first-parent --max-count=2 HEAD 2>/dev/null))

.DEFAULT_GOAL := help
.PHONY: help demo test simulate chaos fuzz examples test-examples test-containers lint format reproduction bench protos dashboard constraints hashes images sbom audit clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

$(ENVIRONMENT): pyproject.toml constraints.txt
	@[[ -n "$(PYTHON)" ]] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with \`make PYTHON=/path/to/python3.11 …\`" >&2; exit 1; }
	@echo "==> installing into .venv (a few minutes and 2 GB the first time)"
	@version='import sys; print(sys.version)'; \
	  [[ "$$($(BIN)/python -c "$$version" 2>/dev/null)" == "$$($(PYTHON) -c "$$version")" ]] || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(ENVIRONMENT) ## set up, then train with stragglers, with and without dynamic backup workers, and compare
	@echo "==> training with 8 workers, two of them slow (about a minute and a half)"
	@$(BIN)/dbw demo

test: $(ENVIRONMENT) ## set up, then run all tests
	@echo "==> compiling the kernels, once for all tests" && $(BIN)/python -m tests.kernels
	@echo "==> running the tests"
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

SEEDS ?= 1000
simulate: $(ENVIRONMENT) ## simulate SEEDS worlds with faults (a number, FIRST:LAST, or =SEED to replay one)
	@$(BIN)/python -m tests.simulation $(SEEDS)

MINUTES ?= 10
chaos: $(ENVIRONMENT) ## train with real programs through kills, freezes, faults of networks and disks for MINUTES (SEED, FAULTS)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

fuzz: $(ENVIRONMENT) ## give decoders and rpcs what a broken or hostile peer might send for MINUTES (SEED)
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

$(EXAMPLES): pyproject.toml constraints.txt $(wildcard examples/*/requirements.txt)
	@echo "==> installing Ray and TensorFlow into .venv-examples (a minute and 2 GB)"
	@$(PYTHON) -m venv .venv-examples
	@.venv-examples/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable . $(addprefix --requirement ,$(wildcard examples/*/requirements.txt))
	@touch $@

examples: $(EXAMPLES) ## install the frameworks of the examples
	@pkg-config --exists grpc++ 2>/dev/null && type cmake c++ protoc grpc_cpp_plugin >/dev/null 2>&1 || \
	  { echo "==> installing gRPC for C++"; [[ $$EUID == 0 ]] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(CPP) >/dev/null; } || \
	  echo "    SKIPPED: the example in C++ needs what Debian calls $(CPP)" >&2

test-examples: $(ENVIRONMENT) examples ## install the frameworks of the examples, and run each against a controller
	@echo "==> testing the examples"
	@$(BIN)/python -m pytest tests/examples

test-containers: $(ENVIRONMENT) ## build the images, and test them and docker-compose.yml on a Docker engine
	@if docker info >/dev/null 2>&1; then echo "==> building and testing the images (ten minutes the first time)"; \
	  DBW_TEST_CONTAINERS=1 $(BIN)/python -m pytest tests/containers; \
	else echo "==> SKIPPED: no Docker engine answers here, so IMAGES AND COMPOSE ARE NOT TESTED" >&2; fi

lint: $(ENVIRONMENT) ## check style, types, the contract and its stubs
	@echo "==> ruff" && $(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@echo "==> mypy --strict" && $(BIN)/mypy
	@echo "==> import-linter" && $(BIN)/lint-imports --no-cache --no-logo
	@echo "==> hadolint" && $(BIN)/hadolint docker/Dockerfile
	@echo "==> buf lint, buf format" && $(BIN)/buf lint protos && $(BIN)/buf format --diff --exit-code protos
	@echo "==> buf breaking"
	@[[ -n "$(filter-out $(shell git rev-parse HEAD 2>/dev/null),$(CONTRACT_BASES))" ]] || \
	  echo "    SKIPPED: no earlier commit here to compare with"
	@git cat-file -e "$(RELEASE)^{commit}" 2>/dev/null || \
	  echo "    SKIPPED: the last release, $(RELEASE), is not in this clone: NOT COMPARED WITH IT" >&2
	@for base in $(CONTRACT_BASES); do git rev-parse --quiet --verify "$$base^{commit}" >/dev/null || \
	    { echo "there is no commit $$base to compare the contract with" >&2; exit 1; }; \
	  if git cat-file -e "$$base:protos/buf.yaml" 2>/dev/null; \
	  then $(BIN)/buf breaking protos --against ".git#ref=$$base,subdir=protos"; \
	  else echo "    SKIPPED: no contract in commit $$base"; fi; done
	@echo "==> stubs" && $(BIN)/python protos/generate.py --check
	@echo "==> dashboard" && $(BIN)/python docker/grafana/dashboard.py --check

format: $(ENVIRONMENT) ## rewrite the code in the style that lint asks for
	@echo "==> formatting" && $(BIN)/ruff check --quiet --fix-only . && $(BIN)/ruff format --quiet . && $(BIN)/buf format --write protos

reproduction: $(ENVIRONMENT) ## compute what is missing of docs/reproduction (hours without it), and write its pages
	@$(BIN)/dbw data get mnist cifar10
	@$(BIN)/dbw experiment all --output docs/reproduction
	@$(BIN)/dbw experiment page docs/reproduction.md --output docs/reproduction
	@$(BIN)/dbw experiment page docs/policies.md --output docs/reproduction

bench: $(ENVIRONMENT) ## run all benchmarks and show one table
	@echo "==> running all benchmarks" && $(BIN)/python -m benchmarks

protos: $(ENVIRONMENT) ## generate the stubs from the .proto files
	@echo "==> generating stubs" && $(BIN)/python protos/generate.py

dashboard: $(ENVIRONMENT) ## generate Grafana's dashboard from its panels
	@echo "==> generating the dashboard" && $(BIN)/python docker/grafana/dashboard.py
	@cp docker/grafana/dashboards/dbw.json helm/dbw/files/

constraints: ## pin the newest versions that work together, with hashes; torch stays as it is
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	  $(PYTHON) -m venv "$$scratch/venv"; \
	  grep '^torch' constraints.txt > "$$scratch/held"; \
	  "$$scratch/venv/bin/python" -m pip install --quiet --constraint "$$scratch/held" '.[dev]'; \
	  { grep '^#' constraints.txt; "$$scratch/venv/bin/python" -m pip freeze --exclude dbw | sed 's/+.*//'; } > "$$scratch/new"; \
	  cp "$$scratch/new" constraints.txt
	@$(MAKE) --no-print-directory hashes

hashes: ## write docker/hashes.txt: the versions and hashes of all that images are made of
	@echo "==> asking the package index for hashes"
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	  $(PYTHON) -m venv "$$scratch" && "$$scratch/bin/python" -m pip install --quiet uv && "$$scratch/bin/python" docker/hashes.py

PYTHON_IMAGE ?= python:3.11-slim
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BUILD_ARGUMENTS := PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST
images: ## build the images of a release, on a base that is named by its digest (PYTHON_IMAGE=python@sha256:…, or looked up)
	@base='$(PYTHON_IMAGE)'; \
	  [[ "$$base" == *@sha256:* ]] || { docker pull --quiet "$$base" >/dev/null || true; \
	    base=$$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$$base" 2>/dev/null | head -n 1 || true); }; \
	  [[ -n "$$base" ]] || { echo "no digest of $(PYTHON_IMAGE) can be had here, which comes with it from a registry:" \
	    "name one with \`make images PYTHON_IMAGE=python@sha256:…\`" >&2; exit 1; }; \
	  for name in controller ps worker; do echo "==> building dbw-$$name:$(VERSION) on $$base"; \
	    docker build --file docker/Dockerfile --target $$name --tag dbw-$$name:$(VERSION) --build-arg PYTHON_IMAGE="$$base" \
	      $(foreach name,$(BUILD_ARGUMENTS),$(if $($(name)),--build-arg $(name))) .; done

sbom: ## write what each image consists of, as CycloneDX, into build/sbom
	@mkdir -p build/sbom; for name in controller ps worker; do \
	  docker run --rm --network none --entrypoint cat dbw-$$name:$(VERSION) /opt/dbw/sbom.cdx.json > build/sbom/dbw-$$name.cdx.json; \
	  echo "==> build/sbom/dbw-$$name.cdx.json"; done

# A database that cannot be reached, or a mirror without it, may answer that nothing is known: so ask for what is known.
audit: ## look for known vulnerabilities in what we depend on (pip-audit, which asks the package index)
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	  $(PYTHON) -m venv "$$scratch" && "$$scratch/bin/python" -m pip install --quiet pip-audit; \
	  audit() { "$$scratch/bin/pip-audit" --progress-spinner off --disable-pip --requirement "$$@"; }; \
	  echo 'pyyaml==5.3' > "$$scratch/vulnerable"; \
	  audit "$$scratch/vulnerable" --no-deps --format json >"$$scratch/known" 2>"$$scratch/error" || true; \
	  if grep -q '"id":' "$$scratch/known"; then \
	    echo "==> looking for known vulnerabilities" && audit docker/hashes.txt --require-hashes --strict && audit constraints.txt --no-deps --strict; \
	  else echo "==> SKIPPED, so KNOWN VULNERABILITIES ARE NOT LOOKED FOR: asked about PyYAML 5.3, which has some, the package" \
	    "index gave none: $$(cat "$$scratch/known") $$(tail -n 1 "$$scratch/error")" >&2; fi

clean: ## remove the environment and all caches
	@rm -rf .venv .venv-examples .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/integration/node/node_modules examples/node/{node_modules,build} examples/cpp/build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
