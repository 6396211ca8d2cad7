"""Frames: the frozen vectors, both ways, and what cannot be put in a frame."""

import ast
import copy
import pickle
from array import array
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from penstock.errors import InvalidPayload, PayloadTypeError
from penstock.kernel.spec import END, FrameSpec

from .conftest import CHANNEL, JOURNAL, QUEUE, TOPIC


class Vector(NamedTuple):
    name: str
    spec: FrameSpec
    payloads: list[tuple[int, bytes]]
    frames: bytes


def parse(line: str) -> Vector:
    """`| name | field=value, … | payload, (kind, payload), … | hex |`"""
    name, fields, payloads, frames = (part.strip(" `") for part in line.strip("|").split("|"))
    spec = dict(field.strip().split("=") for field in fields.split(","))
    return Vector(
        name,
        FrameSpec(**{key: ast.literal_eval(value) for key, value in spec.items()}),
        [p if isinstance(p, tuple) else (0, p) for p in ast.literal_eval(f"[{payloads}]")],
        bytes.fromhex(frames),
    )


FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"
TABLE = FORMATS.read_text().partition("### Vectors")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("|")]
VECTORS = [parse(row) for row in ROWS[2:]]
each_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)


def test_the_vectors_are_there() -> None:
    assert [vector.spec for vector in VECTORS] == [
        CHANNEL,
        FrameSpec(shift=8, state_bytes=16),
        QUEUE,
        FrameSpec(sum_bytes=8, zero_ends=True),
        TOPIC,
    ]


@each_vector
def test_encode(kernel: ModuleType, vector: Vector) -> None:
    frames = [kernel.encode(vector.spec, payload, kind) for kind, payload in vector.payloads]
    assert b"".join(frames) == vector.frames
    if not any(kind for kind, _ in vector.payloads):
        assert kernel.encode_many(vector.spec, [payload for _, payload in vector.payloads]) == vector.frames


@each_vector
def test_scan(kernel: ModuleType, vector: Vector) -> None:
    size = len(vector.frames)
    found = kernel.scan(vector.spec, vector.frames, 0, size, 2**64 - 1, True, 1)
    assert (found.count, found.position, found.reason) == (len(vector.payloads), size, END)
    first = vector.spec.overhead + len(vector.payloads[0][1])
    assert found.points == [0, first][: len(vector.payloads)]


@each_vector
def test_read(kernel: ModuleType, vector: Vector) -> None:
    reader = kernel.Reader(None, vector.spec, lambda: False, lambda reason: pytest.fail(f"bad frame: {reason}"))
    reader.attach(vector.frames, b"", vector.spec, 0, 5, 0, 5, len(vector.frames))
    got = [(message.sequence, message.payload) for message in reader]
    assert got == [(5 + i, payload) for i, (_, payload) in enumerate(vector.payloads)]


def test_each_flipped_bit_is_seen(kernel: ModuleType) -> None:
    vector = next(vector for vector in VECTORS if vector.spec.sum_covers_head)
    for bit in range(8 * len(vector.frames)):
        bad = bytearray(vector.frames)
        bad[bit // 8] ^= 1 << bit % 8
        assert kernel.scan(vector.spec, bad, 0, len(bad)).count == 0


@pytest.mark.parametrize("spec", [CHANNEL, JOURNAL, QUEUE, TOPIC])
def test_any_bytes_like_payload(kernel: ModuleType, spec: FrameSpec) -> None:
    data = bytes(range(64))
    wanted = kernel.encode(spec, data)
    numbers = array("H")
    numbers.frombytes(data)
    shaped = memoryview(data).cast("B", (8, 8))
    for payload in (bytearray(data), memoryview(data), numbers, shaped, memoryview(b"x" + data)[1:]):
        assert kernel.encode(spec, payload) == wanted
    assert kernel.encode_many(spec, iter([data, bytearray(data)])) == wanted * 2
    assert kernel.encode_many(spec, []) == b""


@pytest.mark.parametrize("payload", ["text", None, 3, 2.5, ["x"], memoryview(bytes(8))[::2]])
def test_what_is_not_bytes_like(kernel: ModuleType, payload: object) -> None:
    with pytest.raises(PayloadTypeError, match="must be bytes-like"):
        kernel.encode(QUEUE, payload)


def test_a_string_gets_advice(kernel: ModuleType) -> None:
    with pytest.raises(TypeError, match=r"not str; encode it first, as in text\.encode\(\)"):
        kernel.encode_many(QUEUE, "ab")


def test_empty_only_where_zero_does_not_end(kernel: ModuleType) -> None:
    for empty in (b"", bytearray(), memoryview(b"")):
        assert kernel.encode(TOPIC, empty) == bytes(4)
        with pytest.raises(InvalidPayload, match="an empty payload cannot be stored"):
            kernel.encode(QUEUE, empty)


def test_too_long_for_the_head(kernel: ModuleType) -> None:
    spec = FrameSpec(shift=16)
    assert len(kernel.encode(spec, bytes(0xFFFF), 0xFFFF)) == 4 + 0xFFFF
    with pytest.raises(InvalidPayload, match=r"65536 bytes is longer than a frame can say \(65535\)"):
        kernel.encode(spec, bytes(0x10000))


def test_a_kind_must_not_reach_into_the_length(kernel: ModuleType) -> None:
    assert kernel.encode(JOURNAL, b"x", 255)[0] == 255
    for spec, kind in ((JOURNAL, 256), (QUEUE, 1)):
        with pytest.raises(ValueError, match=f"kind {kind} does not fit"):
            kernel.encode(spec, b"x", kind)


def test_message(kernel: ModuleType) -> None:
    message = kernel.Message(7, 1_700_000_000_000_001, b"x")
    assert (message.sequence, message.timestamp_us, message.payload) == (7, 1_700_000_000_000_001, b"x")
    assert message.timestamp == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
    assert repr(message) == "Message(sequence=7, timestamp_us=1700000000000001, payload=b'x')"
    for twin in (pickle.loads(pickle.dumps(message)), copy.copy(message)):
        assert twin == message
        assert hash(twin) == hash(message)
    assert message != kernel.Message(8, 1_700_000_000_000_001, b"x")
    assert message != "x"
    with pytest.raises(AttributeError):
        message.payload = b"y"
    for unknown in (0, None):
        assert kernel.Message(7, unknown, b"x").timestamp_us is None
        assert kernel.Message(7, unknown, b"x").timestamp is None
    assert kernel.Message(7, 0, b"x") == kernel.Message(7, None, b"x")
