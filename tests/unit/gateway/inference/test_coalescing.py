"""Coalescing: one leads, the others wait, and nobody who leaves harms the rest."""

from collections.abc import Sequence

import pytest
from typing_extensions import override

from gateway.inference.coalescing import Flight, Flights
from gateway.types import ItemOutcome, Source
from tests.support.caching import cache_key

DONE = ItemOutcome(source=Source.COMPUTED, result=b"{}")


class Waiter:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[list[Flight]] = []

    def flights_ended(self, flights: Sequence[Flight]) -> None:
        """Note what ended together."""
        self.heard.append(list(flights))


def test_who_waits_for_several_that_end_together_is_told_once() -> None:
    flights, waiter = Flights(), Waiter()
    led = [flights.lead(cache_key(text)) for text in "abc"]
    for flight in led:
        flight.waiters.append(waiter)

    flights.settle_all([cache_key(text) for text in "axc"], [(0, DONE), (1, DONE), (2, DONE)])
    flights.settle(cache_key("b"), DONE)

    assert waiter.heard == [[led[0], led[2]], [led[1]]]


class BrokenWaiter(Waiter):
    """Raises when it is told."""

    @override
    def flights_ended(self, flights: Sequence[Flight]) -> None:
        """Raise."""
        raise ZeroDivisionError


def test_one_who_fails_costs_no_other_its_outcome(caplog: pytest.LogCaptureFixture) -> None:
    flights, waiter = Flights(), Waiter()
    led = [flights.lead(cache_key(text)) for text in "ab"]
    led[0].waiters.append(BrokenWaiter())
    led[1].waiters.append(waiter)

    flights.settle_all([cache_key(text) for text in "ab"], [(0, DONE), (1, DONE)])

    assert waiter.heard == [[led[1]]]
    assert "a background task failed" in caplog.text


def test_the_items_of_a_request_are_led_together_or_none_of_them() -> None:
    flights = Flights()
    keys = [cache_key(text) for text in "abc"]

    led = flights.lead_all(keys)
    others = [flights.lead_all([cache_key(text) for text in texts]) for texts in ("da", "dd", "a")]

    assert led is not None
    assert [flights.join(key) for key in keys] == led
    assert others == [None, None, None]
    assert flights.join(cache_key("d")) is None
    assert flights.statistics().led == 3


def test_of_many_who_ask_one_leads_and_all_hear_its_outcome() -> None:
    flights = Flights()
    led = flights.lead(cache_key("a"))
    joined = [flights.join(cache_key("a")) for _ in range(199)]
    waiters = [Waiter() for _ in range(200)]
    led.waiters.extend(waiters)

    flights.settle(cache_key("a"), DONE)

    assert joined == [led] * 199
    assert [waiter.heard for waiter in waiters] == [[[led]]] * 200
    assert led.outcome == DONE
    statistics = flights.statistics()
    assert (statistics.in_flight, statistics.led, statistics.joined) == (0, 1, 199)


def test_after_the_outcome_the_next_leads_anew() -> None:
    flights = Flights()
    flights.lead(cache_key("a"))
    flights.settle(cache_key("a"), DONE)

    assert flights.join(cache_key("a")) is None
    assert flights.join(cache_key("b")) is None


def test_settling_what_nobody_asked_for_or_twice_is_harmless() -> None:
    flights = Flights()
    flights.settle(cache_key("a"), DONE)
    flight = flights.lead(cache_key("a"))

    flights.settle(cache_key("a"), DONE)
    flights.settle(cache_key("a"), DONE)

    assert flight.outcome == DONE
