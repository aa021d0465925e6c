"""Encodes replies in the Redis protocol, in version 2 or 3 (RESP2, RESP3).

Python types stand for types of replies: `bytes` for a bulk string, `int`, `float`, `list`, `dict`
for a map, `None` for a null bulk string, and the classes of this module for the others. RESP2 has
no maps, sets and doubles; it sends lists and bulk strings instead.
"""

from enum import Enum
from typing import Any, NamedTuple, TypeAlias

Reply: TypeAlias = Any  # a recursive type of the types above would need a cast at each use


class Status(bytes):
    """A simple string, such as `OK`."""

    __slots__ = ()


class Members(NamedTuple):
    """A set."""

    items: list[bytes]


class Scored(NamedTuple):
    """Members of a sorted set with their scores. RESP2 sends one flat list."""

    items: list[tuple[bytes, float]]


class ByKey(NamedTuple):
    """The entries of a stream. RESP2 sends a list with a pair, RESP3 a map."""

    key: bytes
    entries: list[Any]


class Push(NamedTuple):
    """A message that no command has asked for. RESP2 sends a list."""

    items: list[bytes | int | None]


class Absent(Enum):
    """The null list."""

    LIST = "list"


class RedisError(Exception):
    """An error reply. The message begins with the code, such as `ERR` or `WRONGTYPE`."""


OK = Status(b"OK")


def encode(reply: Reply, version: int) -> bytes:  # noqa: PLR0911 - one for each type
    """Return the bytes of `reply`."""
    match reply:
        case Status():
            return b"+%b\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
        case None:
            return b"_\r\n" if version > 2 else b"$-1\r\n"
        case Absent():
            return b"_\r\n" if version > 2 else b"*-1\r\n"
        case RedisError():
            return b"-%b\r\n" % str(reply).replace("\r", " ").replace("\n", " ").encode()
        case float():
            text = format_score(reply)
            return b",%b\r\n" % text if version > 2 else encode(text, version)
        case _:
            return _encode_many(reply, version)


def _encode_many(reply: Reply, version: int) -> bytes:  # noqa: C901, PLR0911
    match reply:
        case Members(items):
            return _join(b"~" if version > 2 else b"*", items, version)
        case Push(items):
            return _join(b">" if version > 2 else b"*", items, version)
        case Scored(items) if version > 2:
            return _join(b"*", [list(pair) for pair in items], version)
        case Scored(items):
            return _join(b"*", [value for pair in items for value in pair], version)
        case ByKey(key, entries) if version > 2:
            return _encode_many({key: entries}, version)
        case ByKey(key, entries):
            return _join(b"*", [[key, entries]], version)
        case dict():
            flat = [value for pair in reply.items() for value in pair]
            if version > 2:
                return b"%%%d\r\n" % len(reply) + b"".join(encode(each, version) for each in flat)
            return _join(b"*", flat, version)
        case list() | tuple():
            return _join(b"*", list(reply), version)
        case _:
            raise TypeError(f"a {type(reply).__name__} is no reply")


def _join(kind: bytes, items: list[Reply], version: int) -> bytes:
    return b"%b%d\r\n" % (kind, len(items)) + b"".join(encode(each, version) for each in items)


def format_score(score: float) -> bytes:
    """Return a score as Redis writes it: without a fraction where there is none."""
    return b"%.17g" % score
