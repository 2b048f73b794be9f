# make lab         set up .venv and open JupyterLab on the series
# make test        set up .venv, run all tests and all notebooks
# make notebooks   execute every notebook in place and normalise it, to be committed
# make lint        ruff, mypy and who may import whom; make format mends what can be mended
# make wheel       an installable package with its widgets, tiny model and traces, in dist/
# make site        the notebooks as pages, with glossary and reference, in build/site (and make lite's, if it is there)
# make lite        the notebooks that need no PyTorch, to run in a browser, in build/live/lite; make test-lite runs them

PYTHON ?= python3
BIN := .venv/bin
# One thread a process: tests and notebooks run side by side, and OpenMP threads that compete are far slower.
# The shipped model, so that a test run neither waits for a hub nor depends on one.
RUN := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PAGEDLAB_MODEL=$(CURDIR)/data/tiny-qwen2 $(BIN)/python
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
WORKERS ?= 2

.PHONY: lab test test-browser test-notebooks notebooks lint format wheel site lite test-lite setup

lab: setup
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB_ARGS)

test: lint
	$(RUN) -m pytest -n $(WORKERS) -m "not browser" tests
	$(MAKE) -j 2 test-browser test-notebooks

# In a process of their own: together with others, their event loop would be in the way.
test-browser:
	$(RUN) -m pytest -m browser tests

test-notebooks:
	$(RUN) -m pytest --nbmake --nbmake-timeout=300 notebooks

notebooks: setup
	$(RUN) -m jupyter nbconvert --to notebook --execute --inplace $(NOTEBOOKS)
	$(RUN) tools/normalise_notebooks.py $(NOTEBOOKS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# build/lib is where setuptools leaves what it packed before, files that are gone by now included.
wheel: setup
	rm -rf build/lib
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

site: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .venv/constraints.txt --editable ".[site]"
	rm -rf build/site
	$(RUN) -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/site

lite: setup
	$(RUN) tools/build_lite.py

test-lite: setup
	PAGEDLAB_TEST_LITE=1 $(RUN) -m pytest tests/notebooks/test_lite.py

setup:
	@$(PYTHON) tools/setup_env.py
