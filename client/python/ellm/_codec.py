"""Messages to frames and back, by the types of the dataclasses' fields. The only part that knows msgpack."""
from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import struct
import typing
from typing import Any, Callable

from . import messages
from .errors import ProtocolMismatch, TooLarge
from .messages import Message

msgpack: Any = importlib.import_module("msgpack")     # its type stubs are not always there


def _to_wire(value: Any) -> Any:
    """Text that is not UTF-8 (surrogateescape) goes as bytes."""
    if dataclasses.is_dataclass(value):
        return [_to_wire(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, enum.IntEnum):
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_to_wire(item) for item in value]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="surrogateescape")
    return value


def encode(message: Message) -> bytes:
    """A whole frame."""
    body: bytes = msgpack.packb([message.TAG, *_to_wire(message)], use_bin_type=True)
    if len(body) > messages.MAX_FRAME_BYTES:
        raise TooLarge("the message is larger than a frame may be (%d MiB)" % (messages.MAX_FRAME_BYTES >> 20))
    return struct.pack("<I", len(body)) + body


# ---- decoding ------------------------------------------------------------------------------------------------------

T = typing.TypeVar("T")
Convert = Callable[[Any], Any]


def _text(value: Any) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else _exactly(str, value)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else _exactly(bytes, value)


def _exactly(kind: type[T], value: Any) -> T:
    if type(value) is not kind:                         # True is no integer
        raise ValueError("expected %s, got %s" % (kind.__name__, type(value).__name__))
    return value


def _float(value: Any) -> float:
    return float(value) if type(value) is int else _exactly(float, value)


def _enumerator(kind: type[enum.IntEnum], value: Any) -> int:
    """One that a later release added stays a number."""
    number = _exactly(int, value)
    return kind(number) if number in kind._value2member_map_ else number


def _converter(kind: Any) -> Convert:
    origin = typing.get_origin(kind)
    if origin is list:
        item = _converter(typing.get_args(kind)[0])
        return lambda value: [item(one) for one in _exactly(list, value)]
    if origin is tuple:
        first, second = map(_converter, typing.get_args(kind))
        return lambda value: (first(value[0]), second(value[1]))
    if dataclasses.is_dataclass(kind):
        return lambda value: _record(kind, _exactly(list, value))
    if kind is str:
        return _text
    if kind is bytes:
        return _bytes
    if kind is float:
        return _float
    if issubclass(kind, enum.IntEnum):
        return functools.partial(_enumerator, kind)
    return functools.partial(_exactly, kind)


@functools.lru_cache(maxsize=None)
def _fields(kind: Any) -> list[tuple[str, Convert]]:
    hints = typing.get_type_hints(kind)
    return [(f.name, _converter(hints[f.name])) for f in dataclasses.fields(kind)]


def _record(kind: Any, values: list[Any]) -> Any:
    """Missing fields and nil keep their defaults; what follows the known ones is ignored."""
    return kind(**{name: convert(value) for (name, convert), value in zip(_fields(kind), values) if value is not None})


_BY_TAG: dict[int, type[Message]] = {kind.TAG: kind for kind in messages.ALL}


def decode(body: bytes) -> Message | None:
    """One frame's body; None for a message that this release does not know. Raises ProtocolMismatch."""
    try:
        values = _exactly(list, msgpack.unpackb(body, raw=False, unicode_errors="surrogateescape", strict_map_key=False))
        kind = _BY_TAG.get(values[0])
        return None if kind is None else _record(kind, values[1:])
    except Exception as error:
        raise ProtocolMismatch("ellmd sent a damaged message (%s)" % error, request_sent=True) from None


class Frames:
    """Cuts what arrives into bodies."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        bodies, at = [], 0
        while len(self._data) - at >= 4:
            length = struct.unpack_from("<I", self._data, at)[0]
            if length > messages.MAX_FRAME_BYTES:
                raise ProtocolMismatch("a frame of %d bytes arrived: the program at this socket is not ellmd" % length)
            if len(self._data) - at - 4 < length:
                break
            bodies.append(bytes(self._data[at + 4:at + 4 + length]))
            at += 4 + length
        del self._data[:at]
        return bodies
