"""How an entry is written to Redis."""

import msgspec
import pytest

from gateway.cache.entry import Entry, decode_entry, encode_entry
from gateway.cache.key import CacheKey
from tests.support.caching import cache_key, entry


def test_an_entry_comes_back_as_it_was() -> None:
    refusal = Entry(
        payload=b"",
        status=422,
        code="too_long",
        detail="shorten it",
        rows=0,
        tokens=0,
        stored_at=1.5,
        expires_at=61.5,
    )

    assert decode_entry(cache_key("a"), encode_entry(cache_key("a"), refusal)) == refusal


def test_a_value_under_the_same_address_with_another_tag_is_not_this_keys() -> None:
    key = cache_key("a")
    value = encode_entry(CacheKey(key.address, bytes(16)), entry("theirs"))

    assert decode_entry(key, value) is None


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x00" * 40, b"\x02" + b"x" * 100])
def test_a_value_of_another_format_is_nobodys(value: bytes) -> None:
    assert decode_entry(cache_key("a"), value) is None


def test_a_value_cut_short_is_told() -> None:
    key = cache_key("a")
    value = encode_entry(key, entry("a long answer"))

    with pytest.raises(msgspec.DecodeError):
        decode_entry(key, value[:-5])
