# make lab     opens the course       make test     runs every check
# Both make .venv first, with constraints.txt's versions, and nothing outside this folder.

PORT ?=
BROWSER ?=
IP ?= localhost
STAGES ?=
LESSONS ?=
PYTHON ?=
export PYTHON
# torch's and Numba's threads wait for work by spinning, for milliseconds, on the cores that the other ones need.
ifndef OMP_WAIT_POLICY
GOMP_SPINCOUNT ?= 5000
export GOMP_SPINCOUNT
endif

python := .venv/bin/python
# JupyterLab shows stored pictures of trusted notebooks only; the signatures stay in .venv.
notary := --NotebookNotary.db_file=$(CURDIR)/.venv/signatures.db --NotebookNotary.secret_file=$(CURDIR)/.venv/signature_secret
lab_options := $(notary) --ServerApp.ip=$(IP) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb
ifneq ($(PORT),)
lab_options += --ServerApp.port=$(PORT) --ServerApp.port_retries=0
endif
ifeq ($(BROWSER),none)
lab_options += --no-browser
endif
ifeq ($(shell id -u),0)
lab_options += --allow-root
endif

.DEFAULT_GOAL := help
.PHONY: help lab test build doctor pins clean

help:
	@echo "make lab      open the course in JupyterLab (PORT=8888, BROWSER=none, IP=0.0.0.0 in a container)"
	@echo "make test     run every check; STAGES=\"lint types\" runs some of them"
	@echo "make build    rebuild notebooks/ from lessons/; LESSONS=01_waste rebuilds one"
	@echo "make doctor   look for what breaks a course on this machine"
	@echo "make pins     write constraints.txt from what .venv holds"
	@echo "make clean    remove .venv and every cache"
	@echo "PYTHON=/path/to/python3 chooses the Python that .venv is made with."

lab:
	@tools/venv.sh course
	@.venv/bin/jupyter-trust $(notary) notebooks/*.ipynb notebooks/solutions/*.ipynb >/dev/null
	@$(python) -m jupyterlab $(lab_options)

test:
	@tools/venv.sh course test
	@$(python) tools/run_tests.py $(STAGES)

build:
	@tools/venv.sh course
	@$(python) -m kvlab build $(LESSONS)

doctor:
	@tools/venv.sh course
	@$(python) -m kvlab doctor

pins:
	@tools/venv.sh course test
	@$(python) tools/pins.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find kvlab tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
