# The front door. `make serve` and `make test` set everything up on a machine with Python 3.11+, a C++ compiler and make.
PYTHON  ?= python3
VENV    ?= .venv
DEV     ?= .venv-dev
MODEL   ?= smollm2:135m
ARGS    ?=
JOBS    ?= -n 2 --dist loadfile
PIP_RUN  = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
PIP_DEV  = $(DEV)/bin/python -m pip install --quiet --disable-pip-version-check
SOURCES  = pyproject.toml CMakeLists.txt $(shell find native headrace -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.txt' -o -name '*.cmake')
BUILT    = $(shell ls -t $(CURDIR)/build/cp*/libheadrace_core.a 2> /dev/null | head -1)

.PHONY: help serve generate install dev test check lint types imports unit native-test native-test-arm sanitize fuzz docs bench bench-build bench-techniques bench-peers clean

help:            ## this list
	@grep -E '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# ---- running: a small environment without torch ----
$(VENV)/.ready: pyproject.toml $(SOURCES)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP_RUN) .
	touch $@

install: $(VENV)/.ready   ## environment with the engine and its kernels

serve: install   ## OpenAI-compatible server (MODEL=smollm2:135m ARGS="--port 8000")
	$(VENV)/bin/headrace serve $(MODEL) $(ARGS)

generate: install   ## one answer (ARGS='"The capital of France is" --max-tokens 8')
	$(VENV)/bin/headrace generate $(MODEL) $(ARGS)

# ---- development: torch and transformers are oracles in tests ----
# JOBS: tests run in two processes, a file in one of them; more would lack cores on small machines (JOBS= for one).
$(DEV)/.ready: pyproject.toml
	test -x $(DEV)/bin/python || $(PYTHON) -m venv $(DEV)
	$(PIP_DEV) 'torch==2.13.0'
	$(PIP_DEV) 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.26' 'ninja>=1.11'
	$(PIP_DEV) --no-build-isolation -e '.[dev]'
	touch $@

$(DEV)/.built: $(DEV)/.ready $(SOURCES)
	$(PIP_DEV) --no-build-isolation --no-deps -e .
	touch $@

dev: $(DEV)/.built   ## development environment, kernels compiled

test: check native-test   ## everything: check, then conformance, engine, golden, serve, planted, fuzz, native
	$(DEV)/bin/python -m pytest $(JOBS) tests/conformance tests/engine tests/golden tests/serve tests/planted tests/fuzz

check: lint types imports unit   ## lint, types, import floors, unit, property and architecture tests

lint: dev
	$(DEV)/bin/ruff check headrace tests benchmarks docs
	$(DEV)/bin/ruff format --check headrace tests benchmarks docs

types: dev
	$(DEV)/bin/pyright --pythonpath $(DEV)/bin/python headrace

imports: dev
	$(DEV)/bin/lint-imports --no-cache

unit: dev
	$(DEV)/bin/python -m pytest $(JOBS) tests/unit tests/property tests/arch

native-test: dev   ## kernels of each instruction set against the scalar definition
	@mkdir -p build
	$(DEV)/bin/cmake -S . -B build/native -DHEADRACE_NATIVE_TESTS=ON -DCMAKE_BUILD_TYPE=Release \
	    -DPython_EXECUTABLE=$(abspath $(DEV))/bin/python -DHEADRACE_CORE=$(BUILT) > build/native.log 2>&1 || (cat build/native.log; exit 1)
	$(DEV)/bin/cmake --build build/native --parallel 2
	$(DEV)/bin/ctest --test-dir build/native --output-on-failure

# Cross-compiled, static, run under emulation: the NEON kernels against the scalar definition on any machine.
# HEADRACE_TEST_PART=0/8 runs an eighth of the longest, test_attention (more than four minutes on a busy core) and test_sample.
native-test-arm: dev   ## the native tests for 64-bit ARM (needs g++-aarch64-linux-gnu and qemu-user)
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$tool > /dev/null || \
	    { echo "$$tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user (Debian, Ubuntu)"; exit 1; }; done
	@mkdir -p build
	$(DEV)/bin/cmake -S . -B build/native-arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static \
	    -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64 -DCMAKE_DISABLE_FIND_PACKAGE_Python=ON \
	    -DHEADRACE_NATIVE_TESTS=ON -DCMAKE_BUILD_TYPE=Release > build/native-arm.log 2>&1 || (cat build/native-arm.log; exit 1)
	$(DEV)/bin/cmake --build build/native-arm --parallel 2
	$(DEV)/bin/ctest --test-dir build/native-arm --output-on-failure

