"""Choosing one of several backends for an item."""

from collections import Counter
from random import Random

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.choice import ChoiceContext, choose, favourite
from sluicegate.gateway.routing.endpoint_state import INITIAL_SHARE, EndpointState
from sluicegate.wire.protocol import Report
from tests.support.dispatching import endpoint

NOW = 1000.0
MOMENT = ChoiceContext(NOW, RoutingConfig(slow_start=5.0))


def states(count: int, *, weights: tuple[float, ...] = ()) -> list[EndpointState]:
    made = [
        EndpointState(endpoint(f"backend-{n}", weight=weights[n] if weights else 1.0))
        for n in range(count)
    ]
    for state in made:
        state.record_report(Report(rows_per_second=100.0), NOW)
    return made


def favourites(among: list[EndpointState], items: int) -> Counter[str]:
    return Counter(
        str(favourite(among, n.to_bytes(16, "big"), MOMENT).config.backend) for n in range(items)
    )


def chosen(among: list[EndpointState], affinity: bytes = b"item") -> set[str]:
    return {str(choose(among, affinity, MOMENT, Random(seed)).config.backend) for seed in range(20)}


def test_equal_items_meet_whatever_the_order_of_configuration() -> None:
    three = states(3)

    assert favourite(three, b"item", MOMENT) is favourite(three[::-1], b"item", MOMENT)


def test_items_spread_evenly_by_weight_and_by_speed() -> None:
    even = favourites(states(4), 4000)
    weighted = favourites(states(2, weights=(1.0, 3.0)), 4000)
    unlike = states(2)
    unlike[1].record_report(Report(rows_per_second=400.0), NOW)
    by_speed = favourites(unlike, 4000)

    assert all(850 < count < 1150 for count in even.values())
    assert 2850 < weighted["backend-1"] < 3150
    assert 3050 < by_speed["backend-1"] < 3350


def test_a_backend_that_leaves_moves_only_its_own_items() -> None:
    four = states(4)
    keys = [n.to_bytes(16, "big") for n in range(500)]

    before = {key: favourite(four, key, MOMENT) for key in keys}
    after = {key: favourite(four[1:], key, MOMENT) for key in keys}

    assert all(after[key] is before[key] for key in keys if before[key] is not four[0])


def test_affinity_yields_to_load() -> None:
    three = states(3)
    loved = favourite(three, b"item", MOMENT)

    loved.in_flight = 1
    before = chosen(three)
    loved.in_flight = 100
    after = chosen(three)

    assert before == {loved.config.backend}
    assert loved.config.backend not in after


def test_of_two_drawn_the_one_that_finishes_sooner_wins() -> None:
    three = states(3)
    loved = favourite(three, b"item", MOMENT)
    slow, fast = (state for state in three if state is not loved)
    loved.in_flight = 100
    slow.record_report(Report(queued_seconds=3.0, rows_per_second=100.0), NOW)

    assert chosen(three) == {fast.config.backend}


def test_the_far_away_are_passed_by() -> None:
    near, far = states(2)
    far.record_round_trip(1.0)

    found = {
        str(choose([near, far], bytes([n]), MOMENT, Random(1)).config.backend) for n in range(50)
    }

    assert found == {near.config.backend}


def test_what_was_queued_shrinks_and_what_was_sent_since_counts() -> None:
    (state,) = states(1)
    state.record_report(Report(queued_seconds=1.0, rows_per_second=100.0), NOW)

    then = state.finish_time(NOW, 5.0)
    later = state.finish_time(NOW + 0.6, 5.0)
    state.sent_since = 20
    more = state.finish_time(NOW + 0.6, 5.0)
    state.record_report(Report(queued_seconds=0.2, rows_per_second=100.0), NOW + 0.6)
    reported = state.finish_time(NOW + 0.6, 5.0)

    assert abs(then - 1.01) < 1e-6
    assert abs(later - 0.41) < 1e-6
    assert abs(more - 0.61) < 1e-6
    assert abs(reported - 0.21) < 1e-6


def test_items_of_many_rows_take_longer() -> None:
    (state,) = states(1)

    for _ in range(200):
        state.record_rows(40, 2)

    assert 0.19 < state.item_time() < 0.21


def test_a_backend_that_came_back_begins_with_little() -> None:
    (state,) = states(1)
    state.returned = NOW

    shares = [state.share(NOW + seconds, 5.0) for seconds in (0.0, 2.5, 5.0, 60.0)]

    assert shares == [INITIAL_SHARE, (1.0 + INITIAL_SHARE) / 2, 1.0, 1.0]
