# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE ?= 1
DEMO ?= demo
WORKERS ?= 2
DATA = $(or $(RETRIEVAL_TEST_DATA),../shared)
export GRADIO_ANALYTICS_ENABLED := 0

.PHONY: demo test test-fast lint audit bench mutants reliability

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,train,compare,sign,milvus,ray,client,dev]'
	touch $@

demo: $(VENV)/.installed  ## draw a catalogue, train, export, index, and serve http://127.0.0.1:7860
	$(BIN)/retrieval demo -o $(DEMO)
ifneq ($(SERVE),0)
	$(BIN)/retrieval serve $(DEMO)/bundle $(DEMO)/gallery --examples $(DEMO)/examples
endif

test test-fast: export OMP_NUM_THREADS ?= 1  # one thread a worker: more fight over the cores

test: $(VENV)/.installed  ## everything, the slow and the browser tests too
	$(BIN)/python -m pytest -n $(WORKERS) --junitxml=.ci/report.xml

test-fast: $(VENV)/.installed  ## what takes seconds: under 3 minutes on 2 cores
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not browser"

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pip --disable-pip-version-check check

audit: $(VENV)/.installed  ## known weaknesses of what is installed; asks a service
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit
	$(BIN)/pip-audit --strict --progress-spinner off -r constraints.txt --no-deps

bench: TUNED = --backbone $(DATA)/weights/mobilenet_v1_0.75_224 --loss vmf_nca --loss.anchor_weight 0.3 --precision fp32 \
	--epochs 3 --initial-norm 50 --head-learning-rate 1e-2 --folds 2 --trials 16 --search learning_rate=1e-4..1e-3:log \
	--search head_learning_rate=3e-3..3e-2:log --search initial_norm=20..80:log --search loss.anchor_weight=0.1..1:log
bench: $(VENV)/.installed  ## every figure of BENCHMARKS.md; needs RETRIEVAL_TEST_DATA and most of a day
	$(BIN)/python research/benchmarks/step.py
	$(BIN)/python research/benchmarks/losses.py
	$(BIN)/python research/benchmarks/consistency.py
	$(BIN)/python research/benchmarks/heads.py --output runs/heads --picture
	$(BIN)/python research/benchmarks/rotations.py --output runs/rotations
	$(BIN)/python research/benchmarks/rotations.py --output runs/rotations --finetuned
	$(BIN)/python research/benchmarks/promise.py --output runs/promise
	$(BIN)/python research/benchmarks/promise.py --output runs/promise --sizes 20
	$(BIN)/python research/benchmarks/grocery.py --output runs/grocery-benchmark
	test -d bundles/bench || $(BIN)/retrieval export runs/grocery-benchmark/Smooth-AP-0 -o bundles/bench --allow-estimate
	$(BIN)/python research/benchmarks/pipeline.py --rounds 5
	$(BIN)/python research/benchmarks/large_batch.py
	$(BIN)/python research/benchmarks/precision.py runs/grocery-benchmark/Smooth-AP-0
	$(BIN)/python research/benchmarks/precision.py runs/grocery-benchmark/ProxyAnchor-0
	test -d studies/finetuned || $(BIN)/retrieval tune $(DATA)/data/grocery/grocery.csv -o studies/finetuned $(TUNED)
	$(BIN)/python research/benchmarks/trainers.py --epochs 3 --seeds 5 --tuned studies/finetuned/best.toml --peers peers
	$(BIN)/python research/benchmarks/decisions.py runs/grocery-benchmark/Smooth-AP-0 bundles/bench
	$(BIN)/python research/benchmarks/indexing.py bundles/bench --rounds 8
	$(BIN)/python research/benchmarks/gallery.py --output runs/gallery
	$(BIN)/python research/benchmarks/gallery.py --output runs/gallery --grow
	$(BIN)/retrieval index bundles/bench $(DATA)/data/grocery/images -o galleries/bench
	$(BIN)/python research/benchmarks/endpoint.py bundles/bench galleries/bench $(DATA)/data/grocery/images/Banana/b_*.jpg

# faults in the modules that decide: MODULES=retrieval/threshold/bounds.py, SINCE=main (what changed since), ONLY=text; see CONTRIBUTING
mutants: $(VENV)/.installed
	$(BIN)/python -m tools.mutants $(MODULES) $(if $(SINCE),--changed-since $(SINCE)) $(if $(ONLY),--only '$(ONLY)')

# hostile input, kills, overload, swaps, damage: in minutes; FULL=1 for the hours that a release deserves
reliability: export RETRIEVAL_FUZZ := 10000
reliability: export RETRIEVAL_FLIPS := 1000
reliability: export RETRIEVAL_SECONDS := $(if $(FULL),600,60)
reliability: $(VENV)/.installed
	$(BIN)/python -m pytest -p no:xdist --timeout 4000 tests/index tests/retrieval/test_images.py \
		tests/retrieval/bundle/test_bundle.py tests/retrieval/indexing/test_interrupted.py tests/retrieval/test_malicious.py \
		tests/serving -m "not browser"
