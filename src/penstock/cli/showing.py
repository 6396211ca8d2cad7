"""How a record is shown: its payload as text or as what it encodes, on a line of its own, or as a line of JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import typer

from penstock import codecs
from penstock.errors import DecodeError, PenstockError
from penstock.inspect.rows import Row

Kind = Literal["utf8", "hex", "json", "msgpack"]
As = Annotated[Kind, typer.Option("--as", help="What payloads are.")]
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain(kind: Kind, *, escaped: bool) -> Callable[[Row], str]:
    """The payload alone. `escaped`: what would do something to a terminal is shown instead, such as \\x1b."""
    if kind == "utf8":
        return lambda row: _safe(row.payload.decode("utf-8", "backslashreplace"), escaped=escaped)
    value = _value(kind)
    if kind == "hex":
        return lambda row: str(value(row))
    return lambda row: _safe(_encode(value(row)), escaped=escaped)


def as_line(kind: Kind, *, named: bool) -> Callable[[Row], str]:
    """A record as a line of JSON: partition, offset, timestamp and value; the log's name if `named`. Of bytes that are no UTF-8 the
    field is value_base64."""
    value = _value(kind)

    def line(row: Row) -> str:
        made: dict[str, Any] = {"log": row.part.topic} if named else {}
        when = row.timestamp
        made |= {"partition": row.part.partition, "offset": row.offset, "timestamp": when.isoformat() if when else None}
        try:
            made["value"] = value(row)
        except UnicodeDecodeError:
            made["value_base64"] = base64.b64encode(row.payload).decode()
        return _encode(made)

    return line


def _value(kind: Kind) -> Callable[[Row], Any]:
    if kind == "utf8":
        return lambda row: row.payload.decode()
    if kind == "hex":
        return lambda row: row.payload.hex()
    codec = codecs.json(Any) if kind == "json" else codecs.msgpack(Any)

    def decoded(row: Row) -> Any:
        try:
            return codec.decode(row.payload)
        except DecodeError as error:
            where = f"{row.part.path}: partition {row.part.partition}: offset {row.offset}"
            raise PenstockError(
                f"{where}: a payload that is no {kind}: {error.reason}; look at it with `--as hex`"
            ) from None

    return decoded


def _safe(text: str, *, escaped: bool) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text) if escaped else text


def _other(value: object) -> str:
    """What MessagePack has and JSON has not."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _named(value: object) -> object:
    """The same with keys that JSON has, too."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _other(key): _named(item) for key, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list | tuple) else value


_encoder: Final = json.JSONEncoder(ensure_ascii=False, default=_other)  # json.dumps would make one each time


def _encode(value: object) -> str:
    try:
        return _encoder.encode(value)
    except TypeError:
        return _encoder.encode(_named(value))
