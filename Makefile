# Everything a contributor does, by name. `make` alone lists it.
# Nothing but python3 (3.11 or newer) and make is needed; all that is installed goes into .venv and .venv-proto.

PYTHON ?= python3
# Installed before all else, so that it can be replaced: make TORCH=torch==2.12.0 test
TORCH ?= torch==2.13.0
# Without its dependencies, which could bring another torch. Beside a torch without CUDA its models work, its operators do not.
TORCHVISION ?= torchvision==0.28.0
# For each fuzzer of `make fuzz`.
SECONDS ?= 10
# Added to the command of `make run`: make run ARGS="--set loader.batch_size=128"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.installed
PROTO_VENV := .venv-proto
PROTO_STAMP := $(PROTO_VENV)/.installed
PROTOC = $(PROTO_VENV)/bin/python -m grpc_tools.protoc -I . superdl/super_wire/coordinator.proto
RAY_STAMP := $(VENV)/.ray
SAM_VENV := .venv-sam
SAM_STAMP := $(SAM_VENV)/.installed
SBOM_VENV := .venv-sbom
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
UV_VENV := .venv-uv

# A process for each core, and the tests of a file in one of them, since they share servers. In their order: else files of
# few tests come last, and one of those takes minutes.
TESTS := $(BIN)/python -m pytest -p tests.fixtures.frozen_heap
PYTEST := $(TESTS) --numprocesses auto --dist loadfile --no-loadscope-reorder
# The tests that are not slow wait half of the time for processes that they started, so three processes keep two cores
# busy. Each begins with files of its own, and takes over what another one has left in the end.
PROCESSES = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) * 3 // 2)')
QUICK = $(TESTS) --numprocesses $(PROCESSES) --dist worksteal -m "not slow and not soak"

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without byte code each of the hundreds of processes that the tests start would compile SUPER again: half a second of CPU.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help .venv .venv-bench run test test-full test-loaders soak fuzz lint types rules unit studies format proto check-proto check-infra wheel \
	check-containers docs lambda-zip sbom lock clean

help: ## list the targets
	@sed -n 's/^\([a-z.-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "SUPER needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)."; \
		echo "Name another one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { \
		echo "'$(PYTHON)' cannot make virtual environments (on Debian: install python3-venv)."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Installed again when pyproject.toml changes. The stamp comes last, so a broken installation is tried again.
$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --no-deps '$(TORCHVISION)'
	$(BIN)/python -m pip install --quiet --editable '.[dev,train]'
	@touch $@

