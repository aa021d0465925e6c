"""Quickly encodes events that differ from an earlier event only in id, time, duration and count.

A cache hit in memory often repeats an earlier hit, with the same tenant, key, model and usage. The
event is encoded once. After that, only the fields that differ are encoded.
"""

import struct

import msgspec

from sluicegate.gateway.types import RequestEvent, RequestId

_ID, _TIME, _DURATION, _COUNT_FIELD = map(
    RequestEvent.__struct_fields__.index, ("id", "time", "duration", "count")
)
_NUMBERS = struct.Struct(">BQ")
_FLOAT = struct.Struct(">Bd")
_COUNT = struct.Struct(">BH")
_STRING, _UINT64, _FLOAT64, _UINT16 = 0xA0, 0xCF, 0xCB, 0xCD
_ARRAY16 = b"\xdc"
_encode = msgspec.msgpack.encode


class EventTemplate:
    """Holds the encoding of `event` without its id, time, duration and count.

    An id has at most 31 bytes. `size` is the size in bytes of a payload whose id is as long as the
    id of `event`.
    """

    __slots__ = ("_after", "_end", "_middle", "_start", "size")

    def __init__(self, event: RequestEvent) -> None:
        fields = msgspec.structs.astuple(event)
        self._start = _ARRAY16 + len(fields).to_bytes(2, "big")
        self._middle = b"".join(map(_encode, fields[_TIME + 1 : _DURATION]))
        self._end = b"".join(map(_encode, fields[_DURATION + 1 : _COUNT_FIELD]))
        self._after = b"".join(map(_encode, fields[_COUNT_FIELD + 1 :]))
        self.size = len(self.payload(event.id, 0, 0.0, 1))

    def payload(self, id_: RequestId, time: int, duration: float, count: int) -> bytes:
        """Return the event as msgpack. `time` is in nanoseconds, and `duration` is in seconds."""
        text = id_.encode()
        return b"%b%c%b%b%b%b%b%b%b" % (
            self._start,
            _STRING | len(text),
            text,
            _NUMBERS.pack(_UINT64, time),
            self._middle,
            _FLOAT.pack(_FLOAT64, duration),
            self._end,
            _COUNT.pack(_UINT16, count),
            self._after,
        )
