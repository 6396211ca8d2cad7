"""What lies beside a segment's records and can be made from them: its index, and its companion as far as frames tell.

A companion's times are gone with it; what is made has none. Beside frames that have no checksum it has theirs, from now on:
whether they were damaged before, nothing tells any more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from operator import le
from pathlib import Path

from penstock import kernel
from penstock.errors import PenstockError
from penstock.kernel import Buffer
from penstock.storage import companion, files, index
from penstock.storage.companion import Times
from penstock.storage.damage import Place
from penstock.storage.last_time import DAY_US
from penstock.storage.losses import Listed
from penstock.storage.report import Recovery
from penstock.storage.segment import ReadSegment, has_room
from penstock.storage.walking import Hole, walk

_PART = 1 << 16
_MOST_DIFFERENT = 2  # bytes of a checksum: of one that is a damaged record's, nearly all differ


def index_for(seg: ReadSegment, end: Place, interval: int, listed: Sequence[Listed] = ()) -> bytes:
    """The index that a segment should have whose records end there; some may be `listed` as lost."""
    found = walk(seg, end, interval, Recovery(), listed=listed)
    return index.pack(interval, seg.base, _count(seg, end), found.points)


def has_index(seg: ReadSegment, wanted: bytes) -> bool:
    """Whether that is the one it has. While a segment is not sealed it is longer than it needs to be."""
    try:
        with files.opened(seg.paths.index) as fd:
            return files.read(fd, 0, len(wanted)) == wanted
    except FileNotFoundError:
        return False


def entry_position(seg: ReadSegment, sequence: int) -> int:
    """The byte where a record's entry in the companion begins."""
    return companion.length(seg.spec, sequence - seg.base)


def only_entry_is_wrong(seg: ReadSegment, hole: Hole) -> bool:
    """Whether it is the companion's entry, and not the record, that is damaged: nearly all of the checksum is right."""
    if seg.spec.sum_bytes or hole.loss.first != hole.loss.last or hole.end > len(seg.data):
        return False
    frame = bytes(seg.data[hole.position : hole.end])
    lengths = kernel.scan(seg.spec, frame, 0, len(frame), verify=False)
    differ = kernel.crc64(frame) ^ seg.times.sum(hole.loss.first - seg.base)
    wrong = sum(1 for byte in differ.to_bytes(8, "little") if byte)
    return (lengths.count, lengths.position) == (1, len(frame)) and wrong <= _MOST_DIFFERENT


def unlikely_times(times: Times, count: int, now_us: int) -> list[int]:
    """The places of times that cannot be: times never run backwards within a log, nor ahead of the clock by a day."""
    count, latest = min(count, len(times)), now_us + DAY_US
    if _run_forward(times, count, latest):  # nearly always
        return []
    known = [(i, us) for i in range(count) if (us := abs(times.entry(i)))]
    strange = {i for i, us in known if us > latest}
    known = [one for one in known if one[0] not in strange]
    while bad := [(a, b) for a, b in pairwise(known) if b[1] < a[1]]:
        strange.update({_outlier(known, a, b) for a, b in bad})
        known = [one for one in known if one[0] not in strange]
    return sorted(strange)


def _run_forward(times: Times, count: int, latest: int) -> bool:
    """Whether all are known and in order: in parts, each of a few calls."""
    before = 1
    for start in range(0, count, _PART):
        part = [before, *map(abs, times.some(start, min(start + _PART, count)))]
        if not all(map(le, part, part[1:])):
            return False
        before = part[-1]
    return before <= latest


def _outlier(known: list[tuple[int, int]], one: tuple[int, int], other: tuple[int, int]) -> int:
    """Which of two neighbours out of order fits less between those around them."""
    at = known.index(one)
    before = known[at - 1][1] if at else 0
    return one[0] if other[1] >= before else other[0]


def companion_for(seg: ReadSegment, end: Place, *, now_us: int, strict: bool = True) -> bytes:
    """The companion that a segment should have: what the one it has says is kept if it can be, and the rest is made. If not
    `strict`, of records that cannot be told apart nothing is known."""
    count, size = _count(seg, end), companion.entry_bytes(seg.spec)
    kept = _entries(seg.paths.times, count * size)
    made = b""
    if not seg.spec.sum_bytes and len(kept) < count * size:
        made = _sums(seg, end, count, strict=strict)
    words = array("q", kept + made[len(kept) :].ljust(count * size - len(kept), b"\0"))
    stride = size // 8
    for place in unlikely_times(Times(bytes(companion.HEADER_BYTES) + words.tobytes(), size), count, now_us):
        words[place * stride] = 0
    return companion.pack_header(seg.base, size) + words.tobytes()


def _count(seg: ReadSegment, end: Place) -> int:
    """How many records a segment has, if its file can have had them."""
    count = end.sequence - seg.base
    if not has_room(seg.spec, count, len(seg.data)):
        raise PenstockError(
            f"{seg.paths.data}: {count} records are listed, and its {len(seg.data)} bytes have no room for them; restore the file "
            "from a copy"
        )
    return count


def _entries(path: Path, length: int) -> bytes:
    """What a companion says of records, though its header may be broken."""
    try:
        with files.opened(path) as fd:
            raw = files.read(fd, companion.HEADER_BYTES, length)
    except FileNotFoundError:
        return b""
    return raw[: len(raw) // 16 * 16] if len(raw) < length else raw


def _sums(seg: ReadSegment, end: Place, count: int, *, strict: bool) -> bytes:
    """Entries with the checksums of frames that have none, as far as lengths lead to them."""
    stop = min(end.position, len(seg.data))
    found = seg.scan(min(seg.start, stop), stop, verify=False)
    if strict and (found.count, found.position) != (count, stop):
        raise PenstockError(
            f"{seg.paths.data}: {found.count} records can be told apart, not {count}, so that no companion can be "
            "made; restore the file from a copy"
        )
    return kernel.entries(seg.spec, memoryview(seg.data)[seg.start : found.position], 0)[: count * 16]


def mended_sums(data: Buffer, seg: ReadSegment, holes: list[Hole]) -> bytes:
    """A companion whose entries of these records have the right checksums."""
    out = bytearray(memoryview(data))
    for hole in holes:
        at = entry_position(seg, hole.loss.first) + 8
        out[at : at + 8] = kernel.crc64(seg.data[hole.position : hole.end]).to_bytes(8, "little")
    return bytes(out)
