# Everything a contributor types. The logic lives in .ci/*.py, so that it can be read and tested.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Interpreter for the virtual environment: make setup PYTHON=python3.12
PYTHON ?= python3
# TORCH=0 leaves PyTorch out (lint and wheel jobs); the tests that need it are then skipped.
TORCH ?= 1
# More options for the demo or for pytest: make demo ARGS="--fault none", make test ARGS="-k store"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin

# Every target is a command.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install everything into .venv (quick when nothing changed)
	@TORCH=$(TORCH) $(PYTHON) .ci/setup.py

demo: setup ## Train, put a real fault on one rank, and diagnose it
	@$(BIN)/rootwalk demo $(ARGS)

test: setup lint contracts ## Format and imports, then unit, integration and end-to-end tests
	$(BIN)/python .ci/run_tests.py test tests/unit tests/integration tests/e2e -m "not long and not variant" \
	  --durations=15 $(ARGS)

test-long: setup ## Whole jobs with faults, launchers and ends, overload, other back ends, which test leaves out
	$(BIN)/python .ci/run_tests.py long tests/integration tests/e2e -m "long and not variant" --durations=15 $(ARGS)

test-variants: setup ## All cases of tests of which make test has a few
	$(BIN)/pytest tests/integration tests/e2e -m variant $(ARGS)

test-matrix: setup ## Every launcher with every end, 143 watched jobs (25 minutes, 2 cores; root for the small disk)
	$(BIN)/python tests/benchmarks/matrix.py --output tests/benchmarks/results/matrix.json $(ARGS)

test-clients: setup ## SDKs of Python, JavaScript, Go and Java, and the Collector, against the receiver (npm, go, mvn; 5 minutes)
	$(BIN)/python tests/clients/run.py $(ARGS)

test-backends: setup ## Jobs through a real Collector, Jaeger and Prometheus, by examples/collector (go; 3 minutes, 10 with the build)
	$(BIN)/python tests/backends/through_backends.py $(ARGS)

test-backends-full: setup ## A real job in one's own back ends: TEMPO= TEMPO_OTLP=, JAEGER= JAEGER_OTLP=, PYROSCOPE=, GRAFANA= or GRAFANA_BINARY= (go, chromium; 90 seconds to 4 minutes each)
	$(BIN)/python tests/backends/full_backends.py --output tests/backends/results/full.json $(ARGS)

live-check: setup ## What the demo, the examples and a gauntlet case send held against the registry; or ARGS=STORE (4 minutes)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/live_check.py $(ARGS)

# Each version in a folder of its own: they install the same files.
CUDA_VERSIONS = nvidia-cuda-runtime-cu12 nvidia-nccl-cu12==2.21.5 nvidia-nccl-cu12==2.27.5

test-cuda-versions: setup ## Calls of libcudart 12 and of two versions of NCCL from PyPI are counted exactly (0.5 GB, root)
	for one in $(CUDA_VERSIONS); do \
	  test -d .setup/cuda-versions/$$one || \
	  $(BIN)/pip install -q --disable-pip-version-check --no-deps --target .setup/cuda-versions/$$one $$one || exit 1; \
	done
	ROOTWALK_CUDA_VERSIONS=.setup/cuda-versions $(BIN)/pytest tests/integration/ebpf/cuda/test_cuda.py $(ARGS)

test-pyroscope: setup ## Profiles in a real Pyroscope by its query API: PYROSCOPE=http://127.0.0.1:4040 make test-pyroscope
	$(BIN)/pytest tests/integration/test_pyroscope.py $(ARGS)

test-browser: setup ## The pages of report and serve in headless Chromium: no request elsewhere, no complaint, keys, contrast (npm, chromium; 8 minutes, 3 GB of disk for a store of 10,240 ranks)
	mkdir -p .setup/browser && cp tests/browser/package*.json .setup/browser/
	cd .setup/browser && npm ci --ignore-scripts --no-audit --no-fund
	$(BIN)/pytest tests/e2e/test_report_page.py tests/e2e/test_serve_page.py $(ARGS)

test-stacks: setup ## Stacks of a program of known shape on every CPython at hand, PATH and pyenv (root; 2 minutes)
	$(BIN)/pytest tests/integration/ebpf/test_stacks.py -m long $(ARGS)

# Where it cannot be tried (77) that is said, and is no failure.
test-kernels: setup ## Kernel programs on Debian's kernel in an emulated machine, x86-64 and arm64 (apt; 6 minutes)
	@for architecture in amd64 arm64; do \
	  $(BIN)/python .ci/kernels.py $$architecture $(ARGS) || test $$? -eq 77 || exit 1; \
	done

bpf: setup ## Compile the kernel programs again when their sources changed
	$(BIN)/python .ci/build_bpf.py

