"""Which of several backends is tried first."""

from collections import Counter
from random import Random

from backends.protocol import Report
from gateway.routing.choice import FREE_ITEMS, has_room, order, ranked
from gateway.routing.member import Member
from tests.support.dispatching import endpoint


def members(count: int, *, weights: tuple[float, ...] = ()) -> list[Member]:
    return [
        Member(endpoint(f"backend-{n}", weight=weights[n] if weights else 1.0))
        for n in range(count)
    ]


def firsts(among: list[Member], items: int) -> Counter[str]:
    return Counter(
        str(ranked(among, n.to_bytes(16, "big"))[0].endpoint.backend) for n in range(items)
    )


def test_equal_affinity_gives_equal_order_whatever_the_order_of_configuration() -> None:
    three = members(3)

    forwards = ranked(three, b"item")
    backwards = ranked(three[::-1], b"item")

    assert forwards == backwards


def test_items_spread_evenly_and_by_weight() -> None:
    even = firsts(members(4), 4000)
    weighted = firsts(members(2, weights=(1.0, 3.0)), 4000)

    assert all(850 < count < 1150 for count in even.values())
    assert 2850 < weighted["backend-1"] < 3150


def test_a_backend_that_leaves_moves_only_its_own_items() -> None:
    four = members(4)
    keys = [n.to_bytes(16, "big") for n in range(500)]

    before = {key: ranked(four, key)[0] for key in keys}
    after = {key: ranked(four[1:], key)[0] for key in keys}

    assert all(after[key] is before[key] for key in keys if before[key] is not four[0])


def test_affinity_yields_to_load() -> None:
    three = members(3)
    favourite = ranked(three, b"item")[0]
    favourite.in_flight = 100

    chosen = {order(three, b"item", Random(seed))[0].endpoint.backend for seed in range(20)}

    assert favourite.endpoint.backend not in chosen
    assert len(chosen) == 2


def test_of_two_drawn_the_one_that_finishes_sooner_wins() -> None:
    three = members(3)
    favourite, slow, fast = ranked(three, b"item")
    favourite.in_flight = 100
    slow.report = Report(queued_tokens=9000, tokens_per_second=1000.0)
    fast.report = Report(queued_tokens=9000, tokens_per_second=9000.0)

    chosen = {order(three, b"item", Random(seed))[0].endpoint.backend for seed in range(20)}

    assert chosen == {fast.endpoint.backend}


def test_every_order_has_every_backend_once() -> None:
    three = members(3)
    ranked(three, b"item")[0].in_flight = 100

    assert sorted(member.endpoint.backend for member in order(three, b"item", Random(1))) == [
        "backend-0",
        "backend-1",
        "backend-2",
    ]


def test_a_lone_or_weightless_backend_always_has_room_for_a_little() -> None:
    weightless = members(2, weights=(0.0, 0.0))
    weightless[0].in_flight = FREE_ITEMS

    assert has_room(weightless[0], weightless)
    assert len(order(weightless, b"item", Random(1))) == 2
