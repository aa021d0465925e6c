"""Makes the cache key of each item: all that shapes its answer, and nothing else."""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple, Protocol

from xxhash import xxh3_128

from backends.protocol import ModelInfo, Task

KEY_VERSION = 2
"""Part of every key: raise it when the encoding below, or what an entry holds, changes meaning."""

_LENGTH = struct.Struct("<Q")
_new_tuple = tuple.__new__
_TAG_BYTES = 16


class CacheKey(NamedTuple):
    """Where an item's answer is (`address`, XXH3-128) and proof that it is the item's (`tag`).

    XXH3 is quick and not collision resistant; the tag, keyed BLAKE2b kept in the entry and compared
    on every read, is what makes an answer belong to its input.
    """

    address: bytes
    tag: bytes


address_of = attrgetter("address")
"""Returns the address of a key, without a step of Python where `map` calls it."""


class _Hash(Protocol):
    def copy(self) -> "_Hash": ...
    def update(self, text: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Prefix(NamedTuple):
    """Both hashes, having read what the items of a request share."""

    address: _Hash
    tag: _Hash

    def keys(self, items: Sequence[bytes]) -> list[CacheKey]:
        """Return the key of every item of `items`, in their order; each must be canonical."""
        copy_address, copy_tag = self.address.copy, self.tag.copy
        keys = []
        for item in items:
            tail = _LENGTH.pack(len(item)) + item
            address, tag = copy_address(), copy_tag()
            address.update(tail)
            tag.update(tail)
            # As `CacheKey` does, without a call in Python for each item.
            keys.append(_new_tuple(CacheKey, (address.digest(), tag.digest())))
        return keys


class KeyMaker:
    """Makes keys under one `secret`; gateways that share a Redis share the secret."""

    def __init__(self, *, secret: bytes) -> None:
        # BLAKE2b takes 64 bytes of key; a secret of any length is brought to that.
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
        """Return what makes the keys of items that share all of this.

        Each field is written after its length, so that no two requests can be spelled alike.
        `parameters`, and the items, must be canonical: equal meaning, equal bytes.
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
