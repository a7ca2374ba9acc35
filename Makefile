# The one entry to everything. Each target sets up what it needs; `make` alone lists them.
#
# Set-up lives in .venv and is remembered by stamp files there: it runs again when its inputs
# change, so every target is cheap to repeat. Nothing outside the checkout is touched, except that
# missing system packages are installed by apt when run as root.

PYTHON ?= python3
# Tokens of the demo's prompt; empty: the demo's default.
PROMPT_TOKENS ?=
# How long each fuzzer runs.
SECONDS ?= 60
# Rounds of torture (100) and of each case of the crash matrix (10).
N ?=
# Seconds within which a crash comes, minutes of soak, further words for torture and soak.
WITHIN ?= 3
MINUTES ?= 30
ARGS ?=

VENV := .venv
VLLM_VENV := .venv-vllm
PY := $(CURDIR)/$(VENV)/bin/python
STEP := tools/step.sh
NATIVE := $(shell find csrc kvstore -name '*.[ch]' -o -name '*.pyx' -o -name '*.px[di]' 2>/dev/null)
PACKAGES := $(wildcard python/*/__init__.py)
TYPED := $(dir $(wildcard kvstore/__init__.py) $(PACKAGES))
PROGRAMS := tools/c_programs.mk
SUBMAKE := $(MAKE) --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all fuzz torture soak crash bench bench-small bench-vllm dist
.PHONY: format clean
.PHONY: lint c-tests py-tests test-uring test-sanitizers test-threads test-user test-slow
.PHONY: test-vllm

help:  ## List the targets
	@echo "make TARGET [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  \1|\2/p' Makefile | column -t -s '|'

setup:  ## Make .venv with everything in it and build the extension
	@tools/make_venv.sh $(PYTHON) $(VENV)
	@$(SUBMAKE) --silent $(VENV)/stamp-core

demo: setup  ## Show a prefill that streams its prefix from SSD (PROMPT_TOKENS=16384 works too)
	@echo "The demo makes its model and store below .demo/ on this disk: about 4 GB."
	@$(PY) -m kvstore_demo $(if $(PROMPT_TOKENS),--prompt-tokens $(PROMPT_TOKENS))

test: setup  ## Lint, C tests and the suite without its slow part (about 10 minutes)
	@$(STEP) --begin test
	@$(STEP) lint $(SUBMAKE) lint
	@$(STEP) c-tests $(SUBMAKE) c-tests
	@$(STEP) py-tests $(SUBMAKE) py-tests
	@$(STEP) --end test

test-all: setup  ## The rest: liburing builds, sanitizers, a user, fuzzers, slow tests, vLLM, torture
	@$(STEP) --begin test-all
	@$(STEP) test-uring $(SUBMAKE) test-uring
	@$(STEP) test-sanitizers $(SUBMAKE) test-sanitizers
	@$(STEP) test-threads $(SUBMAKE) test-threads
	@$(STEP) test-user $(SUBMAKE) test-user
	@$(STEP) fuzz $(SUBMAKE) fuzz
	@$(STEP) test-slow $(SUBMAKE) test-slow
	@$(STEP) test-vllm $(SUBMAKE) test-vllm
	@$(STEP) torture $(SUBMAKE) torture N=10
	@$(STEP) bench-small $(SUBMAKE) bench-small
	@$(STEP) dist $(SUBMAKE) dist
	@$(STEP) --end test-all

fuzz:  ## Fuzz what reads headers and small files, guided by coverage (SECONDS=60)
	@tools/fuzz.sh $(SECONDS)

bench: setup  ## Run the benches (an hour); figures are shares of this disk's own ceiling
	@set -e; for job in benches/jobs/*.fio; do echo "== $$job"; $(PY) benches/kvfio.py $$job; done
	@set -e; for bench in ceiling null.py layer0.py pipeline.py; do \
	    echo "== benches/$$bench"; $(PY) benches/$$bench; done

bench-small: setup  ## Run each bench for seconds: does it work, has its JSON its shape
	@$(PY) -m pytest -m bench tests/test_bench_small.py --timeout=600 -o faulthandler_timeout=0

bench-vllm: setup  ## Time to first token of a vLLM server with and without a cache (ARGS=--small)
	@tools/make_vllm_venv.sh $(PYTHON) $(VLLM_VENV)
	@tools/install_lmcache.sh $(VLLM_VENV)/bin/python $(VLLM_VENV)/lmcache
	@PYTHONPATH=. $(VLLM_VENV)/bin/python benches/vllm_ttft.py --lmcache $(VLLM_VENV)/lmcache $(ARGS)

torture: setup  ## Kill -9 an owner and its peers in N=100 rounds, then look at what is left
	@PYTHONPATH=. $(PY) -m tests.torture --rounds $(or $(N),100) $(ARGS)

soak: setup  ## The same crowd at work for MINUTES=30: memory, descriptors, leases stay flat
	@PYTHONPATH=. $(PY) -m tests.torture.soak --minutes $(MINUTES) $(ARGS)

crash: setup  ## Stop ext4 and xfs under load (root), N=10 rounds each, within WITHIN=3 s
	@$(PY) -m pytest tests/test_crash_matrix.py --rounds $(or $(N),10) --seconds $(WITHIN) --timeout=0

dist: setup  ## Build the wheel and try the README's example where there is no compiler
	@tools/check_dist.sh $(PY)

format: setup  ## Rewrite the sources in the house style
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .
	@find csrc tests/c tests/fuzz -name '*.[ch]' 2>/dev/null | xargs -r $(VENV)/bin/clang-format -i

clean:  ## Remove everything that was built, and .venv
	rm -rf $(VENV) $(VLLM_VENV) build dist .demo .cache *.egg-info kvstore/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- parts of test and test-all; each also runs alone --------------------------------------------

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@if [ -n "$(TYPED)" ]; then $(PY) -m mypy $(TYPED); fi
	@find csrc tests/c tests/fuzz -name '*.[ch]' 2>/dev/null \
	    | xargs -r $(VENV)/bin/clang-format --dry-run -Werror || { echo "run: make format"; exit 1; }

c-tests: setup
	@$(SUBMAKE) -f $(PROGRAMS) run

py-tests: setup
	@$(PY) -m pytest -m "not slow and not bench" --durations=10

test-uring: setup
	@tools/test_uring.sh $(PY)

test-sanitizers: setup
	@tools/test_sanitizers.sh $(PY)

# liburing is not instrumented, so this one uses the shim.
test-threads: setup
	@$(SUBMAKE) -f $(PROGRAMS) VARIANT=thread URING=shim run-threads

test-user: setup
	@tools/test_user.sh $(PY)

# 5 is pytest's "nothing selected": there may be no slow test.
test-slow: setup
	@$(PY) -m pytest -m "slow and not bench" --durations=10 --timeout=1500 \
	    || [ $$? -eq 5 ]

# In an environment of its own, where a vLLM that cannot be imported is an error.
test-vllm: setup
	@tools/make_vllm_venv.sh $(PYTHON) $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -c "import vllm"
	@$(VLLM_VENV)/bin/python -m pytest tests/vllm --durations=10 --timeout=600 \
	    -o faulthandler_timeout=590

# ---- set-up --------------------------------------------------------------------------------------

# Reached through `setup` only: the script before may replace .venv, and these stamps with it.
$(VENV)/stamp-packages: pyproject.toml constraints.txt tools/install_packages.sh
	@tools/install_packages.sh $(PY)
	@touch $@

$(VENV)/stamp-core: $(VENV)/stamp-packages setup.py $(NATIVE) $(PACKAGES)
	@echo "== building kvstore._core"
	@$(PY) -m pip install -qq --no-build-isolation --no-deps --editable .
	@touch $@
