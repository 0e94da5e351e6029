# Every target sets up what it needs: .venv is made on the first call and brought up to date
# when pyproject.toml or constraints.txt changes. Needs Python >= 3.11 and bash, nothing else.
SHELL := bash
# What is imported is compiled once, even where the environment asks Python to keep no bytecode:
# many tests start processes of their own, and each would compile torch again, or vLLM.
unexport PYTHONDONTWRITEBYTECODE
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?=
PYTEST_ARGS ?=
# How long `make long` fuzzes the engine; an hour as it is.
FUZZ_SECONDS ?= 3600
PROCESSORS = $(shell getconf _NPROCESSORS_ONLN)
VENV := .venv
BIN := $(VENV)/bin
# No bytecode yet: compiling all of torch takes a minute, and what is imported is compiled then.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: help venv demo test long gpu lint ruff typecheck vllm-packages test-vllm docs clean

help:
	@echo "make demo       the proofs, then the reset scenario on a served model (minutes)"
	@echo "make test       the tests (everyday run, below five minutes)"
	@echo "make long       the tests that take longer"
	@echo "make gpu        the tests that need a CUDA device"
	@echo "make lint       ruff, mypy --strict, import contracts"
	@echo "make test-vllm  the tests against vLLM, in an environment of its own"
	@echo "make docs       the manual, into site/"

demo: venv
	$(BIN)/kvproof demo

# As many processes as processors, and a folder's tests in one of them (tests/conftest.py).
test: venv
	$(BIN)/pytest --numprocesses $(PROCESSORS) --no-loadscope-reorder $(PYTEST_ARGS)

long: venv
	$(BIN)/pytest -m 'long and not vllm and not gpu' $(PYTEST_ARGS)
	$(BIN)/kvproof check --mutants --solver both --jobs $(PROCESSORS)
	$(BIN)/kvproof fuzz --target runtime --seconds $(FUZZ_SECONDS) --out reports/fuzz

gpu: venv
	$(BIN)/pytest -m gpu $(PYTEST_ARGS)

# --- static checks ----------------------------------------------------------------------------
lint: ruff typecheck

ruff: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy and import-linter do not understand the editable install's import hook, so they look at
# an installed copy, made afresh: a deleted module must not live on in it.
typecheck: venv
	@set -euo pipefail; \
	copy=$$(mktemp -d); \
	trap 'rm -rf "$$copy"' EXIT; \
	mkdir "$$copy/source"; \
	cp -r pyproject.toml README.md LICENSE statemachine runtime specs "$$copy/source"; \
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation \
	    --target "$$copy/lib" "$$copy/source"; \
	root=$$PWD; \
	cd "$$copy/lib"; \
	echo "lint-imports"; \
	PYTHONPATH="$$copy/lib" "$$root/$(BIN)/lint-imports" --no-logo "$$root/pyproject.toml" \
	    --cache-dir "$$root/.import_linter_cache"; \
	echo "mypy --strict"; \
	"$$root/$(BIN)/mypy" --config-file "$$root/pyproject.toml" --cache-dir "$$root/.mypy_cache" \
	    -p kvproof.statemachine -p kvproof.runtime -p kvproof.specs | sed 's#^kvproof/##'

# --- vLLM -------------------------------------------------------------------------------------
# vLLM pins its dependencies, so it has an environment of its own (some minutes and 2 GB, the first
# time). With VLLM_TESTS=vllm the long search for faults runs too.
VLLM_TESTS ?= vllm and not long
# Without kvproof, so that it can run beside `make venv`; `make test-vllm` does the rest.
vllm-packages: $(VENV)/.created
	$(BIN)/python tests/vllm/make_environment.py --packages-only .venv-vllm

test-vllm: venv
	$(BIN)/python tests/vllm/make_environment.py .venv-vllm
	.venv-vllm/bin/python -m pytest -m '$(VLLM_TESTS)' tests/vllm $(PYTEST_ARGS)

# --- the manual -------------------------------------------------------------------------------
docs: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# --- the environment --------------------------------------------------------------------------
venv: $(VENV)/.installed

$(VENV)/.created:
	@set -eu; \
	python="$(PYTHON)"; \
	for candidate in python3 python3.13 python3.12 python3.11; do \
	    if [ -z "$$python" ] && "$$candidate" -c \
	        'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then python=$$candidate; fi; \
	done; \
	if [ -n "$$python" ] && ! command -v "$$python" >/dev/null; then \
	    echo "there is no program $$python" >&2; \
	    exit 1; \
	fi; \
	if [ -z "$$python" ]; then \
	    echo "kvproof needs Python 3.11 or newer, and none was found as python3, python3.13," \
	         "python3.12 or python3.11. Install one, or name it:" \
	         "make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python lacks the modules venv and ensurepip" \
	         "(Debian, Ubuntu: apt-get install python3-venv)" >&2; \
	    exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV); \
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.created
	@echo "installing kvproof and what it is tested with into $(VENV) (minutes, the first time)"
	@$(BIN)/python $(PIP_INSTALL) --editable '.[all,test]'
	@touch $@

$(VENV)/.docs-installed: $(VENV)/.installed
	@$(BIN)/python $(PIP_INSTALL) --editable '.[docs]'
	@touch $@

clean:
	rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
