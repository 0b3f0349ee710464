PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadgroup

unexport PYTHONDONTWRITEBYTECODE  # else every kernel and worker compiles all packages anew

.PHONY: lab setup lint test test-all jupyter book bench publish readme format clean

lab: setup  ## run every exercise that is not done, at quick sizes
	$(BIN)/lab run

setup: .venv/.ready  ## only the environment
	@echo "the environment .venv is ready"

.venv/.ready: pyproject.toml constraints.txt
	@echo "[1/2] the environment .venv, with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@echo "[2/2] what the lab needs: torch, JupyterLab and others, some minutes the first time"
	@$(PIP) -e .
	@mkdir -p .venv/share/jupyter/lab/settings  # README opens rendered; a notebook in git changes when it is saved
	@echo '{"@jupyterlab/docmanager-extension:plugin":' \
		'{"autosave": false, "defaultViewers": {"markdown": "Markdown Preview"}},' \
		'"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}' > .venv/share/jupyter/lab/settings/overrides.json
	@touch $@

.venv/.ready-test: .venv/.ready
	@echo "what the tests need"
	@$(PIP) -e ".[test]"
	@touch $@

lint: .venv/.ready-test  ## style of code and notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --verify $(STRIP) notebooks/*.ipynb

test: lint  ## lint, tests, the smoke run of every notebook
	@$(PYTEST) -m "not slow"

test-all: lint  ## the long tests too: more kills, clusters, browser, fuzz by the hundred; before a release
	@$(PYTEST)

jupyter: setup  ## JupyterLab on this machine only, with its token, opened on the README
	$(BIN)/jupyter lab --ip 127.0.0.1 --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/README.md \
		$(if $(filter 0,$(shell id -u)),--allow-root)

.venv/.ready-book: .venv/.ready
	@echo "what the book needs"
	@$(PIP) -e ".[book]"
	@touch $@

book: .venv/.ready-book  ## all published lessons as static pages that need no network, in results/book
	$(BIN)/sphinx-build -q -c book . results/book/html
	@echo "results/book/html/index.html"

.venv/.ready-bench: .venv/.ready
	@echo "what the benchmarks need"
	@$(PIP) -e ".[bench]"
	@touch $@

bench: .venv/.ready-bench  ## compare with other implementations; writes results/benchmarks
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/decoding.py
	$(BIN)/python benchmarks/attention_probe.py
	@$(BIN)/python benchmarks/summary.py

readme: setup  ## the pages of results/quick and the README's answers anew; nothing runs
	$(BIN)/python -c "from lab import publish; publish.write_pages()"

publish: setup  ## a release: results/quick anew; fails where a row is stale or older code made a run
	rm -rf results/.trials results/runs && $(BIN)/lab run && $(BIN)/lab publish

STRIP = --keep-id --extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info"

format: .venv/.ready-test  ## what `make test` checks, mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout $(STRIP) notebooks/*.ipynb

clean:
	rm -rf .venv results/.trials results/.shown
