"""Makes the cache key of an item from everything that affects the item's result."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple, Protocol

import msgspec
from xxhash import xxh3_128

from sluicegate.wire.protocol import Task, Variant

KEY_VERSION = 2
"""A part of every key. Raise it if the encoding of keys changes, or the meaning of entries."""

# The parts of version 2 are hashed even if they are empty. The parts that were added later follow.
_OF_VARIANT = ("revision", "profile", "algorithm", "algorithm_version")
_OF_VERSION_2 = {*_OF_VARIANT, "scope", "epoch", "model", "variant", "task", "parameters"}
_REMEMBERED = 1024
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


class KeyParts(msgspec.Struct, frozen=True, kw_only=True):
    """States everything except the item that affects a result. Every part is in the key.

    To add a fact of the model, add it with an empty default to `ModelInfo` and `Variant` in
    `wire/protocol.py`, and give its value in `_serve` of `backends/algorithms/registry.py`: from
    the manifest, where `_Manifest` of `backends/repository/manifest.py` declares what owners write,
    or from the models below. Gateways, bulk jobs, routing and stale answers follow.

    To add another part, add a field without a default here. Give its value in `RequestPlans` for
    gateways and in `key_prefix` for bulk jobs, because bulk jobs share gateways' results. The tests
    of the key try every part.

    An added part is hashed after its name, and only if it is not empty (`""`, 0, `None`). So with
    an empty value, results that were stored before the part existed stay valid.
    """

    scope: str
    """Who may get the result: `tenant:<id>`, or `shared` for all tenants."""
    epoch: str
    """What `epoch_of` returns. It changes with each purge."""
    model: str
    variant: Variant
    task: Task
    parameters: bytes
    """The parameters in canonical encoding: equal values have equal bytes."""

    def unrevised(self) -> "KeyParts":
        """Return the parts without the model's revision."""
        variant = self.variant._replace(revision="")
        return msgspec.structs.replace(self, variant=variant)


class KeyMaker:
    """Makes keys with a `secret`.

    All gateways that use the same Redis must have the same secret.
    """

    def __init__(self, *, secret: bytes) -> None:
        # The secret is hashed first, because BLAKE2b accepts keys of at most 64 bytes.
        self._secret = blake2b(secret, person=b"sluicegate.tag").digest()

    def prefix(self, parts: KeyParts) -> Prefix:
        """Return the common prefix of the cache keys of all items of a request.

        Each part is hashed after its length, so that different parts never hash equal data.
        """
        of_variant, added_to_variant = _of_variant(parts.variant)
        scope, epoch, model = parts.scope.encode(), parts.epoch.encode(), parts.model.encode()
        head = _joined((str(KEY_VERSION).encode(), scope, epoch, model)) + of_variant
        head += _joined((parts.task.encode(), parts.parameters)) + added_to_variant
        head += _added(parts, parts.__struct_fields__)
        return Prefix(
            address=xxh3_128(head),
            tag=blake2b(head, key=self._secret, digest_size=_TAG_BYTES),
        )


def epoch_of(model: str, scope: str, epochs: Mapping[str, int], purge_history: str) -> str:
    """Return `KeyParts.epoch` from the cache epochs and the id of the history of purges."""
    return f"{epochs.get(f'model:{model}', 0)}.{epochs.get(scope, 0)}{purge_history}"


@lru_cache(_REMEMBERED)
def _of_variant(variant: Variant) -> tuple[bytes, bytes]:
    """Return what is hashed of a variant: the parts of version 2, and the added parts."""
    always = [str(getattr(variant, name)).encode() for name in _OF_VARIANT]
    return _joined(always), _added(variant, variant._fields)


def _added(holder: Variant | KeyParts, names: tuple[str, ...]) -> bytes:
    """Return what is hashed of the parts that version 2 does not have: their names and values."""
    found = b""
    for name in _added_names(names):
        if value := getattr(holder, name):
            text = value if isinstance(value, bytes) else str(value).encode()
            found += _joined((name.encode(), text))
    return found


@cache
def _added_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([name for name in names if name not in _OF_VERSION_2])


def _joined(fields: Iterable[bytes]) -> bytes:
    """Return fields, each after its length."""
    return b"".join([_LENGTH.pack(len(field)) + field for field in fields])
