"""The growth benchmark finds what grows faster than its cause."""

import pytest

from loadtests.growth.points import Point, added_exponent, judge, word


def point(size: int, *, processor: float = 20.0, memory: float = 100.0) -> Point:
    return Point(
        curve="hit",
        size=size,
        rate=100.0,
        processor={"gateway": processor},
        idle={"gateway": 1000.0},
        p99=2.0,
        memory={"gateway": memory},
    )


def test_what_grows_with_the_square_is_named() -> None:
    sizes = (1, 10, 100, 1000)
    found = {what: exponent for what, _, _, exponent in judge([point(n) for n in sizes])}
    steep = dict.fromkeys(found, 0.0) | {
        what: exponent for what, _, _, exponent in judge([point(n, processor=n**2) for n in sizes])
    }

    assert word(found["µs a request"]) == "constant"
    assert word(steep["µs a request"]) == "WORSE THAN LINEAR"
    assert steep["µs a request"] == pytest.approx(2.0)


def test_a_steep_end_is_seen_behind_a_flat_beginning() -> None:
    values = {1: 20.0, 10: 20.0, 100: 20.0, 1000: 20.0, 10_000: 2000.0, 100_000: 200_000.0}

    exponents = {
        what: exponent
        for what, _, _, exponent in judge([point(n, processor=v) for n, v in values.items()])
    }

    assert word(exponents["µs a request"]) == "WORSE THAN LINEAR"


def test_memory_is_judged_by_what_is_added_to_its_constant_part() -> None:
    assert added_exponent([(n, 100.0 + n) for n in (1, 10, 100, 1000)]) == pytest.approx(
        1.0, abs=0.01
    )
    assert added_exponent([(1, 100.0), (10, 101.0), (100, 103.0)]) == pytest.approx(0.0, abs=0.01)
    assert added_exponent([(1, 100.0), (2, 200.0)]) == pytest.approx(1.0)
