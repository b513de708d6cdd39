# Two commands do all the set-up on a fresh machine (x86-64 Linux with Python and gcc): make demo, make test.
# PYTHON: the Python to begin with. GPU: auto, machine, emulated or none. STEPS: how long the demo trains.

PYTHON ?= python3
GPU    ?= auto
BIN    := .venv/bin
# Hundreds of processes would each compile PyTorch's Python anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo setup test test-all prepare test-fast lint gpu-check bench lock clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1	/' | expand -t 16

demo: ## train a small GPT-2 and watch it at http://127.0.0.1:8265; STEPS=200 ends by itself
	@$(PYTHON) .ci/environment.py demo --gpu $(GPU)
	@$(BIN)/python examples/demo.py $(if $(STEPS),--steps $(STEPS))

setup: ## make .venv with everything that the tests need
	@$(PYTHON) .ci/environment.py test --gpu $(GPU)

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@case $$($(BIN)/python -c "import sys; print(sys.version_info[1])") in \
		10) echo "mypy: not on Python 3.10, whose newest numpy has other types";; \
		11) $(BIN)/mypy --python-version 3.10;; \
		*) $(BIN)/mypy;; esac # 3.11: names that Python 3.10 lacks are errors. Later ones have a numpy that 3.10 never had

PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

test: prepare ## browser and emulated GPU included; of corpora and slow tests a random sample; ARGS goes to pytest
	$(PYTEST) --sample $(ARGS)

test-all: prepare ## every test but those for a real card; ARGS goes to pytest
	$(PYTEST) $(ARGS)

prepare: setup
	@$(BIN)/python -m vramscope_server.numba_warmup & $(MAKE) --no-print-directory lint; linted=$$?; wait; exit $$linted

test-fast: setup ## the quick tests; ARGS goes to pytest
	$(BIN)/python -m pytest --fast --numprocesses auto --maxprocesses 3 --dist loadgroup $(ARGS)

gpu-check: ## check vramscope on a real card: one JSON file in gpu-check/, ten minutes at most
	$(or $(wildcard $(BIN)/python),$(PYTHON)) benchmarks/gpu_check.py --out gpu-check $(ARGS)

bench: setup ## the benchmarks, one after the other
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# Without UPGRADE=1 the versions that the file names already stay.
lock: ## renew backend/requirements.lock, from which the server's image is built; needs uv. UPGRADE=1 takes newer versions
	uv pip compile pyproject.toml --extra server --extra postgres --extra parquet --extra notify --extra oidc --extra otel --extra s3 --universal \
		--python-version 3.10 --generate-hashes --no-emit-index-url --no-header $(if $(UPGRADE),--upgrade) \
		--output-file backend/requirements.lock

clean: ## remove .venv and every cache
	rm -rf .venv .cache dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
