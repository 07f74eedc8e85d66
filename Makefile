# make deps | build | python | wheels | demo | demo-jax | test | test-pip | test-jax-versions | zoo | bench | bench-compare | lint | format | clean
#
#   deps    Debian packages (as root, by sudo, or the line to type) and the private virtual environment build/venv
#   build   build/minka from preset release
#   python  the Python package below build/release/python, for PYTHONPATH, and build/venv-jax with a JAX to try it with
#   wheels  build/wheels/*.whl for every CPython of this machine that the package takes, each tested as by test-pip
#   demo    plans and trains a small GPT on eight local devices, for about two minutes
#   demo-jax   examples/jax_train.py: a flax model on eight local devices
#   test    all tests, the Python package's among them; those that load no plugin also under address and undefined-behaviour sanitizers, the solver's
#           threads under the thread sanitizer
#   test-pip   the wheel of one CPython, another with every commit, in a fresh virtual environment: what is installed works where no library
#           of Debian's is found
#   test-jax-versions   the Python package's tests with the oldest JAX that it takes
#   zoo     models of flax, keras, transformers and diffusers by every method, for an hour or more
#   bench   all benchmarks, against JAX where there is something to compare
#   bench-compare   the same, and which rows are worse than in the committed tables
#   lint    formatting, include direction, clang-tidy
#   format  rewrites the sources as clang-format wants them
#   clean   removes everything built, keeps the virtual environments

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

JOBS ?= $(shell nproc)
# Clones of this repository share what ccache keeps.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= true
# It keeps what was compiled with precompiled headers only so.
export CCACHE_SLOPPINESS ?= pch_defines,time_macros

.PHONY: deps build python wheels demo demo-jax test test-pip bench lint format clean
.DEFAULT_GOAL := build

# --- what has to be installed -----------------------------------------------------------------------------------------

deps: build/stamps/deps
build/stamps/deps: scripts/packages.txt scripts/requirements.txt scripts/requirements_data.txt \
		scripts/install_packages.sh scripts/make_venv.sh
	scripts/install_packages.sh scripts/packages.txt
	scripts/make_venv.sh build/venv scripts/requirements.txt
	scripts/make_venv.sh build/venv scripts/requirements_data.txt --no-deps
	mkdir -p $(@D) && touch $@

build/stamps/deps-lint: scripts/packages_lint.txt scripts/requirements_lint.txt scripts/install_packages.sh scripts/make_venv.sh
	scripts/install_packages.sh scripts/packages_lint.txt
	scripts/make_venv.sh build/venv scripts/requirements_lint.txt
	mkdir -p $(@D) && touch $@

build/stamps/deps-browser: scripts/packages_browser.txt scripts/install_packages.sh
	scripts/install_packages.sh scripts/packages_browser.txt
	mkdir -p $(@D) && touch $@

build/stamps/deps-bench: benchmarks/requirements.txt scripts/make_venv.sh
	scripts/make_venv.sh build/venv-jax benchmarks/requirements.txt
	mkdir -p $(@D) && touch $@

# CUDA's plugin, which compiles for GPUs that are not here.
.PHONY: deps-gpu
deps-gpu: build/stamps/deps-gpu
build/stamps/deps-gpu: benchmarks/gpu/requirements.txt scripts/make_venv.sh build/stamps/deps
	scripts/make_venv.sh build/venv benchmarks/gpu/requirements.txt
	mkdir -p $(@D) && touch $@

build/stamps/deps-python: python/requirements.txt build/stamps/deps-bench
	scripts/make_venv.sh build/venv-jax python/requirements.txt
	mkdir -p $(@D) && touch $@

# --- building ---------------------------------------------------------------------------------------------------------

build/%/build.ninja: CMakePresets.json | build/stamps/deps
	cmake --preset $*

build: build/release/build.ninja
	scripts/build_tools.sh $(JOBS)

# Takes JAX for its tests and examples alone.
python: build build/stamps/deps-python
	cmake --preset release -DMINKA_PYTHON=ON
	cmake --build build/release -j $(JOBS) --target minka_extension

