"""A topic's names, frames and partitions."""

from __future__ import annotations

from types import ModuleType

import pytest

from penstock.errors import InvalidTopic, PenstockError
from penstock.formats import topic
from penstock.formats.topic import Partition, Place
from penstock.kernel.spec import END

HELLO_WORLD = bytes.fromhex("0000000548656c6c6f00000006576f726c6421")

GOOD = ["a", "orders", "orders.eu-1", "A_b.C-9", "...", ".a", "a.", "-", "_", "0", "x" * 249]
BAD = [
    *("", ".", "..", "a/b", "/", "/etc", "../a", "a\\b", "a b", "a\n", "\n", "a\0", "ä", "a:b", "~"),
    *("a%2f", "a*", "con\t", "\u0661", "x" * 250),
]


def test_frames(kernel: ModuleType) -> None:
    assert kernel.encode_many(topic.SPEC, [b"Hello", b"World!"]) == HELLO_WORLD
    found = kernel.scan(topic.SPEC, HELLO_WORLD, 0, len(HELLO_WORLD), 9, True, 1)
    assert (found.count, found.position, found.reason, found.points) == (2, len(HELLO_WORLD), END, [0, 9])


def test_an_empty_message_is_four_zeros(kernel: ModuleType) -> None:
    assert kernel.encode(topic.SPEC, b"") == bytes(4)
    assert kernel.scan(topic.SPEC, bytes(8), 0, 8).count == 2


@pytest.mark.parametrize("name", GOOD)
def test_names_that_topics_may_have(name: str) -> None:
    assert topic.check_topic(name) == name


@pytest.mark.parametrize("name", [".sinks", ".staging", "metadata.json"])
def test_names_that_others_have_beside_topics(name: str) -> None:
    with pytest.raises(InvalidTopic, match=r"a file of this name tells of all topics in the directory; use another"):
        topic.check_topic(name)


def test_files_say_which_partition_and_segment_they_are() -> None:
    path = Partition(3).name(7)
    assert path == "partition_3_segment_7.log"
    assert topic.parse(path) == Place(3, 7)


@pytest.mark.parametrize("name", [*BAD, None, 7, b"orders"])
def test_names_that_topics_may_not_have(name: str) -> None:
    with pytest.raises(InvalidTopic, match=r"^topic name .*: use 1 to 249 of A-Z a-z 0-9 \. _ -") as caught:
        topic.check_topic(name)
    assert repr(name) in str(caught.value)
    assert issubclass(InvalidTopic, PenstockError)
    assert issubclass(InvalidTopic, ValueError)


@pytest.mark.parametrize(
    "file",
    [
        *("", "partition_0_segment_0", "partition_0_segment_.log", "partition__segment_0.log", "partition_0.log"),
        *("partition_00_segment_0.log", "partition_0_segment_00.log", "partition_01_segment_1.log", "segment_0.log"),
        *(
            "partition_-1_segment_0.log",
            "partition_0_segment_+1.log",
            "partition_0_segment_0.log\n",
            "Partition_0_segment_0.log",
        ),
        *("partition_0_segment_0.log.time", "partition_0_segment_0.log.next", "x/partition_0_segment_0.log"),
        *(
            "partition_0_segment_\u0660.log",
            "partition_0_segment_" + "9" * 20 + ".log",
            "partition_" + "9" * 5000 + "_segment_0.log",
        ),
    ],
)
def test_no_other_name_is_a_topic_file(file: str) -> None:
    assert topic.parse(file) is None
    assert Partition(0).parse(file) is None


def test_a_partition_knows_its_own_files() -> None:
    mine = Partition(1)
    assert mine.parse(mine.name(12)) == 12
    for other in (Partition(0), Partition(11)):
        assert mine.parse(other.name(12)) is None


def test_segments_are_numbered_from_0_and_have_no_header() -> None:
    mine = Partition(1)
    assert mine.first_id(1) == 0
    assert mine.next_id(7, 1) == 8
    assert mine.beside(mine.name(7), ".time") == "partition_1_segment_7.log.time"
    assert len(mine.pack_header(7, 1, 2, 3)) == mine.HEADER_BYTES == 0
    found = mine.read_header(HELLO_WORLD, "x")
    assert (found.start, found.spec, found.base, found.created_us) == (0, topic.SPEC, None, None)
    assert not found.foreign


def test_partitions_are_numbered_from_0() -> None:
    with pytest.raises(ValueError, match="partition -1"):
        Partition(-1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"b", 0xAF63DF4C8601F1A5),
        (b"fo", 0x08985907B541D342),
        (b"foo", 0xDCB27518FED9D577),
        (b"foob", 0xDD120E790C2512AF),
        (b"fooba", 0xCAC165AFA2FEF40A),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_fnv1a_as_published(kernel: ModuleType, key: bytes, value: int) -> None:
    assert kernel.fnv1a(key) == value
    for same in (bytearray(key), memoryview(key)):
        assert kernel.fnv1a(same) == value


def test_a_key_always_goes_to_the_same_partition(kernel: ModuleType) -> None:
    assert [topic.partition_of(f"customer-{i}".encode(), 4) for i in range(8)] == [0, 3, 2, 1, 0, 3, 2, 1]
    for partitions in (1, 2, 3, 7, 1000):
        for key in (b"", b"a", b"foobar"):
            assert topic.partition_of(key, partitions) == kernel.fnv1a(key) % partitions


def test_keys_spread() -> None:
    counts = [0] * 8
    for i in range(8000):
        counts[topic.partition_of(f"key-{i}".encode(), 8)] += 1
    assert min(counts) > 800


@pytest.mark.parametrize("partitions", [0, -1])
def test_a_topic_has_a_partition(partitions: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        topic.partition_of(b"a", partitions)
