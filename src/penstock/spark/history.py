"""A log, and what an archive has of its past, as one range of offsets.

What is archived is read from the archive, also while the log still has it: nobody removes it there under a query. So every record
comes once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import DataLost, InvalidOption
from penstock.inspect import Part
from penstock.spark import listing
from penstock.spark.listing import ArchivedFile, Range

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class History:
    """What there is of a log at one moment, and stays so."""

    def __init__(self, part: Part, archive: str | None = None, *, durable: bool = False) -> None:
        """If `durable`, it ends where what survives a power cut does, and that is everything that is there now."""
        self.part = part
        self.archive = archive
        self.end, self.segments = part.look(lambda view: (view.durable_end() if durable else view.end, view.segments()))
        # The archive's listing last: what the log drops is listed before, so that no record falls between the two looks.
        found = listing.load(Path(archive), part) if archive is not None else None
        self.files: tuple[ArchivedFile, ...] = found.files if found else ()
        self.archived: list[Range] = found.covered() if found else []
        self._live = min((segment.base for segment in self.segments), default=self.end)
        self.first = min([self._live, *(first for first, _ in self.archived[:1])])
        if self.archived and self.archived[-1][1] > max((segment.next for segment in self.segments), default=0):
            raise InvalidOption(
                f"{archive} has offsets of {part.topic} up to {self.archived[-1][1] - 1}, but {part.path} ends at "
                f"{self.end}: it is another log's archive; give the one that belongs to this log"
            )

    def gaps(self, lo: int, hi: int) -> list[Range]:
        """What is missing of lo to hi - 1."""
        return listing.without(lo, hi, listing.merged([*self.archived, (self._live, self.end)]))

    def first_at(self, us: int) -> int:
        """The first record that is not older than `us`; the end when all are."""
        for file in self.files:
            if file.file is not None and file.last_us >= us:
                return self._first_in(file, us)
        for segment in self.segments:
            count = segment.next - segment.base
            if count and (segment.active or segment.last_us >= us or not segment.last_us):
                place = segment.read().times.first_at(us, count)
                if place < count:
                    return min(self.end, segment.base + place)
        return self.end

    def _first_in(self, file: ArchivedFile, us: int) -> int:
        import pyarrow as pa

        assert self.archive is not None
        assert file.file is not None
        rows = opened(Path(self.archive) / file.file).read(["offset", "timestamp"])
        times = rows.column("timestamp").cast(pa.int64()).to_pylist()
        place = next(i for i, time in enumerate(times) if time is not None and time >= us)
        return int(rows.column("offset")[place].as_py())


def opened(path: Path) -> pq.ParquetFile:
    """A file of an archive, its checksums checked when it is read."""
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise broken(path, error) from error


def broken(path: Path, error: Any) -> DataLost:
    """A file of an archive is missing, or not what it was."""
    return DataLost(f"{path}: the archive's file cannot be read ({error}); restore it from a copy")
