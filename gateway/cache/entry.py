"""Defines the entries of the result cache and their encoding in Redis."""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from gateway.cache.key import CacheKey

PLAIN = b"\x01"
"""The first byte of an entry that is not compressed."""
PACKED = b"\x02"
"""The first byte of one that is."""
CLAIM = b"\x03"
"""The first byte of a claim."""
_ENTRIES = (PLAIN, PACKED)
WORTH_PACKING = 1024
"""Bytes from which a value is compressed: a vector is halved in 100 µs, and back in 20."""
_LEAST_SAVING = 0.25
_MUCH = 64 * 1024
"""Bytes from which values are packed and unpacked in a thread: about a millisecond of work."""
_KINDS = frozenset({bytes, type(None)})
"""What values are, and keys without one."""
_Value = TypeVar("_Value", bytes, bytes | None)
_BODY = 17
"""Where the entry begins in a stored value: after the format's byte and the tag."""


class CachedResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """An answer ready to send: JSON `payload`, or a refusal when `status` is not 200.

    `rows` and `tokens` were computed for it. Times are seconds of the wall clock, since entries
    travel between machines. New fields go last.
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
    """What gave it, where that is not part of its key."""
    owner: str = ""
    """Whose request computed it (`tenant:<id>`), where other tenants may be given it too."""
    owner_epoch: int = 0
    """The epoch of `owner` at that time: purging the tenant raises it."""
    truncated_from: int = 0
    """How many tokens the text has that the model cut; 0 where it cut nothing."""
    arm: str = ""
    """The number of the revision that gave it, where several share the model's items."""
    input_tokens: int = 0
    """Tokens of all rows of the item; 0 in entries of earlier releases."""


Validity = Callable[[CachedResult, float], bool]
"""Tells whether a stored answer may be given at a time of the wall clock."""


class CacheHit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry, and the name of the tier that had it."""

    entry: CachedResult
    tier: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CachedResult)


def encode_entry(key: CacheKey, entry: CachedResult) -> bytes:
    """Return the value to store at `key.address`: format, tag, msgpack."""
    return PLAIN + key.tag + _encoder.encode(entry)


def encode_claim(key: CacheKey, claimant: bytes) -> bytes:
    """Return the value that says that `claimant` is computing `key`'s answer."""
    return CLAIM + key.tag + claimant


def read_claim(key: CacheKey, value: bytes) -> bytes | None:
    """Return who is computing `key`'s answer, where `value` says that somebody is."""
    if value[:1] != CLAIM or value[1:_BODY] != key.tag:
        return None
    return value[_BODY:]


def pack(value: bytes) -> bytes:
    """Return `value` compressed after its tag where that saves a quarter, else as it is."""
    if len(value) < WORTH_PACKING or value[:1] != PLAIN:
        return value
    packed = PACKED + value[1:_BODY] + zlib.compress(memoryview(value)[_BODY:], 1)
    return packed if len(packed) <= len(value) * (1 - _LEAST_SAVING) else value


def unpack(value: _Value) -> _Value:
    """Return what `pack` was given; a value that cannot be read, or none, stays as it is."""
    if value is None or value[:1] != PACKED:
        return value
    try:
        return PLAIN + value[1:_BODY] + zlib.decompress(memoryview(value)[_BODY:])
    except zlib.error:
        return value


def decode_entry(key: CacheKey, value: bytes) -> CachedResult | None:
    """Return the entry in an unpacked `value` if it is `key`'s.

    `None`: it is another's, or of another format.

    Raises:
        Exception: the tag is `key`'s and what follows is no entry; `msgspec` raises several kinds.
    """
    if value[1:_BODY] != key.tag or value[:1] not in _ENTRIES:
        return None
    return _decoder.decode(memoryview(value)[_BODY:])


def read_values(reply: object, count: int) -> list[bytes | None] | None:
    """Return the values that `MGET` of so many keys replied with; `None` for any other reply."""
    if isinstance(reply, list) and len(reply) == count and _KINDS.issuperset(map(type, reply)):
        return reply
    return None


def is_large(values: Sequence[bytes | None]) -> bool:
    """Tell whether converting `values` would hold the event loop."""
    return sum([len(value) for value in values if value]) >= _MUCH


async def map_values(change: Callable[[_Value], _Value], values: Sequence[_Value]) -> list[_Value]:
    """Return `change` of each value; computed in a thread where they are large."""
    if not is_large(values):
        return list(map(change, values))
    return await asyncio.to_thread(lambda: list(map(change, values)))
