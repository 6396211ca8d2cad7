"""Work on many items, segments mostly, done by Spark's tasks: shared out by size, the results in the order of the items.

What is sent there and what comes back is plain data, pickled. A piece of work that fails fails the job: what is to be
reported rather than raised, the work itself returns.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
_TASKS_PER_CORE: Final = 4  # so that no core waits long for the last one
_UNKNOWN_CORES: Final = 16  # of a server that does not tell


def each(
    spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Result], size: Callable[[Item], int]
) -> list[Result]:
    """What `work` makes of every item; `size` says how much work each is."""
    from pyspark.sql.functions import udf

    if not items:
        return []
    bins = _shared_out(items, size, min(len(items), _cores(spark) * _TASKS_PER_CORE))

    def task(number: int) -> bytes:
        return pickle.dumps([(place, work(item)) for place, item in bins[number]])

    # A plain function of a row: Spark's Arrow functions would want pandas, too, and here a row is a whole task.
    done = udf(task, "binary", useArrow=False)("id").alias("done")
    rows = spark.range(0, len(bins), 1, len(bins)).select(done).collect()
    found = [one for row in rows for one in pickle.loads(row.done)]
    return [result for _, result in sorted(found, key=lambda one: one[0])]


def _shared_out(items: Sequence[Item], size: Callable[[Item], int], tasks: int) -> list[list[tuple[int, Item]]]:
    """The items, each with its place, for so many tasks with about as much work each: the largest first, each to whoever has
    least."""
    bins: list[list[tuple[int, Item]]] = [[] for _ in range(tasks)]
    loads = [(0, 0, number) for number in range(tasks)]
    for place, item in sorted(enumerate(items), key=lambda one: size(one[1]), reverse=True):
        load, count, number = heapq.heappop(loads)
        bins[number].append((place, item))
        heapq.heappush(loads, (load + size(item), count + 1, number))
    return [some for some in bins if some]


def _cores(spark: SparkSession) -> int:
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:  # Spark Connect has no context to ask
        return _UNKNOWN_CORES
