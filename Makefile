# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` lists the others.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE ?= 1
DEMO ?= demo
WORKERS ?= 2
export GRADIO_ANALYTICS_ENABLED := 0
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help demo picture test test-fast test-all research-test lint docs tables hooks audit release-check bench bench-fast bench-gpu sizes mutants reliability

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
$(VENV)/.demo-installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e '.[serve,train,demo]'
	touch $@

$(VENV)/.installed: $(VENV)/.demo-installed
	$(INSTALL) -e '.[serve,demo,train,sources,milvus,collections,ray,client,dev,docs]'
	touch $@

demo: $(VENV)/.demo-installed  ## draw a catalogue, train, export, index, and serve a demo in Gradio on port 7861, a page and an API on 7860
	$(BIN)/retrieval demo -o $(DEMO)
ifneq ($(SERVE),0)
	$(BIN)/retrieval serve $(DEMO)/bundle $(DEMO)/gallery --examples $(DEMO)/examples --gradio
endif

picture: $(VENV)/.installed  ## draw the README's picture again, from the answers of a demo
	$(BIN)/retrieval demo --keep -o $(DEMO)
	$(BIN)/python -m tools.picture $(DEMO) docs/answers.jpg

TESTS := test test-fast test-all research-test
$(TESTS): export OMP_NUM_THREADS ?= 1  # one thread per worker; more would oversubscribe the cores
$(TESTS): export PYTHONDONTWRITEBYTECODE =  # commands that tests start need not compile the modules again
# a crashed worker ends the run: xdist would give its finished files to another one, which then waits for ever
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0

test-fast: $(VENV)/.installed  ## what takes seconds: under 2 minutes on 2 idle cores
	$(PYTEST) --ignore tests/research -m "not slow and not end_to_end and not browser"

test: $(VENV)/.installed  ## the fast tests, and those from end to end: under 12 minutes on 2 idle cores
	$(PYTEST) --ignore tests/research -m "not slow" --junitxml=.ci/report.xml

test-all: $(VENV)/.installed  ## everything; run it before a release
	$(PYTEST)

research-test: $(VENV)/.installed  ## the benchmarks, records and papers' configurations
	$(PYTEST) tests/research

lint: $(VENV)/.installed  ## formatting, types, imports, documentation, pins
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet --site-dir .ci/site
	$(BIN)/pip --disable-pip-version-check check

docs: $(VENV)/.installed  ## serve the documentation on http://127.0.0.1:8000
	$(BIN)/mkdocs serve

tables: $(VENV)/.installed  ## render the measured figures of research/results into docs/
	$(BIN)/python -m research.results
	$(BIN)/python -m retrieval research list --markdown > .ci/papers.md && mv .ci/papers.md docs/papers.md

hooks: $(VENV)/.installed  ## run what `make lint` runs on every commit
	$(BIN)/pre-commit install

audit: $(VENV)/.installed  ## known weaknesses of what is installed; asks a service
	$(INSTALL) pip-audit
	sed 's/<=/==/' constraints.txt > .ci/audited.txt
	$(BIN)/pip-audit --strict --progress-spinner off -r .ci/audited.txt --no-deps

release-check: $(VENV)/.installed  ## what a tag needs: names, changes, archive, libraries of the GPU packages (large downloads)
	$(BIN)/python -m tools.release

bench: $(VENV)/.installed  ## measure what has no record of this commit; needs RETRIEVAL_TEST_DATA and up to a day, alone on the machine
	$(BIN)/python -m research.benchmarks.suite
	$(MAKE) tables

bench-fast: $(VENV)/.installed  ## see that every benchmark still runs, on all cores: 19 minutes on 2; no record changes
	$(BIN)/python -m research.benchmarks.suite --fast -o runs/bench-fast

$(VENV)-gpu/.installed: pyproject.toml constraints-gpu.txt
	$(PYTHON) -m venv $(VENV)-gpu
	$(VENV)-gpu/bin/pip install --quiet --disable-pip-version-check -c constraints-gpu.txt -e '.[serve-gpu,train-gpu,milvus,client]'
	touch $@

bench-gpu: $(VENV)-gpu/.installed  ## measure training, indexing and searching on a GPU, into runs/bench-gpu; no record changes
	$(VENV)-gpu/bin/retrieval doctor
	$(VENV)-gpu/bin/python -m research.benchmarks.suite --gpu -o runs/bench-gpu

sizes: $(VENV)/.installed  ## print how large the product is, and how many modules a search passes
	$(BIN)/python -m tools.walks

mutants: $(VENV)/.installed  ## put faults into the code that decides, and see that a test finds each; ONLY=text picks some
	$(BIN)/python -m tools.mutants --workers $(WORKERS) --only "$(ONLY)"

reliability: export RETRIEVAL_FUZZ := 10000
reliability: export RETRIEVAL_FLIPS := 1000
reliability: export RETRIEVAL_SECONDS := $(if $(FULL),600,60)
reliability: export RETRIEVAL_VERSIONS := $(if $(FULL),2000,200)
reliability: $(VENV)/.installed  ## hostile input, kills, overload, damage: minutes; FULL=1 takes hours
	$(BIN)/python -m pytest -p no:xdist --timeout 4000 tests/index tests/retrieval/images tests/retrieval/bundle \
		tests/retrieval/indexing tests/serving -m "not browser"
