"""Orders of the queue as they come: each run takes what is new since the last one."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def parsed() -> DataFrame:
    order = f.from_json(
        f.col("value").cast("string"), "id string, time timestamp, symbol string, price decimal(10,2), size bigint"
    )
    return (
        spark.readStream.format("penstock")
        .option("startingOffsets", "earliest")
        .load(spark.conf.get("example.orders"))
        .select("offset", f.inline_outer(f.array(order)))
        .where("id is not null and time is not null and symbol is not null and price > 0 and size > 0")
    )
