"""A log, and what an archive has of its past, as one range of offsets.

What is archived is read from the archive, also while the log still has it: nobody removes it there under a query. So every record
comes once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import DataLost
from penstock.inspect import Part, Segment
from penstock.spark import belonging, listing
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
        if archive is not None:
            belonging.check(archive, self.files, part, self.segments)

    def gaps(self, lo: int, hi: int) -> list[Range]:
        """What is missing of lo to hi - 1."""
        return listing.without(lo, hi, listing.merged([*self.archived, (self._live, self.end)]))

    def us_of(self, offset: int) -> int:
        """When a record of the log was appended; 0 when it is not there, or not known."""
        segment = next((segment for segment in self.segments if segment.base <= offset < segment.next), None)
        return segment.times().us(offset - segment.base) if segment is not None else 0

    def first_at(self, us: int) -> int:
        """The first record that is not older than `us`; the end when all are."""
        alone = [segment for segment in self.segments if listing.without(segment.base, segment.next, self.archived)]
        looks: list[tuple[int, Callable[[int], int | None]]] = [
            *((file.first, partial(self._first_in, file)) for file in self.files),
            *((segment.base, partial(self._first_of, segment)) for segment in alone),
        ]
        for _, look in sorted(looks, key=lambda place: place[0]):
            found = look(us)
            if found is not None:
                return min(self.end, found)
        return self.end

    @staticmethod
    def _first_of(segment: Segment, us: int) -> int | None:
        count = segment.next - segment.base
        if not count or not (segment.active or segment.last_us >= us or not segment.last_us):
            return None
        place = segment.read().times.first_at(us, count)
        return segment.base + place if place < count else None

    def _first_in(self, file: ArchivedFile, us: int) -> int | None:
        import pyarrow as pa

        assert self.archive is not None
        if file.file is None or file.last_us < us:
            return None
        path = Path(self.archive) / file.file
        try:
            rows = opened(path).read(["offset", "timestamp"])
        except (OSError, ValueError) as error:
            raise broken(path, error) from error
        times = rows.column("timestamp").cast(pa.int64()).to_pylist()  # None is 0, as in a log
        place = next((i for i, time in enumerate(times) if (time or 0) >= us), None)
        if place is None:
            raise broken(path, f"it has no time of {file.last_us}, as its listing says")
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
