"""A bounded cache drops what was not used lately, and never all at once."""

from sluicegate.gateway.api.recent_cache import RecentCache


def test_it_holds_no_more_than_it_may() -> None:
    cache: RecentCache[int, str] = RecentCache(10)

    for number in range(100):
        cache.put(number, str(number))
        assert len(cache) <= 10

    assert [cache.get(number) for number in range(95, 100)] == ["95", "96", "97", "98", "99"]
    assert cache.get(0) is None


def test_what_is_used_stays_whatever_comes_beside_it() -> None:
    cache: RecentCache[int, str] = RecentCache(10)
    cache.put(-1, "used")

    for number in range(100):
        cache.put(number, "once")
        assert cache.get(-1) == "used"

    assert len(cache) <= 10


def test_clearing_drops_both_generations() -> None:
    cache: RecentCache[int, str] = RecentCache(4)
    for number in range(4):
        cache.put(number, "x")

    cache.clear()

    assert len(cache) == 0
    assert cache.get(0) is cache.get(3) is None
