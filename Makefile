# Every target sets up .venv by itself; nothing else is installed by hand. PYTHON chooses the interpreter (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNEL := $(wildcard src/penstock/kernel/*.pyx src/penstock/kernel/*.pxi src/penstock/kernel/*.h)
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal
USES := tests/queue tests/channel tests/topic tests/journal
HOSTILE := tests/fuzz/test_files.py tests/fuzz/test_impossible.py
CRASHES := tests/channel_crash tests/topic_crash tests/journal_crash
# Where it matters how a lock is taken, a reader woken and space reserved: who appends, waits, forks and dies.
WAYS := append disk_full follow fork interrupt kill kill_points kill_stores processes read_live roll stopped sync
PORTABLE := $(WAYS:%=tests/queue/test_%.py) tests/topic/test_processes.py tests/topic/test_publish.py tests/topic/test_groups.py \
  tests/topic/test_read.py $(CRASHES:%=%/test_kill.py)
# Java as short runs want it: no second compiler that pays off after minutes, and no threads to collect garbage with.
JVM := JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Tests start hundreds of processes: each would compile the package for itself, half of what its start costs.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
MINUTES ?= 30

.PHONY: help demo test test-spark lint docs bench bench-spark sanitize soak torture clean
help:
	@echo "make demo     a pipeline on Spark, its driver killed halfway, and the proof that nothing is lost or there twice"
	@echo "              (about a minute); ARGS=\"--help\" tells what can be changed"
	@echo "make test     lint, types and every test, over both kernels (a quarter of an hour on 2 cores)"
	@echo "make test-spark  the tests that start Spark many times, or a cluster of it (8 minutes)"
	@echo "make lint     ruff and mypy alone"
	@echo "make docs     the documentation as a site, in site/; to search it, python3 -m http.server -d site"
	@echo "make bench    figures beside other embedded logs and stores, then those of Spark; ARGS=\"--help\" tells what can be narrowed"
	@echo "make bench-spark  of these the Spark source and sink beside Parquet, JSON lines and a plain Python source (3 minutes)"
	@echo "make torture  10,000 kills of processes that use a queue, a channel, a journal and a topic, hundreds of stops, then states that crashes leave"
	@echo "              of short workloads and calls that fail, 5,000 logs with hostile files, 200 power cuts on ext4 and xfs (as root, with btrfs), and"
	@echo "              kills of Spark; one table at the end (two hours); ARGS=\"--part 10\" for 10% of it"
	@echo "make sanitize the native kernel under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer (10 minutes)"
	@echo "make soak     all four uses under load for MINUTES=30: memory, maps, descriptors and latency must stay flat"
	@echo "make clean    remove everything that was built"

# The stamp names the extras that are installed; it is older than the sources when the kernel must be built again.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Penstock needs Python 3.11 or later; run make PYTHON=/path/to/it")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-%: $(BIN)/python pyproject.toml setup.py $(KERNEL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[$*]"
	@touch $@

demo: $(VENV)/.ready-spark
	$(BIN)/python -m penstock.demo $(ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Three runs: the native kernel, the native one without futex, robust mutex and fallocate, and the reference kernel; with more processes
# than cores, since tests wait for the disk and for each other, too. Of what a crash leaves in files the second would see the same as the
# first; of kills it does not, since locks are let go in another way. A queue is its mapped write path, and a topic the buffered one. A
# death at any call, a power cut, a full disk, how much memory is taken, or a copy is the storage layer's affair, whatever the kernel.
test: lint
	@if $(BIN)/python -c "import penstock.kernel._native" 2>/dev/null; then \
	  set -e; \
	  $(JVM) PENSTOCK_KERNEL=native $(PYTEST) --ignore=tests/spark_long; \
	  PENSTOCK_KERNEL=native PENSTOCK_PORTABLE=1 $(PYTEST) $(PORTABLE); \
	  PENSTOCK_KERNEL=reference $(PYTEST) $(USES) $(CRASHES) $(HOSTILE) tests/storage/test_ledger.py tests/test_threads.py \
	    --ignore-glob='*_crash/test_cut.py' --ignore-glob='*_crash/test_power.py' --ignore-glob='*/test_disk_full.py' --ignore-glob='*/test_memory.py' \
	    --ignore-glob='*/test_backup.py'; \
	else \
	  echo "no native kernel here (no C compiler?): testing the reference kernel alone"; \
	  $(JVM) PENSTOCK_KERNEL=reference $(PYTEST) --ignore=tests/spark_long; \
	fi

# Beside `make test`, which starts Spark once: from spark-submit, through Spark Connect, without a Java, a cluster that loses a worker, a
# driver killed at every moment of a commit.
test-spark: $(VENV)/.ready-dev
	PENSTOCK_KILLS=all $(BIN)/python -m pytest tests/spark_long tests/spark/test_kill.py

# Nothing is fetched while it is built, and pages name no other host: they can be read without a network.
docs: $(VENV)/.ready-docs
	$(BIN)/python tools/gen_cli.py
	$(BIN)/python tools/gen_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.ready-bench $(VENV)/.ready-spark
	$(BIN)/python -m bench $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m bench.spark)

bench-spark: $(VENV)/.ready-bench $(VENV)/.ready-spark
	$(BIN)/python -m bench.spark $(ARGS)

# Into build/sanitize-*, beside the ordinary build.
sanitize: $(VENV)/.ready-dev
	$(BIN)/python -m tests.sanitize $(ARGS)

soak: $(VENV)/.ready-dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

torture: $(VENV)/.ready-dev
	$(BIN)/python -m tests.torture_table $(ARGS)

clean:
	rm -rf $(VENV) build dist site bench/.build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f src/penstock/kernel/_native.c src/penstock/kernel/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
