"""Files: when the log goes on to a new one, what they are called, how much disk they take, and every byte in them."""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from fastcrc.crc64 import xz

from penstock import InvalidPayload, Queue, Roll
from penstock.formats import queue as fmt
from penstock.storage import files
from tests.support import data_files, until

KIB, MIB = 1 << 10, 1 << 20


def used(path: Path) -> int:
    """Bytes of disk below a directory."""
    return sum(p.stat().st_blocks * 512 for p in path.rglob("*") if p.is_file())


# ---- an independent reading of the bytes: docs/formats.md ----


class Data(NamedTuple):
    base: int
    created_us: int
    payloads: list[bytes]
    offsets: list[int]


def parse_data(raw: bytes) -> Data:
    assert raw[:8] == b"PENSTOCK"
    version, scope, base, created = struct.unpack_from("<IIQQ", raw, 8)
    assert (version, scope) == (1, 0)
    assert struct.unpack_from("<I", raw, 32)[0] == zlib.crc32(raw[:32])
    assert not any(raw[36:4096])
    at, payloads, offsets = 4096, [], []
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at) if at + 4 <= len(raw) else (0,)
        if length == 0:
            break
        assert struct.unpack_from("<Q", raw, at + 4 + length)[0] == xz(raw[at : at + 4 + length])
        payloads.append(raw[at + 4 : at + 4 + length])
        offsets.append(at)
        at += 12 + length
    assert not any(raw[at:])
    return Data(base, created, payloads, offsets)


def parse_index(raw: bytes) -> tuple[int, list[tuple[int, int]]]:
    interval, count = struct.unpack_from("<QQ", raw)
    assert not any(raw[16:256])
    assert len(raw) == 256 + 16 * count
    return interval, [struct.unpack_from("<QQ", raw, 256 + 16 * i) for i in range(count)]


def parse_times(raw: bytes) -> tuple[int, list[int]]:
    assert raw[:8] == b"PENSTIME"
    version, size, base, crc = struct.unpack_from("<IIQI", raw, 8)
    assert (version, size, crc) == (1, 8, zlib.crc32(raw[:24]))
    assert not any(raw[28:64])
    return base, [us for (us,) in struct.iter_unpack("<q", raw[64:])]


# ---- when it rolls ----


def counts(path: Path) -> list[int]:
    return [len(parse_data(p.read_bytes()).payloads) for p in data_files(path)]


