"""Defines the entries of the result cache, and their encoding in Redis."""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from gateway.cache.key import CacheKey

PLAIN = b"\x01"
"""The first byte of an entry that is not compressed."""
PACKED = b"\x02"
"""The first byte of a compressed entry."""
CLAIM = b"\x03"
"""The first byte of a claim."""
_ENTRIES = (PLAIN, PACKED)
WORTH_PACKING = 1024
"""Bytes from which a value is compressed. A vector shrinks to half in 100 µs and decompresses in
20."""
_MIN_SAVING = 0.25
_MUCH = 64 * 1024
"""Bytes from which values are compressed in a thread: compression takes about a millisecond."""
_KINDS = frozenset({bytes, type(None)})
"""The types of a reply to `MGET`: a value, or `None` for a missing key."""
_Value = TypeVar("_Value", bytes, bytes | None)
_BODY = 17
"""The offset of the entry in a stored value, after the format byte and the tag."""


class CachedResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Holds a result ready to send: a JSON `payload`, or a refusal if `status` is not 200.

    `rows` and `tokens` were computed for the result. Times are seconds on the wall clock, because
    entries travel between machines. Append new fields at the end.
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
    """The revision that computed the result, if the cache key does not contain the revision."""
    owner: str = ""
    """The tenant whose request computed the result (`tenant:<id>`), if tenants share results."""
    owner_epoch: int = 0
    """The cache epoch of `owner` at that time. Purging the tenant's results raises the epoch."""
    truncated_from: int = 0
    """The number of tokens of the text that was truncated; 0 if none was."""
    arm: str = ""
    """The number of the revision that computed the result, if several share the model's items."""
    input_tokens: int = 0
    """Tokens of all rows of the item; 0 in entries of earlier releases."""


Validity = Callable[[CachedResult, float], bool]
"""Returns whether a stored result may be returned at a time of the wall clock."""


class CacheHit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds an entry and the name of its tier."""

    entry: CachedResult
    tier: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CachedResult)


def encode_entry(key: CacheKey, entry: CachedResult) -> bytes:
    """Return the value to store at `key.address`: format byte, tag, msgpack."""
    return PLAIN + key.tag + _encoder.encode(entry)


def encode_claim(key: CacheKey, claimant: bytes) -> bytes:
    """Return the value of a claim: `claimant` computes the result of `key`."""
    return CLAIM + key.tag + claimant


def read_claim(key: CacheKey, value: bytes) -> bytes | None:
    """Return the worker that computes `key`, if `value` is a claim on it; else `None`."""
    if value[:1] != CLAIM or value[1:_BODY] != key.tag:
        return None
    return value[_BODY:]


def pack(value: bytes) -> bytes:
    """Return `value` with everything after its tag compressed, if this is worth it.

    It is worth it if the value becomes at least a quarter shorter. Otherwise, `value` is returned
    unchanged. So are short values, claims and values that are already compressed.
    """
    if len(value) < WORTH_PACKING or value[:1] != PLAIN:
        return value
    packed = PACKED + value[1:_BODY] + zlib.compress(memoryview(value)[_BODY:], 1)
    return packed if len(packed) <= len(value) * (1 - _MIN_SAVING) else value


def unpack(value: _Value) -> _Value:
    """Return the uncompressed value; a value that cannot be decompressed is returned unchanged."""
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
        Exception: the entry is damaged; `msgspec` raises several types.
    """
    if value[1:_BODY] != key.tag or value[:1] not in _ENTRIES:
        return None
    return _decoder.decode(memoryview(value)[_BODY:])


def read_values(reply: object, count: int) -> list[bytes | None] | None:
    """Return the `count` values in a reply to `MGET`; `None` for any other reply."""
    if isinstance(reply, list) and len(reply) == count and _KINDS.issuperset(map(type, reply)):
        return reply
    return None


def is_large(values: Sequence[bytes | None]) -> bool:
    """Return whether converting `values` would block the event loop."""
    return sum([len(value) for value in values if value]) >= _MUCH


async def map_values(change: Callable[[_Value], _Value], values: Sequence[_Value]) -> list[_Value]:
    """Return `change` of each value, computed in a thread if the values are large."""
    if not is_large(values):
        return list(map(change, values))
    return await asyncio.to_thread(lambda: list(map(change, values)))
