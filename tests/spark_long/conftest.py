"""Tests that start Spark several times, or a cluster of it: `make test-spark`."""

import pytest

pytest.importorskip("pyspark", reason="pip install 'penstock[spark]'")

from tests.spark.conftest import spark as spark