sanitize: dev    ## the native tests under the address and undefined-behaviour sanitizers
	for kind in address undefined; do \
	    $(DEV)/bin/cmake -S . -B build/sanitize-$$kind -DHEADRACE_NATIVE_TESTS=ON -DHEADRACE_SANITIZE=$$kind \
	        -DPython_EXECUTABLE=$(abspath $(DEV))/bin/python -DCMAKE_BUILD_TYPE=Release && \
	    $(DEV)/bin/cmake --build build/sanitize-$$kind --parallel 2 && \
	    $(DEV)/bin/ctest --test-dir build/sanitize-$$kind --output-on-failure || exit 1; \
	done

# Each of the eight parts has an eighth of the time; FUZZ_SEED starts other cases than the last time.
FUZZ_SECONDS ?= 120
FUZZ_SEED    ?= $(shell date +%s)
FUZZ_PART     = $(shell expr $(FUZZ_SECONDS) / 8)

fuzz: dev        ## hostile bodies, model files, templates, grammars, native calls (FUZZ_SECONDS=120)
	for kind in address undefined; do \
	    $(DEV)/bin/cmake -S . -B build/sanitize-$$kind -DHEADRACE_NATIVE_TESTS=ON -DHEADRACE_SANITIZE=$$kind \
	        -DPython_EXECUTABLE=$(abspath $(DEV))/bin/python -DCMAKE_BUILD_TYPE=Release && \
	    $(DEV)/bin/cmake --build build/sanitize-$$kind --parallel 2 --target test_fuzz || exit 1; \
	done
	$(DEV)/bin/python -m tests.fuzz.bodies --count 1000000000 --seconds $(FUZZ_PART) --seed $(FUZZ_SEED)
	$(DEV)/bin/python -m tests.fuzz.bodies --engine --count 1000000000 --seconds $(FUZZ_PART) --seed $(FUZZ_SEED)
	$(DEV)/bin/python -m tests.fuzz.described --seconds $(FUZZ_PART) --seed $(FUZZ_SEED)
	$(DEV)/bin/python -m tests.fuzz.files --count 1000000000 --seconds $(FUZZ_PART) --seed $(FUZZ_SEED)
	$(DEV)/bin/python -m tests.fuzz.texts --count 1000000000 --seconds $(FUZZ_PART) --seed $(FUZZ_SEED)
	$(DEV)/bin/python -m tests.fuzz.natives --count 1000000000 --seconds $(FUZZ_PART) --seed $(FUZZ_SEED)
	for kind in address undefined; do \
	    HEADRACE_FUZZ_SECONDS=$(FUZZ_PART) HEADRACE_FUZZ_SEED=$(FUZZ_SEED) build/sanitize-$$kind/test_fuzz || exit 1; \
	done

docs: dev        ## generated pages
	$(DEV)/bin/python docs/make_settings.py
	$(DEV)/bin/python docs/make_fields.py

# ---- benchmarks: ARGS go to benchmarks.run, PEERS names what is installed beside Headrace ----
PEERS   ?= llama.cpp openvino

bench: bench-build   ## limits, bare engine, servers under load, against the installed peers (ARGS="--quick")
	$(DEV)/bin/python -m benchmarks.run $(ARGS)

bench-build: dev ## the probe of the machine's limits
	@mkdir -p build
	$(DEV)/bin/cmake -S . -B build/native -DHEADRACE_NATIVE_BENCH=ON -DCMAKE_BUILD_TYPE=Release \
	    -DPython_EXECUTABLE=$(abspath $(DEV))/bin/python -DHEADRACE_CORE=$(BUILT) > build/native.log 2>&1 || (cat build/native.log; exit 1)
	$(DEV)/bin/cmake --build build/native --parallel 2 --target bench_limits

bench-techniques: install  ## the README's table: what each technique gains here (MODEL=smollm2:135m)
	@mkdir -p build
	$(VENV)/bin/headrace bench ablate $(MODEL) --json build/techniques.json --markdown build/techniques.md $(ARGS)
	$(VENV)/bin/python -m benchmarks.techniques build/techniques.md README.md

bench-peers: dev ## environments of the other engines under build/peers (PEERS="llama.cpp openvino vllm")
	$(DEV)/bin/python -m benchmarks.peers.install $(PEERS)

clean:           ## remove what was built (not the model cache)
	rm -rf build dist $(VENV) $(DEV)
