"""Which late items are due to the work of others."""

import asyncio
from collections.abc import Sequence

import pytest

from sluicegate.gateway.dispatch.backend_call import BackendCall
from sluicegate.gateway.dispatch.failures import EXPIRED, shed
from sluicegate.gateway.dispatch.hedging import Latencies
from sluicegate.gateway.dispatch.overload import OverloadCauses
from sluicegate.gateway.dispatch.work import OpenItem
from sluicegate.gateway.types import Endpoint, ItemOutcome, Source
from tests.support.dispatch_scene import EU, US, Scene
from tests.support.dispatching import GivenWork, Started, served, work

pytestmark = pytest.mark.anyio


def call(endpoint: Endpoint, items: Sequence[OpenItem], *, began: float) -> BackendCall:
    """Return a call of items."""
    found = BackendCall(endpoint, work=items[0].work, latencies=Latencies(), began=began)
    found.add(items)
    return found


def opened(given: GivenWork, *, deadline: float) -> list[OpenItem]:
    """Return the items of work, which nobody waits for."""
    return Started(given, deadline=deadline, settle=lambda _: None).items


async def test_a_backend_that_refuses_others_explains_only_items_that_it_was_sent() -> None:
    now = asyncio.get_running_loop().time()
    items = opened(work(3), deadline=now + 60.0)
    first, second, third = items
    causes = OverloadCauses(Scene().fleet)
    silent, busy = (
        call(EU, [first, second], began=now),
        call(US, [second, third], began=now),
    )

    causes.note(US, first.work.model, [(first, shed(1.0))])
    late = ItemOutcome(source=Source.FAILED, failure=EXPIRED)
    explained = causes.explain([(item, late) for item in items], [silent, busy])

    found = {item.index: outcome.failure for item, outcome in explained}
    overloaded = {index for index, failure in found.items() if failure and failure.is_overload}
    assert found.keys() == {0, 1, 2}
    assert overloaded == {1, 2}


async def test_of_more_refusals_than_are_remembered_the_oldest_are_forgotten() -> None:
    causes = OverloadCauses(Scene().fleet)
    began = asyncio.get_running_loop().time()
    sent = {
        name: opened(work(1, model=served(name)), deadline=began + 60.0)
        for name in ("first", "second", "last")
    }
    others = [
        opened(work(1, model=served(f"model-{number}")), deadline=began) for number in range(1022)
    ]

    for items in (sent["first"], sent["second"], *others, sent["last"]):
        causes.note(EU, items[0].work.model, [(items[0], shed(1.0))])
    explained = {}
    for name, items in sent.items():
        late = ItemOutcome(source=Source.FAILED, failure=EXPIRED)
        ((_, outcome),) = causes.explain([(items[0], late)], [call(EU, items, began=began)])
        explained[name] = outcome.failure is not None and outcome.failure.is_overload

    assert explained == {"first": False, "second": True, "last": True}
