"""Defines the entries of the result cache, and their encoding in Redis."""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from sluicegate.gateway.cache.key import CacheKey

KEY_PREFIX = b"sg:r:"
"""Comes before the address in a key of Redis."""
PLAIN = b"\x01"
"""The first byte of an entry that is not compressed."""
PACKED = b"\x02"
"""The first byte of a compressed entry."""
CLAIM = b"\x03"
"""The first byte of a claim."""
_ENTRIES = (PLAIN, PACKED)
WORTH_PACKING = 1024
"""Values of this many bytes or more are compressed. Compressing a vector to half its size takes 100
µs, and decompressing it takes 20 µs."""
_MIN_SAVING = 0.25
_MUCH = 64 * 1024
"""Values of this many bytes or more are compressed in a thread, because their compression takes
about a millisecond."""
_KINDS = frozenset({bytes, type(None)})
"""The types of a reply to `MGET`: a value, or `None` for a missing key."""
_Value = TypeVar("_Value", bytes, bytes | None)
_BODY = 17
"""The offset of the entry in a stored value. The format byte and the tag come before the entry."""


class CachedResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Holds a result that is ready to send.

    `payload` is JSON. It is a result if `status` is 200, and otherwise the error of the item.

    `rows` and `tokens` are the numbers of rows and tokens that were computed for the result. Times
    are wall-clock times in seconds, because an entry is read on several machines. Fields are
    encoded by position, so append new fields at the end.
    """

    payload: bytes
    status: int = 200
    code: str = ""
    detail: str = ""
    rows: int
    tokens: int
    stored_at: float
    expires_at: float
    revision: str = ""
    """The revision that computed the result, if the cache key does not contain a revision."""
    owner: str = ""
    """If tenants share results, the tenant whose request computed the result, as `tenant:<id>`."""
    owner_epoch: int = 0
    """The cache epoch of `owner` when the result was computed. Purging the tenant's results raises
    the epoch."""
    truncated_from: int = 0
    """If the text was truncated, the number of tokens that it had before; otherwise 0."""
    arm: str = ""
    """The number of the revision that computed the result, if a traffic split divides the items."""
    input_tokens: int = 0
    """The number of tokens of all rows of the item. It is 0 in entries of earlier releases."""


Validity = Callable[[CachedResult, float], bool]
"""Returns whether a stored result may be used at a time of the wall clock."""


class CacheHit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds an entry, and the name of the cache tier in which it was found."""

    entry: CachedResult
    tier: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CachedResult)


def encode_entry(key: CacheKey, entry: CachedResult) -> bytes:
    """Return the value to store at `key.address`: a format byte, the key's tag, and msgpack."""
    return PLAIN + key.tag + _encoder.encode(entry)


def encode_claim(key: CacheKey, claimant: bytes) -> bytes:
    """Return the value to store as a claim: the worker `claimant` computes the result of `key`."""
    return CLAIM + key.tag + claimant


def read_claim(key: CacheKey, value: bytes) -> bytes | None:
    """Return the name of the worker that claims `key`, or `None` if `value` is no claim on it."""
    if value[:1] != CLAIM or value[1:_BODY] != key.tag:
        return None
    return value[_BODY:]


def pack(value: bytes) -> bytes:
    """Return `value`, compressed after its tag if this saves at least a quarter of its bytes.

    Short values, claims and values that are already compressed are returned unchanged.
    """
    if len(value) < WORTH_PACKING or value[:1] != PLAIN:
        return value
    packed = PACKED + value[1:_BODY] + zlib.compress(memoryview(value)[_BODY:], 1)
    return packed if len(packed) <= len(value) * (1 - _MIN_SAVING) else value


def unpack(value: _Value) -> _Value:
    """Return the uncompressed value. If it cannot be decompressed, return it unchanged."""
    if value is None or value[:1] != PACKED:
        return value
    try:
        return PLAIN + value[1:_BODY] + zlib.decompress(memoryview(value)[_BODY:])
    except zlib.error:
        return value


def decode_entry(key: CacheKey, value: bytes) -> CachedResult | None:
    """Return the entry in an uncompressed `value`.

    The result is `None` if the value has another key's tag or another format.

    Raises:
        Exception: the entry is damaged. `msgspec` raises several types of errors.
    """
    if value[1:_BODY] != key.tag or value[:1] not in _ENTRIES:
        return None
    return _decoder.decode(memoryview(value)[_BODY:])


def read_values(reply: object, count: int) -> list[bytes | None] | None:
    """Return the `count` values in a reply to `MGET`, or `None` if the reply is something else."""
    if isinstance(reply, list) and len(reply) == count and _KINDS.issuperset(map(type, reply)):
        return reply
    return None


def is_large(values: Sequence[bytes | None]) -> bool:
    """Return whether converting `values` would block the event loop."""
    return sum([len(value) for value in values if value]) >= _MUCH


async def map_values(change: Callable[[_Value], _Value], values: Sequence[_Value]) -> list[_Value]:
    """Return the result of `change` for each value. Large values are changed in a thread."""
    if not is_large(values):
        return list(map(change, values))
    return await asyncio.to_thread(lambda: list(map(change, values)))
