PYTHON ?= python3
BIN := .venv/bin
# where there is a folder wheelhouse, all comes from it and nothing from the network
WHEELS := $(if $(wildcard wheelhouse),--no-index --find-links wheelhouse)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt $(WHEELS)

PYTEST = $(BIN)/python -m pytest -n 2 --dist loadgroup

.PHONY: lab setup wheelhouse lint translations test test-all jupyter book bench readme publish format clean

lab: setup  ## run every exercise that is not done, at quick sizes
	$(BIN)/lab run

setup: .venv/.ready  ## only the environment
	@echo "the environment .venv is ready"

.venv/.ready: pyproject.toml constraints.txt
	@echo "[1/3] the environment .venv, with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@echo "[2/3] what the lab needs: torch, JupyterLab and others, some minutes the first time"
	@$(PIP) -e .
	@echo "[3/3] a check that all is found"
	-@$(BIN)/lab doctor
	@mkdir -p .venv/share/jupyter/lab/settings  # a notebook in git changes when it is saved, not by itself
	@echo '{"@jupyterlab/docmanager-extension:plugin": {"autosave": false},' \
		'"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}' > .venv/share/jupyter/lab/settings/overrides.json
	@touch $@

wheelhouse: setup  ## all packages as files in a folder: `make setup` there needs no network
	$(BIN)/python -m pip wheel --quiet -c constraints.txt -w wheelhouse . "setuptools>=77"

.venv/.ready-test: .venv/.ready
	@echo "what the tests need"
	@$(PIP) -e ".[test]"
	@touch $@

translations: .venv/.ready  ## bring lab/languages/zh.po up to date with what the package says
	$(BIN)/pybabel --quiet extract -k tr --add-location=file -o .venv/lab.pot lab
	$(BIN)/pybabel --quiet update -l zh -i .venv/lab.pot -o lab/languages/zh.po -w 0 --ignore-obsolete --previous --ignore-pot-creation-date

lint: .venv/.ready-test  ## style of code and notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --verify $(STRIP) notebooks/*.ipynb

test: lint  ## lint, tests, the smoke run of every notebook
	@$(PYTEST) -m "not slow and not extreme"

test-all: lint  ## the long tests too: many kills, clusters, browser, fuzz by the hundred; before a release
	@$(PYTEST) -m "not extreme"

SPEAK = $(if $(filter command,$(origin LANGUAGE)),$(LANGUAGE),en)

.venv/.ready-zh: .venv/.ready
	@echo "JupyterLab's own words in Chinese"
	@$(PIP) -e ".[chinese]"
	@touch $@

jupyter: setup $(if $(filter zh,$(SPEAK)),.venv/.ready-zh)  ## JupyterLab on this machine only, with its token; LANGUAGE=zh: all in Chinese
	$(if $(filter zh,$(SPEAK)),$(BIN)/lab zh)
	LAB_LANGUAGE=$(SPEAK) $(BIN)/jupyter lab --ip 127.0.0.1 --ServerApp.root_dir=. \
		$(if $(filter 0,$(shell id -u)),--allow-root) \
		$(if $(filter zh,$(SPEAK)),--LabApp.app_settings_dir=$(CURDIR)/lab/languages/jupyterlab-zh) \
		--LabApp.default_url=/lab/tree/notebooks$(if $(filter en,$(SPEAK)),,/$(SPEAK))

.venv/.ready-book: .venv/.ready
	@echo "what the book needs"
	@$(PIP) -e ".[book]"
	@touch $@

book: .venv/.ready-book  ## the book of all results in both languages, zipped too, opened in the browser
	$(BIN)/lab book --open
	cd results && ../$(BIN)/python -m zipfile -c book.zip book

.venv/.ready-bench: .venv/.ready
	@echo "what the benchmarks need"
	@$(PIP) -e ".[bench]"
	@touch $@

bench: .venv/.ready-bench  ## compare with other implementations; writes results/benchmarks
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/decoding.py
	$(BIN)/python benchmarks/attention_probe.py
	$(BIN)/python benchmarks/runner.py
	$(BIN)/python benchmarks/engine.py
	@$(BIN)/python benchmarks/summary.py

readme: setup  ## what the READMEs and results/quick/README.md say of the results, from committed tables; nothing runs
	$(BIN)/python -c "from lab.tools.record import older; from lab.claims import report; report.publish(older())"

publish: setup  ## a release: results/quick anew; fails where anything is stale, or older code made it, or errata disagree
	$(BIN)/lab clean --trials --runs && $(BIN)/lab run && $(BIN)/lab publish
	$(BIN)/lab record --status --strict
	$(BIN)/python -c "from lab.claims import errata; raise SystemExit('\n'.join(errata.check()) or None)"

STRIP = --extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info"

format: .venv/.ready-test  ## what `make test` checks, mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout $(STRIP) notebooks/*.ipynb

clean:
	rm -rf .venv results/.running results/.trials
