# Every target sets up what it needs: Python 3.10 or later and git are enough. CONTRIBUTING.md says what each costs.
#   make demo      the whole path on real images: encode, save, serve, fetch, log, compare
#   make test      all tests; ARGS="tests/file -k torn" for some
#   make coverage  all tests, and how much of the code they run; fails below the floor in pyproject.toml
#   make check     format, lint, strict types, generated code and schema
#   make format    format the code, and mend what ruff can
#   make bench     ratios against peers and limits; ARGS="--json codec file" for programs, or for some areas
#   make soak      the long versions of the tests
#   make attacks   a server under attack beside an innocent caller: its latency, the server's memory
#   make fuzz      coverage-guided fuzzing of everything that reads bytes, on both protobuf back ends
#   make interop   the readers and clients in other languages against ours; ARGS="--seed 7" for other inputs
#   make matrix    every framework against every dtype and layout; writes docs/matrix.md
#   make proto     regenerate dlpack_wire/v1 from proto/
#   make floors    install the lowest versions that pyproject.toml allows, and use them
#   make dist      build the wheel and the source distribution, and check them; they are in dist/ then
#   make clean     remove everything that these targets made

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
CHECK_TOOLS = ruff==0.17.6 mypy==2.4.1 types-protobuf==7.35.1.20260906 types-grpcio==1.85.0.20261028
DIST_TOOLS = build==1.6.1 twine==7.0.0

.PHONY: demo test coverage check format bench soak attacks fuzz interop matrix proto floors dist clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[all]'
	touch $@

$(VENV)/test: tests/requirements.txt $(VENV)/installed
	$(PIP) --requirement tests/requirements.txt
	touch $@

$(VENV)/demo: tests/demo/requirements.txt $(VENV)/installed
	$(PIP) --requirement tests/demo/requirements.txt
	touch $@

$(VENV)/check: Makefile $(VENV)/installed
	$(PIP) $(CHECK_TOOLS)
	touch $@

$(VENV)/dist: Makefile | $(BIN)/python
	$(PIP) $(DIST_TOOLS)
	touch $@

$(VENV)/generator/bin/python: proto/generate.py
	$(PYTHON) -m venv $(VENV)/generator
	$(VENV)/generator/bin/python -m pip install --quiet --disable-pip-version-check 'setuptools<81' \
		"$$(sed -n 's/^GENERATOR = "\(.*\)"/\1/p' proto/generate.py)"
	touch $@

demo: $(VENV)/demo
	$(BIN)/python tests/demo/demo.py $(ARGS)

test: $(VENV)/test
	$(BIN)/python -m pytest $(ARGS)

coverage:
	$(MAKE) test ARGS="--cov --cov-report=term:skip-covered $(ARGS)"

soak: $(VENV)/test
	$(BIN)/python -m pytest --soak --timeout 7200 $(ARGS)

attacks: $(VENV)/test
	$(BIN)/python -m tests.attacks $(ARGS)

bench: $(VENV)/test
	$(PIP) --requirement tests/benchmarks/requirements.txt
	$(BIN)/python -m tests.benchmarks $(ARGS)

check: $(VENV)/check $(VENV)/generator/bin/python
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(VENV)/generator/bin/python proto/generate.py --check

format: $(VENV)/check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(VENV)/test
	$(PIP) --requirement tests/fuzz/requirements.txt
	$(BIN)/python -m tests.fuzz $(ARGS)

interop: $(VENV)/test
	$(BIN)/python -m pytest --interop -rPs tests/interop $(ARGS)

matrix: $(VENV)/test
	$(PIP) --requirement tests/matrix/requirements.txt
	$(BIN)/python -m tests.matrix $(ARGS)

proto: $(VENV)/generator/bin/python
	$(VENV)/generator/bin/python proto/generate.py

floors: | $(BIN)/python
	$(BIN)/python tests/floors.py

dist: $(VENV)/dist
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage dist
