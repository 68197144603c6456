# On a fresh machine with Python 3.11 to 3.13 and make: `make search VIDEOS=DIR`, `make demo`, `make test`.
SHELL := /bin/bash
# Empty: the first of python3.11, python3.12, python3.13 that is here.
PYTHON ?=
# uv with pip's package index; INSTALLER='-m pip' for pip itself
INSTALLER ?= .ci/uv.py pip
# The package with the networks for copies, and its digest; empty leaves it out: make setup COPIES=
COPIES ?= requirements-copies.txt
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What was there before this call of make: where it is made now, the package for copies comes with it.
INSTALLED_BEFORE := $(wildcard $(STAMP))
VIDEOS ?=
# Ctrl-C is no error.
INTERRUPTED := || [ $$? = 130 ]
# Two workers with a thread each: on two cores that is faster than one worker with two. A worker that dies ends the run,
# since xdist would wait for ever for what it left. xdist would begin with the files of most tests; tests/conftest.py
# puts first those that take longest.
PYTEST = HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
	--no-loadscope-reorder --max-worker-restart 0
# Slow tests wait for other processes half of the time: with a third worker the cores are busy meanwhile. A worker grows to
# 4 GB over all tests.
WAITING = --numprocesses 3 --durations 40

export DAGSTER_HOME := $(CURDIR)/dagster_home
export DAGSTER_DISABLE_TELEMETRY := 1
export MLFLOW_DISABLE_TELEMETRY := true
export MLFLOW_SERVER_ENABLE_JOB_EXECUTION := false
export DO_NOT_TRACK := 1
# Containers often turn bytecode off, and every process would then compile all that it imports: half of its start.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(BIN):$(PATH)
ifneq ($(VIDEOS),)
demo ui: export HAPVR_VIDEOS := $(abspath $(VIDEOS))
demo ui: export HAPVR_CONFIG ?= configs/own_videos.yaml
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo ui search test test-rest test-slow test-browser fuzz year lint types docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned versions; in one without the networks for copies, add them
	@$(if $(INSTALLED_BEFORE),.ci/install_copies.sh "$(BIN)/python" "$(COPIES)",:)

$(STAMP): requirements.lock requirements-copies.txt pyproject.toml
	python=$$(PYTHON="$(PYTHON)" .ci/find_python.sh) && "$$python" -m venv $(VENV)
	@echo "setup: installing the pinned versions into $(VENV): 4 GB to fetch, some minutes the first time"
	$(BIN)/python $(INSTALLER) install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python $(INSTALLER) install --quiet --no-deps --no-build-isolation --editable .
	@.ci/install_copies.sh "$(BIN)/python" "$(COPIES)"
	touch $(STAMP)

demo: $(STAMP) ## the whole chain on a generated corpus; VIDEOS=DIR: on your own clips
	$(BIN)/python -m pipelines.demo $(INTERRUPTED)

search: $(STAMP) ## the page of a collection of your own videos: make search VIDEOS=DIR
	$(BIN)/hapvr index add $(if $(VIDEOS),"$(VIDEOS)") $(INTERRUPTED)
	$(BIN)/hapvr serve $(INTERRUPTED)

ui: $(STAMP) ## Dagster's UI, an MLflow server and search on 127.0.0.1 over what the demo made
	$(BIN)/python -m pipelines.ui $(INTERRUPTED)

test: $(STAMP) ## the fast tests; TESTS=all: also those of `make test-rest`, which takes less time than both in turn
	$(PYTEST) $(if $(filter all,$(TESTS)),$(WAITING) -m "not gpu")

test-rest: $(STAMP) ## what `make test` leaves out, but for the tests that want a GPU
	$(PYTEST) $(WAITING) -m "(slow or browser) and not gpu"

test-slow: $(STAMP) ## only the slow tests
	$(PYTEST) -m "slow and not gpu and not browser"

test-browser: $(STAMP) ## only the tests in a browser; wants the system package chromium
	$(PYTEST) -m browser

docs: $(STAMP) ## write docs/configuration.md from the configuration models, and the documents as a site into site/
	$(BIN)/python .ci/config_reference.py > docs/configuration.md
	$(BIN)/zensical build --clean --strict

# An hour on two cores.
FUZZ ?= 100
fuzz: $(STAMP) ## damaged files and requests, FUZZ times as many as the tests try, and others each time
	FUZZ=$(FUZZ) $(PYTEST) --timeout 0 -m "slow or not slow" tests/fuzz

year: $(STAMP) ## a simulated year of weekly re-trainings, most of which go wrong
	WEEKS=52 $(PYTEST) --timeout 0 -m slow tests/orchestration/test_year.py

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

# Most malicious releases are found within days. Empty for an index that does not say when files were uploaded.
COOL_DOWN ?= 7 days
lock: $(STAMP) ## write requirements.lock, with the digest of every file, from pyproject.toml
	$(BIN)/python .ci/uv.py pip compile pyproject.toml --extra all --extra dev --universal --python-version 3.11 \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes \
		$(if $(COOL_DOWN),--exclude-newer "$(COOL_DOWN)") --output-file requirements.lock

clean: ## remove what the chain made, and Dagster's runs
	rm -rf data
	find dagster_home -type f ! -name dagster.yaml -delete
	find dagster_home -mindepth 1 -type d -empty -delete
