"""Files of other implementations are read, never written: the public Rust one's, and the seed's own layouts."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastcrc.crc64 import xz

from penstock import CorruptRecord, Loss, NotALog, Queue, ReadOnly, RecordGone

Frame = Callable[[bytes], bytes]


def rust(payload: bytes) -> bytes:
    head = struct.pack("<I", len(payload))
    return head + payload + struct.pack("<I", zlib.crc32(head + payload))


def covers_payload(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload + struct.pack("<Q", xz(payload))


def covers_both(payload: bytes) -> bytes:
    head = struct.pack("<I", len(payload))
    return head + payload + struct.pack("<Q", xz(head + payload))


LAYOUTS = {
    "rust": (rust, 0),
    "seed 004, header page": (covers_payload, 4096),
    "seed 002, header page": (covers_both, 4096),
    "seed 004, from byte 0": (covers_payload, 0),
    "seed 002, from byte 0": (covers_both, 0),
}
NAMES = ["2025/12/31/20251231-0001.data", "2025/12/31/20251231-0002.data", "2026/01/01/20260101-0001.data"]
SIZE = 65536


def write(path: Path, name: str, frames: Sequence[bytes], start: int, size: int | None) -> Path:
    """A data file: zero-filled to `size`, or cut exactly behind its last frame."""
    raw = bytes(start) + b"".join(frames)
    file = path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(raw if size is None else raw.ljust(size, b"\0"))
    return file


def digest(top: Path) -> dict[str, str]:
    return {
        p.relative_to(top).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in top.rglob("*") if p.is_file()
    }


PAYLOADS = [b"%d" % i * (1 + i * 13 % 70) for i in range(60)]


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> tuple[Frame, int]:
    return LAYOUTS[request.param]


@pytest.fixture(params=["zero-filled", "cut exactly", "some of each"])
def foreign(request: pytest.FixtureRequest, layout: tuple[Frame, int], path: Path) -> Path:
    """60 records in three files."""
    frame, start = layout
    sizes = {"zero-filled": [SIZE] * 3, "cut exactly": [None] * 3, "some of each": [None, SIZE, None]}[request.param]
    for i, (name, size) in enumerate(zip(NAMES, sizes, strict=True)):
        write(path, name, [frame(p) for p in PAYLOADS[20 * i : 20 * i + 20]], start, size)
    return path


def test_the_vectors_of_the_format(path: Path) -> None:
    both = "0b00000068656c6c6f20776f726c64b1282ed998f80e59"
    payload = "0b00000068656c6c6f20776f726c64da5223efcd7e0353"
    assert covers_both(b"hello world").hex() == both
    assert covers_payload(b"hello world").hex() == payload
    for i, text in enumerate((both, payload)):
        write(path, NAMES[i], [bytes.fromhex(text)], 4096, SIZE)
    with Queue(path, read_only=True) as q:
        assert [m.payload for m in q.tailer()] == [b"hello world"] * 2


def test_a_foreign_log_is_read_in_every_way_without_a_change(foreign: Path) -> None:
    before = digest(foreign)
    with Queue(foreign, read_only=True) as q:
        assert q.recovery.how == "foreign"
        assert q.recovery.damage == []
        assert (q.first_sequence, q.next_sequence, q.durable_sequence) == (0, 60, 60)
        messages = list(q.tailer())
        assert [m.payload for m in messages] == PAYLOADS
        assert [m.sequence for m in messages] == list(range(60))
        assert {m.timestamp for m in messages} == {None}
        batch = q.tailer().read_arrow(100)
        assert batch.column("payload").to_pylist() == PAYLOADS
        assert batch.column("timestamp").null_count == 60
        assert list(q.tailer(direction="backward")) == messages[::-1]
        assert [bytes(v) for v in iter(q.tailer().read_view, None)] == PAYLOADS
        t = q.tailer()
        for i in (59, 0, 20, 19, 40, 39, 33):
            t.seek(i)
            assert t.read() == messages[i]
        t.seek(60)
        assert t.read() is None
        with pytest.raises(RecordGone):
            t.seek(61)
        with pytest.raises(TimeoutError):
            t.read(timeout_s=0.01)
        q.tailer(at=datetime.now(UTC)).close()  # no times: no error either
        with pytest.raises(ReadOnly):
            q.append(b"x")
    assert digest(foreign) == before


def test_a_foreign_log_can_be_verified(foreign: Path) -> None:
    before = digest(foreign)
    with Queue(foreign, read_only=True, verify_on_startup=True) as q:
        assert q.recovery.damage == []
        assert q.recovery.records_scanned >= 60
    assert digest(foreign) == before


def test_a_foreign_log_is_refused_for_writing_and_stays_as_it_is(foreign: Path) -> None:
    before = digest(foreign)
    for options in ({}, {"file_size": SIZE}, {"verify_on_startup": True}):
        with pytest.raises(NotALog, match=r"\.data: written by another implementation; .*read_only=True"):
            Queue(foreign, **options)  # type: ignore[arg-type]
    assert digest(foreign) == before
    with Queue(foreign, read_only=True) as q:
        assert len(list(q.tailer())) == 60


def test_a_foreign_log_goes_on_growing_for_whoever_opens_it_again(layout: tuple[Frame, int], path: Path) -> None:
    frame, start = layout
    for count in (1, 5, 20):
        write(path, NAMES[0], [frame(p) for p in PAYLOADS[:count]], start, SIZE)
        with Queue(path, read_only=True) as q:
            assert [m.payload for m in q.tailer()] == PAYLOADS[:count]


def test_a_first_record_of_any_length_tells_the_layout(layout: tuple[Frame, int], path: Path) -> None:
    frame, start = layout
    big = [b"x" * 200_000, b"y"]
    write(path, NAMES[0], [frame(p) for p in big], start, None)
    with Queue(path, read_only=True) as q:
        assert [m.payload for m in q.tailer()] == big
    with pytest.raises(NotALog):
        Queue(path)


def test_layouts_may_differ_from_file_to_file(path: Path) -> None:
    layouts = list(LAYOUTS.values())
    for i, (frame, start) in enumerate(layouts):
        write(
            path, f"2026/01/01/20260101-{i + 1:04}.data", [frame(p) for p in PAYLOADS[i * 4 : i * 4 + 4]], start, SIZE
        )
    with Queue(path, read_only=True) as q:
        assert [m.payload for m in q.tailer()] == PAYLOADS[: 4 * len(layouts)]


def test_a_last_file_that_nobody_wrote_to_yet_holds_nothing(foreign: Path) -> None:
    (foreign / "2026/01/02").mkdir(parents=True)
    (foreign / "2026/01/02/20260102-0001.data").write_bytes(bytes(SIZE))
    before = digest(foreign)
    with Queue(foreign, read_only=True) as q:
        assert [m.payload for m in q.tailer()] == PAYLOADS
    assert digest(foreign) == before


def test_a_torn_last_frame_ends_a_foreign_log(layout: tuple[Frame, int], path: Path) -> None:
    frame, start = layout
    frames = [frame(p) for p in PAYLOADS[:5]]
    for cut in (1, 5, len(frames[-1]) - 1):
        write(path, NAMES[0], [*frames[:-1], frames[-1][:-cut]], start, None)
        before = digest(path)
        with Queue(path, read_only=True) as q:
            assert [m.payload for m in q.tailer()] == PAYLOADS[:4]
        assert digest(path) == before


def test_damage_in_a_finished_foreign_file_is_told(layout: tuple[Frame, int], path: Path) -> None:
    frame, start = layout
    broken = bytearray(frame(PAYLOADS[12]))
    broken[5] ^= 1
    frames = [frame(p) for p in PAYLOADS[:20]]
    frames[12] = bytes(broken)
    write(path, NAMES[0], frames, start, SIZE)
    write(path, NAMES[1], [frame(p) for p in PAYLOADS[20:40]], start, SIZE)
    with Queue(path, read_only=True) as q:
        (said,) = q.recovery.damage
        assert "sequences 12 to 12 are lost" in said
        assert q.next_sequence == 40
        with pytest.raises(CorruptRecord, match="sequence 12"):
            list(q.tailer())
        t = q.tailer(on_corrupt="skip")
        assert [m.payload for m in t] == PAYLOADS[:12] + PAYLOADS[13:40]
        assert t.losses == [Loss(12, 12, "its checksum does not match")]


def test_a_broken_length_in_a_finished_foreign_file_is_told(layout: tuple[Frame, int], path: Path) -> None:
    frame, start = layout
    frames = [frame(p) for p in PAYLOADS[:20]]
    frames[12] = struct.pack("<I", 1 << 30) + frames[12][4:]
    write(path, NAMES[0], frames, start, SIZE)
    write(path, NAMES[1], [frame(p) for p in PAYLOADS[20:40]], start, SIZE)
    with Queue(path, read_only=True) as q:
        (said,) = q.recovery.damage  # how many records come after it nobody can tell
        assert f"byte {start + sum(map(len, frames[:12]))}:" in said
        assert [m.payload for m in q.tailer()] == PAYLOADS[:12] + PAYLOADS[20:40]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("start", [0, 4096])
def test_unknown_bytes_are_no_log(path: Path, read_only: bool, start: int) -> None:
    frame = bytearray(covers_both(b"hello"))
    frame[-1] ^= 1
    write(path, NAMES[0], [bytes(frame)], start, SIZE)
    before = digest(path)
    with pytest.raises(NotALog, match=NAMES[0]):
        Queue(path, read_only=read_only)
    assert digest(path) == before
