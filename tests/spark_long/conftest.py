"""Tests that start Spark several times, or a cluster of it: `make test-spark`."""

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.spark.conftest import spark as spark
