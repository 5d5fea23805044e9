# Two commands matter: `make quickstart` and `make test`. Each makes its own .venv and needs nothing else but Python.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

export MLFLOW_DISABLE_TELEMETRY = true
export DO_NOT_TRACK = 1
# Hundreds of processes start in a test run; if this is set, each compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart install test checks apart emulated test-slow test-pythons gpu-smoke test-gpu rehearse defects image wheel lint types layers unit flow browser package chaos fuzz bench verdicts size docs gallery clean

quickstart: $(VENV)/.installed
	$(BIN)/repro run quickstart

install: $(VENV)/.installed

# Files whose tests look at all namespaces of the machine, so no tests that make some run beside them.
APART := tests/flow/test_chaos.py tests/flow/test_fabric.py
# Three at a time, because many wait for servers and other processes.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder $(APART:%=--ignore=%)

# The files with long tests come first, so that both processors have work until the end.
test: checks
	$(BIN)/python -m pytest $(PARALLEL) tests/flow tests/emulated_cuda tests/browser tests/unit
	@echo "all of make test passed"

# Two at a time.
checks: $(VENV)/.test-installed
	@$(MAKE) --no-print-directory -j2 --output-sync=line apart emulated types package lint layers

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3.x"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { echo "the venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Debian's python3-venv brings an old pip; the pinned one is not needed for anything newer than 22.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "torch, DeepSpeed, MLflow and what they need are installed into $(VENV): some minutes, the last of them silent"
	$(PIP) install --quiet -c constraints.txt setuptools
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	@echo "what the tests need is installed into $(VENV): some minutes"
	$(PIP) install --quiet -c constraints.txt -e '.[test]'
	@touch $@

lint: $(VENV)/.test-installed
	$(BIN)/ruff check .

types: $(VENV)/.test-installed
	$(BIN)/mypy

layers: $(VENV)/.test-installed
	$(BIN)/lint-imports

unit: $(VENV)/.test-installed
	$(BIN)/python -m pytest $(PARALLEL) tests/unit

apart: $(VENV)/.test-installed
	$(BIN)/python -m pytest $(APART)

# Compiles the emulated device. Where it cannot be built, its tests skip with the reason.
emulated: $(VENV)/.test-installed
	-@$(BIN)/python -m tests.emulated_cuda.environment > /dev/null

flow: apart
	$(BIN)/python -m pytest $(PARALLEL) tests/flow tests/emulated_cuda

browser: $(VENV)/.test-installed
	$(BIN)/python -m pytest $(PARALLEL) tests/browser

package: $(VENV)/.test-installed
	$(BIN)/python -m pytest tests/package

test-slow: $(VENV)/.test-installed
	$(PIP) install --quiet -c constraints.txt -e '.[test,accelerate,huggingface,lightning]'
	$(BIN)/python -m pytest -m slow

