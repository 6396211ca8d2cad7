# Every target sets up .venv by itself; nothing else is installed by hand. PYTHON chooses the interpreter (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNEL := $(wildcard src/penstock/kernel/*.pyx src/penstock/kernel/*.pxi src/penstock/kernel/*.h)
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
USES := tests/queue tests/channel tests/topic tests/journal
CRASHES := tests/channel_crash tests/topic_crash tests/journal_crash
# Java as short runs want it: no second compiler that pays off after minutes, and no threads to collect garbage with.
JVM := JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARGS ?=
SNAPSHOTS ?= 500
MINUTES ?= 30

.PHONY: help demo test test-spark lint bench bench-spark sanitize soak torture clean
help:
	@echo "make demo     a pipeline on Spark, its driver killed halfway, and the proof that nothing is lost or there twice"
	@echo "              (about a minute); ARGS=\"--help\" tells what can be changed"
	@echo "make test     lint, types and every test, over both kernels (under 15 minutes on 2 cores)"
	@echo "make test-spark  the tests that start Spark many times, or a cluster of it (6 minutes)"
	@echo "make lint     ruff and mypy alone"
	@echo "make bench    figures beside other embedded logs and stores; ARGS=\"--help\" tells what can be narrowed"
	@echo "make bench-spark  the Spark source and sink beside Parquet, JSON lines and a plain Python source (3 minutes)"
	@echo "make torture  10,000 kills of a queue's writers and readers (about half an hour), then 2,000 each of a channel's and a"
	@echo "              journal's process and of a topic's publishers and members (25 minutes); ARGS=\"--kills 500\" for fewer;"
	@echo "              then 500 power cuts under all of them on ext4 and xfs, as root with btrfs (half an hour); SNAPSHOTS=50"
	@echo "make sanitize the native kernel under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer (10 minutes)"
	@echo "make soak     all four uses under load for MINUTES=30: memory, descriptors and latency must stay flat"
	@echo "make clean    remove everything that was built"

# The stamp names the extras that are installed; it is older than the sources when the kernel must be built again.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Penstock needs Python 3.11 or later; run make PYTHON=/path/to/it")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-%: $(BIN)/python pyproject.toml setup.py $(KERNEL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

demo: $(VENV)/.ready-spark
	$(BIN)/python -m penstock.demo $(ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Three runs: the native kernel, the reference kernel, and the native one without futex, robust mutex and fallocate; more processes than
# cores where no Spark runs, since tests wait for the disk half of their time. Of what a crash
# leaves in files the last one would see the same as the first; of kills it does not, since locks are let go in another way. A queue is
# its mapped write path, and a topic the buffered one. A death at any call is the storage layer's affair, whatever the kernel.
test: lint
	@if $(BIN)/python -c "import penstock.kernel._native" 2>/dev/null; then \
	  set -e; \
	  $(JVM) PENSTOCK_KERNEL=native $(PYTEST) --ignore=tests/spark_long; \
	  PENSTOCK_KERNEL=native PENSTOCK_PORTABLE=1 $(PYTEST) -n 3 tests/queue tests/topic $(CRASHES:%=%/test_kill.py); \
	  PENSTOCK_KERNEL=reference $(PYTEST) -n 3 $(USES) $(CRASHES) tests/storage/test_ledger.py --ignore-glob='*_crash/test_cut.py'; \
	else \
	  echo "no native kernel here (no C compiler?): testing the reference kernel alone"; \
	  $(JVM) PENSTOCK_KERNEL=reference $(PYTEST) --ignore=tests/spark_long; \
	fi

# Beside `make test`, which starts Spark once: from spark-submit, through Spark Connect, without a Java, a cluster that loses a worker, a
# driver killed at every moment of a commit.
test-spark: $(VENV)/.ready-dev
	PENSTOCK_KILLS=all $(BIN)/python -m pytest tests/spark_long tests/spark/test_kill.py

bench: $(VENV)/.ready-bench
	$(BIN)/python -m bench $(ARGS)

bench-spark: $(VENV)/.ready-bench $(VENV)/.ready-dev
	$(BIN)/python -m bench.spark $(ARGS)

# Into build/sanitize-*, beside the ordinary build.
sanitize: $(VENV)/.ready-dev
	$(BIN)/python -m tests.sanitize

soak: $(VENV)/.ready-dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

torture: $(VENV)/.ready-dev
	$(BIN)/python -m tests.torture $(or $(ARGS),--kills 10000)
	$(BIN)/python -m tests.topic_crash.campaign $(or $(ARGS),--kills 2000)
	$(BIN)/python -m tests.channel_crash.campaign $(or $(ARGS),--kills 2000)
	$(BIN)/python -m tests.journal_crash.campaign $(or $(ARGS),--kills 2000)
	$(BIN)/python -m tests.power.campaign --snapshots $(SNAPSHOTS)

clean:
	rm -rf $(VENV) build dist site bench/.build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f src/penstock/kernel/_native.c src/penstock/kernel/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
