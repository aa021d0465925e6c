"""API keys: their form, their hash, their checksum."""

import pytest

from sluicegate.gateway.auth.keys import has_valid_checksum, hash_key, is_well_formed, new_key


def test_new_keys_differ_are_well_formed_and_carry_their_checksum() -> None:
    keys = {new_key() for _ in range(200)}

    assert len(keys) == 200
    assert all(key.startswith("sk-") and len(key) == 41 for key in keys)
    assert all(is_well_formed(key) and has_valid_checksum(key) for key in keys)


def test_a_mistyped_key_is_told_by_its_checksum() -> None:
    key = new_key("demo")
    typo = key[:10] + ("a" if key[10] != "a" else "b") + key[11:]

    assert not has_valid_checksum(typo)
    assert not has_valid_checksum("")


def test_the_hash_is_stable_because_it_is_stored() -> None:
    hashed = hash_key("sk-0123456789abcdef")

    assert hashed == ("9f2a75381bd5da9ba8f80d0be729beb0de0bb4ba2edbfd5e68abf0a3be314eaf")
    assert len(bytes.fromhex(hashed)) == 32
    assert hashed != hash_key("sk-0123456789abcdeg")


@pytest.mark.parametrize("key", ["a" * 16, "a" * 200, "!~" * 8])
def test_16_to_200_visible_ascii_characters_may_be_a_key(key: str) -> None:
    assert is_well_formed(key)


@pytest.mark.parametrize("key", ["", "a" * 15, "a" * 201, "a" * 16 + " ", "é" * 16, "a\n" * 10])
def test_anything_else_may_not(key: str) -> None:
    assert not is_well_formed(key)
