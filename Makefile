# make demo    the main job under fire: Kafka to Postgres through Spark, killed again and again, then audited
# make prove   the protocol and the engine's subtasks struck at every step, in memory, and mutants of both: some 25 minutes of CPU
# make torture random faults on real servers and a real Spark, audited by named invariants after each round
# make test    what a change needs, in 12 to 25 minutes, on real servers that it starts and stops
# make test-all  every test: about three hours on two processors
# make test-containers  the tests on servers, in containers of our images (make images)
# make sanitize  the compiled Kafka fetch under the address, leak and undefined behaviour sanitizers
# make check   format, lint, types, unit tests but the slow ones: about three minutes
# make bench   throughput, side by side with other ways: the whole main job
# make bench-postgres   the same of the Postgres sink alone, from memory and from Spark
# make bench-kafka      the same of Kafka alone: a topic into columns, rows into a topic
# make bench-hbase      the same of HBase alone: rows into a table, in each mode
# make bench-epoch      what an epoch costs by itself, in bare commits, and a batch of Spark over its noop sink
# make bench-engine     flows without Spark beside a hand-written loop: throughput, CPU, latency, recovery
# make bench-keyed      a sum by key as a flow without Spark, beside other Python stream processors
# make bench-windows    windows of event time by key, beside other stream processors
# make compare          the mechanisms of fault tolerance on one flow, under the same kills, into docs/mechanisms.md: half an hour
# make audit   the lock against known advisories; exit code 3 of .ci/audit.py where they cannot be reached
# make lock    requirements.lock anew: the versions that it names, with the hashes of all their files (of a version that
#              is to change, remove the hashes that are there)
# make images  the container images of compose/, on an engine that runs here
# make docs    renew the pages that tests write
# make docs-site   README and docs as a site in .onefold/site; a link that leads nowhere fails
# make dist    source distribution and wheels into dist/, checked, and tried in a clean environment: about ten minutes
# make clean   stop what runs here and remove what was made
#
# ARGS are passed on: make demo ARGS="--delivery staged --seed 3"; make test ARGS="-k chain" (in one process)
# PYSPARK=4.3.0 makes any of them run on that PySpark instead of the lock's, in an environment of its own

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYSPARK ?=
VENV := $(if $(PYSPARK),.onefold/pyspark-$(PYSPARK),.venv)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
TOOLS := .onefold/tools/installed
SITE_TOOLS := .onefold/site-tools/installed
PAGES := .onefold/site-pages
UNIT := core/tests clients/tests sources/tests sinks/tests connectors/tests
NATIVE := $(addprefix sources/onefold/sources/native/,building.py fetch.c rdkafka.h json.c yyjson.c yyjson.h)
PARALLEL := -n auto --dist loadgroup
ARGS ?=

# Each of the many processes that tests and benchmarks start would compile onefold for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: images demo prove torture test test-all test-containers sanitize check bench bench-postgres bench-kafka bench-hbase bench-epoch bench-engine bench-keyed bench-windows compare audit lock docs docs-site dist clean
demo: $(INSTALLED)
	@$(BIN)/onefold demo $(ARGS)

prove: $(INSTALLED)
	@$(BIN)/onefold prove $(ARGS)

torture: $(INSTALLED)
	@$(BIN)/onefold torture $(ARGS)

test: $(INSTALLED)
	@$(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL) -m "not slow and not soak")

test-all: $(INSTALLED)
	@$(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL))

test-containers: $(INSTALLED)
	@ONEFOLD_SERVERS=containers $(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL) integration-tests)

sanitize: $(INSTALLED)
	@ONEFOLD_SANITIZE=whole $(BIN)/python -m pytest integration-tests/kafka_source/test_compiled_fetch.py -k sanitizers $(ARGS)

check: $(INSTALLED)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q $(PARALLEL) -m "not proof and not slow and not soak" $(UNIT)

bench: $(INSTALLED)
	@$(BIN)/python -m bench $(ARGS)

bench-postgres: $(INSTALLED)
	@$(BIN)/python -m bench.postgres $(ARGS)

bench-kafka: $(INSTALLED)
	@$(BIN)/python -m bench.kafka $(ARGS)

bench-hbase: $(INSTALLED)
	@$(BIN)/python -m bench.hbase $(ARGS)

bench-epoch: $(INSTALLED)
	@$(BIN)/python -m bench.epoch $(ARGS)

bench-engine: $(INSTALLED)
	@$(BIN)/python -m bench.engine $(ARGS)

bench-keyed: $(INSTALLED)
	@$(BIN)/python -m bench.keyed $(ARGS)

bench-windows: $(INSTALLED)
	@$(BIN)/python -m bench.windows $(ARGS)

compare: $(INSTALLED)
	@$(BIN)/python -m bench.compare --page $(ARGS)

audit: $(TOOLS)
	@$(PYTHON) .ci/audit.py .onefold/tools/bin/pip-audit requirements.lock

lock: $(TOOLS)
	@sed -nE 's/^([A-Za-z0-9._-]+==[^ ;]+).*/\1/p' requirements.lock > .onefold/tools/pins.in
	@.onefold/tools/bin/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-annotate --no-header \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file requirements.lock \
	  $(ARGS) .onefold/tools/pins.in

images:
	@compose/build $(ARGS)

docs: $(INSTALLED)
	@ONEFOLD_RENEW_DOCS=1 $(BIN)/python -m pytest -q -m docs $(ARGS)

# README is the site's first page, so docs/README.md gets another name there.
docs-site: $(SITE_TOOLS)
	@rm -rf $(PAGES) && mkdir -p $(PAGES) && cp -r docs/*.md docs/examples docs/images $(PAGES)
	@sed 's|](docs/|](|g; s|](README.md|](pages.md|g' README.md > $(PAGES)/index.md
	@mv $(PAGES)/README.md $(PAGES)/pages.md
	@sed -i 's|](../README.md|](index.md|g' $(PAGES)/*.md
	@NO_MKDOCS_2_WARNING=1 .onefold/site-tools/bin/mkdocs build $(ARGS)
	@echo ".onefold/site/index.html"

dist: $(INSTALLED) $(TOOLS)
	@$(BIN)/python .ci/release $(ARGS) .onefold/tools/bin

clean:
	@if [ -x $(BIN)/onefold ]; then \
	  find .onefold \( -name kafka.json -o -name postgres.json -o -name hbase.json -o -name mariadb.json \) -printf '%h\n' 2>/dev/null | sort -u | \
	  while read -r directory; do $(BIN)/onefold local down --dir "$$directory"; done; fi
	rm -f sources/onefold/sources/native/_native.so
	rm -rf .venv .onefold .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements.lock pyproject.toml hatch_build.py $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "onefold needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): a few minutes, once"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes --requirement requirements.lock
	@$(if $(PYSPARK),$(BIN)/python -m pip install --disable-pip-version-check --quiet "pyspark==$(PYSPARK)")
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(TOOLS): .ci/tools.lock
$(SITE_TOOLS): .ci/site.lock
$(TOOLS) $(SITE_TOOLS):
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes --requirement $<
	@touch $@