# 250 MB that only the slow tests need. Installed anew after the rest, whose installation could change what it needs.
$(RAY_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	@touch $@

.venv: $(STAMP) ## make the virtual environment and install SUPER into it

# Torch first and held fast: a loader that wants another one fails here rather than measures with it.
$(BENCH_STAMP): pyproject.toml | $(BIN)/python
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet '$(TORCH)'
	$(BENCH_VENV)/bin/python -m pip install --quiet --no-deps '$(TORCHVISION)'
	echo '$(TORCH)' > $(BENCH_VENV)/constraints.txt
	$(BENCH_VENV)/bin/python -m pip install --quiet --constraint $(BENCH_VENV)/constraints.txt --editable '.[bench,train]' \
		'pytest>=9,<10' 'pytest-timeout>=2.4,<3'
	@touch $@

.venv-bench: $(BENCH_STAMP) ## an environment with the loaders that `superdl bench` compares

run: $(STAMP) ## train on the digits with everything embedded (ARGS are added to the command)
	$(BIN)/superdl run experiments/specs/digits.yaml $(ARGS)

test: lint types check-proto unit ## all checks and tests but the slow ones

test-full: $(RAY_STAMP) $(DOCS_STAMP) lint types check-proto check-infra test-loaders ## all checks and tests, the slow ones too
	$(PYTEST) -m "not soak and not containers" --ignore=tests/integration --hypothesis-profile=heavy
	$(PYTEST) -m "not soak" tests/integration
	$(MAKE) check-containers

# Without conftest.py, whose fixtures want what this environment has not.
test-loaders: $(BENCH_STAMP) ## the tests of the loaders of other makers, where all of those are installed
	$(BENCH_VENV)/bin/python -m pytest --noconftest -p tests.fixtures.images -p tests.fixtures.object_store \
		tests/experiments/loaders tests/superdl/index/test_real_writers.py

studies: $(STAMP) ## run the six studies' quick variants (a quarter to half an hour), and write their figures into docs/experiments/
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.studies $(ARGS)

soak: $(STAMP) ## the tests that run for minutes (SUPER_TEST_TRIALS: hostile trials, 500)
	$(BIN)/python -m pytest -m soak

fuzz: $(STAMP) ## try random inputs on all that is parsed; prints how many, and the seed that failed (SECONDS=60 ARGS="-k NAME")
	SUPER_TEST_FUZZ_S=$(SECONDS) $(BIN)/python -m pytest -rP -m "not soak" tests/hostile/test_fuzz.py::test_a_fuzzer_finds_nothing $(ARGS)

lint: $(STAMP) ## ruff: rules and format; cfn-lint: the template
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/cfn-lint infra/template.yaml

# SAM pins much of what the checks need in other versions, so it has an environment of its own.
$(SAM_STAMP): | $(BIN)/python
	$(PYTHON) -m venv $(SAM_VENV)
	$(SAM_VENV)/bin/python -m pip install --quiet 'aws-sam-cli>=1.150,<2'
	@touch $@

check-infra: $(SAM_STAMP) ## sam validate --lint of the template (installs the SAM CLI, 340 MB)
	SAM_CLI_TELEMETRY=0 AWS_DEFAULT_REGION=us-east-1 $(SAM_VENV)/bin/sam validate --lint --template infra/template.yaml

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

rules: $(STAMP) ## import rules, layout, content of the wheel
	$(BIN)/python -m pytest tests/architecture

# The integration tests have processes of their own: they watch what grpc says at forks, and servers that other tests ran in
# a process would still have threads there.
unit: $(STAMP) ## the tests but the slow ones
	$(QUICK) --ignore=tests/integration
	$(QUICK) tests/integration

format: $(STAMP) ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The generator wants an old protobuf, the runtime a new one: so the generator has an environment of its own. It needs
# none of its dependencies, only the compiler in its wheel.
$(PROTO_STAMP): tools/proto-requirements.txt | $(STAMP)
	$(BIN)/python -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet --no-deps --only-binary :all: -r $<
	@touch $@

proto: $(PROTO_STAMP) ## generate the gRPC stubs from super_wire/coordinator.proto
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=.

check-proto: $(PROTO_STAMP) ## see that the gRPC stubs are what the generator makes
	@if ! $(PROTO_VENV)/bin/python -c 'import grpc_tools' 2>/dev/null; then \
		echo "The generator has no wheel for this Python: the gRPC stubs are not checked."; exit 0; fi; \
	set -e; fresh=$(PROTO_VENV)/fresh; rm -rf $$fresh; mkdir $$fresh; \
	$(PROTOC) --python_out=$$fresh --pyi_out=$$fresh --grpc_python_out=$$fresh; \
	for stub in $$fresh/superdl/super_wire/*; do \
		cmp $$stub super_wire/$${stub##*/} || { echo "Run make proto, and commit what it changes."; exit 1; }; done

$(DOCS_STAMP): tools/docs-requirements.txt | $(BIN)/python
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet -r $<
	@touch $@

docs: $(DOCS_STAMP) ## build the documentation into dist/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet

wheel: $(STAMP) ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# Needs pip's index, and nothing else: the wheels of both architectures are downloaded, not built.
lambda-zip: $(STAMP) ## build the function's package for Lambda into dist/, for arm64 and x86_64
	$(BIN)/python -m tools.lambda_zip

# Of Python's packages: those of the image's system only its builder knows (docker buildx build --sbom=true).
sbom: ## write what the function and the coordinator's image install into dist/, as CycloneDX
	test -x $(SBOM_VENV)/bin/cyclonedx-py || { $(PYTHON) -m venv $(SBOM_VENV) && \
		$(SBOM_VENV)/bin/python -m pip install --quiet 'cyclonedx-bom>=7,<8'; }
	mkdir -p dist
	for each in infra/function infra/function/parquet infra/docker/coordinator; do \
		file=$$(ls $$each-requirements.txt $$each/requirements.txt 2>/dev/null); \
		$(SBOM_VENV)/bin/cyclonedx-py requirements $$file --output-reproducible --output-file \
			dist/super-$$(basename $$each).cdx.json || exit; \
	done

# One process, so that the images are built once. Where they cannot be, the tests say what is missing, and are skipped.
check-containers: $(STAMP) ## build the images and run them (needs root, buildah, podman, runc and debootstrap)
	$(TESTS) -m containers tests/containers

lock: $(STAMP) ## pin what the function and the containers install, anew
	test -x $(UV_VENV)/bin/uv || { $(PYTHON) -m venv $(UV_VENV) && $(UV_VENV)/bin/python -m pip install --quiet 'uv>=0.9,<1'; }
	PATH="$(UV_VENV)/bin:$$PATH" $(BIN)/python -m tools.lock_requirements

clean: ## remove what was built, the environments too
	rm -rf $(VENV) $(PROTO_VENV) $(SAM_VENV) $(SBOM_VENV) $(DOCS_VENV) $(BENCH_VENV) $(UV_VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
