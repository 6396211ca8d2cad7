"""Convert: logs written anew in another format, through the sink, in their order. The source stays as it is.

A stream that ends where the log does now, a step at a time, exactly once: if it is cut short, the same call goes on where it was.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.converting import Converted, ConvertReport, check_apart, place_of, real_path
from penstock.errors import InvalidOption, LogNotFound
from penstock.inspect import FormatName, Part, find
from penstock.spark.jobs.targets import columns_for, make_topics
from penstock.storage import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEP_BYTES: Final = 64 << 20  # a batch of a topic lies in one segment
_CHECKPOINT: Final = ".convert"
_DONE: Final = ".converted"  # the same when all is done: half removed, it would be taken for one that says less

__all__ = ["ConvertReport", "Converted", "convert"]


def convert(spark: SparkSession, source: str | Path, target: str | Path, *, to: FormatName) -> ConvertReport:
    """Write the logs at `source` to `target`, which is not there yet, as a queue, a channel or a topic.

    A topic keeps its name and partitions, and any other log becomes a topic with one; `target` is the directory of topics. A queue
    or channel is `target` itself if there is one log with one partition; else there is one for each, `target/orders-0` and so on.
    Records have new times.
    """
    if to == "journal":
        raise InvalidOption("Spark converts to queues, channels and topics; `penstock convert` makes a journal, too")
    parts = _logs(source, Path(target))
    check_apart(parts, Path(target))
    places = {part: place_of(Path(target), part, alone=len(parts) == 1, to=to) for part in parts}
    over = _over(set(places.values()))
    for place in set(places.values()) - over:
        if _is_taken(place) and not _started(place):
            raise InvalidOption(f"{place}: there is something already; give a directory that is not there yet")
    left = {part: place for part, place in places.items() if place not in over}
    if to == "topic" and left:
        most = {part.topic: 1 + max(p.partition for p in parts if p.topic == part.topic) for part in parts}
        make_topics(_marked(Path(target)), most)
    for part, place in left.items():
        _run(spark, part, _marked(place), to)
    done = tuple(
        Converted(p.path, str(place), p.topic, p.partition, _records(place, p, to)) for p, place in places.items()
    )
    for place in set(left.values()):
        files.rename(place / _CHECKPOINT, place / _DONE)
        files.sync_directory(place)
    for place in set(places.values()):
        files.remove_tree(place / _DONE)
    return ConvertReport(str(source), str(target), to, done)


def _logs(source: str | Path, target: Path) -> list[Part]:
    """The logs at the source, without the one that a call that was cut short has begun to make among them."""
    parts = find(source)
    if not _started(target) and not (target / _DONE).is_dir():
        return parts
    return [part for part in parts if real_path(Path(part.path)) != real_path(target)] or parts


def _over(places: set[Path]) -> set[Path]:
    """Where a call that was cut short has converted everything, and had only its checkpoints left to remove. It does that when all
    is converted: then a place that has lost its own is one of them, too."""
    marked = {place for place in places if (place / _DONE).is_dir()}
    if marked and not any(_started(place) for place in places):
        return {place for place in places if _is_taken(place)}
    return marked


def _is_taken(place: Path) -> bool:
    """Whether there is something that a conversion must not write to."""
    return files.exists(place) and not (place.is_dir() and not any(place.iterdir()))


def _started(place: Path) -> bool:
    """Whether a conversion was cut short here."""
    return (place / _CHECKPOINT).is_dir()


def _marked(place: Path) -> Path:
    """A target that says that it is being made, so that only a conversion goes on with it."""
    (place / _CHECKPOINT).mkdir(parents=True, exist_ok=True)
    return place


def _checkpoint(place: Path, part: Part) -> Path:
    return place / _CHECKPOINT / f"{part.topic}-{part.partition}"


def _run(spark: SparkSession, part: Part, place: Path, to: FormatName) -> None:
    others = {p.partition: -1 for p in find(part.path) if p.partition != part.partition}  # -1: nothing of theirs
    offsets = {part.topic: {**others, part.partition: -2}}
    query = (
        spark.readStream.format("penstock")
        .option("startingOffsets", json.dumps(offsets))
        .option("maxBytesPerTrigger", _STEP_BYTES)
        .load(part.path)
        .where(f"partition = {part.partition}")
        .select(*columns_for(to))
        .writeStream.format("penstock")
        .option("format", to)
        .option("path", str(place))
        .option("checkpointLocation", str(_checkpoint(place, part).absolute()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _records(place: Path, part: Part, to: FormatName) -> int:
    """How many the target has; none, and no log, if there was nothing to convert."""
    with suppress(LogNotFound):
        for made in find(place):
            if to != "topic" or (made.topic, made.partition) == (part.topic, part.partition):
                with made.open() as view:
                    return view.end - view.first
    return 0
