"""How an entry is written to Redis."""

import random

import msgspec
import pytest

from sluicegate.gateway.cache.entry import CachedResult, decode_entry, encode_entry, pack, unpack
from sluicegate.gateway.cache.key import CacheKey
from tests.support.caching import cache_key, entry


def test_an_entry_comes_back_as_it_was() -> None:
    refusal = CachedResult(
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


def test_a_vector_is_packed_to_less_than_three_quarters_and_comes_back() -> None:
    chance = random.Random(1)
    vector = entry(msgspec.json.encode([chance.gauss() for _ in range(384)]).decode())
    value = encode_entry(cache_key("a"), vector)

    packed = pack(value)

    assert len(packed) < 0.75 * len(value)
    assert unpack(packed) == value
    assert decode_entry(cache_key("a"), unpack(packed)) == vector


def test_what_is_short_or_gains_nothing_stays_as_it_is() -> None:
    short = encode_entry(cache_key("a"), entry("an answer"))
    noise = encode_entry(
        cache_key("a"),
        msgspec.structs.replace(entry(), payload=random.Random(1).randbytes(4_000)),
    )

    assert pack(short) == short
    assert pack(noise) == noise
    assert unpack(short) == short


def test_a_packed_value_that_is_broken_is_told() -> None:
    key = cache_key("a")
    packed = pack(encode_entry(key, entry("long " * 1_000)))

    broken = unpack(packed[:-20])

    with pytest.raises(msgspec.DecodeError):
        decode_entry(key, broken)