demo-jax: python
	PYTHONPATH=build/release/python JAX_PLATFORMS=cpu build/venv-jax/bin/python examples/jax_train.py

demo: build
	build/minka train gpt-tiny --num-devices 8 --method pipeline --micro-batches 4 --cost-model measured \
	  --minutes 2 --sample 400 --trace build/trace.json --out build/plan.json

# --- testing ----------------------------------------------------------------------------------------------------------

.PHONY: test-release test-asan test-tsan
test: test-release test-asan test-tsan

test-release: python build/stamps/deps-browser
	cmake --build build/release -j $(JOBS)
	ctest --test-dir build/release --output-on-failure -j $(JOBS) --no-tests=error

# The plugin is a stock binary that the sanitizers cannot see into.
test-asan: build/asan/build.ninja
	cmake --build build/asan -j $(JOBS) --target tests_without_plugin
	ctest --test-dir build/asan --output-on-failure -j $(JOBS) --label-regex '^without_plugin$$' --no-tests=error
build/asan/build.ninja: | build/stamps/deps-lint

test-tsan: build/tsan/build.ninja
	cmake --build build/tsan -j $(JOBS) --target solver_test
	ctest --test-dir build/tsan --output-on-failure --tests-regex '^solver_test$$' --no-tests=error

# With the oldest JAX that the package takes; `make test` runs the same tests with that of benchmarks/requirements.txt.
.PHONY: test-jax-versions zoo
test-jax-versions: python
	scripts/make_venv.sh build/venv-jax-oldest python/requirements_oldest_jax.txt
	PYTHONPATH=build/release/python JAX_PLATFORMS=cpu build/venv-jax-oldest/bin/python -m pytest -q -p no:cacheprovider python/tests

# Models of other people's packages by every method.
zoo: python
	scripts/make_venv.sh build/venv-zoo benchmarks/zoo/requirements.txt
	PYTHONPATH=build/release/python build/venv-zoo/bin/python benchmarks/zoo/zoo_benchmark.py

test-pip: build/stamps/deps
	found=$$(scripts/find_pythons.sh); pythons=($$found); \
	  scripts/test_pip_install.sh build/pip_install "$${pythons[$${MINKA_TEST_ROTATION:-0} % $${#pythons[@]}]}"

wheels: build/stamps/deps
	mkdir -p build/wheels
	found=$$(scripts/find_pythons.sh); for python in $$found; do \
	  scripts/test_pip_install.sh build/pip_install "$$python"; cp build/pip_install/wheels/*.whl build/wheels/; done

.PHONY: bench-compare
bench bench-compare: build build/stamps/deps-bench build/stamps/deps-gpu
	cmake --build build/release -j $(JOBS)
	cmake --build build/release --target $@ -- -k 0

# --- style ------------------------------------------------------------------------------------------------------------

.PHONY: lint-format lint-includes lint-tidy fuzz
lint: lint-format lint-includes lint-tidy

lint-format: build/stamps/deps-lint
	git ls-files '*.h' '*.cc' | xargs clang-format-19 --dry-run -Werror

lint-includes:
	python3 scripts/check_includes.py

# By preset dev, which compiles each source by itself.
lint-tidy: build/dev/build.ninja build/release/build.ninja build/stamps/deps-lint
	scripts/run_clang_tidy.sh build/dev build/release $(JOBS)

# What README.md shows is run.
.PHONY: lint-readme
lint-readme: build
	python3 scripts/check_readme.py

format: build/stamps/deps-lint
	git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

# Each fuzz target for FUZZ_SECONDS; what it finds lies in build/asan/findings.
FUZZ_SECONDS ?= 60
fuzz: build/asan/build.ninja
	scripts/run_fuzzers.sh build/asan $(FUZZ_SECONDS) $(JOBS)

clean:
	find build -mindepth 1 -maxdepth 1 ! -name 'venv*' ! -name stamps -exec rm -rf {} +
