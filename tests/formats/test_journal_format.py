"""The journal's names, kinds of records and frames."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest

from penstock.errors import NotALog
from penstock.formats import journal
from penstock.formats.journal import Checkpoints, Head
from penstock.kernel.spec import END

NEW_THEN_HI = bytes.fromhex("0110000000000000000000000000000000000000000200006869")


def test_frames(kernel: ModuleType) -> None:
    first = kernel.encode(journal.SPEC, journal.pack_checkpoints(0, 0), journal.CHECKPOINT)
    assert first + kernel.encode(journal.SPEC, b"hi", journal.DATA) == NEW_THEN_HI
    found = kernel.scan(journal.SPEC, NEW_THEN_HI, 0, len(NEW_THEN_HI), 9, True, 1)
    assert (found.count, found.position, found.reason, found.points) == (2, len(NEW_THEN_HI), END, [0, 20])


def test_heads(kernel: ModuleType) -> None:
    assert journal.read_head(NEW_THEN_HI) == Head(journal.CHECKPOINT, 16)
    assert journal.read_head(NEW_THEN_HI, 20) == Head(journal.DATA, 2)
    for kind in (0, 1, 2, 255):
        for size in (1, 2, 16, 255, 256, 1 << 16):
            assert journal.read_head(kernel.encode(journal.SPEC, bytes(size), kind)) == Head(kind, size)


def test_only_a_checkpoint_of_size_0_has_a_body() -> None:
    assert journal.read_head(bytes.fromhex("01000000")) == Head(journal.CHECKPOINT, 16)
    assert journal.read_head(bytes.fromhex("00000000")) == Head(journal.DATA, 0)
    assert journal.read_head(bytes.fromhex("02000000")) == Head(2, 0)


def test_a_head_cut_short() -> None:
    with pytest.raises(struct.error):
        journal.read_head(bytes(3))


@pytest.mark.parametrize(("checked", "current"), [(0, 0), (0, 1), (1, 1), (7, 2**64 - 1), (2**64 - 1, 2**64 - 1)])
def test_checkpoints(checked: int, current: int) -> None:
    body = journal.pack_checkpoints(checked, current)
    assert body == checked.to_bytes(8, "little") + current.to_bytes(8, "little")
    assert journal.read_checkpoints(memoryview(body), "x", 0) == Checkpoints(checked, current)


@pytest.mark.parametrize("length", [0, 1, 8, 15, 17, 32])
def test_a_checkpoint_record_has_16_bytes(length: int) -> None:
    with pytest.raises(NotALog, match=rf"^here: byte 9: a checkpoint record of {length} bytes, it has 16; restore"):
        journal.read_checkpoints(bytes(length), "here", 9)


def test_no_checkpoint_is_retired_before_it_was_registered() -> None:
    body = journal.pack_checkpoints(3, 2)
    with pytest.raises(NotALog, match=r"^here: byte 9: .*checkpoint 3 was retired when 2 was the last; restore"):
        journal.read_checkpoints(body, "here", 9)


@pytest.mark.parametrize("segment", [0, 1, 10, 123456, 2**64 - 1])
def test_names_and_back(segment: int) -> None:
    assert journal.name(segment) == f"{segment}.journal"
    assert journal.parse(journal.name(segment)) == segment


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            ".journal",
            "00.journal",
            "01.journal",
            "-1.journal",
            "+1.journal",
            " 1.journal",
            "1.journal ",
            "1_0.journal",
        ),
        *("1.journal\n", "1.Journal", "1.journals", "1.journal.time", "1.journal.index", "1.journal.next", "x.journal"),
        *("a/1.journal", "./1.journal", "1", "1.5.journal", "0x1.journal", "\u0661.journal"),
        *(f"{2**64}.journal", "9" * 20 + ".journal", "9" * 5000 + ".journal"),
    ],
)
def test_no_other_name_is_a_journal_file(path: str) -> None:
    assert journal.parse(path) is None


def test_files_are_numbered_from_0_and_have_no_header() -> None:
    assert journal.first_id(1) == 0
    assert journal.next_id(7, 1) == 8
    assert journal.beside(journal.name(7), ".time") == "7.journal.time"
    assert len(journal.pack_header(7, 1, 2, 3)) == journal.HEADER_BYTES == 0
    found = journal.read_header(NEW_THEN_HI, "x")
    assert (found.start, found.spec, found.base, found.created_us) == (0, journal.SPEC, None, None)
    assert not found.foreign


def test_limits(kernel: ModuleType) -> None:
    assert (journal.MAX_FILE_BYTES, journal.MAX_RECORD_BYTES) == (4 << 20, 1 << 20)
    longest = kernel.encode(journal.SPEC, bytes(journal.MAX_RECORD_BYTES - journal.SPEC.overhead))
    assert len(longest) == journal.MAX_RECORD_BYTES < journal.SPEC.max_payload
