"""Makes the cache key of each item: all that shapes its answer, and nothing else."""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from xxhash import xxh3_128

from backends.protocol import Task

KEY_VERSION = 1
"""Part of every key: raise it when the encoding below, or what an entry holds, changes meaning."""

_LENGTH = struct.Struct("<Q")
_TAG_BYTES = 16
_LONGEST_REMEMBERED = 1024
_MOST_REMEMBERED = 1024


class CacheKey(NamedTuple):
    """Where an item's answer is (`address`, XXH3-128) and proof that it is the item's (`tag`).

    XXH3 is quick and not collision resistant; the tag, keyed BLAKE2b kept in the entry and compared
    on every read, is what makes an answer belong to its input.
    """

    address: bytes
    tag: bytes


class _Hash(Protocol):
    def copy(self) -> "_Hash": ...
    def update(self, text: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class _Prefix(NamedTuple):
    """Both hashes, having read what the items of a request share."""

    address: _Hash
    tag: _Hash


class KeyMaker:
    """Makes keys under one `secret`; gateways that share a Redis share the secret."""

    def __init__(self, *, secret: bytes) -> None:
        # BLAKE2b takes 64 bytes of key; a secret of any length is brought to that.
        self._secret = blake2b(secret, person=b"sluicegate.tag").digest()
        self._prefixes: dict[tuple[object, ...], _Prefix] = {}

    def keys(
        self,
        *,
        scope: str,
        epoch: str,
        revision: str,
        profile: str,
        algorithm: str,
        algorithm_version: int,
        model: str,
        task: Task,
        parameters: bytes,
        items: Sequence[bytes],
    ) -> list[CacheKey]:
        """Return the key of every item of `items`, in their order.

        Each field is written after its length, so that no two requests can be spelled alike.
        `parameters` and `items` must be canonical: equal meaning, equal bytes.
        """
        shared = (
            scope,
            epoch,
            model,
            revision,
            profile,
            algorithm,
            algorithm_version,
            task,
            parameters,
        )
        prefix = self._prefixes.get(shared)
        if prefix is None:
            prefix = self._prefix(shared)
        copy_address, copy_tag = prefix.address.copy, prefix.tag.copy
        keys = []
        for item in items:
            tail = _LENGTH.pack(len(item)) + item
            address, tag = copy_address(), copy_tag()
            address.update(tail)
            tag.update(tail)
            keys.append(CacheKey(address.digest(), tag.digest()))
        return keys

    def _prefix(self, shared: tuple[object, ...]) -> _Prefix:
        encoded = bytearray(_field(str(KEY_VERSION).encode()))
        for value in shared:
            encoded += _field(value if isinstance(value, bytes) else str(value).encode())
        head = bytes(encoded)
        prefix = _Prefix(
            address=xxh3_128(head),
            tag=blake2b(head, key=self._secret, digest_size=_TAG_BYTES),
        )
        # Few models and parameters make up most requests; what is long is rarely seen again.
        if len(head) <= _LONGEST_REMEMBERED:
            if len(self._prefixes) >= _MOST_REMEMBERED:
                self._prefixes.clear()
            self._prefixes[shared] = prefix
        return prefix


def _field(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value
