# make lab         set up .venv and open JupyterLab on the series
# make test        set up .venv, run all tests and all notebooks
# make test-qwen   all notebooks, and the tests that want one, with the real Qwen in the folder PAGEDLAB_TEST_MODEL
# make notebooks   execute the notebooks in place with PAGEDLAB_MODEL (or the tiny model) and normalise them, to be
#                  committed; those of a GPU (07, 10, cells tagged "gpu") keep what they show
# make sources    renew the package's sources that notebooks show, without running the notebooks
# make notebooks-gpu PAGEDLAB_MODEL=FOLDER [PYTHON=python3] [OUT=notebooks]   those of a GPU, on a machine that has one;
#                  PYTHON has torch, transformers and triton, matplotlib, anywidget, nbclient and ipykernel
# make time        how long each notebook takes with PAGEDLAB_MODEL (or the tiny model), and its longest cell
# make lint        ruff, mypy, who may import whom, and budgets; make format mends what can be mended
# make wheel       an installable package with its widgets and tiny model, in dist/
# make terminal    the picture of a conversation in a terminal, docs/chat.svg, with PAGEDLAB_MODEL (or the tiny model)
# make site        the first page, the notebooks as pages and to run in a browser, glossary and reference, in build/site
# make lite        those to run in a browser alone, in build/live/lite; make test-lite runs them there

PYTHON ?= python3
BIN := .venv/bin
# Where this variable is set, each process compiles each file again.
unexport PYTHONDONTWRITEBYTECODE
# One thread a process: tests and notebooks run side by side, and OpenMP threads that compete are far slower.
# The shipped model, so that a test run neither waits for a hub nor depends on one.
RUN := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PAGEDLAB_MODEL="$(CURDIR)/data/tiny-qwen2" $(BIN)/python
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
ON_A_GPU := $(wildcard notebooks/07_*.ipynb notebooks/08_*.ipynb notebooks/10_*.ipynb)
ELSEWHERE := $(filter-out notebooks/07_% notebooks/10_%,$(NOTEBOOKS))
ASKED := PAGEDLAB_MODEL="$${PAGEDLAB_MODEL:-$(CURDIR)/data/tiny-qwen2}"
WORKERS ?= 2
# Files that have tests in a browser: to collect all files takes as long as some of these.
IN_BROWSER = $(shell grep -rl --include "test_*.py" --exclude-dir notebooks "in_browser\|mark.browser" tests)
# JupyterLab refuses to start as root without it.
AS_ROOT := $(if $(filter 0,$(shell id -u 2>/dev/null)),--allow-root)

.PHONY: lab test test-main test-js test-browser test-notebooks test-about test-qwen test-qwen-notebooks test-qwen-rest notebooks sources notebooks-gpu time lint format wheel site lite test-lite setup setup-reader setup-site terminal

lab: setup-reader
	@echo "JupyterLab starts. If no browser opens, open the last address below. Press Ctrl-C twice to end it."
	@$(BIN)/jupyter lab --log-level=WARN $(AS_ROOT) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB_ARGS)

# Three parts at once, the longest first: a browser waits more than it computes, and the main part has $(WORKERS)
# processes. So two cores are busy to the end. test-js is first, since it installs what lint and the browser need.
test: test-js
	$(MAKE) -j 3 test-main test-browser lint test-about

# With the notebooks, which the processes share as they share the tests: alone they would be the last to end.
test-main:
	$(RUN) -m pytest -n $(WORKERS) --dist worksteal -m "not browser" \
		--ignore tests/notebooks --ignore tests/repo tests

# The widgets' scripts, under node.
test-js: setup
	$(BIN)/python tools/javascript.py test

# In one process: they share Chromium and JupyterLab. A failure is tried once more, and reported: three programs and two
# processors take part in each of these tests, beside the other parts of `make test`.
test-browser:
	$(RUN) -m pytest -m browser --reruns 1 -rR $(IN_BROWSER)

test-notebooks:
	$(RUN) -m pytest tests/test_notebooks.py

# Those about the notebooks, the site and the repository, but for budgets: lint has them. Some look at the built site in
# a browser.
test-about:
	$(RUN) -m pytest tests/notebooks tests/repo --ignore tests/repo/test_budgets.py

test-qwen: setup
	@test -d "$$PAGEDLAB_TEST_MODEL" || { echo "PAGEDLAB_TEST_MODEL names no folder with a real Qwen"; exit 2; }
	$(MAKE) -j 2 test-qwen-notebooks test-qwen-rest

# Two notebooks at once, with one thread each: more threads would compete for two cores. Their kernels have torch already,
# and with it Triton, which was told whether to interpret.
test-qwen-notebooks:
	$(if $(shell command -v nvidia-smi),,TRITON_INTERPRET=1) OMP_NUM_THREADS=1 PYTHONPATH=tests PAGEDLAB_MODEL="$$(cd "$$PAGEDLAB_TEST_MODEL" && pwd)" $(BIN)/python -m pytest \
		-n $(WORKERS) --dist worksteal --timeout=900 -p support.warm -p nbmake --nbmake --nbmake-timeout=900 notebooks

test-qwen-rest:
	$(RUN) -m pytest -m qwen tests

notebooks: setup
	$(ASKED) $(BIN)/python tools/time_notebooks.py --out notebooks $(ELSEWHERE)
	$(RUN) tools/normalise_notebooks.py $(NOTEBOOKS)

sources: setup
	$(RUN) tools/notebook_sources.py $(NOTEBOOKS)

notebooks-gpu:
	@test -n "$$PAGEDLAB_MODEL" || { echo "say which weights: PAGEDLAB_MODEL=FOLDER"; exit 2; }
	PYTHONPATH="$(CURDIR)" $(PYTHON) tools/time_notebooks.py --out $(or $(OUT),notebooks) $(ON_A_GPU)

time: setup
	$(ASKED) $(BIN)/python tools/time_notebooks.py $(NOTEBOOKS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python tools/javascript.py lint
	$(BIN)/python -m pytest -q --noconftest tests/repo/test_budgets.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/javascript.py format

# build/lib is where setuptools leaves what it packed before, files that are gone by now included.
wheel: setup-reader
	rm -rf build/lib
	@echo "building a wheel (a minute)"
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

site: setup-site
	rm -rf build/site
	$(RUN) tools/build_lite.py
	$(RUN) -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/site
	$(RUN) tools/build_front.py build/site
	@echo "Look at it: $(PYTHON) -m http.server --directory build/site, and open localhost:8000"

terminal: setup
	$(ASKED) $(BIN)/python tools/make_terminal.py

lite: setup
	$(RUN) tools/build_lite.py

test-lite: setup
	PAGEDLAB_TEST_LITE=1 $(RUN) -m pytest tests/notebooks/test_lite.py

setup:
	@$(PYTHON) tools/setup_env.py

# What builds the site, without the tools of the tests.
setup-site:
	@$(PYTHON) tools/setup_env.py --site

# What a reader needs, without the tools of the tests.
setup-reader:
	@$(PYTHON) tools/setup_env.py --reader
