# Needs python3 and make. Every target brings what it needs into .venv; the second time is quick.
.DEFAULT_GOAL := help
.PHONY: help demo test quick check fmt bench plots settings faults fuzz model docs screenshots services clean

PY := .venv/bin/python
# Tests start many Python processes; without bytecode files each of them compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/.demo: pyproject.toml scripts/install
	@scripts/install demo,examples && touch $@

.venv/.dev: pyproject.toml scripts/install
	@scripts/install dev && touch $@ .venv/.demo

.venv/.docs: .venv/.dev
	@scripts/install docs && touch $@

demo: .venv/.demo ## see events travel and break things, without any service; DEMO_SECONDS=20 ends by itself
	@$(PY) -m outrider demo $(if $(DEMO_SECONDS),--seconds $(DEMO_SECONDS))

test: .venv/.dev ## all tests, on private real servers that start by themselves; prints the coverage
	$(PY) -m pytest $(or $(ARGS),-n 6 --dist worksteal --cov=outrider)

quick: .venv/.dev ## the tests that need no server, in 20 seconds
	$(PY) -m pytest -q -n 2 -m "not server and not slow" tests/unit tests/conformance $(ARGS)

check: .venv/.dev ## lint, format, types, import contract, sizes
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m pytest -q tests/unit/test_shape.py tests/unit/test_house.py

fmt: .venv/.dev ## format and fix what can be fixed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: .venv/.dev ## measure side by side; one part with PART=name
	OUTRIDER_TEST_INSTALL=1 $(PY) -m bench $(PART)

plots: .venv/.dev ## the figures of the last benchmarks into docs/benchmarks.md
	$(PY) -m bench.report

settings: .venv/.dev ## the table of all settings into docs/guides/relay.md
	$(PY) scripts/settings_table.py $(ARGS)

faults: .venv/.dev ## every kind of fault at full length, with a scoreboard; a line of it with LINE=S-1
	OUTRIDER_FULL=1 $(PY) -m pytest -m '$(if $(LINE),fault(line="$(LINE)"),faults or fault)' \
		$(if $(BOARD),--scoreboard $(BOARD)) $(ARGS)

fuzz: .venv/.dev ## random input for everything that strangers reach; FUZZ_SECONDS=600 for each target
	OUTRIDER_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(PY) -m pytest -q -s tests/fuzz $(ARGS)

model: .venv/.dev ## search the protocol's model; one variant, and how it breaks, with ARGS=C
	$(PY) -m model $(ARGS)

docs: .venv/.docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet && echo "site/index.html"

screenshots: .venv/.dev ## pictures of the page into docs/images
	$(PY) scripts/screenshots

services: .venv/.dev ## keep private PostgreSQL, RabbitMQ, Redis, NATS and Kafka up; prints their URLs
	@$(PY) -m outrider.testing.services --install $(ARGS)

clean: ## remove what these targets made
	rm -rf .venv site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
