"""Codecs: objects to payloads and back. A codec that can read what it is given back is all that a typed log needs.

>>> codec = json(dict[str, int])
>>> codec.encode({"a": 1})
b'{"a":1}'
>>> codec.decode(b'{"a":1}')
{'a': 1}
>>> codec.encode({"a": "one"})
Traceback (most recent call last):
    ...
penstock.errors.EncodeError: codecs.json(dict[str, int]) cannot encode this dict: Expected `int`, got `str` - at `$[...]`; give it what its type says
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final, Protocol, TypeVar, is_typeddict, overload

from penstock.errors import DecodeError, EncodeError
from penstock.kernel import Buffer

_T = TypeVar("_T")

_PICKLE_PROTOCOL: Final = 5


class Codec(Protocol[_T]):
    """What a typed log asks of a codec. Any object will do that has these three; it must be usable from many threads.

    `encode` raises EncodeError, and `decode` DecodeError.
    """

    @property
    def name(self) -> str: ...
    def encode(self, obj: _T) -> Buffer: ...
    def decode(self, data: Buffer) -> _T: ...


@dataclass(frozen=True, slots=True)
class _Bytes:
    name: str = "bytes"

    def encode(self, obj: Buffer) -> Buffer:
        try:
            memoryview(obj)
        except TypeError:
            advice = "; encode it first, as in text.encode()" if isinstance(obj, str) else ""
            raise EncodeError(f"codecs.bytes_() takes what is bytes-like, not {type(obj).__name__}{advice}") from None
        return obj

    def decode(self, data: Buffer) -> bytes:
        return bytes(data)


@dataclass(frozen=True, slots=True)
class _Pickle:
    name: str = field(default="pickle", init=False)
    _dumps: Callable[[Any, int], bytes] = field(repr=False)
    _loads: Callable[[Buffer], Any] = field(repr=False)

    def encode(self, obj: Any) -> bytes:
        try:
            return self._dumps(obj, _PICKLE_PROTOCOL)
        except Exception as error:  # an object's own methods may raise anything
            raise EncodeError(
                f"codecs.pickle() cannot encode this {type(obj).__name__}: {error}; give it what can be pickled"
            ) from error

    def decode(self, data: Buffer) -> Any:
        try:
            return self._loads(data)
        except Exception as error:
            raise DecodeError("codecs.pickle()", str(error) or type(error).__name__) from error


@dataclass(frozen=True, slots=True)
class _Typed:
    """JSON or MessagePack of one type. What is written must read back as that type, or it is refused.

    Of an instance of `_trusted` the class is proof enough. Everything else is read back at once: that was measured at less
    than half the time of `msgspec.convert`, and proves more. So is a JSON null, since JSON has no other way to write NaN.
    """

    name: str
    kind: Any
    _wanted: type | tuple[type, ...] | None = field(repr=False, compare=False)  # None: no class says it
    _trusted: type | None = field(repr=False, compare=False)
    _null: bytes | None = field(repr=False, compare=False)
    _encode: Callable[[Any], bytes] = field(repr=False, compare=False)
    _decode: Callable[[Buffer], Any] = field(repr=False, compare=False)

    def encode(self, obj: Any) -> bytes:
        try:
            if type(obj) is self._trusted:
                data = self._encode(obj)
                if self._null is not None and data.find(self._null) >= 0:  # `in` takes twice as long
                    self._decode(data)
            elif self._wanted is None or isinstance(obj, self._wanted):
                data = self._encode(obj)
                self._decode(data)
            else:
                raise TypeError("wrong type")
        except Exception as error:  # msgspec's, and whatever an object's own methods raise
            raise EncodeError(
                f"{self} cannot encode this {type(obj).__name__}: {error}; give it what its type says"
            ) from error
        return data

    def decode(self, data: Buffer) -> Any:
        try:
            return self._decode(data)
        except Exception as error:
            raise DecodeError(str(self), str(error)) from error

    def __str__(self) -> str:
        return f"codecs.{self.name}({self.kind.__name__ if isinstance(self.kind, type) else self.kind})"

    def __reduce__(self) -> tuple[Callable[[Any], Codec[Any]], tuple[Any]]:
        return (json if self.name == "json" else msgpack), (self.kind,)  # msgspec's decoders cannot be pickled


def _wanted(kind: Any) -> type | tuple[type, ...] | None:
    """What an object must be an instance of, where a class says that."""
    if kind is float:
        return (float, int)  # as everywhere in Python, an int will do
    return None if kind is Any or is_typeddict(kind) or not isinstance(kind, type) else kind


def _trusted(kind: Any) -> type | None:
    """The type itself if its instances always read back, as far as their class can promise it."""
    from msgspec import Struct

    if not isinstance(kind, type):
        return None
    fields = issubclass(kind, Struct) or is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")
    return kind if fields or kind in (str, bytes) else None


def bytes_() -> Codec[bytes]:
    """Payloads as they are: bytes-like in, bytes out."""
    return _Bytes()


@overload
def json(kind: type[_T]) -> Codec[_T]: ...
@overload
def json(kind: Any) -> Codec[Any]: ...
def json(kind: Any) -> Codec[Any]:
    """JSON of objects of this type: a builtin, a container such as `list[int]`, a dataclass, a `msgspec.Struct` and more.

    JSON has no NaN and no infinity. They are refused, but where the type takes None they are written as None.
    """
    from msgspec.json import Decoder, Encoder

    null = None if kind in (str, bytes) else b"null"
    return _Typed("json", kind, _wanted(kind), _trusted(kind), null, Encoder().encode, Decoder(kind).decode)


@overload
def msgpack(kind: type[_T]) -> Codec[_T]: ...
@overload
def msgpack(kind: Any) -> Codec[Any]: ...
def msgpack(kind: Any) -> Codec[Any]:
    """MessagePack of objects of this type, as with `json`: shorter, and floats are any that there are."""
    from msgspec.msgpack import Decoder, Encoder

    return _Typed("msgpack", kind, _wanted(kind), _trusted(kind), None, Encoder().encode, Decoder(kind).decode)


def pickle() -> Codec[Any]:
    """Whatever Python can pickle. Reading a pickle runs what it says: only for logs that nobody else can write."""
    from pickle import dumps, loads

    return _Pickle(dumps, loads)
