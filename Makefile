# unmask: `make demo` and `make test` install what they need into .venv on a bare machine with Python 3.11 to 3.14.
# The newest of them that starts and can make environments; `make PYTHON=...` takes another.
CAN = import sys, ensurepip, venv; print(sys.executable)
PYTHON ?= $(firstword $(foreach v,3.14 3.13 3.12 3.11,$(shell python$(v) -c '$(CAN)' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test files side by side: each process has one thread and takes 1 to 2 GiB.
WORKERS ?= 2
# pip's hundreds of lines as a running count and the large downloads; its errors stay as they are.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PIP := PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --use-pep517 -c constraints.txt
SHOWN := while read -r first file size unit rest; do case "$$first $$size $$unit" in \
  Collecting\ *|Processing\ *) (( ++n % 10 )) || echo "  $$n packages found";; \
  Downloading\ \([0-9][0-9]*\ MB\)|Downloading\ *\ GB\)) echo "  $$first $$file $$size $$unit";; \
  Installing\ *) set -- $$rest; echo "  writing $$(( $$\# + 1 )) packages: nothing is printed for a minute or more";; esac; done

.PHONY: help install demo test quick slow check verify tables bench model docs docs-slow release clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-9s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x "$$(command -v '$(PYTHON)')" || { echo "no Python 3.11 to 3.14 with venv found: install one (Debian:" \
	  "apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3"; exit 2; }
	@echo "Installing into $(VENV) what demo, test and check need, once: about 115 packages, 3 to 10 minutes,"
	@echo "2.3 GB on disk (7 GB where PyTorch's build for NVIDIA GPUs is the one found), with $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -e '.[dev]' | $(SHOWN)
	@touch $(STAMP)
	@echo "Installed. For work of your own: . $(BIN)/activate, then unmask --help"

install: $(STAMP)  ## create .venv with everything for demo, test and check

demo: $(STAMP)  ## train a masked language model on embedded text, minutes, and write report.html
	@echo "A model learns English from the docstrings of what is installed: 2.4 minutes of training, then one for the report"
	@$(BIN)/unmask demo text

test: $(STAMP)  ## run the tests in 10 minutes on two cores, two files at a time or WORKERS=n (slow and GPU ones left out)
	@echo "All tests but the slow ones: 10 minutes on two free cores, with WORKERS=$(WORKERS); make quick takes 3"
	@$(BIN)/python -m pytest tests -n $(WORKERS) --dist loadfile

quick: $(STAMP)  ## for the inner loop, 3 minutes: the laws, the core, every verb of every kind once, names and arrows
	@$(BIN)/python -m pytest tests/invariants tests/core tests/cli/test_keys_alike.py tests/cli/test_kinds_alike.py tests/test_arrows.py tests/test_words.py tests/test_face.py tests/test_errors.py -n $(WORKERS) --dist loadfile

slow: $(STAMP)  ## run the slow tests too: broken copies of the source must fail the laws
	$(BIN)/python -m pytest tests -m slow -n $(WORKERS) --dist worksteal

check: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check src tests benchmarks models docs/make docs/pictures
	$(BIN)/ruff check src tests benchmarks models docs/make docs/pictures
	$(BIN)/mypy

verify: $(STAMP)  ## remake the quick figures of the pages (minutes) and say how far they moved
	$(BIN)/python docs/make/doc_verify.py --quick

tables: $(STAMP)  ## draw the tables and figures of the pages from docs/results
	$(BIN)/python docs/make/doc_verify.py --draw

bench: $(STAMP)  ## side by side with transformers on this machine (tens of minutes)
	$(BIN)/python benchmarks/text_infer.py
	$(BIN)/python benchmarks/text_pretrain.py

# A folder of texts, the file that says what they are, and how long this call trains.
CORPUS ?= corpus
SOURCES ?= models/english/sources.toml
MINUTES ?= 60

model: $(STAMP)  ## train the English model on the files in CORPUS=folder for MINUTES=n, going on where it was; pack it
	$(BIN)/python models/english/make_model.py --corpus $(CORPUS) --sources $(SOURCES) --minutes $(MINUTES)

$(VENV)/.docs: $(STAMP)
	@$(PIP) -e '.[dev,docs]' | $(SHOWN)
	@touch $@

docs: $(VENV)/.docs  ## build the pages into site/, with a search that needs no network
	$(BIN)/python docs/make/doc_site.py

docs-slow: $(VENV)/.docs  ## run the tutorials whole (tens of minutes); UNMASK_DOCS_WRITE=1 writes their outputs
	$(BIN)/python -m pytest tests/docs -m docs

# Where the files of the repository are read: with it the package's description keeps README's links and pictures.
PAGES ?=

release: $(STAMP)  ## make sdist and wheel in dist/, PAGES=address of the repository's files, and list what they hold
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	UNMASK_PAGES='$(PAGES)' $(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -c "import hashlib,pathlib; [print(hashlib.sha256(p.read_bytes()).hexdigest(), p.name) \
	  for p in sorted(pathlib.Path('dist').glob('unmask-*'))]" > dist/CONTENTS.txt
	$(BIN)/python -m zipfile -l dist/*.whl >> dist/CONTENTS.txt

clean:  ## remove what the tools leave behind (keeps .venv)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site demo-text
