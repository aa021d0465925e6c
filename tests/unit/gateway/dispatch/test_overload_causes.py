"""Which late items are due to the work of others."""

import asyncio

import pytest
from msgspec.structs import replace

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.failures import EXPIRED, shed
from gateway.dispatch.overload import OverloadCauses
from gateway.types import ItemOutcome, Source
from tests.support.dispatch_scene import EU, US, Scene
from tests.support.dispatching import served, work

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("is_gathered", [False, True])
async def test_a_backend_that_refuses_others_explains_only_items_that_it_was_sent(
    *, is_gathered: bool
) -> None:
    sent = replace(work(3), is_gathered=is_gathered)
    first, second, third = sent.items
    causes = OverloadCauses(Scene().fleet)
    silent, busy = Attempt(EU, [first, second]), Attempt(US, [second, third])
    silent.started = busy.started = asyncio.get_running_loop().time()

    causes.note(US, sent.model, [(first, shed(1.0))])
    late = ItemOutcome(source=Source.FAILED, failure=EXPIRED)
    explained = causes.explain(
        [(item.index, late) for item in sent.items],
        sent,
        [silent, busy],
        deadline=silent.started + 60.0,
    )

    found = {index: outcome.failure for index, outcome in explained}
    overloaded = {index for index, failure in found.items() if failure and failure.is_overload}
    assert found.keys() == {0, 1, 2}
    assert overloaded == {1, 2}


async def test_of_more_refusals_than_are_remembered_the_oldest_are_forgotten() -> None:
    causes = OverloadCauses(Scene().fleet)
    began = asyncio.get_running_loop().time()
    sent = {name: work(1, model=served(name)) for name in ("first", "second", "last")}
    others = [work(1, model=served(f"model-{number}")) for number in range(1022)]

    for each in (sent["first"], sent["second"], *others, sent["last"]):
        causes.note(EU, each.model, [(each.items[0], shed(1.0))])
    explained = {}
    for name, each in sent.items():
        attempt = Attempt(EU, each.items)
        attempt.started = began
        late = ItemOutcome(source=Source.FAILED, failure=EXPIRED)
        ((_, outcome),) = causes.explain([(0, late)], each, [attempt], deadline=began + 60.0)
        explained[name] = outcome.failure is not None and outcome.failure.is_overload

    assert explained == {"first": False, "second": True, "last": True}
