"""Coalescing: one leads, the others join its item until it is settled."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from sluicegate.gateway.dispatch.work import OpenItem, settle
from sluicegate.gateway.inference.coalescing import Flights
from sluicegate.gateway.types import ItemOutcome, Source
from tests.support.caching import cache_key
from tests.support.dispatching import GivenItem, Started, work

pytestmark = pytest.mark.anyio
DONE = ItemOutcome(source=Source.COMPUTED, result=b"{}")


class Scene:
    """The items in flight of a worker."""

    def __init__(self) -> None:
        self.flights = Flights()

    def items(self, texts: Iterable[str], *, truncate: bool = True) -> list[OpenItem]:
        """Return open items whose end the flights hear of."""
        given = [
            GivenItem(index=index, body=text.encode(), key=cache_key(text))
            for index, text in enumerate(texts)
        ]
        asked = replace(work(0), items=tuple(given), truncate=truncate)
        items = Started(asked, deadline=1e9, settle=lambda _: None).items
        for item in items:
            item.work.owner = self.flights
        return items


@pytest.fixture
def scene(anyio_backend: str) -> Scene:
    return Scene()


async def test_the_items_of_a_request_are_led_together_or_none_of_them(scene: Scene) -> None:
    flights, items = scene.flights, scene.items("abc")

    is_led = flights.lead(items)
    others = [flights.lead(scene.items(texts)) for texts in ("da", "dd", "a")]

    assert is_led
    assert [flights.join(item.key) for item in items] == items
    assert others == [False, False, False]
    assert flights.join(cache_key("d")) is None
    assert flights.statistics().led == 3


async def test_of_many_who_ask_one_leads_and_the_others_join(scene: Scene) -> None:
    flights, (item,) = scene.flights, scene.items("a")
    flights.lead([item])
    joined = [flights.join(item.key) for _ in range(199)]

    settle([(item, DONE)])

    assert joined == [item] * 199
    assert item.followers == 199
    statistics = flights.statistics()
    assert (statistics.in_flight, statistics.led, statistics.joined) == (0, 1, 199)


async def test_after_the_outcome_the_next_leads_anew(scene: Scene) -> None:
    flights, (item,) = scene.flights, scene.items("a")
    flights.lead([item])
    settle([(item, DONE)])

    assert flights.join(item.key) is None
    assert flights.lead(scene.items("a"))


async def test_the_end_of_an_item_that_is_not_led_ends_no_other_of_its_key(scene: Scene) -> None:
    flights, (led,), (refreshed,) = scene.flights, scene.items("a"), scene.items("a")
    flights.lead([led])

    settle([(refreshed, DONE)])

    assert flights.join(led.key) is led


@pytest.mark.parametrize("truncate", [True, False])
async def test_who_refuses_truncation_joins_only_its_like(*, truncate: bool, scene: Scene) -> None:
    flights, (item,) = scene.flights, scene.items("a", truncate=truncate)
    flights.lead([item])

    found = {whole: flights.join(item.key, truncate=not whole) for whole in (False, True)}

    assert found == {truncate: None, not truncate: item}
    settle([(item, DONE)])
    assert flights.statistics().in_flight == 0
