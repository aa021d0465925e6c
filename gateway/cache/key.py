"""Makes the cache key of an item from everything that affects its result."""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple, Protocol

from xxhash import xxh3_128

from backends.protocol import ModelInfo, Task

KEY_VERSION = 2
"""Part of every key. Raise it when the encoding below or the content of entries changes meaning."""

_LENGTH = struct.Struct("<Q")
_new_tuple = tuple.__new__
_TAG_BYTES = 16


class CacheKey(NamedTuple):
    """Holds an `address` (XXH3-128), which locates a result, and a `tag`, which authenticates it.

    XXH3 is fast but not collision resistant. The tag, a keyed BLAKE2b hash, is stored in the entry
    and compared on every read. It proves that a result belongs to the input.
    """

    address: bytes
    tag: bytes


address_of = attrgetter("address")
"""Returns the address of a key, without Python code when `map` calls it."""


class _Hash(Protocol):
    def copy(self) -> "_Hash": ...
    def update(self, text: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Prefix(NamedTuple):
    """Holds the states of both hashes after the data that all items of a request share."""

    address: _Hash
    tag: _Hash

    def keys(self, items: Sequence[bytes]) -> list[CacheKey]:
        """Return the key of each item in order. Items must be in canonical encoding."""
        copy_address, copy_tag = self.address.copy, self.tag.copy
        keys = []
        for item in items:
            tail = _LENGTH.pack(len(item)) + item
            address, tag = copy_address(), copy_tag()
            address.update(tail)
            tag.update(tail)
            # The constructor of `CacheKey`, inlined to save a call for each item.
            keys.append(_new_tuple(CacheKey, (address.digest(), tag.digest())))
        return keys


class KeyMaker:
    """Makes keys with one `secret`, which all gateways that use a Redis must share."""

    def __init__(self, *, secret: bytes) -> None:
        # BLAKE2b accepts keys of up to 64 bytes, so the secret is hashed.
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
        """Return the prefix for the keys of items that share all these values.

        Each field follows its length, so that different requests never have equal bytes.
        `parameters` and items must be in canonical encoding: equal values have equal bytes.
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
