"""Found by Spark in every new session, which then knows `format("penstock")`. Keep its import light."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
