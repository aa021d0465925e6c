"""Finding who calls."""

from collections.abc import Iterator

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key, new_key
from sluicegate.gateway.types import KeyId, Principal, TenantId

ACME = Principal(tenant=TenantId("acme"), key=KeyId("k1"))
GLOBEX = Principal(tenant=TenantId("globex"), key=KeyId("k2"))


def test_a_known_key_finds_its_principal_and_no_other_does() -> None:
    first, second = new_key(), new_key()
    ring = KeyRing({hash_key(first): ACME, hash_key(second): GLOBEX})

    assert ring.find(first.encode()) is ACME
    assert ring.find(second.encode()) is GLOBEX
    assert ring.find(new_key().encode()) is None


@pytest.mark.parametrize("sent", [b"", b"short", b"x" * 100_000, b"\xff" * 32, b"\x00" * 32])
def test_what_cannot_be_a_key_is_nobodys(sent: bytes) -> None:
    ring = KeyRing({hash_key(new_key()): ACME})

    assert ring.find(sent) is None


def test_a_hash_is_not_a_key() -> None:
    key = new_key()
    ring = KeyRing({hash_key(key): ACME})

    assert ring.find(hash_key(key).encode()) is None


def test_replacing_revokes_what_is_not_there_any_more() -> None:
    old, new = new_key(), new_key()
    ring = KeyRing({hash_key(old): ACME})

    ring.replace({hash_key(new): GLOBEX})

    assert ring.find(old.encode()) is None
    assert ring.find(new.encode()) is GLOBEX
    assert len(ring) == 1


def test_a_broken_list_of_keys_changes_nothing() -> None:
    key = new_key()
    ring = KeyRing({hash_key(key): ACME})

    with pytest.raises(ValueError, match="hexadecimal"):
        ring.replace({"not hexadecimal": GLOBEX})

    assert ring.find(key.encode()) is ACME


def test_no_key_is_kept_in_memory() -> None:
    key = new_key()
    ring = KeyRing({hash_key(key): ACME})

    ring.find(key.encode())

    assert key.encode() not in repr(vars(ring)).encode()


def test_looking_for_expired_keys_changes_nothing_where_none_is() -> None:
    lasting, ending = new_key(), new_key()
    expiring = msgspec.structs.replace(GLOBEX, expires=100)
    ring = KeyRing({hash_key(lasting): ACME, hash_key(ending): expiring})
    before = ring.generation

    ring.drop_expired(99)
    unchanged = ring.generation
    ring.drop_expired(100)

    assert unchanged == before
    assert ring.generation != before
    assert (ring.find(lasting.encode()), ring.find(ending.encode())) == (ACME, None)


@pytest.mark.parametrize("is_lasting_first", [True, False])
def test_a_lasting_secret_is_not_that_of_a_key_which_had_it_before(
    *, is_lasting_first: bool
) -> None:
    secret = new_key()
    digest = bytes.fromhex(hash_key(secret))
    former = msgspec.structs.replace(GLOBEX, expires=100)
    pages = [{ACME.key: [(digest, ACME)]}, {former.key: [(digest, former)]}]
    ring = KeyRing({})

    for page in pages if is_lasting_first else reversed(pages):
        ring.replace_keys(page)

    assert ring.find(secret.encode()) is ACME


def test_origins_and_bounds_are_those_of_the_keys_that_are_valid() -> None:
    a, b = "https://a.example", "https://b.example"
    texts = [new_key() for _ in range(3)]
    digests = [bytes.fromhex(hash_key(text)) for text in texts]

    def page(key: str, *origins: str, expires: int | None = None) -> Principal:
        bounds = frozenset(origins)
        return msgspec.structs.replace(ACME, key=KeyId(key), origins=bounds, expires=expires)

    ring = KeyRing({hash_key(texts[0]): page("k1", a), hash_key(texts[1]): page("k2", a, b)})
    first = sorted(ring.origins)
    ring.replace_keys({KeyId("k2"): [(digests[1], page("k2", a, expires=100))]})
    replaced = sorted(ring.origins)
    ring.replace_keys({KeyId("k1"): [], KeyId("k3"): [(digests[2], page("k3", b, expires=200))]})
    added = sorted(ring.origins)
    # The secret of a key that expires becomes the secret of another, which is for all pages.
    other = msgspec.structs.replace(GLOBEX, key=KeyId("k4"))
    ring.replace_keys({other.key: [(digests[2], other)]})
    taken = sorted(ring.origins)
    still = ring.has_bounds
    ring.drop_expired(100)

    assert (first, replaced, added, taken, still) == ([a, b], [a], [a, b], [a], True)
    assert (sorted(ring.origins), ring.has_bounds) == ([], False)


def test_a_change_of_one_key_reads_the_bounds_of_no_other() -> None:
    reads = 0

    class Counted(frozenset[str]):
        @override
        def __iter__(self) -> Iterator[str]:
            nonlocal reads
            reads += 1
            return super().__iter__()

    page = msgspec.structs.replace(ACME, origins=Counted(["https://a.example"]))
    ring = KeyRing({hash_key(new_key()): page})
    before = reads

    ring.replace_keys({GLOBEX.key: [(bytes.fromhex(hash_key(new_key())), GLOBEX)]})

    assert reads == before > 0
    assert "https://a.example" in ring.origins


def test_a_key_is_refused_for_what_it_is_only_once_keys_were_read() -> None:
    ring, key = KeyRing(), new_key().encode()

    before, none = ring.refusal(key), ring.refusal(b"")
    ring.replace({})
    after = ring.refusal(key)

    assert (before.code, none.code) == ("dependency_unavailable", "authentication_failed")
    assert after.code == "authentication_failed"
