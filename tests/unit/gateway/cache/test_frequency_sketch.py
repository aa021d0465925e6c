"""The frequency sketch."""

from sluicegate.gateway.cache.frequency_sketch import FrequencySketch
from tests.support.caching import cache_key


def address(name: int) -> bytes:
    return cache_key(name).address


def test_an_address_is_estimated_as_often_as_it_was_counted_or_more() -> None:
    sketch = FrequencySketch(1024)
    for name in range(100):
        sketch.add(address(name), name % 10)

    assert all(sketch.estimate(address(name)) >= name % 10 for name in range(100))
    assert sum(sketch.estimate(address(name)) for name in range(10_000, 10_100)) < 20


def test_counting_one_by_one_is_the_same_as_counting_at_once() -> None:
    single, together = FrequencySketch(1024), FrequencySketch(1024)
    for name in range(20):
        together.add(address(name), name)
        for _ in range(name):
            single.add(address(name), 1)

    assert [single.estimate(address(name)) for name in range(20)] == [
        together.estimate(address(name)) for name in range(20)
    ]


def test_counting_tells_how_often_an_address_was_counted() -> None:
    sketch = FrequencySketch(16)

    told = [sketch.add(address(1), times) for times in (1, 3, 20)]

    assert told == [1, 4, 15]
    assert sketch.estimate(address(1)) == 15


def test_counts_stop_at_fifteen_and_halve_with_time() -> None:
    sketch = FrequencySketch(16)
    sketch.add(address(1), 100)
    assert sketch.estimate(address(1)) == 15

    sketch.add(address(2), 60)

    assert sketch.estimate(address(1)) <= 8


def test_an_address_that_was_counted_very_often_halves_the_counts_once() -> None:
    sketch = FrequencySketch(16)
    sketch.add(address(1), 15)
    sketch.add(address(2), 10_000)
    halved = sketch.estimate(address(1))

    for name in range(3, 10):
        sketch.add(address(name), 1)

    assert (halved, sketch.estimate(address(1))) == (7, 7)