# dist/: the sdist and the wheel of the commit that is checked out, the same bytes each time, with what the index of packages
# would refuse.
wheel: $(VENV)/.test-installed
	tools/build.sh $(BIN)/python dist
	tools/build.sh $(BIN)/python dist/again > /dev/null
	cmp dist/*.whl dist/again/*.whl && cmp dist/*.tar.gz dist/again/*.tar.gz && rm -r dist/again
	$(BIN)/python -m twine check --strict dist/*

# Unit tests on every Python of PYTHONS that is installed, each in its own environment. Elsewhere than on 3.11 pip may find
# only the build of PyTorch with CUDA, several gigabytes each.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
test-pythons:
	@for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
	    || { echo "$$python: not installed, left out"; continue; }; \
	  $(MAKE) --no-print-directory PYTHON=$$python VENV=$(VENV)-$$version unit package || exit 1; \
	  echo "unit and package tests passed on Python $$version"; \
	done

# The pages of docs/ as a site in site/, with the reference; dead links end it. Not --quiet: mkdocs then counts no warnings, and
# strict lets them pass. Read the site with: python3 -m http.server -d site
docs: gallery
	$(PIP) install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

# Ten pages from the small records in docs/gallery/records.
gallery: $(VENV)/.test-installed
	$(BIN)/python docs/gallery/build.py > /dev/null
	@ls docs/gallery/*.html

# Plants every defect of tests/plugins in DDP and ZeRO, in fp32 and bfloat16, and prints what stopped each: 20 minutes.
defects: $(VENV)/.test-installed
	$(BIN)/python tests/plugins/run_defects.py

# Builds deploy/Dockerfile and runs it: quickstart, MLflow, and the manifest's commands on two nodes; minutes. Needs docker or
# podman: make image ENGINE=podman BUILD="--build-arg TORCH_INDEX=..."
image:
	ENGINE=$(or $(ENGINE),docker) deploy/try.sh $(BUILD)

# What works on GPUs that are lent for five minutes, without a network and without installing anything: by the Python that has
# torch, and a few packages that the file names (make gpu-smoke PYTHON=/path/to/python3). smoke.json is to be sent.
gpu-smoke:
	$(PYTHON) -m tests.gpu.smoke --out smoke.json

# More of the same, half an hour on one GPU: by the same Python with the same packages and DeepSpeed, or by the environment of
# make test if it is there. Cut off, it prints its summary and leaves a line for every test that ended in gpu-tests.jsonl.
GPU_PYTHON = $(if $(wildcard $(VENV)/.test-installed),$(BIN)/python,$(PYTHON))
test-gpu:
	@$(GPU_PYTHON) -c 'import sys, torch; sys.exit(not torch.accelerator.is_available())' 2>/dev/null \
	  || { echo "$(GPU_PYTHON) has no torch that sees a GPU, so nothing would be tested; PYTHON=/path/to/python3 names another"; exit 1; }
	$(GPU_PYTHON) -m pytest -m gpu tests/gpu --lines gpu-tests.jsonl

# Every path that needs a GPU, on CUDA devices that are emulated in memory (docs/devices.md): over an hour. Needs g++.
rehearse: $(VENV)/.test-installed
	@$(BIN)/python -m tests.emulated_cuda.environment > /dev/null
	$(BIN)/python -m pytest -m "rehearse or not rehearse" tests/emulated_cuda

# 200 faults over seeded plans: local, emulated network, real training bit for bit (run again from the start, and resumed
# from checkpoints), tracking server, full disk. `make flow` has two of them. As an ordinary user the disk is left out.
chaos: $(VENV)/.test-installed
	$(BIN)/python -m tests.chaos.drive --faults 200 --seed 1

# Damaged files into everything that reads files of strangers, 20 minutes; `make unit` has a slice of it.
fuzz: $(VENV)/.test-installed
	$(PIP) install --quiet -c constraints.txt -e '.[test,fuzz]'
	$(BIN)/python -m tests.fuzz.drive --seconds 1000 --commands 300
	$(BIN)/python -m tests.fuzz.command_lines --count 2000

# What the harness costs a run; with WHAT="workers --rounds 8" one of the benchmarks in benchmarks/.
bench: $(VENV)/.installed
ifdef WHAT
	$(BIN)/python -m benchmarks $(WHAT)
else
	$(BIN)/repro bench overhead
	$(BIN)/repro bench turnaround
endif

# Wrong verdicts and power of 4,000 simulated experiments a row, about half an hour; `make test-slow` has 200 a row.
verdicts: $(VENV)/.installed
	$(BIN)/python -m benchmarks verdicts

# Lines, statements, functions, coupling and rooms, with the rules of counting; of another checkout with TREE=/path.
size:
	@$(PYTHON) tools/size.py $(TREE)

clean:
	rm -rf $(VENV) .venv-emulated build dist *.egg-info runs mlruns mlartifacts mlflow.db*
