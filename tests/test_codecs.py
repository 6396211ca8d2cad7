"""Codecs: what goes in comes out, and what would not come out does not go in."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from penstock import codecs
from penstock.errors import DecodeError, EncodeError, InvalidPayload, PenstockError


class Order(msgspec.Struct):
    id: int
    price: float = 0.0
    note: str | None = None


class Rush(Order):
    hours: int = 1


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: int


class Wider(Strict):
    hours: int = 1


@dataclass
class Point:
    x: int
    y: int


class Pair(NamedTuple):
    a: int
    b: str


class Row(TypedDict):
    a: int


class Color(Enum):
    RED = "red"


TYPED = [codecs.json, codecs.msgpack]
typed = pytest.mark.parametrize("make", TYPED, ids=["json", "msgpack"])
Make = Callable[[Any], codecs.Codec[Any]]

VALUES: list[tuple[Any, Any]] = [
    *[(int, v) for v in (0, -1, 2**63, -(2**63), 2**64 - 1)],
    *[(float, v) for v in (0.0, 0.1, -1.5e300, 5e-324, 3)],
    *[(str, v) for v in ("", "x", "ä€😀", "null", "a" * 10_000)],
    *[(bool, v) for v in (True, False)],
    *[(bytes, v) for v in (b"", b"\0\xff", b"null")],
    (type(None), None),
    (list[int], [1, 2, 3]),
    (list, [1, "x", None]),
    (dict, {"a": [1]}),
    (dict[str, list[int]], {"a": [1], "b": []}),
    (dict[int, str], {1: "x"}),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "x")),
    (int | None, None),
    (int | str, "x"),
    (Literal["a", "b"], "b"),
    (Annotated[int, msgspec.Meta(gt=0)], 1),
    (Any, {"a": [1, None, "x", True, 0.5]}),
    (object, [1]),
    (Order, Order(7, 9.5, "x")),
    (Order, Order(7)),
    (list[Order], [Order(1), Order(2)]),
    (Order | None, None),
    (Point, Point(1, 2)),
    (list[Point], [Point(1, 2)]),
    (Pair, Pair(1, "x")),
    (Row, {"a": 1}),
    (Color, Color.RED),
    (datetime, datetime(2026, 11, 15, 1, 2, 3, 456789, tzinfo=UTC)),
    (date, date(2026, 11, 15)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.50")),
]


@typed
@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda v: str(v)[:30])
def test_what_goes_in_comes_out(make: Make, kind: Any, value: Any) -> None:
    codec = make(kind)
    data = codec.encode(value)
    for given in (data, bytearray(data), memoryview(data)):
        back = codec.decode(given)
        assert back == value
        assert type(back) is type(value) or kind is float


WRONG: list[tuple[Any, Any]] = [
    *[(int, v) for v in ("x", "1", 1.0, 1.5, None, True, b"1", [1])],
    *[(float, v) for v in ("x", None, True)],
    *[(str, v) for v in (1, None, b"x", ["x"])],
    *[(bytes, v) for v in ("abcd", 1, None)],
    *[(bool, v) for v in (1, 0, None, "true")],
    *[(list[int], v) for v in (["x"], [1, None], {"a": 1}, 7, "12")],
    *[(dict[str, int], v) for v in ({"a": "x"}, {"a": None}, [("a", 1)])],
    *[(tuple[int, str], v) for v in ((1,), ("x", 1))],
    *[(int | None, v) for v in ("x", 1.5)],
    (Literal["a"], "b"),
    (Annotated[int, msgspec.Meta(gt=0)], 0),
    *[(Order, v) for v in ({"id": 1}, None, Point(1, 2), Strict(1), 7)],
    *[(list[Order], v) for v in ([None], [{"price": 1.0}], Order(1))],
    *[(Point, v) for v in ({"x": 1, "y": 2}, Order(1))],
    *[(Row, v) for v in ({"a": "x"}, {}, 7)],
    *[(Color, v) for v in ("red", "blue")],
    *[(datetime, v) for v in ("2026-11-15T00:00:00Z", 7)],
    *[(UUID, v) for v in (str(UUID(int=7)), 7)],
    (Strict, Wider(1)),
]


@typed
@pytest.mark.parametrize(("kind", "value"), WRONG, ids=lambda v: str(v)[:30])
def test_a_wrong_type_is_refused_when_it_is_encoded(make: Make, kind: Any, value: Any) -> None:
    codec = make(kind)
    with pytest.raises(EncodeError) as caught:
        codec.encode(value)
    said = str(caught.value)
    assert said.startswith(f"{codec} cannot encode this {type(value).__name__}: ")
    assert said.endswith("; give it what its type says")


@typed
@pytest.mark.parametrize("value", [object(), {1, object()}, "\ud800", lambda: 0, [object()], 1j])
def test_what_cannot_be_encoded_at_all(make: Make, value: object) -> None:
    with pytest.raises(EncodeError):
        make(Any).encode(value)


@typed
def test_a_circle_is_refused(make: Make) -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(EncodeError):
        make(Any).encode(circle)


@typed
def test_a_subclass_goes_in_where_it_can_come_out(make: Make) -> None:
    codec = make(Order)
    assert codec.decode(codec.encode(Rush(1, 2.0, None, 3))) == Order(1, 2.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_no_such_number(value: float) -> None:
    for kind, given in (
        (float, value),
        (list[float], [value]),
        (Order, Order(1, value)),
        (list[Order], [Order(1, value)]),
    ):
        with pytest.raises(EncodeError):
            codecs.json(kind).encode(given)
    assert codecs.json(Any).encode(value) == b"null"


def test_msgpack_has_every_float() -> None:
    codec = codecs.msgpack(Order)
    assert math.isnan(codec.decode(codec.encode(Order(1, math.nan))).price)
    assert codecs.msgpack(float).decode(codecs.msgpack(float).encode(-math.inf)) == -math.inf


def test_the_bytes_are_those_of_the_formats() -> None:
    assert codecs.json(Order).encode(Order(7, 0.5)) == b'{"id":7,"price":0.5,"note":null}'
    assert codecs.msgpack(list[int]).encode([1, 2]) == b"\x92\x01\x02"


@typed
@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"{", b'{"id":"x"}', b"null", b"\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"]
)
def test_what_cannot_be_read(make: Make, data: bytes) -> None:
    codec = make(Order)
    with pytest.raises(DecodeError) as caught:
        codec.decode(data)
    error = caught.value
    assert error.offset is None
    assert error.codec == str(codec)
    assert str(error).startswith(f"a payload that {codec} cannot read: ")
    assert str(error).endswith("; use the codec that it was written with, or codecs.bytes_() to look at it")
    assert error.__cause__ is not None


def test_a_decode_error_can_be_told_where_it_is() -> None:
    with pytest.raises(DecodeError) as caught:
        codecs.json(int).decode(b"x")
    error = caught.value.at(4096, 4105)
    assert (error.offset, error.next_offset) == (4096, 4105)
    assert "; seek(4105) to step over it, " in str(error)
    assert str(error).startswith("offset 4096: a payload that codecs.json(int) cannot read: ")
    twin = pickle.loads(pickle.dumps(error))
    assert (twin.offset, twin.next_offset, twin.codec, twin.reason) == (4096, 4105, error.codec, error.reason)
    assert str(twin) == str(error)


def test_the_errors_have_their_place_in_the_tree() -> None:
    assert issubclass(EncodeError, InvalidPayload)
    assert issubclass(EncodeError, ValueError)
    assert DecodeError.__bases__ == (PenstockError,)


# ---- bytes ----


def test_bytes_go_in_as_they_are_and_come_out_as_bytes() -> None:
    codec = codecs.bytes_()
    for value in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert codec.encode(value) is value
        assert codec.decode(value) == b"x"
        assert type(codec.decode(value)) is bytes


@pytest.mark.parametrize("value", ["x", 7, None, [1], Order(1)])
def test_what_is_not_bytes_like(value: Any) -> None:
    with pytest.raises(EncodeError, match=rf"bytes-like, not {type(value).__name__}"):
        codecs.bytes_().encode(value)


def test_a_string_gets_advice() -> None:
    with pytest.raises(EncodeError, match=r"not str; encode it first, as in text\.encode\(\)"):
        codecs.bytes_().encode("x")


# ---- pickle ----


@pytest.mark.parametrize("value", [None, 7, "x", {"a": {1, 2}}, Order(7), Point(1, 2), math.inf, 1j])
def test_pickle(value: object) -> None:
    codec = codecs.pickle()
    data = codec.encode(value)
    for given in (data, bytearray(data), memoryview(data)):
        assert codec.decode(given) == value


class Awkward:
    def __reduce__(self) -> Any:
        raise RuntimeError("not today")


@pytest.mark.parametrize("value", [lambda: 0, Awkward(), sys.stdout])
def test_what_cannot_be_pickled(value: object) -> None:
    with pytest.raises(EncodeError, match=r"^codecs\.pickle\(\) cannot encode this .*; give it what can be pickled"):
        codecs.pickle().encode(value)


@pytest.mark.parametrize("data", [b"", b"x", b"\x80\x05", b"cnowhere\nthing\n.", pickle.dumps([1, 2])[:-2]])
def test_what_is_no_pickle(data: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^a payload that codecs\.pickle\(\) cannot read: .+;"):
        codecs.pickle().decode(data)


# ---- codecs as objects ----

ALL = [codecs.bytes_, codecs.pickle, lambda: codecs.json(list[int]), lambda: codecs.msgpack(Order)]


@pytest.mark.parametrize("make", ALL)
def test_codecs_are_small_frozen_values(make: Callable[[], codecs.Codec[Any]]) -> None:
    codec = make()
    assert codec == make()
    assert hash(codec) == hash(make())
    for twin in (pickle.loads(pickle.dumps(codec)), copy.copy(codec), copy.deepcopy(codec)):
        assert twin == codec
        assert twin.encode is not None
    with pytest.raises(FrozenInstanceError):
        codec.name = "x"
    assert not hasattr(codec, "__dict__")


def test_codecs_have_names_and_differ() -> None:
    made = [codecs.bytes_(), codecs.json(int), codecs.msgpack(int), codecs.pickle(), codecs.json(str)]
    assert [codec.name for codec in made] == ["bytes", "json", "msgpack", "pickle", "json"]
    assert len(set(made)) == 5
    assert str(made[1]) == "codecs.json(int)"
    assert str(codecs.msgpack(list[int] | None)) == "codecs.msgpack(list[int] | None)"


@typed
def test_a_type_that_cannot_be_one_is_refused_at_once(make: Make) -> None:
    with pytest.raises(TypeError):
        make(dict[Order, int] | dict[str, int])


def test_packages_are_imported_only_for_the_codecs_that_need_them() -> None:
    code = """
import sys
from penstock import codecs
codecs.bytes_()
assert "msgspec" not in sys.modules
codecs.pickle()
assert "msgspec" not in sys.modules
codecs.json(int)
assert "msgspec" in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