page-libraries: setup ## Copy the charts and graphs of the live page out of their npm packages again (npm)
	$(BIN)/python .ci/page_libraries.py

registry: setup ## Generate the names on the wire and the tables of signals and sensors
	$(BIN)/python .ci/generate_semconv.py

lint: setup ## Format, lint, spelling, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python .ci/generate_semconv.py --check
	$(BIN)/python .ci/generate_result_tables.py --check
	$(BIN)/python .ci/generate_reason_table.py --check
	$(BIN)/python .ci/generate_reason_page.py --check

contracts: setup ## Direction of imports between the folders
	$(BIN)/lint-imports

types: setup ## mypy --strict over the packages, the tests and .ci
	$(BIN)/mypy
	$(BIN)/mypy .ci/*.py

wheel: setup ## Build dist/*.whl with the kernel programs inside
	$(BIN)/python -m build --wheel --outdir dist .

bench-store: setup ## diagnose of a small store and of one with 2 million spans (ARGS="--spans 100000000": an hour, 11 GB)
	$(BIN)/python tests/benchmarks/big_store.py $(ARGS)

bench-profiles: setup ## Seconds and memory of the import of a PyTorch profile of 1 GB (2 minutes)
	$(BIN)/python tests/benchmarks/profiles.py $(ARGS)

bench-hang: setup ## diagnose of hangs of 1,024, 4,096 and 10,240 ranks: time and memory (4 minutes)
	$(BIN)/python tests/benchmarks/hang_scale.py $(ARGS)

bench-scale: setup ## diagnose of live jobs of 64, 1,024 and 10,240 ranks: time, memory, verdict (15 minutes, 3 GB of disk)
	$(BIN)/python tests/benchmarks/job_scale.py --output tests/benchmarks/results/job_scale.json $(ARGS)

bench-operations: setup ## diagnose of operation traces of 64, 1,024 and 10,240 ranks: time, memory, verdict (20 minutes, 2 GB of disk)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/operation_scale.py --output tests/benchmarks/results/operation_scale.json $(ARGS)

bench-reading: setup ## 50 diagnose runs while a receiver stores at full speed, and what they cost it (3 minutes, quiet machine)
	$(BIN)/python tests/benchmarks/reading.py --output tests/benchmarks/results/reading.json $(ARGS)

bench-first-verdict: setup ## From pip install to the first right verdict on one's own script, by three commands (5 minutes, 6 GB)
	$(BIN)/python tests/benchmarks/first_verdict.py --output tests/benchmarks/results/first_verdict.json $(ARGS)

soak-kill: setup ## Kill a receiver under load 100 times: nothing acknowledged missing, no span doubled (4 minutes)
	$(BIN)/python tests/benchmarks/soak_kill.py $(ARGS)

soak-agent: setup ## Ranks start and stop under an agent: nothing it holds grows, a kill leaves no program (30 minutes, root)
	$(BIN)/python tests/benchmarks/soak_agent.py --output tests/benchmarks/results/soak_agent.json $(ARGS)

bench-forward: setup ## What a forward target that is away, silent or well costs senders (3 minutes, quiet machine)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/forward.py $(ARGS)

bench-demo: setup ## Demo runs, 5 of each fault and 10 of none, against the job's own clock (22 minutes, quiet machine)
	$(BIN)/python tests/benchmarks/demo_runs.py --output tests/benchmarks/results/demo_runs.json $(ARGS)

# CASE=cpu_hog RUNS=3: so many runs of one case; all cases without CASE, and without RUNS as many as the goals want.
CASE ?=
RUNS ?=

gauntlet: setup ## Real faults in real jobs, and near misses; half a minute a run, quiet machine, goes on where it was (root)
	PYTHONPATH=tests $(BIN)/python -m gauntlet $(addprefix --case ,$(CASE)) $(addprefix --runs ,$(RUNS)) $(ARGS)

# Of the live cases; each run of a hang takes a minute or more, and so many run at once.
PARALLEL ?= 4

hangs: setup ## Jobs that hang, end or only take long, judged while they do (50 minutes, root); ARGS='--variant "without bpf"'
	PYTHONPATH=tests $(BIN)/python -m gauntlet.live --parallel $(PARALLEL) $(addprefix --case ,$(CASE)) $(addprefix --runs ,$(RUNS)) $(ARGS)

gauntlet-start: setup ## Jobs that lose time from their first step on or every so many steps, and quiet ones; 25 seconds a run, quiet machine (root)
	PYTHONPATH=tests $(BIN)/python -m gauntlet.start $(addprefix --case ,$(CASE)) $(addprefix --runs ,$(RUNS)) $(ARGS)

gauntlet-blind: setup ## Each case without BPF and without in-process instrumentation (root)
	PYTHONPATH=tests $(BIN)/python -m gauntlet --variant "without bpf" $(addprefix --case ,$(CASE)) $(addprefix --runs ,$(RUNS)) $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m gauntlet --variant "without instrumentation" $(addprefix --case ,$(CASE)) $(addprefix --runs ,$(RUNS)) $(ARGS)

gauntlet-devices: setup ## The same with GPUs that stand-ins play, with NVML and without it; a minute a run (root, a C compiler)
	PYTHONPATH=tests $(BIN)/python -m gauntlet --devices $(addprefix --case ,$(CASE)) $(addprefix --runs ,$(RUNS)) $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m gauntlet --devices --variant "without nvml" $(addprefix --case ,$(CASE)) $(addprefix --runs ,$(RUNS)) $(ARGS)

test-gpu: setup ## What needs an NVIDIA GPU: readers, a job's times and kernels, cost, and 8 cases with faults (root; 15 minutes)
	$(BIN)/pytest tests/gpu -s $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m gauntlet --gpu $(addprefix --case ,$(CASE)) --runs 1

gauntlet-ci: setup ## A few cases of the gauntlet: fails when one is wrong twice that was right before (5 minutes, root)
	PYTHONPATH=tests $(BIN)/python -m gauntlet --ci $(ARGS)

score: setup ## Verdicts about public traces whose causes are known, beside simple rules (3 minutes)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/score.py --output tests/benchmarks/results/score.json $(ARGS)

recall: setup ## Jobs drawn at random: how often lost time is named, by the part that is lost, and quiet jobs accused (10 minutes)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/recall.py $(ARGS)

injected: setup ## Slower workers put into a public trace: whether they are named, over few steps and many (4 minutes)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/injected.py --output tests/benchmarks/results/injected.json $(ARGS)

healthy: setup ## 1,000 generated healthy runs, which all have to be called healthy (8 minutes)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/healthy.py --output tests/benchmarks/results/healthy.json $(ARGS)

result-tables: setup ## Write the documentation's tables of measurements from their results, and the page of reason codes
	$(BIN)/python .ci/generate_result_tables.py
	$(BIN)/python .ci/generate_reason_table.py
	$(BIN)/python .ci/generate_reason_page.py

bench-overhead: setup ## CPU time a rank-step by where and at each level, and pairs with and without (12 minutes, quiet machine)
	$(BIN)/python tests/benchmarks/overhead.py --output tests/benchmarks/results/overhead.json $(ARGS)

test-live-stacks: setup ## Four bugs of real training with stacks: the function is named first (5 minutes, quiet machine, root, PyTorch)
	$(BIN)/pytest tests/e2e/test_live_stacks.py -m variant $(ARGS)

bench-stacks-wire: setup ## Stacks of 4 ranks of a real job at 19, 49 and 99 Hz: bytes on the wire, cost (6 minutes, root, PyTorch)
	$(BIN)/python tests/benchmarks/stacks_wire.py --output tests/benchmarks/results/stacks_wire.json $(ARGS)

bench-stacks: setup ## What a stack costs at 19, 49 and 99 Hz: in the kernel, to name and to send (2 minutes, root)
	$(BIN)/python tests/benchmarks/stacks.py --output tests/benchmarks/results/stacks.json $(ARGS)

bench-readers: setup ## CPU time of a look of /proc's partition, of CPU limits and of CPU times (5 seconds)
	$(BIN)/python tests/benchmarks/reader_costs.py

bench-nvml: setup ## CPU time of reading 8 GPUs, against a stand-in of the driver's library: no GPU is asked (1 minute, C compiler)
	$(BIN)/python tests/benchmarks/nvml_reader.py $(ARGS)

bench-cuda: setup ## What a counted call of a CUDA library costs, against stand-ins: no GPU is asked (30 seconds, C compiler, root)
	$(BIN)/python tests/benchmarks/cuda_calls.py $(ARGS)

bench-device-times: setup ## CPU time that times of a GPU take of the training thread, against a stand-in: no GPU is asked (1 minute)
	$(BIN)/python tests/benchmarks/device_times.py $(ARGS)

bench-instrumentation: setup ## CPU time of every hook inside the ranks, a call and a step (3 minutes)
	$(BIN)/python tests/benchmarks/hook_costs.py --output tests/benchmarks/results/instrumentation.json $(ARGS)

bench-ingest: setup ## Spans per CPU-second of the receiver, beside plain Python and rotel (3 minutes, quiet machine)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/ingest.py --output tests/benchmarks/results/ingest.json $(ARGS)

soak-fuzz: setup ## A million mutated requests over all routes of the receiver
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/fuzz.py $(ARGS)

soak-overload: setup ## Four times what the receiver can take, for 60 s, within 256 MiB
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/overload.py $(ARGS)

clean: ## Remove everything that setup and the tests made, .venv included
	rm -rf $(VENV) .setup dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f ebpf/programs/*.bpf.o
	find . -name __pycache__ -prune -exec rm -rf {} +