def test_without_a_policy_a_file_is_filled(path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        for _ in range(100):
            q.append(bytes(range(100)))
    assert counts(path) == [36, 36, 28]  # 4096 // 112


def test_roll_by_size_never_passes_the_limit(path: Path) -> None:
    with Queue(path, file_size=65536, roll=Roll.size(4096 + 1120)) as q:
        for _ in range(25):
            q.append(bytes(range(100)))
    assert counts(path) == [10, 10, 5]


def test_a_limit_smaller_than_a_record_gives_each_record_a_file(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.size(1)) as q:
        for _ in range(4):
            q.append(b"x" * 100)
        assert q.append_batch([b"y"] * 3) == range(4, 7)
    assert counts(path) == [1, 1, 1, 1, 3]  # a batch that fits is kept in one file


def test_roll_by_count(path: Path) -> None:
    with Queue(path, file_size=65536, roll=Roll.count(4)) as q:
        for i in range(10):
            q.append(b"%d" % i)
    assert counts(path) == [4, 4, 2]


def test_a_batch_is_kept_in_one_file_where_it_fits(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(4)) as q:
        q.append_batch([b"a"] * 3)
        q.append_batch([b"b"] * 6)  # one more was allowed, so it goes here whole
        q.append_batch([b"c"] * 2)
        q.append_batch([b"d" * 1000] * 3)
    assert counts(path) == [9, 5]
    with Queue(path, roll=Roll()) as q:
        q.append_batch([b"e" * 1000] * 3)  # no room for all of it, so it goes to the next
    assert counts(path) == [9, 5, 3]


@pytest.mark.parametrize("interval", [0.05, timedelta(milliseconds=50)], ids=["seconds", "timedelta"])
def test_roll_by_time(path: Path, interval: float | timedelta) -> None:
    with Queue(path, file_size=65536, roll=Roll.every(interval)) as q:
        q.append(b"first")
        until(lambda: q.append(b"x") and len(data_files(path)) >= 3, "the log rolls twice")
    made = [parse_data(p.read_bytes()).created_us for p in data_files(path)]
    assert all(later - sooner >= 50_000 for sooner, later in pairwise(made))


def test_roll_by_time_goes_on_after_the_clock_was_set_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        ahead_us = time.time_ns() // 1000 + 86_400_000_000
        patch.setattr(files, "now_us", lambda: ahead_us)
        with Queue(path, file_size=1 << 20) as q:
            q.append(b"tomorrow")
    with Queue(path, file_size=1 << 20, roll=Roll.every(0.05)) as q:
        until(lambda: q.append(b"x") and len(data_files(path)) >= 3, "the log rolls twice", 5.0)


def test_an_old_file_without_records_is_not_rolled(path: Path) -> None:
    with Queue(path, file_size=65536, roll=Roll.every(0.001)) as q:
        made = parse_data(data_files(path)[0].read_bytes()).created_us
        until(lambda: time.time_ns() // 1000 > made + 2000, "the file is old")
        q.append(b"a")
        assert len(data_files(path)) == 1
        q.append(b"b")
        assert len(data_files(path)) == 2


def test_roll_any_takes_whichever_comes_first(path: Path) -> None:
    roll = Roll.any(Roll.size(4096 + 1120), Roll.every(3600), Roll.count(15))
    with Queue(path, file_size=65536, roll=roll) as q:
        for _ in range(12):
            q.append(bytes(range(100)))
        for _ in range(20):
            q.append(b"x")
    assert counts(path) == [10, 15, 7]
    assert Roll.any(Roll.count(5), Roll.any(Roll.count(3), Roll.every(9))) == Roll(interval_s=9.0, records=3)


def test_a_policy_holds_for_the_object_not_for_the_log(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        q.append(b"a")
        q.append(b"b")
    with Queue(path) as q:
        for _ in range(5):
            q.append(b"c")
    assert counts(path) == [1, 6]


def test_a_record_may_fill_a_file_exactly(path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        most = 8192 - 4096 - 12
        for i in range(3):
            assert q.append(bytes([i + 1]) * most) == i
        with pytest.raises(InvalidPayload, match=f"at most {most} "):
            q.append(bytes(most + 1))
        with pytest.raises(InvalidPayload, match=f"at most {most} "):
            q.append_batch([b"x", bytes(most + 1)])
        assert q.append_batch([b"x" * (most // 2 - 12), b"y" * (most - most // 2)]) == range(3, 5)
        assert [len(m.payload) for m in q.tailer()][:3] == [most] * 3
    assert counts(path) == [1, 1, 1, 2]
    assert data_files(path)[3].stat().st_size == 8192
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.clean
        assert q.append(b"next") == 5
    assert counts(path) == [1, 1, 1, 2, 1]


# ---- names and dates ----


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


def test_files_lie_in_a_directory_per_day_and_are_numbered_from_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        days = ["2031-03-09T23:59:59", "2031-03-10T00:00:00", "2031-03-09T12:00:00", "2031-12-31T23:59:59"]
        for day in days:
            monkeypatch.setattr(files, "now_us", lambda day=day: us(day))
            q.append(b"a")
            q.append(b"b")
        monkeypatch.undo()
        assert [m.payload for m in q.tailer()] == [b"a", b"b"] * 4
    today = data_files(path)[0].relative_to(path).as_posix()
    name = datetime.strptime(Path(today).parent.as_posix(), "%Y/%m/%d").strftime("%Y%m%d")
    assert today.endswith(f"/{name}-0001.data")
    assert [p.relative_to(path).as_posix() for p in data_files(path)[1:]] == [
        "2031/03/09/20310309-0001.data",
        "2031/03/10/20310310-0001.data",
        "2031/03/10/20310310-0002.data",
        "2031/03/10/20310310-0003.data",  # the clock ran backwards, the names do not
        "2031/03/10/20310310-0004.data",
        "2031/12/31/20311231-0001.data",
        "2031/12/31/20311231-0002.data",
    ]
    for data in data_files(path):
        assert data.with_suffix(".index").is_file()
        assert data.with_suffix(".time").is_file()
    with Queue(path) as q:
        assert [m.payload for m in q.tailer()] == [b"a", b"b"] * 4


def test_a_number_past_9999_grows_and_keeps_its_order(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        for i in range(3):
            q.append(b"%d" % i)
    found = data_files(path)
    for file, number in reversed(list(zip(found, ("9998", "9999", "10000"), strict=True))):
        for suffix in (".data", ".index", ".time"):
            file.with_suffix(suffix).rename(file.with_name(f"{file.stem.split('-')[0]}-{number}{suffix}"))
    for name in ("manifest", ".lock"):
        (path / name).unlink()
    with Queue(path, roll=Roll.count(1)) as q:
        assert [m.payload for m in q.tailer()] == [b"0", b"1", b"2"]
        assert q.append(b"3") == 3
        assert [m.payload for m in q.tailer()] == [b"0", b"1", b"2", b"3"]
    assert data_files(path)[-1].name.endswith("-10001.data")
    first, last = fmt.parse("2026/11/15/20261115-9999.data"), fmt.parse("2026/11/15/20261115-10000.data")
    assert first is not None
    assert last is not None
    assert first < last
    assert fmt.name(last) == "2026/11/15/20261115-10000.data"


@pytest.mark.parametrize(
    "name",
    [
        "2026/11/15/20261115-0001.index",
        "2026/11/15/20261115-001.data",
        "2026/11/15/20261116-0001.data",
        "2026/11/15/20261115-0001.data.next",
        "x/2026/11/15/20261115-0001.data",
        "20261115-0001.data",
    ],
)
def test_other_names_are_no_data_files(name: str) -> None:
    assert fmt.parse(name) is None


# ---- in the background ----


def test_the_next_file_is_prepared_before_it_is_needed(path: Path) -> None:
    with Queue(path, file_size=MIB) as q:
        while q.next_sequence < 600:  # past half of the file
            q.append(bytes(1000))
        until(lambda: [p for p in path.rglob("*.next") if ".data" in p.name], "the next file is prepared")
        assert len(data_files(path)) == 1
        while len(data_files(path)) == 1:
            q.append(bytes(1000))
        assert [m.sequence for m in q.tailer()] == list(range(q.next_sequence))
    assert not list(path.rglob("*.next"))
    assert not list(path.rglob("*.tmp"))


def test_sealed_files_keep_their_length_and_give_back_their_blocks(path: Path) -> None:
    with Queue(path, file_size=4 * MIB, roll=Roll.count(3)) as q:
        for i in range(10):
            q.append(b"%d" % i)
        sealed = data_files(path)[:3]
        if not files.PORTABLE:
            until(lambda: all(p.stat().st_blocks * 512 <= 8 * KIB for p in sealed), "the blocks are given back")
        until(lambda: all(p.with_suffix(".time").stat().st_size == 64 + 8 * 3 for p in sealed), "companions are cut")
        assert [p.stat().st_size for p in sealed] == [4 * MIB] * 3
        assert [m.sequence for m in q.tailer()] == list(range(10))
    assert [p.stat().st_size for p in data_files(path)] == [4 * MIB] * 4


def test_a_small_queue_takes_little_disk(path: Path) -> None:
    with Queue(path) as q:
        for i in range(10):
            q.append(b"%d" % i)
        q.sync()
        assert data_files(path)[0].stat().st_size == 1 << 30
        assert used(path) < 2 * MIB
    assert data_files(path)[0].stat().st_size == 1 << 30
    assert used(path) < (2 * MIB if files.PORTABLE else 100 * KIB)


@pytest.mark.skipif(files.PORTABLE, reason="cannot give blocks back")
def test_a_queue_with_many_files_takes_the_disk_its_records_need(path: Path) -> None:
    with Queue(path, file_size=16 * MIB, roll=Roll.count(5)) as q:
        for _ in range(60):
            q.append(bytes(range(256)) * 16)
    assert used(path) < 60 * 4096 + len(data_files(path)) * 24 * KIB + 64 * KIB


# ---- every byte ----


@pytest.mark.parametrize("interval", [1, 3, 1024])
def test_data_index_and_time_files_hold_what_the_format_says(path: Path, interval: int) -> None:
    wanted = [os.urandom(1 + i * 31 % 300) for i in range(50)]
    with Queue(path, file_size=8192, roll=Roll.count(7), index_interval=interval) as q:
        for p in wanted[:20]:
            q.append(p)
        q.append_batch(wanted[20:24])
        q.append_batch([p.ljust(1000, b"-") for p in wanted[24:40]])
        for p in wanted[40:]:
            q.append(p)
        messages = list(q.tailer())
    wanted[24:40] = [p.ljust(1000, b"-") for p in wanted[24:40]]
    base, stamps = 0, []
    for file in data_files(path):
        data = parse_data(file.read_bytes())
        assert data.base == base
        assert data.payloads == wanted[base : base + len(data.payloads)]
        got_interval, entries = parse_index(file.with_suffix(".index").read_bytes())
        assert got_interval == interval
        places = range(0, len(data.payloads), interval)
        assert entries == [(base + place, data.offsets[place]) for place in places]
        times_base, times = parse_times(file.with_suffix(".time").read_bytes())
        assert times_base == base
        assert len(times) == len(data.payloads)
        stamps += times
        base += len(data.payloads)
    assert base == 50
    assert [abs(t) for t in stamps] == [m.timestamp_us for m in messages]
    goes_on = {*range(20, 23), *range(24, 39)}  # a negative time: the batch goes on with the next record
    assert {i for i, t in enumerate(stamps) if t < 0} == goes_on


# Frozen: a log written today must be readable for ever, so these bytes never change.
GOLDEN_US = 1_794_744_000_123_456  # 2026-11-15 12:00:00.123456 UTC
GOLDEN_PAYLOADS = [b"hello world", b"\x00\x01\xff", b"third"]
GOLDEN = {
    "2026/11/15/20261115-0001.data": (
        (0, "50454e53544f434b 01000000 00000000 0000000000000000 401297664f600600 bc4e8572"),
        (4096, "0b000000 68656c6c6f20776f726c64 b1282ed998f80e59"),
        (4119, "03000000 0001ff 3b40eb89c2cbd032"),
        (8192, ""),
    ),
    "2026/11/15/20261115-0001.index": (
        (0, "0004000000000000 0100000000000000"),
        (256, "0000000000000000 0010000000000000"),
    ),
    "2026/11/15/20261115-0002.data": (
        (0, "50454e53544f434b 01000000 00000000 0200000000000000 401297664f600600 df6b25f5"),
        (4096, "05000000 7468697264 7076594463e89033"),
        (8192, ""),
    ),
    "2026/11/15/20261115-0002.index": (
        (0, "0004000000000000 0100000000000000"),
        (256, "0200000000000000 0010000000000000"),
    ),
}
GOLDEN_TIMES = {
    "2026/11/15/20261115-0001.time": "50454e5354494d45 01000000 08000000 0000000000000000 65df46e1",
    "2026/11/15/20261115-0002.time": "50454e5354494d45 01000000 08000000 0200000000000000 18d863a3",
}
GOLDEN_METADATA = """{
  "format": "queue",
  "version": 1,
  "file_size": 8192,
  "index_interval": 1024
}
"""


def golden(parts: tuple[tuple[int, str], ...]) -> bytes:
    out = b""
    for at, text in parts:
        out = out.ljust(at, b"\0") + bytes.fromhex(text)
    return out


def test_a_frozen_log_is_written_byte_for_byte(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "now_us", lambda: GOLDEN_US)
    with Queue(path, file_size=8192, roll=Roll.count(2)) as q:
        for p in GOLDEN_PAYLOADS:
            q.append(p)
    for name, parts in GOLDEN.items():
        assert (path / name).read_bytes() == golden(parts), name
    for name, header in GOLDEN_TIMES.items():
        assert (path / name).read_bytes()[:64] == bytes.fromhex(header).ljust(64, b"\0"), name
    assert (path / "metadata.json").read_text() == GOLDEN_METADATA
    plain = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file() and p.name[0] != "."}
    assert plain == {*GOLDEN, *GOLDEN_TIMES, "metadata.json", "manifest"}


@pytest.mark.parametrize("only", ["data", "data and index"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_frozen_log_is_read_from_its_data_files(path: Path, only: str, read_only: bool) -> None:
    for name, parts in GOLDEN.items():
        if name.endswith(".data") or only == "data and index":
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(golden(parts))
    (path / "metadata.json").write_text(GOLDEN_METADATA)
    with Queue(path, read_only=read_only) as q:
        messages = list(q.tailer())
        assert [m.payload for m in messages] == GOLDEN_PAYLOADS
        assert [m.sequence for m in messages] == [0, 1, 2]
        assert [m.timestamp for m in messages] == [None, None, None]
        if not read_only:
            assert q.append(b"fourth") == 3


@pytest.mark.parametrize("how", ["alone", "read only", "joined", "read only after a reboot"])
def test_verify_on_startup_checks_every_record_of_every_file(
    path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(5)) as q:
        for i in range(18):
            q.append(b"%d" % i * 5)
    broken = data_files(path)[1], data_files(path)[3]
    for file in broken:
        with file.open("r+b") as f:
            f.seek(4096 + 8)
            f.write(b"\xff")
    if how == "read only after a reboot":
        monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    with contextlib.ExitStack() as stack:
        if how == "joined":
            stack.enter_context(Queue(path))
        q = stack.enter_context(Queue(path, read_only=how.startswith("read only"), verify_on_startup=True))
        assert sorted(said.split(":")[0] for said in q.recovery.damage) == [str(file) for file in broken]
        assert q.recovery.records_scanned >= 16
        t = q.tailer(on_corrupt="skip")
        assert [m.sequence for m in t] == [i for i in range(18) if i not in (5, 15)]


def test_a_roll_that_was_cut_short_before_midnight_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had made a file for that day; the next roll makes one for the day after, and the first must not lie between."""
    day_us = 86_400_000_000
    evening = files.now_us() // day_us * day_us + day_us - 1_000_000
    monkeypatch.setattr(files, "now_us", lambda: evening)
    with Queue(path, file_size=8192) as q:
        log = q._log
        assert log is not None
        q.append(b"one")
        now = log.active()
        log.directory.make(log.fmt.next_id(now.segment, evening), now.next, 0)  # as far as it came
        q.append(b"two")  # there was room for it after all
        monkeypatch.setattr(files, "now_us", lambda: evening + 2_000_000)
        log.roll_now()
        q.append(b"three")
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.clean
        assert [m.payload for m in q.tailer()] == [b"one", b"two", b"three"]
