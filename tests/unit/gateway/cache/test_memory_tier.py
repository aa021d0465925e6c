"""The memory tier: right answers, bounded bytes, the popular stays."""

import itertools
import random
from bisect import bisect_left
from collections import OrderedDict

from hypothesis import given, strategies as st

from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.memory_tier import ENTRY_OVERHEAD_BYTES, MemoryTier
from tests.support.caching import cache_key, entry

NOW = 1_000.0


def test_what_was_put_is_found_under_its_key_only() -> None:
    tier = MemoryTier(capacity_bytes=100_000)
    tier.put(cache_key("a"), entry("A"), NOW)

    found = tier.peek(cache_key("a"), NOW)

    assert found is not None
    assert found.payload == b"A"
    assert tier.peek(cache_key("b"), NOW) is None


def test_a_collision_of_addresses_is_a_miss_because_the_tags_differ() -> None:
    tier = MemoryTier(capacity_bytes=100_000)
    mine = cache_key("a")
    colliding = CacheKey(mine.address, b"another tag 16 B")
    tier.put(mine, entry("mine"), NOW)

    assert tier.peek(colliding, NOW) is None
    assert tier.statistics().mismatches == 1

    tier.put(colliding, entry("theirs"), NOW)

    assert tier.peek(mine, NOW) is None
    found = tier.peek(colliding, NOW)
    assert found is not None
    assert found.payload == b"theirs"


def test_an_entry_is_not_served_from_its_expiry_on() -> None:
    tier = MemoryTier(capacity_bytes=100_000)
    tier.put(cache_key("a"), entry(at=NOW, ttl=60.0), NOW)

    assert tier.peek(cache_key("a"), NOW + 59.9) is not None
    assert tier.peek(cache_key("a"), NOW + 60.0) is None


def test_a_tier_of_no_bytes_keeps_nothing() -> None:
    tier = MemoryTier(capacity_bytes=0)

    tier.put(cache_key("a"), entry(), NOW)

    assert tier.peek(cache_key("a"), NOW) is None
    assert tier.statistics().entries == 0


def test_an_entry_that_has_expired_is_neither_kept_nor_counted_as_refused() -> None:
    entries = [(cache_key("a"), entry("A", at=NOW - 10.0, ttl=10.0)), (cache_key("b"), entry("B"))]
    tiers = [MemoryTier(capacity_bytes=size) for size in (0, 100_000)]

    for tier in tiers:
        tier.put_all(entries, NOW)

    found = [tier.statistics() for tier in tiers]
    assert [(one.entries, one.refused) for one in found] == [(0, 1), (1, 0)]


def test_an_entry_larger_than_the_tier_is_refused_and_pushes_nothing_out() -> None:
    tier = MemoryTier(capacity_bytes=10_000)
    tier.put(cache_key("small"), entry(), NOW)

    tier.put(cache_key("large"), entry("x" * 20_000), NOW)

    assert tier.peek(cache_key("large"), NOW) is None
    assert tier.peek(cache_key("small"), NOW) is not None


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 3_000), st.integers(0, 20)), max_size=200
    ),
    st.integers(0, 20_000),
)
def test_used_bytes_never_pass_the_capacity_and_are_those_of_the_entries(
    puts: list[tuple[int, int, int]], capacity: int
) -> None:
    tier = MemoryTier(capacity_bytes=capacity)
    kept: dict[int, int] = {}

    for step, (name, size, ttl) in enumerate(puts):
        tier.put(cache_key(name), entry("x" * size, at=float(step), ttl=ttl), float(step))
        if tier.peek(cache_key(name), float(step)) is not None:
            kept[name] = size
        assert tier.statistics().used_bytes <= capacity

    nodes = tier._nodes.values()
    assert tier.statistics().used_bytes == sum(node.cost for node in nodes)
    assert len(tier._main) + len(tier._window) == len(nodes)
    assert all(node.cost == ENTRY_OVERHEAD_BYTES + len(node.entry.payload) for node in nodes)


def test_one_pass_over_many_inputs_does_not_push_out_what_is_read_often() -> None:
    tier = MemoryTier(capacity_bytes=200 * (ENTRY_OVERHEAD_BYTES + 6))
    popular = [cache_key(f"popular {number}") for number in range(100)]
    for _ in range(5):
        for key in popular:
            if tier.peek(key, NOW) is None:
                tier.put(key, entry(), NOW)

    for number in range(1_000):
        tier.put(cache_key(f"once {number}"), entry(), NOW)

    assert sum(tier.peek(key, NOW) is not None for key in popular) == 100


def test_what_was_popular_yesterday_gives_way() -> None:
    tier = MemoryTier(capacity_bytes=200 * (ENTRY_OVERHEAD_BYTES + 6))
    read_often(tier, "yesterday", rounds=30)

    read_often(tier, "today", rounds=60)

    assert sum(tier.peek(cache_key(f"today {n}"), NOW) is not None for n in range(150)) >= 140


def read_often(tier: MemoryTier, day: str, *, rounds: int) -> None:
    for _ in range(rounds):
        for number in range(150):
            key = cache_key(f"{day} {number}")
            if tier.peek(key, NOW) is None:
                tier.put(key, entry(), NOW)


def test_expired_entries_make_room_first() -> None:
    tier = MemoryTier(capacity_bytes=50 * (ENTRY_OVERHEAD_BYTES + 6))
    for number in range(50):
        tier.put(cache_key(number), entry(ttl=10.0), NOW)
        for _ in range(5):
            tier.peek(cache_key(number), NOW)

    for number in range(50, 80):
        tier.put(cache_key(number), entry(at=NOW + 20.0), NOW + 20.0)

    assert sum(tier.peek(cache_key(n), NOW + 20.0) is not None for n in range(50, 80)) == 30


def test_more_is_found_than_with_least_recently_used() -> None:
    weights = list(itertools.accumulate(1 / rank**0.9 for rank in range(1, 20_001)))
    chosen = random.Random(7)
    stream = [bisect_left(weights, chosen.random() * weights[-1]) for _ in range(60_000)]
    places = 400

    tier = MemoryTier(capacity_bytes=places * (ENTRY_OVERHEAD_BYTES + 256))
    answer = entry("x" * 256)
    for number in stream:
        key = cache_key(number)
        if tier.peek(key, NOW) is None:
            tier.put(key, answer, NOW)
    ratio = tier.statistics().hits / len(stream)

    assert ratio > hit_ratio_of_lru(stream, places) + 0.03


def hit_ratio_of_lru(stream: list[int], places: int) -> float:
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number in stream:
        if number in kept:
            kept.move_to_end(number)
            hits += 1
            continue
        kept[number] = None
        if len(kept) > places:
            kept.popitem(last=False)
    return hits / len(stream)


def test_an_entry_can_be_found_without_counting_a_read() -> None:
    tier = MemoryTier(capacity_bytes=100_000)
    tier.put(cache_key("a"), entry("1"), NOW)

    found = tier.entry_of(cache_key("a"))

    assert found is not None
    assert tier.entry_of(cache_key("b")) is None
    assert (tier.statistics().hits, tier.statistics().misses) == (0, 0)
