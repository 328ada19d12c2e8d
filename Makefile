# make demo: two engines, face to face, on the bundled model, offline, on the CPU.
# make test: the whole test suite.      Both do all of their own set-up in .venv.
#
# TORCH=cpu make demo     keeps torch small on Linux without a GPU (CPU build, through uv)
# PYTHON=python3.12 …     another interpreter than python3 (or the first of 3.13, 3.12, 3.11, 3.14 that is there)

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)
TORCH ?= default
BIN := $(VENV)/bin
TORCH_REQUIREMENT = $(shell sed -n 's/^ *"\(torch[<>=][^"]*\)",.*/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help demo test peers peers-environments lint typecheck check clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -5; echo; echo "make peers: vLLM and SGLang, in environments of their own, against ours"

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: no Python 3.11 or newer found; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 2; }
	@"$(PYTHON)" -m venv "$(VENV)" || \
	  { echo "make: no venv module; on Debian and Ubuntu: sudo apt-get install python3-venv" >&2; rm -rf "$(VENV)"; exit 2; }

$(VENV)/.torch-$(TORCH): | $(BIN)/python
	@if [ "$(TORCH)" = cpu ]; then \
	  echo "Installing the CPU build of torch …" && $(BIN)/pip install -q --disable-pip-version-check uv && \
	  { $(BIN)/uv pip install -q --python $(BIN)/python --torch-backend cpu "$(TORCH_REQUIREMENT)" || { \
	    echo "make: the CPU build of torch comes from PyTorch's own index, https://download.pytorch.org/whl/cpu; if that" \
	      "cannot be reached, make $(MAKECMDGOALS) without TORCH=cpu takes the package index's build (several GB on Linux)," \
	      "or install a CPU build of torch into $(VENV) yourself and run make $(MAKECMDGOALS) again" >&2; exit 2; }; }; fi
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch-$(TORCH)
	@echo "Installing visavis and transformers into $(VENV) (the first time: some minutes, mostly torch) …"
	@$(BIN)/pip install -q --disable-pip-version-check -e ".[hf]"
	@$(BIN)/python -m visavis.engine.kernels.cpu.build
	@$(BIN)/python -m visavis.pixel_kernels
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	@echo "Installing what the tests need …"
	@$(BIN)/pip install -q --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/visavis compare

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not peers" $(PYTEST_ARGS)

# vLLM and SGLang in environments of their own (7 GB under ~/.cache/visavis-test-envs, made once), against ours.
peers-environments: $(VENV)/.dev
	$(BIN)/python tests/peers/make_environment.py vllm sglang smollm2

peers: peers-environments
	$(BIN)/python -m pytest tests/peers $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.dev
	$(BIN)/mypy

check: lint typecheck test

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
