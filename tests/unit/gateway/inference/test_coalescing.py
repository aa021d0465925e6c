"""Coalescing: one leads, the others wait, and nobody who leaves harms the rest."""

from gateway.inference.coalescing import Flight, Flights
from gateway.types import ItemOutcome, Source
from tests.support.caching import cache_key

DONE = ItemOutcome(source=Source.COMPUTED, result=b"{}")


def test_of_many_who_ask_one_leads_and_all_hear_its_outcome() -> None:
    flights = Flights()
    led = flights.lead(cache_key("a"))
    joined = [flights.join(cache_key("a")) for _ in range(199)]
    heard: list[Flight] = []
    for _ in range(200):
        led.waiters.append(heard.append)

    flights.settle(cache_key("a"), DONE)

    assert joined == [led] * 199
    assert [flight.outcome for flight in heard] == [DONE] * 200
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
