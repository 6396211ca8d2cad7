"""Bars of one minute, made anew from all orders in each run."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.materialized_view
def bars() -> DataFrame:
    when = f.struct("time", "id", "offset")
    return (
        spark.read.table("parsed")
        .groupBy(f.window("time", "1 minute"), "symbol")
        .agg(
            f.min_by("price", when).alias("open"),
            f.max("price").alias("high"),
            f.min("price").alias("low"),
            f.max_by("price", when).alias("close"),
            f.sum("size").alias("volume"),
            f.count("*").alias("orders"),
            f.sum(f.col("price") * f.col("size")).alias("notional"),
        )
        .selectExpr("window.start as minute", "symbol", "open", "high", "low", "close", "volume", "orders", "notional")
    )
