"""Penstock logs in Spark: `format("penstock")` as a source and a sink, and jobs over logs too big for one process."""

from penstock.spark.session import register, session

__all__ = ["register", "session"]
