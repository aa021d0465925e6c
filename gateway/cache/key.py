"""Makes the cache key of an item from everything that affects the item's result."""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple, Protocol

from xxhash import xxh3_128

from sluicegate.wire.protocol import ModelInfo, Task

KEY_VERSION = 2
"""A part of every key. Raise it if the encoding of keys changes, or the meaning of entries."""

_LENGTH = struct.Struct("<Q")
_new_tuple = tuple.__new__
_TAG_BYTES = 16


class CacheKey(NamedTuple):
    """Holds the `address` of a stored result, and a `tag` that identifies the result's input.

    The address is an XXH3-128 hash. XXH3 is fast, but not resistant to collisions. The tag is a
    keyed BLAKE2b hash. The tag is stored with the entry. Every read compares the stored tag with
    the key's tag, to make sure that the result belongs to the input.
    """

    address: bytes
    tag: bytes


address_of = attrgetter("address")
"""Returns the address of a key. `map` calls this function without running Python code."""


class _Hash(Protocol):
    def copy(self) -> "_Hash": ...
    def update(self, text: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Prefix(NamedTuple):
    """Holds the hash states of address and tag after the data that all items of a request share."""

    address: _Hash
    tag: _Hash

    def keys(self, items: Sequence[bytes]) -> list[CacheKey]:
        """Return the keys of the items, in order. Items must be in canonical encoding."""
        copy_address, copy_tag = self.address.copy, self.tag.copy
        keys = []
        for item in items:
            tail = _LENGTH.pack(len(item)) + item
            address, tag = copy_address(), copy_tag()
            address.update(tail)
            tag.update(tail)
            # This is the constructor of `CacheKey`, inlined to save a call for each item.
            keys.append(_new_tuple(CacheKey, (address.digest(), tag.digest())))
        return keys


class KeyMaker:
    """Makes keys with a `secret`.

    All gateways that use the same Redis must have the same secret.
    """

    def __init__(self, *, secret: bytes) -> None:
        # The secret is hashed first, because BLAKE2b accepts keys of at most 64 bytes.
        self._secret = blake2b(secret, person=b"sluicegate.tag").digest()

    def prefix(
        self,
        *,
        scope: str,
        epoch: str,
        model: str,
        info: ModelInfo,
        task: Task,
        parameters: bytes,
    ) -> Prefix:
        """Return the common prefix of the cache keys of all items of a request.

        Each field is hashed after its length, so that different requests never hash equal data.
        `parameters` and the items must be in canonical encoding: equal values have equal bytes.
        """
        shared = (
            *(KEY_VERSION, scope, epoch, model, info.revision, info.profile, info.algorithm),
            *(info.algorithm_version, task, parameters),
        )
        head = b"".join(
            [_field(value if isinstance(value, bytes) else str(value).encode()) for value in shared]
        )
        return Prefix(
            address=xxh3_128(head),
            tag=blake2b(head, key=self._secret, digest_size=_TAG_BYTES),
        )


def _field(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value
